"""Names of keys, and what of them is shown."""

import pytest

from loopguard_core.keys import KeyLimitExceeded, LedgerValueError, open_keyring, open_ledger
from loopguard_core.keys._names import check_name, check_names, shown_name


@pytest.mark.parametrize("name", ["a", "billing-agents", "team/alice@example.com", "ключ", "鍵 1", "x" * 128, "{a}:b"])
def test_names_that_can_be_used(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "must not be empty"),
        ("x" * 129, "at most 128 characters"),
        ("a\nb", "printable"),
        ("a\x1b[31m", "printable"),
        ("a\u202eb", "printable"),
        ("\ud800", "printable"),
        (" a", "space"),
        (None, "must be text"),
        (b"a", "must be text"),
        (1, "must be text"),
    ],
)
def test_names_that_cannot(name: object, said: str) -> None:
    with pytest.raises(LedgerValueError, match="key = ") as caught:
        check_name(name)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_several_names_are_a_list_each_counted_once() -> None:
    assert check_names(["b", "a", "b"]) == ("b", "a")
    assert check_names("ab") == ("ab",)
    with pytest.raises(LedgerValueError, match="at least one"):
        check_names([])
    with pytest.raises(LedgerValueError, match="at most 16"):
        check_names([str(number) for number in range(17)])
    with pytest.raises(LedgerValueError, match="list of names"):
        check_names(None)


def test_a_secret_is_no_name_and_is_not_shown() -> None:
    with open_keyring("memory://") as keyring:
        secret = keyring.create("billing")
    with pytest.raises(LedgerValueError, match="this is a key's secret") as caught:
        check_name(secret)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("name", ["sk-proj-abcdefghijklmnopqrstuvwx", "A" * 44, "sk_live_0123456789abcdefghij"])
def test_a_name_that_looks_like_a_secret_is_cut_in_errors(name: str) -> None:
    assert name not in shown_name(name)
    with open_ledger("memory://") as ledger:
        ledger.set_limit(name, 0)
        with pytest.raises(KeyLimitExceeded) as caught:
            ledger.reserve(name, 1)
        assert name not in str(caught.value)
        assert caught.value.key == name
