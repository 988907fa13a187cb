"""Amounts of money for people."""

from __future__ import annotations

from decimal import Decimal


def dollars_text(amount: Decimal) -> str:
    """An amount in US dollars: at least two decimals, no zeros after those."""
    return f"${plain_dollars(amount)}"


def plain_dollars(amount: Decimal) -> str:
    """The same without the sign, for JSON."""
    whole, _, decimals = f"{amount:f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
