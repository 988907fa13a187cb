"""Drives a session round by round, as an agent loop would."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from loopguard_core import Decision, LoopGuard, Session, ToolCall
from loopguard_core._ladder import DETECTORS

NOTHING = object()
"""In place of a result: none is recorded."""


def only(*names: str, **more: Any) -> dict[str, Any]:
    """A policy with these detectors alone."""
    return {"detectors": {name: {"enabled": name in names} for name in DETECTORS}, **more}


def calls_of(calls: Iterable[Any]) -> list[ToolCall]:
    """`(tool, arguments, ...)` as calls with ids of their own."""
    return [ToolCall(f"c{place}", call[0], call[1] if len(call) > 1 else {}) for place, call in enumerate(calls)]


class Run:
    """One agent run. A refused call gets loopguard's words for a result, as in an SDK.

    Args:
        policy: Of the guard.
        resumed: Whether the session is saved and resumed before every round.
    """

    def __init__(self, policy: Any = None, *, resumed: bool = False) -> None:
        self.guard = LoopGuard({} if policy is None else policy)
        self.session: Session = self.guard.session()
        self.resumed = resumed
        self.number = 0

    def __call__(
        self, tool: str, arguments: Any = None, result: Any = "ok", *, failed: bool | None = None, hints: Any = None
    ) -> Decision:
        """A round of one call."""
        self._resume()
        call = ToolCall("c0", tool, {} if arguments is None else arguments, annotations=hints)
        (decision,) = self.session.begin_round([call])
        self._record("c0", decision, result, failed)
        return decision

    def round(self, *calls: Any) -> list[Decision]:
        """A round of `(tool, arguments, result)`s."""
        self._resume()
        decisions = self.session.begin_round(calls_of(calls))
        for place, (call, decision) in enumerate(zip(calls, decisions, strict=True)):
            self._record(f"c{place}", decision, call[2] if len(call) > 2 else "ok", None)
        return decisions

    def news(self, times: int = 1) -> None:
        """Rounds of another tool, each of which brings something new."""
        for _ in range(times):
            self(
                "look_around",
                {"place": self.session.turns},
                f"A new thing was found at place {self.session.turns * 7919}.",
            )

    def _record(self, call_id: str, decision: Decision, result: Any, failed: bool | None) -> None:
        if decision.blocked:
            self.session.record_result(call_id, decision.message)
        elif result is not NOTHING:
            self.session.record_result(call_id, result, failed)

    def _resume(self) -> None:
        if self.resumed:
            text = json.dumps(self.session.save(), allow_nan=False, separators=(",", ":"))
            assert len(text) <= 32 * 1024
            self.session = self.guard.session(state=json.loads(text))


def shown(decision: Decision) -> tuple[str, str | None, int] | None:
    """Detector, action and figure of a decision's verdict; None if there is none."""
    verdict = decision.verdict
    return None if verdict is None else (verdict.detector, verdict.action.value, verdict.streak)


def actions(decisions: Iterable[Decision]) -> list[str | None]:
    """The action of each decision, as text."""
    return [None if decision.action is None else decision.action.value for decision in decisions]


def first_at(found: Mapping[int, str | None] | list[str | None]) -> dict[str, int]:
    """The first round, from 1, at which each action was taken."""
    rows = found.items() if isinstance(found, Mapping) else enumerate(found, 1)
    first: dict[str, int] = {}
    for number, action in rows:
        if action is not None:
            first.setdefault(action, number)
    return first
