"""The hooks `round_judged` and `result_recorded`: what they are told, in which order, and what they are never told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from loopguard_core import LoopGuard, ResultRecorded, RoundJudged, SessionEnd, ToolCall, hookimpl

ARGUMENTS = {"invoice_id": "INV-2291"}


class Listener:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @hookimpl
    def round_judged(self, event: RoundJudged) -> None:
        self.heard.append(event)

    @hookimpl
    def result_recorded(self, event: ResultRecorded) -> None:
        self.heard.append(event)

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        self.heard.append(event)


def heard(policy: Any = None, rounds: int = 3, output: Any = "Error: timed out") -> list[Any]:
    listener = Listener()
    guard = LoopGuard(policy, plugins=[listener])
    with guard.session("run-1") as session:
        for number in range(1, rounds + 1):
            session.begin_round([ToolCall(f"c{number}", "fetch", ARGUMENTS)])
            session.record_result(f"c{number}", output)
    return listener.heard


def test_every_round_and_result_is_told_in_order() -> None:
    events = heard()
    assert [type(event).__name__ for event in events] == ["RoundJudged", "ResultRecorded"] * 3 + ["SessionEnd"]
    calls = [event.calls[0] for event in events if isinstance(event, RoundJudged)]
    assert [(call.id, call.tool, call.streak, call.action, call.blocked) for call in calls] == [
        ("c1", "fetch", 1, None, False),
        ("c2", "fetch", 2, "observe", False),
        ("c3", "fetch", 3, "block", True),
    ]
    assert len({call.fingerprint for call in calls}) == 1
    assert calls[2].message is not None
    assert calls[2].message.startswith("[loopguard]")


def test_healthy_and_duplicate_calls_are_told_too() -> None:
    listener = Listener()
    with LoopGuard(plugins=[listener]).session() as session:
        session.begin_round([ToolCall("a", "read", {"p": 1}), ToolCall("b", "read", {"p": 1}), ToolCall("c", "wait")])
    (judged, _) = listener.heard
    assert [(call.id, call.duplicate, call.streak) for call in judged.calls] == [
        ("a", False, 1),
        ("b", True, 1),
        ("c", False, 0),
    ]
    assert judged.calls[2].fingerprint is None  # waits are exempt


def test_arguments_and_results_only_where_the_policy_says_so() -> None:
    quiet = heard()
    assert all(call.arguments is None for event in quiet if isinstance(event, RoundJudged) for call in event.calls)
    assert all(event.output is None for event in quiet if isinstance(event, ResultRecorded))
    loud = heard({"privacy": {"include_arguments": True, "include_results": True}})
    assert loud[0].calls[0].arguments == ARGUMENTS
    assert loud[1].output == "Error: timed out"


def test_equal_outputs_have_equal_fingerprints_that_cannot_be_guessed() -> None:
    one, other = ([e for e in heard(output=text) if isinstance(e, ResultRecorded)] for text in ("paid", "open"))
    assert len({event.fingerprint for event in one}) == 1
    assert one[0].fingerprint != other[0].fingerprint
    plain = heard({"privacy": {"plain_fingerprints": True}}, output="paid")
    assert plain[1].fingerprint != one[0].fingerprint


def test_failures_are_judged_as_everywhere_and_refusals_are_no_results() -> None:
    assert [event.failed for event in heard(rounds=1) if isinstance(event, ResultRecorded)] == [True]
    assert not [e for e in heard(output="[loopguard] This call was not executed") if isinstance(e, ResultRecorded)]


def test_a_result_nobody_asked_for_is_not_told() -> None:
    listener = Listener()
    with LoopGuard(plugins=[listener]).session() as session:
        session.record_result("nowhere", "x")
    assert [type(event) for event in listener.heard] == [SessionEnd]


def test_a_user_who_spoke_is_told_once() -> None:
    listener = Listener()
    with LoopGuard(plugins=[listener]).session() as session:
        for number, spoke in enumerate((False, True, False)):
            if spoke:
                session.user_turn()
            session.begin_round([ToolCall(f"c{number}", "fetch", {})])
    assert [event.user_spoke for event in listener.heard if isinstance(event, RoundJudged)] == [False, True, False]


def test_a_long_id_is_the_same_in_all_events() -> None:
    listener = Listener()
    name = "x" * 500
    with LoopGuard(plugins=[listener]).session() as session:
        session.begin_round([ToolCall(name, "fetch", {})])
        session.record_result(name, "fine")
    judged, result, _ = listener.heard
    assert judged.calls[0].id == result.call_id
    assert len(result.call_id) < 128


class Raising:
    @hookimpl
    def round_judged(self, event: RoundJudged) -> None:
        raise OSError(event)

    @hookimpl
    async def result_recorded(self, event: ResultRecorded) -> None:
        raise OSError(event)


def test_a_listener_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    guard = LoopGuard(plugins=[Raising()])
    with caplog.at_level(logging.ERROR, "loopguard"), guard.session() as session:
        blocked = []
        for number in range(3):
            blocked += [d.blocked for d in session.begin_round([ToolCall(f"c{number}", "fetch", ARGUMENTS)])]
            session.record_result(f"c{number}", "Error: timed out")
    guard.close()
    assert blocked == [False, False, True]
    assert sum(guard.faults.counts.values()) == 6
    assert "INV-2291" not in caplog.text


class Unshowable:
    def __str__(self) -> str:
        raise ValueError("no")


def test_odd_names_do_not_keep_a_round_from_being_judged() -> None:
    listener = Listener()
    with LoopGuard(plugins=[listener]).session() as session:
        decisions = session.begin_round([ToolCall("a", Unshowable(), {}), ToolCall("b", "fetch", {})])  # type: ignore[arg-type]
    assert len(decisions) == 2
    assert [call.tool for call in listener.heard[0].calls] == ["(unnamed)", "fetch"]
