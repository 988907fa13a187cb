"""Money: `Decimal` dollars outside, whole nano-dollars inside.

A nano-dollar is a billionth of a dollar: a token of the cheapest model costs about twenty. Whole numbers because sums
of them are exact in every store, and nano because Redis compares numbers as doubles, which are exact up to nine
million dollars in this unit. What does not fit is rounded up, against the spender: a limit never holds less than it
says, by at most a nano-dollar a call.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation, localcontext

from loopguard_core._policy_errors import shown
from loopguard_core.keys._errors import LedgerValueError

NANO = 1_000_000_000
"""Nano-dollars in a dollar."""

MAX_DOLLARS = 1_000_000
"""The most any one amount may be, in dollars. More is taken for a slip of the pen."""

Amount = Decimal | int | str
"""Dollars. A text is read as a decimal number, exactly as written."""


def to_nano(field: str, value: object, *, round_up: bool = True) -> int:
    """Whole nano-dollars for an amount from outside.

    Args:
        field: What the amount is called, for the error.
        value: Dollars: a `Decimal`, a whole number, or the text of a decimal number.
        round_up: Up for what is spent or held, down for limits: each time against the spender.

    Raises:
        LedgerValueError: It is a float, a bool, negative, not finite, or above a million.
    """
    amount = _decimal(field, value)
    if not amount.is_finite():
        raise _wrong(field, value, "must be a finite amount")
    if amount < 0:
        raise _wrong(field, value, "must be 0 or more; money is never given back by spending less than nothing")
    if amount > MAX_DOLLARS:
        raise _wrong(field, value, f"must be at most {MAX_DOLLARS:,} US dollars; check the unit")
    with localcontext() as context:
        context.prec = 60  # whatever precision the caller works with
        context.Emax, context.Emin = 999_999, -999_999
        context.traps = dict.fromkeys(context.traps, False)
        scaled = amount.scaleb(9).to_integral_value(ROUND_CEILING if round_up else ROUND_FLOOR)
    return int(scaled)


def to_dollars(nano: int) -> Decimal:
    """Dollars, exactly, with at least two decimals."""
    whole, decimals = divmod(nano, NANO)  # an amount from a store is never negative
    return Decimal(f"{whole}.{f'{decimals:09d}'.rstrip('0').ljust(2, '0')}")


def _decimal(field: str, value: object) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool):
        raise _wrong(field, value, "must be an amount in US dollars, not true or false")
    if isinstance(value, int):
        # Before Decimal(), which takes quadratic time over thousands of digits.
        if abs(value) > MAX_DOLLARS:
            raise _wrong(field, value, f"must be between 0 and {MAX_DOLLARS:,} US dollars")
        return Decimal(value)
    if isinstance(value, str) and len(value) <= 100:
        try:
            return Decimal(value)
        except InvalidOperation:
            raise _wrong(field, value, "must be a number of US dollars such as 0.50") from None
    if isinstance(value, float):
        fix = f'write Decimal("{value!r}")' if value == value and abs(value) < MAX_DOLLARS else "write a Decimal"
        raise _wrong(field, value, f"must not be a float, which is not exact; {fix}")
    raise _wrong(field, type(value).__name__, 'must be an amount in US dollars, such as Decimal("0.50")')


def _wrong(field: str, value: object, text: str) -> LedgerValueError:
    return LedgerValueError(f"{field} = {shown(value)}: {text}")
