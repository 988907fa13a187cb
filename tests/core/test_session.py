"""A session from its start to its end: identity, the stop, the reasons it ends for."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any, get_args

import pytest

from loopguard_core import (
    Action,
    Decision,
    EndReason,
    LoopGuard,
    LoopGuardStop,
    Session,
    SessionEnd,
    Stop,
    ToolCall,
    Usage,
    current_session,
    fingerprint,
    hookimpl,
    inside,
)

GOLDEN = ("fetch_invoice", {"invoice_id": "INV-2291"})


class Clock:
    """Time that only moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def call(tool: str = "tool", arguments: Any = None, call_id: str = "1") -> ToolCall:
    return ToolCall(call_id, tool, arguments)


def repeat(session: Session, times: int, *calls: ToolCall) -> list[Decision]:
    """Ask for the same round again and again; the last decisions."""
    decisions: list[Decision] = []
    for _ in range(times):
        decisions = session.begin_round(calls or (call(),))
    return decisions


class TestIdentity:
    def test_a_live_id_asked_for_again_gives_the_same_session(self) -> None:
        guard = LoopGuard()
        session = guard.session("run-1")
        assert guard.session("run-1") is session
        assert guard.live("run-1") is session

    def test_a_live_session_wins_over_a_saved_state(self) -> None:
        guard = LoopGuard()
        live = guard.session("run-1")
        repeat(live, 2)
        other = guard.session("other")
        assert guard.session("run-1", state=other.save()) is live
        assert live.turns == 2

    def test_an_ended_id_gives_a_new_session(self) -> None:
        guard = LoopGuard()
        first = guard.session("run-1")
        repeat(first, 2)
        first.end()
        again = guard.session("run-1")
        assert again is not first
        assert again.turns == 0
        assert repeat(again, 1)[0].streak == 1

    def test_sessions_without_an_id_get_one_each(self) -> None:
        guard = LoopGuard()
        first, second = guard.session(), guard.session()
        assert first is not second
        assert first.id != second.id

    def test_sessions_of_one_guard_do_not_mix(self) -> None:
        guard = LoopGuard()
        first, second = guard.session(), guard.session()
        repeat(first, 5)
        assert repeat(second, 1)[0].streak == 1

    def test_a_discarded_session_is_forgotten_without_an_end(self) -> None:
        ends: list[SessionEnd] = []
        guard = LoopGuard(on_end=ends.append)
        session = guard.session("run-1")
        guard.discard("run-1")
        assert guard.session("run-1") is not session
        assert not ends

    def test_the_end_of_an_old_session_does_not_remove_its_successor(self) -> None:
        guard = LoopGuard()
        old = guard.session("run-1")
        guard.discard("run-1")
        new = guard.session("run-1")
        old.end()
        assert guard.live("run-1") is new

    def test_events_say_where_they_come_from(self) -> None:
        ends: list[SessionEnd] = []
        guard = LoopGuard(on_end=ends.append)
        outer = guard.session("outer")
        inner = guard.session("inner", parent=outer, agent="planner", framework_run_id="abc")
        repeat(inner, 1)
        inner.end()
        (event,) = ends
        assert (event.session_id, event.parent_id, event.agent, event.framework_run_id, event.turn) == (
            *("inner", "outer", "planner", "abc"),
            1,
        )

    def test_the_session_of_a_running_tool_is_known_inside_it(self) -> None:
        session = LoopGuard().session()
        assert current_session() is None
        with inside(session):
            assert current_session() is session
        assert current_session() is None


