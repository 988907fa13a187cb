"""Plugins and detectors of one's own, the recorder, telemetry. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, assert_type

from loopguard_core import (
    Action,
    Detector,
    DoomLoopDetected,
    Finding,
    JudgedCall,
    Ladder,
    LoopGuard,
    ObservedCall,
    PluginError,
    Policy,
    PostModelCall,
    ResultRecorded,
    RoundJudged,
    Session,
    SessionEnd,
    Usage,
    Verdict,
    hookimpl,
)
from loopguard_core.detectors import Past, RepeatedCall
from loopguard_core.otel import MAX_VALUES, OpenTelemetryPlugin
from loopguard_core.recorder import MAX_BYTES, ROLE, VERSION, FileRecorder


class Rooms(Detector):
    """Counts visits of one room."""

    name: ClassVar[str] = "acme.rooms"
    ladder: ClassVar[Ladder] = Ladder(observe=2, steer=3)

    def __init__(self) -> None:
        self._visits: dict[str, int] = {}

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        findings: list[Finding] = []
        for call in calls:
            past: Past | None = call.past
            if past is not None and isinstance(call.arguments, dict):
                self._visits[call.identity] = self._visits.get(call.identity, 0) + 1
                findings.append(Finding(self._visits[call.identity], since=number, identity=call.identity))
        return findings

    def describe(self, finding: Finding, tool: str | None) -> str:
        return f"`{tool}` went into the same room {finding.streak} times"

    def user_turn(self) -> None:
        self._visits.clear()

    def save(self) -> Any:
        return self._visits

    def restore(self, state: Any) -> None:
        self._visits = dict(state)


class Everything:
    """Every hook there is."""

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> Action | None:
        assert_type(event.proposed, Action)
        assert_type(event.streak, int)
        assert_type(event.session_id, str)
        verdict: Verdict = event
        return Action.STEER if verdict.action is Action.BLOCK else None

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        assert_type(event.verdict, Verdict | None)
        assert_type(event.usage, Usage)
        assert_type(event.duration, float)

    @hookimpl
    async def post_model_call(self, event: PostModelCall) -> None:
        assert_type(event.total.cost, Decimal | None)
        assert_type(event.duration, float | None)

    @hookimpl
    def round_judged(self, event: RoundJudged) -> None:
        assert_type(event.calls, tuple[JudgedCall, ...])

    @hookimpl
    def result_recorded(self, event: ResultRecorded) -> None:
        assert_type(event.failed, bool)

    @hookimpl
    def loop_key(self, tool: str, arguments: Any) -> Any:
        return False if tool == "noop" else None

    @hookimpl
    def detectors(self, policy: Policy) -> Iterable[Detector]:
        return [Rooms(), RepeatedCall(lowest=2)] if policy.enabled else []

    @hookimpl
    def stop_when(self, session: Session) -> str | None:
        return "long enough" if session.turns > 99 else None


def redact(line: dict[str, Any]) -> Mapping[str, Any] | None:
    return None if line.get("type") == "session" else line


def plugged(directory: Path) -> LoopGuard:
    recorder = FileRecorder(directory, redact, max_bytes=MAX_BYTES)
    assert_type(recorder.path_of("run-1"), str)
    print(ROLE, VERSION, MAX_VALUES)
    try:
        return LoopGuard(plugins=[recorder, OpenTelemetryPlugin(tools=["fetch_invoice"]), Everything()])
    except PluginError:
        return LoopGuard()
