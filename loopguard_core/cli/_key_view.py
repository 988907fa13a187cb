"""How `loopguard key` shows money: tables, bars, and JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopguard_core.keys import KeyStatus

_BAR, _SMALL_BAR, _DAY_BAR = 40, 10, 30
_NEARLY = Decimal("0.8")
_EVERY = {"daily": "a day", "weekly": "a week", "monthly": "a month", "none": "in all"}


def as_dict(status: KeyStatus) -> dict[str, Any]:
    """A key as plain JSON. Amounts are numbers of dollars, which JSON's readers take back exactly up to a million."""
    return {
        "name": status.key,
        "limit": _number(status.limit),
        "spent": _number(status.spent),
        "reserved": _number(status.reserved),
        "remaining": _number(status.remaining),
        "reset": status.reset,
        "resets_at": None if status.resets_at is None else status.resets_at.isoformat(),
    }


def history_as_dict(history: Mapping[dt.date, Decimal]) -> dict[str, float | None]:
    """Spending by day as plain JSON."""
    return {day.isoformat(): _number(amount) for day, amount in history.items()}


def print_list(console: Console, statuses: Sequence[KeyStatus], address: str) -> None:
    """All keys, a line each."""
    if not statuses:
        console.print(
            Text(f"No keys in {address}. `loopguard key create NAME --limit 25 --reset monthly` makes one."),
            soft_wrap=True,
        )
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("key", overflow="fold", min_width=8)
    for name in ("limit", "spent", "held", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("afresh", no_wrap=True)
    for status in statuses:
        table.add_row(
            _printable(console, status.key),
            "-" if status.limit is None else f"{_dollars(status.limit)} {_EVERY[status.reset]}",
            _dollars(status.spent),
            _dollars(status.reserved) if status.reserved else "-",
            "-" if status.remaining is None else Text(_dollars(status.remaining), style=_style(status)),
            _bar(console, status, _SMALL_BAR),
            "never" if status.resets_at is None else f"{status.resets_at:%Y-%m-%d}",
        )
    console.print(table)
    console.print(Text(address, style="dim"), soft_wrap=True)


def print_key(console: Console, status: KeyStatus, history: Mapping[dt.date, Decimal], address: str) -> None:
    """One key: its period as a bar, its days as bars below each other."""
    facts = Table.grid(padding=(0, 2))
    limit = "none: counted, not limited"
    if status.limit is not None:
        limit = f"{_dollars(status.limit)} {_EVERY[status.reset]}"
    facts.add_row("limit", limit)
    facts.add_row("spent", f"{_dollars(status.spent)}{_share(status)}")
    facts.add_row("reserved", f"{_dollars(status.reserved)} by calls that are running")
    if status.remaining is not None:
        facts.add_row("left", Text(_dollars(status.remaining), style=_style(status)))
    if status.resets_at is not None:
        facts.add_row("afresh", f"{status.resets_at:%Y-%m-%d %H:%M} UTC")
    facts.add_row("store", Text(address))
    console.print(_printable(console, status.key, style="bold"), soft_wrap=True)
    console.print(facts, soft_wrap=True)
    bar = _bar(console, status, _BAR)
    if bar:
        console.print()
        console.print(bar)
    if history:
        console.print()
        console.print(_days(console, status.today, history))


def _days(console: Console, today: dt.date, history: Mapping[dt.date, Decimal]) -> Table:
    full = _signs(console)[0]
    most = max(history.values()) or Decimal(1)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("day (UTC)", no_wrap=True)
    table.add_column("spent", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    day = min(history)
    while day <= today:
        amount = history.get(day, Decimal(0))
        length = max(int(amount / most * _DAY_BAR), 1) if amount else 0
        style = "bold" if day == today else "dim" if day.weekday() >= 5 else ""  # Saturdays and Sundays
        table.add_row(Text(f"{day:%a} {day}", style=style), _dollars(amount), Text(full * length, style="cyan"))
        day += dt.timedelta(days=1)
    return table


def _bar(console: Console, status: KeyStatus, width: int) -> Text:
    if not status.limit:
        return Text()
    full, held, free = _signs(console)
    spent = _length(status.spent, status.limit, width)
    reserved = min(_length(status.reserved, status.limit, width), width - spent)
    return Text.assemble(
        (full * spent, _style(status)), (held * reserved, "blue"), (free * (width - spent - reserved), "dim")
    )


def _length(amount: Decimal, limit: Decimal, width: int) -> int:
    # A little spending is seen, and a bar is full only when the limit is.
    if not amount:
        return 0
    return width if amount >= limit else min(max(int(amount / limit * width), 1), width - 1)


def _signs(console: Console) -> tuple[str, str, str]:
    return ("█", "▒", "░") if console.encoding.lower().startswith("utf") else ("#", "=", ".")


def _style(status: KeyStatus) -> str:
    if not status.limit or not status.remaining:
        return "red" if status.limit is not None else ""
    return "yellow" if status.spent + status.reserved >= status.limit * _NEARLY else "green"


def _share(status: KeyStatus) -> str:
    if not status.limit:
        return ""
    return f" ({status.spent / status.limit:.0%} of the limit)"


def _dollars(amount: Decimal) -> str:
    """Cents for larger amounts; of small ones the first two digits that are not 0."""
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    whole, _, decimals = f"{amount:.{max(2, 1 - amount.adjusted())}f}".partition(".")
    return f"${whole}.{decimals.rstrip('0').ljust(2, '0')}"


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


def _printable(console: Console, name: str, style: str = "") -> Text:
    encoding = console.encoding
    return Text(name.encode(encoding, "replace").decode(encoding), style=style)