class TestStop:
    def test_every_call_of_the_round_is_refused_and_only_the_offender_carries_the_verdict(self) -> None:
        session = LoopGuard().session()
        looping = call("a", {"n": 1}, "loop")
        repeat(session, 5, looping)
        decisions = session.begin_round([call("b", None, "before"), looping, call("c", None, "after")])
        assert [decision.blocked for decision in decisions] == [True, True, True]
        assert [decision.action for decision in decisions] == [None, Action.STOP, None]
        assert [decision.verdict is None for decision in decisions] == [True, False, True]
        assert all((decision.message or "").startswith("[loopguard]") for decision in decisions)
        assert decisions[1].verdict is session.verdict
        assert session.verdict is not None
        assert session.verdict.call_id == "loop"

    def test_a_duplicate_of_the_offender_gets_the_same_answer(self) -> None:
        session = LoopGuard().session()
        first, second = repeat(session, 6, call(call_id="1"), call(call_id="2"))
        assert (first.duplicate, second.duplicate) == (False, True)
        assert (first.streak, first.action, first.verdict) == (second.streak, second.action, second.verdict)
        assert first.blocked
        assert second.blocked

    def test_block_refuses_only_the_offender(self) -> None:
        session = LoopGuard().session()
        looping = call("a", None, "1")
        repeat(session, 2, looping)
        other, refused = session.begin_round([call("b", None, "2"), looping])
        assert refused.action is Action.BLOCK
        assert refused.blocked
        assert (other.action, other.blocked, other.message, other.verdict) == (None, False, None, None)
        assert session.stop is None
        assert session.verdict is None

    def test_observe_lets_the_call_run(self) -> None:
        decision = repeat(LoopGuard().session(), 2)[0]
        assert decision.action is Action.OBSERVE
        assert decision.verdict is not None
        assert not decision.blocked
        assert decision.message is None

    def test_rounds_go_on_being_scored_past_a_stop_and_everything_stays_refused(self) -> None:
        session = LoopGuard().session()
        repeat(session, 6)
        first = session.stop
        assert [repeat(session, 1)[0].streak for _ in range(3)] == [7, 8, 9]
        other = session.begin_round([call("other")])[0]
        assert (other.streak, other.action, other.blocked) == (1, None, True)
        assert session.stop is first
        assert session.turns == 10

    def test_the_next_model_call_is_told_to_stop(self) -> None:
        session = LoopGuard().session()
        repeat(session, 6)
        directive = session.before_model_call()
        assert directive.stop is session.stop
        assert directive.stop is not None
        assert directive.stop.reason == "doom_loop"
        assert directive.stop.verdict is session.verdict
        assert not directive.steer
        assert directive.model is None

    def test_a_user_turn_does_not_lift_a_stop(self) -> None:
        session = LoopGuard().session()
        repeat(session, 6)
        session.user_turn()
        assert session.before_model_call().stop is not None
        assert session.begin_round([call("other")])[0].blocked

    def test_the_message_says_what_for_how_long_and_asks_for_another_way(self) -> None:
        message = repeat(LoopGuard().session(), 3, call("fetch", {"secret": "hunter2"}))[0].message
        assert message is not None
        assert message.startswith("[loopguard]")
        assert "`fetch`" in message
        assert "3 rounds" in message
        assert "will not change" in message
        assert "another" in message
        assert "explain" in message
        assert "hunter2" not in message

    def test_the_text_for_a_last_answer_is_given_once_and_only_after_a_stop(self) -> None:
        session = LoopGuard().session()
        assert session.final_answer() is None
        repeat(session, 6)
        text = session.final_answer()
        assert text is not None
        assert text.startswith("[loopguard]")
        assert session.final_answer() is None


