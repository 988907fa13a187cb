"""Arguments, results, texts and errors never reach logs, events, messages or saved state by default."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from loopguard_core import (
    Channel,
    Detector,
    DoomLoopDetected,
    Finding,
    LoopGuard,
    ObservedCall,
    Session,
    ToolCall,
    Usage,
    fingerprint,
    hookimpl,
)
from loopguard_core._ladder import Ladder

SECRET = "hunter2"
ARGUMENTS = {"password": SECRET, SECRET: [1, {"deep": SECRET}]}
RESULT = {"token": SECRET, "note": f"Error: {SECRET}"}


class Listens(Detector):
    """Fires on everything and then breaks, with the text in its hands."""

    name: ClassVar[str] = "acme.listens"
    ladder: ClassVar[Ladder] = Ladder(steer=1)

    def feed_text(self, delta: str, channel: Channel) -> Finding | None:
        raise ValueError(delta)

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        raise ValueError([call.arguments for call in calls])


class Plugin:
    """Raises with whatever it was given."""

    def __init__(self) -> None:
        self.events: list[DoomLoopDetected] = []

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> Any:
        self.events.append(event)
        raise ValueError(repr(event), SECRET)

    @hookimpl
    def loop_key(self, tool: str, arguments: Any) -> Any:
        if tool == "raising":
            raise ValueError(arguments)

    @hookimpl
    def detectors(self) -> list[Detector]:
        return [Listens()]

    @hookimpl
    def stop_when(self, session: Session) -> Any:
        return [SECRET]


class Unreadable:
    """Raises with its secret when looked at."""

    def __init__(self) -> None:
        self.secret = SECRET

    def __str__(self) -> str:
        raise ValueError(self.secret)

    __repr__ = __str__


def by_key(arguments: Any) -> Any:
    raise KeyError(arguments["password"])


POLICY: dict[str, Any] = {
    "ladder": {"steer": 2},
    "tools": {"by_function": {"loop_key": by_key}, "by_field": {"loop_key": ["absent"], "normalize": ["casefold"]}},
    "limits": {"tokens": 10_000, "cost": 100},
}


def everything(guard: LoopGuard) -> Iterator[str]:
    """A run in which everything happens that could give a secret away, and everything it leaves behind."""
    session = guard.session("run")
    tools = ("plain", "raising", "by_function", "by_field")
    for turn in range(6):
        directive = session.before_model_call("model")
        yield repr(directive)
        session.feed_text(SECRET, "reasoning")
        session.feed_text(SECRET)
        yield repr(session.end_message())
        session.after_model_call("model", Usage(input_tokens=1, output_tokens=1))
        calls = [
            *(ToolCall(tool, tool, ARGUMENTS) for tool in tools),
            ToolCall("text", "plain", json.dumps(ARGUMENTS)),
            ToolCall("invalid", "plain", f'{{"password": "{SECRET}'),
            ToolCall("bytes", "plain", SECRET.encode()),
            ToolCall("odd", "plain", Unreadable()),
        ]
        for decision in session.begin_round(calls):
            yield repr(decision)
        yield json.dumps(session.save())
        for call in calls:
            session.record_result(call.id, RESULT if turn % 2 else json.dumps(RESULT))
        session.record_result("plain", ValueError(SECRET))
        session.record_result("raising", Unreadable())
        session.record_result("unknown", RESULT)
        session.model_call_failed(ValueError(SECRET))
        yield json.dumps(session.save())
    session.restore({"version": 1, "counters": SECRET, "round": [SECRET], "stop": {"reason": SECRET}})
    yield repr(session.final_answer())
    yield repr(session.end(error=ValueError(SECRET)))
    yield repr(session.stop)
    yield repr(guard.faults.counts)
    yield repr(guard.counts)


def test_nothing_secret_is_left_behind_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Plugin()
    with caplog.at_level(logging.DEBUG):
        guard = LoopGuard(POLICY, plugins=[plugin], on_end=print)
        left = list(everything(guard))
    assert len(guard.faults.counts) >= 5  # the faults did happen
    assert plugin.events
    for text in [*left, *map(repr, plugin.events), *(record.getMessage() for record in caplog.records)]:
        assert SECRET not in text
    for record in caplog.records:
        assert SECRET not in caplog.handler.format(record)
        assert record.exc_info is None


def test_the_texts_of_a_run_hold_no_paths_or_numbers_of_its_arguments() -> None:
    """What a model is told never quotes arguments, also where they are short."""
    session = LoopGuard({"ladder": {"steer": 2}}).session()
    for _ in range(6):
        message = session.begin_round([ToolCall("1", "tool", {"n": 9_471})])[0].message
    told = [message or "", *session.before_model_call().steer, session.end().message]
    assert not any("9471" in text for text in told)


@pytest.mark.parametrize("policy", [{}, {"privacy": {"include_arguments": True}}])
def test_arguments_reach_events_only_where_the_policy_says_so(policy: dict[str, Any]) -> None:
    events: list[DoomLoopDetected] = []
    session = LoopGuard(policy, on_loop=events.append).session()
    for _ in range(3):
        decision = session.begin_round([ToolCall("1", "tool", json.dumps(ARGUMENTS))])[0]
    assert [event.arguments for event in events] == ([ARGUMENTS] * 2 if policy else [None] * 2)
    # The event's own field and nothing else.
    assert SECRET not in repr(decision)
    assert SECRET not in json.dumps(session.save())
    assert all(SECRET not in repr({**vars(event), "arguments": None}) for event in events)


def test_what_leaves_the_process_cannot_be_guessed_from_small_arguments() -> None:
    events: list[DoomLoopDetected] = []
    session = LoopGuard(on_loop=events.append).session()
    for _ in range(2):
        session.begin_round([ToolCall("1", "is_member", {"user": 7})])
    guesses = [fingerprint("is_member", {"user": n}, algorithm) for n in range(20) for algorithm in ALGORITHMS]
    assert events[0].fingerprint not in guesses


ALGORITHMS: tuple[Any, ...] = ("xxh3_128", "sha256")


@pytest.mark.parametrize("policy", [{"preset": "openrouter"}, {"privacy": {"plain_fingerprints": True}}])
def test_plain_fingerprints_are_given_only_where_the_policy_says_so(policy: dict[str, Any]) -> None:
    events: list[DoomLoopDetected] = []
    session = LoopGuard(policy, on_loop=events.append).session()
    for _ in range(2):
        session.begin_round([ToolCall("1", "is_member", {"user": 7})])
    algorithm: Any = "sha256" if "preset" in policy else "xxh3_128"
    assert events[0].fingerprint == fingerprint("is_member", {"user": 7}, algorithm)


def test_importing_and_running_logs_nothing_below_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), LoopGuard().session() as session:
        for _ in range(3):
            session.before_model_call()
            session.after_model_call(usage=Usage(total_tokens=1))
            session.begin_round([ToolCall("1", "tool", ARGUMENTS)])
            session.record_result("1", RESULT)
    assert not caplog.records
