"""Amounts of money: the resolution they are kept in, and how people are told."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal

PLACES = 18
"""Decimals that are kept of a dollar. A token of the cheapest model is a figure in the eighth."""

MOST_DOLLARS = 10**15
"""The most one amount may be; a hostile exponent, written out, has a million digits."""

_PLACE = Decimal(f"1E-{PLACES}")
_MOST = Decimal(MOST_DOLLARS)


def kept(amount: Decimal) -> Decimal | None:
    """An amount with no more decimals than are kept, as it is written where it has none; None if it is no amount.

    Args:
        amount: US dollars.
    """
    if not amount.is_finite() or not 0 <= amount <= MOST_DOLLARS:
        return None
    exponent = amount.as_tuple().exponent
    if type(exponent) is int and -PLACES <= exponent <= PLACES:
        return amount.copy_abs()  # there is a zero below zero
    rounded = amount.copy_abs().quantize(_PLACE, context=_exact())
    return Decimal(f"{rounded:f}".rstrip("0").rstrip("."))


def total(one: Decimal, other: Decimal) -> Decimal:
    """The sum of two amounts, whatever precision the caller works with; no more than one amount may be."""
    return min(_exact().add(one, other), _MOST)


def _exact() -> Context:
    return Context(prec=60, rounding=ROUND_HALF_EVEN, traps=[])


def dollars_text(amount: Decimal) -> str:
    """An amount in US dollars: at least two decimals, no zeros after those."""
    return f"${plain_dollars(amount)}"


def plain_dollars(amount: Decimal) -> str:
    """The same without the sign, for JSON."""
    whole, _, decimals = f"{amount:f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
