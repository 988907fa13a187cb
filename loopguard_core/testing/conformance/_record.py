"""What happened in a run, seen from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopguard_core._events import SessionEnd
from loopguard_core.testing.conformance._driver import Turn
from loopguard_core.testing.personas import MARK
from loopguard_core.testing.recorder import Recorder


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
