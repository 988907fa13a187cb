"""What happened in a run, seen from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopguard_core._events import DoomLoopDetected, SessionEnd
from loopguard_core.keys import KeyStatus
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
        key: The script's key in its store, after everything; None without one, or if the store is down.
        logged: What loopguard logged, from warnings on.
    """

    turns: list[Turn] = field(default_factory=list)
    executions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)
    history: Sequence[Mapping[str, Any]] | None = None
    key: KeyStatus | None = None
    logged: list[str] = field(default_factory=list)

    @property
    def end(self) -> SessionEnd:
        """How the first turn's session ended."""
        return self.recorder.ends[0]

    def ran(self, tool: str) -> int:
        """How often a tool really ran."""
        return sum(name == tool for name, _ in self.executions)

    def lines(self) -> list[str]:
        """All that must be the same wherever a script runs, line by line, without ids and without the SDK's name."""
        told: list[str] = []
        for number in range(1, len(self.requests) + 1):
            known = set() if number == 1 else set(self.told(number - 1, "tool"))
            new = [text for text in self.told(number, "tool") if text not in known] + self.told(number, "user")
            told += [f"model call {number} reads: {text}" for text in new]
        ran = [f"ran: {name} {json.dumps(arguments, sort_keys=True)}" for name, arguments in self.executions]
        return [
            *(_loop_line(event) for event in self.recorder.loops),
            *told,
            *sorted(ran),  # calls of one round may run at once: which of them begins first is chance
            *(_end_line(event) for event in self.recorder.ends),
            *(_turn_line(turn) for turn in self.turns),
        ]

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

    def told_counts(self, role: str | None = None) -> list[int]:
        """How much loopguard put before the model in each request."""
        return [len(self.told(number, role)) for number in range(1, len(self.requests) + 1)]


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


def _loop_line(event: DoomLoopDetected) -> str:
    what = f"{event.detector} {event.action.value} at {event.streak}, ladder says {event.proposed.value}"
    # What it cost hangs on how each SDK words a request.
    evidence = {key: value for key, value in event.evidence.items() if not key.startswith("wasted_")}
    about = f"{event.tool or event.channel} {event.fingerprint} {json.dumps(evidence, sort_keys=True)}"
    return f"round {event.round}, message {event.message_index}: {what}: {about}: {event.message}"


def _end_line(event: SessionEnd) -> str:
    verdict = event.verdict
    by = "nothing" if verdict is None else f"{verdict.detector} {verdict.action.value} at {verdict.streak}"
    counts = f"{event.turns} rounds, {event.model_calls} model calls, {event.tool_calls} tool calls"
    return f"SessionEnd {event.reason}: {counts}, ended by {by}: {event.message} {event.error or ''}".rstrip()


def _turn_line(turn: Turn) -> str:
    if turn.error is not None:
        return f"raised: {turn.error}"
    text = turn.text or ""
    return f"answer: {text[max(0, text.find(MARK)) :]}"  # what was written before a stop, some SDKs keep