class TestEnd:
    def test_a_second_end_gives_the_same_event_and_tells_nobody_again(self) -> None:
        ends: list[SessionEnd] = []
        guard = LoopGuard(on_end=ends.append)
        session = guard.session()
        event = session.end()
        assert session.end("error", error=ValueError()) is event
        assert session.ended is event
        assert ends == [event]
        assert guard.last_end is event

    def test_without_a_reason_it_is_complete(self) -> None:
        event = LoopGuard().session().end()
        assert (event.reason, event.verdict, event.message, event.error) == ("complete", None, "", None)

    @pytest.mark.parametrize("reason", get_args(EndReason))
    def test_a_reason_given_is_kept(self, reason: EndReason) -> None:
        """An SDK's own turn limit ends the session with `max_turns`."""
        event = LoopGuard().session().end(reason)
        assert event.reason == reason
        assert event.verdict is None

    def test_an_unknown_reason_is_noted_and_worked_out_instead(self) -> None:
        guard = LoopGuard()
        assert guard.session().end("finished").reason == "complete"  # type: ignore[arg-type]
        assert sum(guard.faults.counts.values()) == 1

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (ValueError("secret"), "error"),
            (asyncio.CancelledError(), "cancelled"),
            (KeyboardInterrupt(), "cancelled"),
            (GeneratorExit(), "cancelled"),
            (LoopGuardStop(Stop("max_cost", None, "")), "max_cost"),
        ],
    )
    def test_an_exception_gives_the_reason(self, error: BaseException, reason: EndReason) -> None:
        session = LoopGuard().session()
        with pytest.raises(type(error)), session:
            raise error
        assert session.ended is not None
        assert session.ended.reason == reason
        assert "secret" not in repr(session.ended)

    def test_an_error_is_named_by_its_class_alone(self) -> None:
        assert LoopGuard().session().end(error=ValueError("secret")).error == "ValueError"
        assert LoopGuard().session().end(error=LoopGuardStop(Stop("custom", None, ""))).error is None

    @pytest.mark.parametrize("given", [{"reason": "complete"}, {"error": ValueError()}, {"reason": "paused"}])
    def test_a_stop_of_ours_wins_over_any_reason(self, given: dict[str, Any]) -> None:
        session = LoopGuard().session()
        repeat(session, 6)
        event = session.end(**given)
        assert event.reason == "doom_loop"
        assert event.verdict is session.verdict is not None
        assert event.message.startswith("[loopguard]")

    def test_verdict_is_set_only_when_detection_ended_the_run(self) -> None:
        """Not by observed or blocked loops, not by a limit that came first."""
        session = LoopGuard({"limits": {"turns": 4}}).session()
        assert repeat(session, 4)[0].action is Action.BLOCK
        assert session.before_model_call().stop is not None
        event = session.end()
        assert (event.reason, event.verdict, session.verdict) == ("max_turns", None, None)

    def test_a_hook_ends_the_run_with_a_reason_of_its_own(self) -> None:
        class Curfew:
            @hookimpl
            def stop_when(self, session: Session) -> str | None:
                return "past bedtime" if session.turns == 2 else None

        session = LoopGuard(plugins=[Curfew()]).session()
        assert session.before_model_call().stop is None
        session.after_model_call()
        repeat(session, 2, call("a"))
        directive = session.before_model_call()
        assert directive.stop is not None
        assert directive.stop.reason == "custom"
        assert "past bedtime" in directive.stop.message
        event = session.end()
        assert (event.reason, event.verdict) == ("custom", None)

    def test_the_event_sums_up_the_run(self) -> None:
        clock = Clock()
        session = LoopGuard(clock=clock).session()
        for _ in range(3):
            session.before_model_call()
            session.after_model_call(usage=Usage(input_tokens=10, output_tokens=5, cost=Decimal("0.1")))
            session.begin_round([call(), call("other", None, "2")])
            clock.now += 2
        event = session.end()
        assert event.usage == Usage(input_tokens=30, output_tokens=15, total_tokens=45, cost=Decimal("0.3"))
        assert (event.model_calls, event.turns, event.tool_calls, event.duration) == (3, 3, 4, 6.0)

    def test_usage_that_is_unknown_stays_unknown(self) -> None:
        session = LoopGuard().session()
        session.before_model_call()
        session.after_model_call()
        assert session.end().usage == Usage()

    def test_a_pause_is_no_end(self) -> None:
        """A paused session goes on where it was under the same id, and ends again."""
        ends: list[SessionEnd] = []
        guard = LoopGuard(on_end=ends.append)
        session = guard.session("run-1")
        repeat(session, 2)
        session.pause()
        assert session.end().reason == "paused"
        assert guard.session("run-1") is session
        assert repeat(session, 1)[0].streak == 3
        assert session.ended is None
        assert session.end().reason == "complete"
        assert [event.reason for event in ends] == ["paused", "complete"]
        assert guard.live("run-1") is None

    @pytest.mark.parametrize("wake", ["before_model_call", "begin_round", "user_turn"])
    def test_what_shows_that_a_paused_run_goes_on_wakes_it(self, wake: str) -> None:
        session = LoopGuard().session()
        session.pause()
        session.end()
        getattr(session, wake)(*([[call()]] if wake == "begin_round" else []))
        assert session.ended is None

    def test_a_run_paused_in_the_middle_of_a_model_call_goes_on_too(self) -> None:
        clock = Clock()
        session = LoopGuard(clock=clock).session()
        session.before_model_call()
        session.pause()
        session.end()
        clock.now += 100
        session.before_model_call()
        clock.now += 5
        assert session.ended is None
        assert session.end().reason == "complete"
        assert session.seconds == 5

    def test_many_paused_sessions_are_not_kept_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("loopguard_core._guard.MAX_PAUSED", 3)
        guard = LoopGuard()
        for number in range(5):
            session = guard.session(str(number))
            session.pause()
            session.end()
        assert [guard.live(str(number)) is not None for number in range(5)] == [False, False, True, True, True]

    def test_the_place_of_a_paused_run_that_ended_is_not_that_of_the_next_with_its_id(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("loopguard_core._guard.MAX_PAUSED", 2)
        guard = LoopGuard()

        def paused(name: str) -> Session:
            session = guard.session(name)
            session.pause()
            session.end()
            return session

        paused("a").end("cancelled")
        running = guard.session("a")
        for name in ("b", "c", "d"):
            paused(name)
        assert guard.live("a") is running
        assert guard.live("b") is None
        given_up = paused("e")
        for name in ("f", "g"):
            paused(name)
        running = guard.session("e")
        given_up.before_model_call()
        given_up.pause()
        given_up.end()
        for name in ("h", "i"):
            paused(name)
        assert guard.live("e") is running

    def test_running_sessions_are_never_given_up_but_very_many_are_said_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("loopguard_core._guard.MANY_RUNNING", 3)
        guard = LoopGuard({"limits": {"turns": 1}})
        waiting = guard.session("waiting")
        waiting.pause()
        waiting.end()
        sessions = [guard.session(str(number)) for number in range(3)]
        assert not caplog.records
        sessions += [guard.session(str(number)) for number in range(3, 6)]
        assert len(caplog.records) == 1
        assert "more than 3 are live at once" in caplog.text
        assert all(guard.session(str(number)) is session for number, session in enumerate(sessions))


class TestNested:
    def test_a_stop_inside_reaches_every_run_outside(self) -> None:
        guard = LoopGuard()
        outer = guard.session("outer")
        middle = guard.session("middle", parent=outer)
        inner = guard.session("inner", parent="middle")
        repeat(inner, 6)
        for session in (middle, outer):
            assert session.verdict == inner.verdict
            stop = session.before_model_call().stop
            assert stop is not None
            assert stop.reason == "doom_loop"
            assert stop.message.count("[loopguard]") == 1
            assert "nested" in stop.message
            assert session.end().reason == "doom_loop"

    def test_a_stop_inside_refuses_the_outer_run_s_next_round(self) -> None:
        guard = LoopGuard()
        outer = guard.session("outer")
        repeat(guard.session(parent=outer), 6)
        assert outer.begin_round([call("other")])[0].blocked

    def test_a_stop_inside_reaches_an_outer_run_whose_model_call_was_already_allowed(self) -> None:
        """A directive is idempotent, but no model call starts once the run was ended."""
        guard = LoopGuard()
        outer = guard.session("outer")
        assert outer.before_model_call().stop is None
        repeat(guard.session(parent=outer), 6)
        assert outer.before_model_call().stop is not None

    def test_a_stop_outside_reaches_the_next_model_call_inside(self) -> None:
        guard = LoopGuard()
        outer = guard.session("outer")
        middle = guard.session("middle", parent=outer)
        inner = guard.session("inner", parent=middle)
        repeat(outer, 6)
        stop = inner.before_model_call().stop
        assert stop is not None
        assert stop.reason == "doom_loop"
        assert inner.end().reason == "doom_loop"

    def test_a_stop_outside_refuses_the_next_round_inside(self) -> None:
        """Also where the adapter has no seam before the model call."""
        guard = LoopGuard()
        outer = guard.session("outer")
        inner = guard.session("inner", parent=outer)
        repeat(outer, 6)
        assert inner.begin_round([call("other")])[0].blocked

    def test_siblings_of_a_stopped_run_stop_too(self) -> None:
        guard = LoopGuard()
        outer = guard.session("outer")
        left, right = (guard.session(parent=outer) for _ in range(2))
        repeat(left, 6)
        assert right.before_model_call().stop is not None

    def test_a_nested_run_that_ends_well_changes_nothing_outside(self) -> None:
        guard = LoopGuard()
        outer = guard.session("outer")
        inner = guard.session(parent=outer)
        repeat(inner, 3)
        inner.end()
        assert outer.stop is None
        assert outer.turns == 0
        assert repeat(outer, 1)[0].streak == 1

    def test_an_unknown_parent_is_kept_as_a_name(self) -> None:
        guard = LoopGuard()
        session = guard.session(parent="elsewhere")
        assert session.end().parent_id == "elsewhere"


class TestFingerprints:
    def test_the_golden_figure_under_openrouter(self) -> None:
        decision = repeat(LoopGuard("openrouter").session(), 2, call(*GOLDEN))[0]
        assert decision.verdict is not None
        shown = decision.verdict.fingerprint
        assert shown == fingerprint(*GOLDEN, "sha256")
        assert (shown or "").startswith("64be4614c5ea3e26")

    def test_by_default_what_leaves_the_process_is_keyed(self) -> None:
        decision = repeat(LoopGuard().session(), 2, call(*GOLDEN))[0]
        assert decision.verdict is not None
        assert decision.verdict.fingerprint not in (fingerprint(*GOLDEN), fingerprint(*GOLDEN, "sha256"), None)

    def test_fingerprints_compare_within_a_process_and_under_one_policy_key(self) -> None:
        def shown(policy: Any, key: Any = GOLDEN) -> Any:
            verdict = repeat(LoopGuard(policy).session(), 2, call(*key))[0].verdict
            return verdict and verdict.fingerprint

        keyed = [{"privacy": {"fingerprint_key": name}} for name in ("one", "two")]
        assert shown({}) == shown({})
        assert shown({}) != shown({}, ("fetch_invoice", {"invoice_id": "INV-2292"}))
        assert shown(keyed[0]) == shown(keyed[0])
        assert len({shown({}), shown(keyed[0]), shown(keyed[1])}) == 3


class TestKillSwitch:
    @pytest.fixture
    def guard(self, monkeypatch: pytest.MonkeyPatch) -> LoopGuard:
        monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
        return LoopGuard({"limits": {"turns": 1, "tokens": 1}})

    def test_switched_off_nothing_is_detected_and_no_limit_holds(self, guard: LoopGuard) -> None:
        session = guard.session()
        for _ in range(10):
            assert session.before_model_call().stop is None
            assert session.feed_text("x" * 5000) is None
            assert session.end_message() is None
            assert session.after_model_call(usage=Usage(total_tokens=100)) is None
            assert session.begin_round([call(), call()]) == [Decision(action=None, streak=0)] * 2
            session.record_result("1", "same")
        assert session.end().reason == "complete"

    def test_switched_off_no_hook_is_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
        seen: list[object] = []
        session = LoopGuard(on_loop=seen.append, on_end=seen.append, on_model_call=seen.append).session()
        session.before_model_call()
        session.after_model_call()
        repeat(session, 10)
        session.end()
        assert not seen
