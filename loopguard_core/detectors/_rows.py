"""Rows of a tool's rounds that bring the same, kept by tool and saved as they are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, get_args

from loopguard_core._bounded import count, short_text
from loopguard_core._similar import Likeness

MAX_TOOLS = 16
"""Tools with something to count; those counted longest ago go first."""


class Row:
    """One tool's rounds in a row that bring the same.

    Attributes:
        length: How many.
        since: Round of the first.
        last: Round of the last.
        varied: True once two of them were not equal to the letter.
        kind: How alike they are.
    """

    __slots__ = ("kind", "last", "length", "since", "varied")

    def __init__(self, length: int, since: int, last: int, varied: bool = False, kind: Likeness = "near") -> None:
        self.length = length
        self.since = since
        self.last = last
        self.varied = varied
        self.kind = kind


Rows = OrderedDict[str, Row]


def saved(rows: Rows) -> list[Any]:
    """As plain JSON."""
    return [[tool, row.length, row.since, row.last, int(row.varied), row.kind] for tool, row in rows.items()]


def restored(state: Any) -> Rows:
    """Take over what `saved` gave.

    Raises:
        ValueError: Not such a state.
        TypeError: Not such a state.
    """
    rows: Rows = OrderedDict()
    for tool, length, since, last, varied, kind in state[-MAX_TOOLS:]:
        known: Likeness = kind if kind in get_args(Likeness) else "near"
        rows[short_text(tool)] = Row(count(length), count(since), count(last), bool(varied), known)
    return rows
