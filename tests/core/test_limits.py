"""Limits stop before the call that would exceed them, and count what nested runs use."""

from __future__ import annotations

import json
import logging
from decimal import Decimal
from typing import Any

import pytest

from loopguard_core import Decision, LoopGuard, Session, Stop, ToolCall, Usage


class Clock:
    """Time that only moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def new_calls(session: Session, number: int = 1) -> list[ToolCall]:
    """Calls the session has not seen, so that no detector has a say."""
    return [ToolCall(str(place), "tool", {"turn": session.turns, "place": place}) for place in range(number)]


def round_of(session: Session, number: int = 1) -> list[Decision]:
    return session.begin_round(new_calls(session, number))


def model_call(session: Session, **usage: Any) -> Stop | None:
    assert session.before_model_call().stop is None
    return session.after_model_call(usage=Usage(**usage))


def run(session: Session, calls: int = 1, most: int = 1000) -> tuple[int, Stop | None]:
    """A model that never stops asking: how many rounds ran, and why it ended."""
    for rounds in range(most):
        stop = session.before_model_call().stop
        if stop is not None:
            return rounds, stop
        session.after_model_call(usage=Usage(input_tokens=10, output_tokens=1))
        for decision, call in zip(round_of(session, calls), new_calls(session, calls), strict=True):
            if not decision.blocked:
                session.record_result(call.id, "ok")
    return most, None


class TestTurns:
    def test_forty_turns_are_exactly_forty_rounds_of_tools(self) -> None:
        session = LoopGuard({"limits": {"turns": 40}}).session()
        rounds, stop = run(session)
        assert rounds == 40
        assert stop is not None
        assert (stop.reason, stop.verdict) == ("max_turns", None)
        assert "40" in stop.message
        event = session.end()
        assert (event.reason, event.turns, event.model_calls, event.tool_calls) == ("max_turns", 40, 40, 40)

    def test_the_model_call_after_the_last_round_is_told_in_advance(self) -> None:
        session = LoopGuard({"limits": {"turns": 1}}).session()
        assert model_call(session) is None
        assert not round_of(session)[0].blocked
        assert session.stop is None  # the round itself runs

    @pytest.mark.parametrize("policy", [{}, {"preset": "openrouter"}])
    def test_a_round_beyond_the_last_is_refused_whole(self, policy: dict[str, Any]) -> None:
        """For surfaces without a seam before the model call. The reference runs one more; this does not copy it."""
        session = LoopGuard({**policy, "limits": {"turns": 2}}).session()
        for _ in range(2):
            assert not any(decision.blocked for decision in round_of(session, 2))
        refused = round_of(session, 3)
        assert [decision.blocked for decision in refused] == [True] * 3
        assert all((decision.message or "").startswith("[loopguard]") for decision in refused)
        assert session.stop is not None
        assert session.stop.reason == "max_turns"
        assert session.verdict is None
        assert session.tool_calls == 4

    def test_refused_rounds_are_turns_and_empty_ones_are_not(self) -> None:
        session = LoopGuard({"limits": {"turns": 4}}).session()
        for _ in range(4):
            assert session.before_model_call().stop is None
            session.after_model_call()
            session.begin_round([])
            session.begin_round([ToolCall("1", "tool")])
        stop = session.before_model_call().stop
        assert stop is not None
        assert stop.reason == "max_turns"

    def test_a_user_turn_does_not_give_new_ones(self) -> None:
        session = LoopGuard({"limits": {"turns": 2}}).session()
        round_of(session)
        session.user_turn()
        round_of(session)
        assert session.before_model_call().stop is not None

    def test_a_model_call_that_failed_is_no_turn(self) -> None:
        session = LoopGuard({"limits": {"turns": 1}}).session()
        for _ in range(5):
            assert session.before_model_call().stop is None
            session.model_call_failed(TimeoutError())
        assert (session.turns, session.model_calls) == (0, 0)


class TestToolCalls:
    def test_excess_calls_are_refused_in_order_and_then_the_run_ends(self) -> None:
        session = LoopGuard({"limits": {"tool_calls": 3}}).session()
        assert [decision.blocked for decision in round_of(session, 5)] == [False, False, False, True, True]
        assert session.stop is None
        stop = session.before_model_call().stop
        assert stop is not None
        assert (stop.reason, stop.verdict) == ("max_tool_calls", None)
        assert session.end().tool_calls == 3

    def test_a_refused_call_is_answered_and_carries_no_verdict(self) -> None:
        session = LoopGuard({"limits": {"tool_calls": 1}}).session()
        refused = round_of(session, 2)[1]
        assert (refused.action, refused.verdict, refused.streak) == (None, None, 1)
        assert (refused.message or "").startswith("[loopguard]")

    def test_a_model_may_still_answer_after_exactly_as_many_calls_as_allowed(self) -> None:
        session = LoopGuard({"limits": {"tool_calls": 3}}).session()
        round_of(session, 3)
        assert model_call(session) is None
        assert session.end().reason == "complete"

    def test_calls_that_did_not_run_do_not_count(self) -> None:
        session = LoopGuard({"limits": {"tool_calls": 4}}).session()
        looping = ToolCall("1", "loop")
        for _ in range(5):
            session.begin_round([looping])
        assert session.tool_calls == 2
        assert [decision.blocked for decision in round_of(session, 3)] == [False, False, True]

    def test_exempt_calls_count(self) -> None:
        session = LoopGuard({"limits": {"tool_calls": 2}, "tools": {"tool": {"loop_key": False}}}).session()
        assert [decision.blocked for decision in round_of(session, 3)] == [False, False, True]


class TestTokens:
    def test_input_and_output_count_with_cached_tokens_included(self) -> None:
        session = LoopGuard({"limits": {"tokens": 200}}).session()
        assert model_call(session, input_tokens=80, output_tokens=19, cached_tokens=79, reasoning_tokens=10) is None
        assert model_call(session, input_tokens=80, output_tokens=20, cached_tokens=80) is None
        stop = model_call(session, input_tokens=1, output_tokens=0)
        assert stop is not None
        assert stop.reason == "max_tokens"

    def test_a_total_alone_counts(self) -> None:
        session = LoopGuard({"limits": {"tokens": 100}}).session()
        assert model_call(session, total_tokens=99) is None
        assert model_call(session, total_tokens=1) is not None

    def test_the_parts_count_where_a_provider_s_total_says_something_else(self) -> None:
        session = LoopGuard({"limits": {"tokens": 100}}).session()
        assert model_call(session, input_tokens=50, output_tokens=49, total_tokens=5000) is None

    def test_the_calls_of_the_response_that_reached_the_limit_still_run(self) -> None:
        """A limit stops before the next model call, not in the middle of a round."""
        session = LoopGuard({"limits": {"tokens": 100}}).session()
        stop = model_call(session, total_tokens=1000)
        assert stop is not None
        assert not round_of(session)[0].blocked
        assert session.before_model_call().stop == stop
        assert session.end().reason == "max_tokens"

    def test_a_run_that_answered_is_complete_although_no_further_call_would_have_started(self) -> None:
        session = LoopGuard({"limits": {"tokens": 100}}).session()
        model_call(session, total_tokens=1000)
        assert session.end().reason == "complete"

    def test_unknown_tokens_are_warned_about_once_and_are_not_zero(self, caplog: pytest.LogCaptureFixture) -> None:
        guard = LoopGuard({"limits": {"tokens": 100}})
        with caplog.at_level(logging.WARNING):
            for session in (guard.session(), guard.session()):
                model_call(session)
                model_call(session)
                assert session.end().usage.total_tokens is None
        (record,) = [record for record in caplog.records if "tokens" in record.getMessage()]
        assert "unknown" in record.getMessage()

    def test_negative_numbers_give_nothing_back(self) -> None:
        session = LoopGuard({"limits": {"tokens": 100}}).session()
        model_call(session, input_tokens=90, output_tokens=0)
        model_call(session, input_tokens=-90, output_tokens=-5)
        assert model_call(session, input_tokens=10, output_tokens=0) is not None


class TestCost:
    @pytest.mark.parametrize("cost", [Decimal("0.1"), "0.1", 0.1])
    def test_cost_is_exact(self, cost: Any) -> None:
        """0.1 + 0.1 + 0.1 is 0.3, which it is not in floats: no call starts once spent >= cost."""
        session = LoopGuard({"limits": {"cost": 0.3}}).session()
        assert model_call(session, cost=cost) is None
        assert model_call(session, cost=cost) is None
        stop = model_call(session, cost=cost)
        assert stop is not None
        assert stop.reason == "max_cost"
        assert session.usage.cost == Decimal("0.3")

    def test_many_small_costs_add_up_exactly(self) -> None:
        session = LoopGuard({"limits": {"cost": "1000"}}).session()
        for _ in range(1000):
            model_call(session, cost="0.000000123456789")
        assert session.usage.cost == Decimal("0.000123456789")
        assert str(session.end().usage.cost) == "0.000123456789000"

    def test_just_below_the_limit_another_call_starts(self) -> None:
        session = LoopGuard({"limits": {"cost": 0.5}}).session()
        assert model_call(session, cost="0.4999999999999999") is None
        assert session.before_model_call().stop is None

    def test_an_unknown_cost_is_warned_about_once_and_is_not_zero(self, caplog: pytest.LogCaptureFixture) -> None:
        guard = LoopGuard({"limits": {"cost": 1}})
        with caplog.at_level(logging.WARNING):
            for session in (guard.session(), guard.session()):
                model_call(session, total_tokens=5)
                model_call(session, total_tokens=5)
                assert session.end().usage.cost is None
        (record,) = [record for record in caplog.records if "cost" in record.getMessage()]
        assert "unknown" in record.getMessage()

    @pytest.mark.parametrize("cost", [Decimal("NaN"), float("inf")])
    def test_a_cost_that_is_no_amount_is_unknown_and_said_so(self, cost: Any) -> None:
        guard = LoopGuard({"limits": {"cost": 1}})
        session = guard.session()
        model_call(session, cost=cost)
        assert session.usage.cost is None
        assert "usage without cost" in guard.faults.counts

    def test_without_a_limit_nobody_is_warned(self) -> None:
        guard = LoopGuard()
        model_call(guard.session())
        assert not guard.faults.counts

    def test_a_negative_cost_gives_nothing_back(self) -> None:
        session = LoopGuard({"limits": {"cost": 1}}).session()
        model_call(session, cost="0.9")
        model_call(session, cost="-5")
        assert model_call(session, cost="0.1") is not None


class TestSeconds:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def session(self, clock: Clock) -> Session:
        return LoopGuard({"limits": {"seconds": 10}}, clock=clock).session()

    def test_no_model_call_starts_once_the_time_is_up(self, clock: Clock, session: Session) -> None:
        clock.now += 9.9
        model_call(session)
        clock.now += 0.1
        stop = session.before_model_call().stop
        assert stop is not None
        assert (stop.reason, stop.verdict) == ("max_seconds", None)

    def test_time_waiting_for_a_human_does_not_count(self, clock: Clock, session: Session) -> None:
        clock.now += 4
        session.pause()
        session.pause()
        clock.now += 3600
        session.end()
        clock.now += 3600
        assert session.before_model_call().stop is None
        clock.now += 5
        assert session.seconds == 9
        session.after_model_call()
        clock.now += 1
        assert session.before_model_call().stop is not None
        assert session.end().duration == 10

    def test_ending_as_paused_is_a_pause_too(self, clock: Clock, session: Session) -> None:
        clock.now += 4
        session.end("paused")
        clock.now += 3600
        assert session.before_model_call().stop is None
        assert session.seconds == 4

    def test_a_pause_nobody_announced_is_taken_out_afterwards(self, clock: Clock, session: Session) -> None:
        clock.now += 4
        session.before_model_call()
        session.after_model_call()
        clock.now += 1
        round_of(session)
        clock.now += 3600
        session.continued()
        assert 4 <= session.seconds <= 5
        clock.now += 2
        assert 6 <= session.seconds <= 7

    def test_taking_out_time_twice_takes_nothing_more(self, clock: Clock, session: Session) -> None:
        clock.now += 4
        session.before_model_call()
        clock.now += 100
        session.continued()
        session.continued()
        session.pause()
        clock.now += 100
        session.continued()
        session.user_turn()
        session.continued()
        clock.now += 3
        assert session.seconds == 7

    def test_time_before_a_save_counts_and_time_between_does_not(self, clock: Clock) -> None:
        guard = LoopGuard({"limits": {"seconds": 10}}, clock=clock)
        session = guard.session()
        clock.now += 6
        state = json.loads(json.dumps(session.save()))
        clock.now += 3600
        again = guard.session(state=state)
        assert again.seconds == 6
        clock.now += 4
        assert again.before_model_call().stop is not None


class TestNested:
    def test_usage_and_tool_calls_reach_every_outer_run(self) -> None:
        guard = LoopGuard()
        outer = guard.session()
        middle = guard.session(parent=outer)
        inner = guard.session(parent=middle)
        model_call(outer, input_tokens=1, output_tokens=1, cost="0.5")
        model_call(inner, input_tokens=10, output_tokens=5, cost="0.25")
        round_of(inner, 3)
        for session, cost, calls in ((outer, "0.75", 3), (middle, "0.25", 3), (inner, "0.25", 3)):
            assert session.usage.cost == Decimal(cost)
            assert session.tool_calls == calls
        assert outer.end().usage.total_tokens == 17
        assert [session.turns for session in (outer, middle, inner)] == [0, 0, 1]
        assert [session.model_calls for session in (outer, middle, inner)] == [1, 0, 1]

    def test_what_outer_runs_use_is_not_counted_inside(self) -> None:
        guard = LoopGuard()
        outer = guard.session()
        inner = guard.session(parent=outer)
        model_call(outer, cost="0.5", total_tokens=7)
        round_of(outer, 2)
        assert inner.usage == Usage()
        assert inner.tool_calls == 0

    @pytest.mark.parametrize(
        ("limits", "reason"),
        [({"cost": 1}, "max_cost"), ({"tokens": 100}, "max_tokens"), ({"seconds": 10}, "max_seconds")],
    )
    def test_an_outer_run_s_limits_hold_inside(self, limits: dict[str, Any], reason: str) -> None:
        clock = Clock()
        guard = LoopGuard({"limits": limits}, clock=clock)
        outer = guard.session()
        model_call(outer, cost="0.6", total_tokens=60)
        clock.now += 6
        inner = guard.session(parent=guard.session(parent=outer))
        told = model_call(inner, cost="0.4", total_tokens=40)
        clock.now += 4
        stop = inner.before_model_call().stop
        assert stop is not None
        assert stop.reason == reason
        assert told is None or told.reason == reason
        stop = outer.before_model_call().stop
        assert stop is not None
        assert stop.reason == reason
        assert outer.verdict is None

    def test_an_outer_run_s_tool_calls_hold_inside(self) -> None:
        guard = LoopGuard({"limits": {"tool_calls": 5}})
        outer = guard.session()
        inner = guard.session(parent=outer)
        round_of(outer, 3)
        assert [decision.blocked for decision in round_of(inner, 3)] == [False, False, True]
        stop = inner.before_model_call().stop
        assert stop is not None
        assert stop.reason == "max_tool_calls"
        assert outer.before_model_call().stop is not None
        assert (outer.tool_calls, inner.tool_calls) == (5, 2)

    @pytest.mark.parametrize("own", [{}, {"tool_calls": 10}])
    def test_the_limit_named_is_the_one_that_was_reached(self, own: dict[str, Any]) -> None:
        """A nested run may have a guard, and so limits, of its own."""
        outer = LoopGuard({"limits": {"tool_calls": 2}}).session()
        inner = LoopGuard({"limits": own}).session(parent=outer)
        assert [decision.blocked for decision in round_of(inner, 3)] == [False, False, True]
        stop = inner.before_model_call().stop
        assert stop is not None
        assert stop.reason == "max_tool_calls"
        assert "limit of 2 tool calls" in stop.message

    def test_turns_are_each_run_s_own(self) -> None:
        guard = LoopGuard({"limits": {"turns": 3}})
        outer = guard.session()
        for _ in range(2):
            round_of(outer)
        inner = guard.session(parent=outer)
        for _ in range(3):
            assert model_call(inner) is None
            assert not round_of(inner)[0].blocked
        assert outer.turns == 2
        assert outer.stop is None


def test_limits_go_on_after_a_resume() -> None:
    guard = LoopGuard({"limits": {"turns": 5, "tool_calls": 4, "cost": 1, "tokens": 100}})
    session = guard.session()
    model_call(session, input_tokens=50, output_tokens=9, cost="0.7")
    round_of(session, 3)
    again = guard.session(state=json.loads(json.dumps(session.save())))
    assert (again.usage, again.turns, again.tool_calls, again.model_calls) == (
        *(session.usage, session.turns, session.tool_calls),
        session.model_calls,
    )
    stop = model_call(again, input_tokens=1, output_tokens=1, cost="0.3")
    assert stop is not None
    assert stop.reason == "max_cost"
    assert [decision.blocked for decision in round_of(again, 2)] == [False, True]


def test_a_refused_call_over_the_limit_still_ends_the_run_after_a_resume() -> None:
    guard = LoopGuard({"limits": {"tool_calls": 1}})
    session = guard.session()
    round_of(session, 2)
    again = guard.session(state=json.loads(json.dumps(session.save())))
    stop = again.before_model_call().stop
    assert stop is not None
    assert stop.reason == "max_tool_calls"


def test_without_limits_nothing_ends_a_run_that_gets_on() -> None:
    assert run(LoopGuard().session(), most=300) == (300, None)
