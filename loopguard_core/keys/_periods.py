"""Periods: daily, weekly from Monday, monthly, or one without end. All of them in UTC, all made of whole days.

A day is counted in days since 1970-01-01. Money is kept by day, so changing a key's reset moves no money: the same
days are only added up over another stretch.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal, get_args

from loopguard_core._policy_errors import shown
from loopguard_core.keys._errors import LedgerValueError

Reset = Literal["daily", "weekly", "monthly", "none"]

FIRST_DAY, END_OF_DAYS = -(2**31), 2**31
"""The stretch of a key that never starts afresh."""

DAY_MS = 86_400_000
_EPOCH = dt.date(1970, 1, 1)


def check_reset(value: object) -> Reset:
    """The reset; None is `none`.

    Raises:
        LedgerValueError: There is no such reset.
    """
    if value is None:
        return "none"
    for known in get_args(Reset):
        if value == known:
            return known  # type: ignore[no-any-return]  # get_args is untyped
    raise LedgerValueError(f"reset = {shown(value)}: must be one of {', '.join(get_args(Reset))}")


def day_of(now_ms: int) -> int:
    """The day of a time in milliseconds since 1970."""
    return now_ms // DAY_MS


def period(reset: Reset, day: int) -> tuple[int, int]:
    """The stretch of days `day` belongs to: its first day, and the first day after it."""
    if reset == "daily":
        return day, day + 1
    if reset == "weekly":
        monday = day - (day + 3) % 7  # 1970-01-01 was a Thursday
        return monday, monday + 7
    if reset == "monthly":
        first = date_of(day).replace(day=1)
        after = (first + dt.timedelta(days=31)).replace(day=1)
        return day_number(first), day_number(after)
    return FIRST_DAY, END_OF_DAYS


def date_of(day: int) -> dt.date:
    """The date of a day."""
    return _EPOCH + dt.timedelta(days=day)


def day_number(date: dt.date) -> int:
    """The day of a date."""
    return (date - _EPOCH).days


def resets_at(reset: Reset, day: int) -> dt.datetime | None:
    """The moment the period of `day` ends and the next begins; None where it never does."""
    if reset == "none":
        return None
    return dt.datetime.combine(date_of(period(reset, day)[1]), dt.time(), dt.UTC)
