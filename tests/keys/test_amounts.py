"""Dollars outside, nano-dollars inside."""

import decimal
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopguard_core import LoopGuardError
from loopguard_core._dollars import dollars_text
from loopguard_core.keys import LedgerValueError, open_ledger
from loopguard_core.keys._amounts import MAX_DOLLARS, to_dollars, to_nano

amounts = st.decimals(min_value=0, max_value=MAX_DOLLARS, allow_nan=False, allow_infinity=False)


@given(amounts)
def test_rounding_goes_against_the_spender_and_never_by_a_nano_dollar(amount: Decimal) -> None:
    with decimal.localcontext() as context:
        context.prec = 200
        up, down = to_nano("a", amount), to_nano("a", amount, round_up=False)
        assert down <= amount * 10**9 <= up
        assert up - down == (0 if amount * 10**9 == down else 1)


@given(st.integers(0, MAX_DOLLARS * 10**9))
def test_what_is_inside_comes_out_exactly_and_goes_back(nano: int) -> None:
    assert to_nano("a", to_dollars(nano)) == nano
    assert to_nano("a", str(to_dollars(nano))) == nano


@pytest.mark.parametrize(
    ("amount", "nano"),
    [
        ("0", 0),
        (1, 10**9),
        ("0.000000001", 1),
        ("0.0000000001", 1),
        ("1e-999999", 1),
        (Decimal("25.10"), 25_100_000_000),
        ("1e6", 10**15),
    ],
)
def test_amounts(amount: object, nano: int) -> None:
    assert to_nano("amount", amount) == nano


def test_the_callers_decimal_context_does_not_matter() -> None:
    with decimal.localcontext() as context:
        context.prec = 2
        context.traps[decimal.Inexact] = True
        assert to_nano("amount", Decimal("123456.123456789")) == 123456123456789
        assert to_dollars(123456123456789) == Decimal("123456.123456789")


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0.1, 'must not be a float, which is not exact; write Decimal("0.1")'),
        (float("nan"), "must not be a float"),
        (True, "not true or false"),
        (Decimal("NaN"), "must be a finite amount"),
        (Decimal("sNaN"), "must be a finite amount"),
        (Decimal("Infinity"), "must be a finite amount"),
        ("inf", "must be a finite amount"),
        (Decimal("-0.01"), "must be 0 or more"),
        (-1, "must be 0 or more"),
        (1_000_001, "must be between 0 and 1,000,000"),
        (Decimal("1e400"), "at most 1,000,000"),
        pytest.param(10**5000, "must be between", id="thousands of digits"),
        ("", "must be a number of US dollars such as 0.50"),
        ("1,50", "must be a number of US dollars"),
        ("9" * 200, "must be an amount"),
        (None, "must be an amount"),
        (b"1", "must be an amount"),
        ([], "must be an amount"),
    ],
)
def test_what_is_no_amount_is_refused_with_field_value_and_fix(amount: object, said: str) -> None:
    with pytest.raises(LedgerValueError) as caught:
        to_nano("amount", amount)
    assert str(caught.value).startswith("amount = ")
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LoopGuardError)


def test_every_way_in_checks_amounts() -> None:
    with open_ledger("memory://") as ledger:
        held = ledger.reserve("k", 1)
        for way in (ledger.set_limit, ledger.reserve, ledger.spend):
            with pytest.raises(LedgerValueError, match="float"):
                way("k", 0.5)  # type: ignore[operator]
        with pytest.raises(LedgerValueError, match=r"actual = -1"):
            ledger.settle(held, -1)
        assert ledger.status("k").reserved == 1


def test_limits_are_rounded_down_and_amounts_up() -> None:
    with open_ledger("memory://") as ledger:
        ledger.set_limit("k", Decimal("0.0000000019"))
        assert ledger.status("k").limit == Decimal("0.000000001")
        assert ledger.reserve("k", Decimal("0.0000000001")).amount == Decimal("0.000000001")


@pytest.mark.parametrize(
    ("amount", "text"), [("0", "$0.00"), ("0.5", "$0.50"), ("25", "$25.00"), ("0.000000020", "$0.00000002")]
)
def test_amounts_for_people(amount: str, text: str) -> None:
    assert dollars_text(Decimal(amount)) == text
