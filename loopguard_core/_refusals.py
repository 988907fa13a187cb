"""What to say in place of a result, for callers that run a call far from where its round was judged."""

from __future__ import annotations

from collections.abc import Sequence

from loopguard_core import _messages
from loopguard_core._bounded import bounded_key, call_key
from loopguard_core._scored import ScoredRound
from loopguard_core._types import Decision

_WORDED = 4  # refusals of one round that keep their own words; the rest share a short text


class Refusals:
    """Id, tool and refusal of every call of a round, small enough to keep while it runs.

    Args:
        scored: The round.
        decisions: The answers to its calls, in the same order.
    """

    __slots__ = ("_rows",)

    def __init__(self, scored: ScoredRound, decisions: Sequence[Decision]) -> None:
        self._rows: list[tuple[str, str, str | None]] = []
        worded = 0
        for row, decision in zip(scored.calls, decisions, strict=True):
            message = decision.message
            if message is not None:
                worded += 1
                message = message if worded <= _WORDED else _messages.not_executed_again()
            self._rows.append((row.id, "" if row.observed is None else row.observed.tool_key, message))

    def of(self, call_id: str | None, tool: str | None) -> str | None:
        """The text if every call that fits is refused; see `Session.refusal`."""
        id_key, tool_key = call_key(call_id or ""), bounded_key(tool or "")
        found = [
            message
            for known, name, message in self._rows
            if (not call_id or known == id_key) and (not tool or name in ("", tool_key))
        ]
        return found[0] if found and None not in found else None
