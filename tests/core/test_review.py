"""What a review found, each with the right value."""

import copy
import logging
import pickle

import pytest

from loopguard_core import Detector, LoopGuard, LoopGuardStop, Policy, ToolCall, hookimpl


def stopped() -> LoopGuardStop:
    session = LoopGuard().session()
    for _ in range(6):
        session.begin_round([ToolCall("1", "tool", {})])
    assert session.stop is not None
    return LoopGuardStop(session.stop)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_stop_survives_a_process_boundary(duplicate) -> None:
    error = stopped()
    again = duplicate(error)
    assert (again.reason, again.verdict, str(again)) == (error.reason, error.verdict, str(error))


def test_a_hook_may_use_the_guard_while_a_session_is_made() -> None:
    class Curious:
        guard: LoopGuard

        @hookimpl
        def detectors(self, policy: Policy) -> list[Detector]:
            self.guard.count("asked")
            return []

    plugin = Curious()
    plugin.guard = LoopGuard(plugins=[plugin])
    plugin.guard.session()
    assert plugin.guard.counts == {"asked": 1}


def test_an_outer_session_that_is_not_live_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        LoopGuard().session(parent="nobody")
    assert "not live" in caplog.text


def test_a_user_s_turn_takes_back_what_was_to_be_said_about_the_past() -> None:
    session = LoopGuard({"ladder": {"steer": 2}}).session()
    for _ in range(2):
        session.begin_round([ToolCall("1", "tool", {})])
    assert session.before_model_call().steer
    session.user_turn()
    assert not session.before_model_call().steer


def test_a_huge_id_is_cut_where_it_is_shown() -> None:
    session = LoopGuard().session()
    for _ in range(2):
        decision = session.begin_round([ToolCall("x" * 1_000_000, "tool", {})])[0]
    assert decision.verdict is not None
    assert len(decision.verdict.call_id or "") <= 128


def test_tools_used_longest_ago_are_forgotten_first() -> None:
    session = LoopGuard().session()
    for number in range(200):
        session.begin_round([ToolCall("1", f"tool_{number}", {})])
        kept = session.begin_round([ToolCall("2", "kept", {})])[0]
        assert kept.streak == number + 1
    assert session.begin_round([ToolCall("3", "tool_0", {})])[0].streak == 1


def test_of_a_large_fan_out_order_does_not_decide_what_is_followed() -> None:
    session = LoopGuard().session()
    calls = [ToolCall(str(n), "tool", {"n": n}) for n in range(150)]
    session.begin_round(calls)
    forward = session.begin_round(calls)
    backward = session.begin_round(calls[::-1])
    followed = {call.id for call, decision in zip(calls, forward, strict=True) if decision.streak == 2}
    assert followed
    assert {c.id for c, d in zip(calls[::-1], backward, strict=True) if d.streak == 3} == followed


def test_a_nested_run_may_have_more_turns_than_the_outer_one_has_left() -> None:
    guard = LoopGuard({"limits": {"turns": 2}})
    outer = guard.session()
    for number in range(2):
        outer.begin_round([ToolCall("1", "tool", {"n": number})])
    inner = guard.session(parent=outer)
    assert inner.before_model_call().stop is None


def test_a_misspelt_argument_names_the_plugin() -> None:
    class Misspelt:
        @hookimpl
        def session_end(self, evnt: object) -> None:
            """Never called."""

    with pytest.raises(ValueError, match="Misspelt"):
        LoopGuard(plugins=[Misspelt()])
