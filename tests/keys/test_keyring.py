"""Secrets: shown once, stored hashed, found again."""

import pathlib

import pytest

from loopguard_core.keys import LedgerValueError, open_keyring, open_ledger


def test_create_verify_revoke(url: str) -> None:
    with open_keyring(url) as keyring:
        secret = keyring.create("billing")
        other = keyring.create("search")
        assert secret.startswith("lg-")
        assert len(secret) == 46
        assert keyring.verify(secret) == "billing"
        assert keyring.verify(other) == "search"
        assert keyring.names() == ["billing", "search"]
        with pytest.raises(LedgerValueError, match="has a secret already"):
            keyring.create("billing")
        assert keyring.verify(secret) == "billing"
        new = keyring.create("billing", replace=True)
        assert keyring.verify(secret) is None
        assert keyring.verify(new) == "billing"
        assert keyring.revoke("billing")
        assert not keyring.revoke("billing")
        assert keyring.verify(new) is None
        assert keyring.names() == ["search"]


@pytest.mark.parametrize(
    "shown", ["", "lg-", "lg-x", "sk-abc", None, 7, b"lg-x", "lg-" + "x" * 10_000, "lg-\ud800", "LG-" + "x" * 43]
)
def test_whatever_clients_send_opens_nothing(url: str, shown: object) -> None:
    with open_keyring(url) as keyring:
        keyring.create("billing")
        assert keyring.verify(shown) is None


def test_the_secret_is_not_in_the_store(sqlite_url: str, tmp_path: pathlib.Path) -> None:
    with open_keyring(sqlite_url) as keyring, open_ledger(sqlite_url) as ledger:
        secret = keyring.create("billing")
        ledger.spend("billing", 1)
        content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"billing" in content
    assert secret.encode() not in content
    assert secret[3:].encode() not in content


def test_secrets_and_accounting_are_apart(url: str) -> None:
    with open_keyring(url) as keyring, open_ledger(url) as ledger:
        secret = keyring.create("a")
        ledger.spend("b", 1)
        assert (keyring.names(), ledger.names()) == (["a"], ["b"])
        ledger.spend("a", 1)
        assert ledger.delete("a")
        assert keyring.verify(secret) == "a"
