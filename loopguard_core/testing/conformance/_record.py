"""What happened in a run, seen from outside."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopguard_core._events import DoomLoopDetected, PostModelCall, SessionEnd
from loopguard_core._hookspec import hookimpl
from loopguard_core.testing.conformance._driver import Turn
from loopguard_core.testing.personas import MARK


class Recorder:
    """A plugin that keeps every event, for tests. Safe to share between runs and threads.

    Attributes:
        loops: Every `DoomLoopDetected`.
        ends: Every `SessionEnd`.
        model_calls: Every `PostModelCall`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.loops: list[DoomLoopDetected] = []
        self.ends: list[SessionEnd] = []
        self.model_calls: list[PostModelCall] = []

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> None:
        """Keep the event."""
        with self._lock:
            self.loops.append(event)

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        """Keep the event."""
        with self._lock:
            self.ends.append(event)

    @hookimpl
    def post_model_call(self, event: PostModelCall) -> None:
        """Keep the event."""
        with self._lock:
            self.model_calls.append(event)

    def ladder(self) -> list[str]:
        """The actions with their streaks, such as `observe 2`, in order."""
        return [f"{event.action.value} {event.streak}" for event in self.loops]


@dataclass(slots=True)
class Record:
    """One script run through one driver.

    Attributes:
        turns: What the caller got, one a turn.
        executions: Every tool run that really happened: name and arguments.
        requests: Every request body the model got.
        recorder: Every event.
        history: The stored history after the last turn; None where the surface has none.
    """

    turns: list[Turn] = field(default_factory=list)
    executions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)
    history: Sequence[Mapping[str, Any]] | None = None

    @property
    def end(self) -> SessionEnd:
        """How the first turn's session ended."""
        return self.recorder.ends[0]

    def ran(self, tool: str) -> int:
        """How often a tool really ran."""
        return sum(name == tool for name, _ in self.executions)

    def told(self, request: int, role: str | None = None) -> list[str]:
        """What loopguard put before the model in one request, oldest first.

        Args:
            request: Number of the request, from 1; -1 is the last.
            role: Only messages with this role.
        """
        body = self.requests[request - 1 if request > 0 else request]
        texts = [
            str(message.get("content")) for message in body["messages"] if role is None or message.get("role") == role
        ]
        return [text for text in texts if MARK in text]


def unanswered_calls(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of tool calls without exactly one answer right after them: what makes providers refuse a history."""
    wrong: list[str] = []
    waiting: list[str] = []
    for message in history:
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id in waiting:
                waiting.remove(call_id)
            else:
                wrong.append(call_id)
            continue
        wrong += waiting
        waiting = [str(call["id"]) for call in message.get("tool_calls") or ()]
    return wrong + waiting
