"""Rows of a tool's rounds that bring the same, kept by tool and saved as they are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, get_args

from loopguard_core._bounded import count, short_text
from loopguard_core._history import History
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


class RowsByTool:
    """What one rule counts, tool by tool.

    Args:
        history: What the session has seen.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._rows: OrderedDict[str, Row] = OrderedDict()

    def clear(self) -> None:
        """Forget."""
        self._rows.clear()

    def save(self) -> Any:
        """As plain JSON."""
        return [[tool, row.length, row.since, row.last, int(row.varied), row.kind] for tool, row in self._rows.items()]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
            TypeError: Not such a state.
        """
        rows: OrderedDict[str, Row] = OrderedDict()
        for tool, length, since, last, varied, kind in state[-MAX_TOOLS:]:
            known: Likeness = kind if kind in get_args(Likeness) else "near"
            rows[short_text(tool)] = Row(count(length), count(since), count(last), bool(varied), known)
        self._rows = rows
