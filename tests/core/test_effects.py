"""What acts on the next model call: steer and escalate, each once per streak, and the escalation budget."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loopguard_core import Action, Decision, LoopGuard, Session, Surface, ToolCall, Usage

A, B = ToolCall("a", "alpha", {"n": 1}), ToolCall("b", "beta", {"n": 1})
ONLY_STEER = {"observe": False, "steer": 3, "block": False, "stop": False}
ONLY_ESCALATE = {"observe": False, "escalate": 3, "block": False, "stop": False}
STRONG = {"max": 2, "models": {"default": "strong"}}


def session_with(ladder: dict[str, Any], **policy: Any) -> Session:
    return LoopGuard({"ladder": ladder, **policy}).session()


def turn(session: Session, *calls: ToolCall, result: object = "same") -> tuple[tuple[str, ...], str | None]:
    """One model call that succeeds and its round; what the call was told and who answered it."""
    directive = session.before_model_call()
    session.after_model_call(usage=Usage(total_tokens=1))
    for call, decision in zip(calls, session.begin_round(calls), strict=True):
        session.record_result(call.id, decision.message if decision.blocked else result)
    return directive.steer, directive.model


def steers(session: Session, times: int, *calls: ToolCall) -> list[int]:
    """How many messages each of the next model calls was given."""
    return [len(turn(session, *calls)[0]) for _ in range(times)]


def models(session: Session, times: int, *calls: ToolCall) -> list[str | None]:
    return [turn(session, *calls)[1] for _ in range(times)]


class TestSteer:
    def test_the_model_is_told_before_its_next_call_once_per_streak(self) -> None:
        session = session_with(ONLY_STEER)
        assert steers(session, 7, A) == [0, 0, 0, 1, 0, 0, 0]

    def test_what_it_is_told_names_the_tool_and_begins_with_our_name(self) -> None:
        session = session_with(ONLY_STEER)
        steers(session, 3, A)
        (text,) = session.before_model_call().steer
        assert text.startswith("[loopguard]")
        assert "`alpha`" in text
        assert "3 rounds" in text

    def test_a_new_streak_is_told_again(self) -> None:
        session = session_with(ONLY_STEER)
        assert steers(session, 4, A) == [0, 0, 0, 1]
        turn(session, A, result="news")
        assert [len(turn(session, A, result="news")[0]) for _ in range(5)] == [0, 0, 0, 1, 0]

    def test_a_streak_that_began_after_another_call_of_the_tool_is_new(self) -> None:
        session = session_with(ONLY_STEER)
        other = ToolCall("a", "alpha", {"n": 2})
        assert steers(session, 4, A) == [0, 0, 0, 1]
        assert steers(session, 4, other) == [0, 0, 0, 1]
        assert steers(session, 4, A) == [0, 0, 0, 1]

    def test_every_streak_is_told_for_itself(self) -> None:
        session = session_with(ONLY_STEER)
        steers(session, 3, A, B)
        told = session.before_model_call().steer
        assert ["`alpha`" in text for text in told] == [True, False]
        assert ["`beta`" in text for text in told] == [False, True]

    def test_the_same_words_are_not_said_twice_before_one_call(self) -> None:
        session = session_with(ONLY_STEER)
        other = ToolCall("b", "alpha", {"n": 2})
        steers(session, 3, A, other)
        assert len(session.before_model_call().steer) == 1

    def test_a_duplicate_in_the_round_is_not_told_twice(self) -> None:
        session = session_with(ONLY_STEER)
        assert steers(session, 5, A, ToolCall("a2", "alpha", {"n": 1})) == [0, 0, 0, 1, 0]

    def test_a_message_not_read_yet_waits_although_the_loop_ended(self) -> None:
        session = session_with(ONLY_STEER)
        steers(session, 3, A)
        session.begin_round([B])
        assert len(session.before_model_call().steer) == 1

    def test_a_user_turn_makes_it_stale(self) -> None:
        session = session_with(ONLY_STEER)
        steers(session, 3, A)
        session.user_turn()
        assert session.before_model_call().steer == ()
        session.after_model_call()
        assert steers(session, 4, A) == [0, 0, 0, 1]

    def test_nested_runs_are_told_for_themselves(self) -> None:
        guard = LoopGuard({"ladder": ONLY_STEER})
        outer = guard.session()
        inner = guard.session(parent=outer)
        steers(inner, 3, A)
        assert outer.before_model_call().steer == ()
        assert len(inner.before_model_call().steer) == 1

    def test_many_streaks_at_once_are_bounded_before_one_call(self) -> None:
        session = session_with(ONLY_STEER)
        many = [ToolCall(str(n), f"tool_{n}") for n in range(50)]
        steers(session, 3, *many)
        assert 1 <= len(session.before_model_call().steer) <= 4


class TestDirective:
    def test_the_same_answer_until_the_call_succeeded(self) -> None:
        session = session_with({**ONLY_STEER, "escalate": 3}, escalation=STRONG)
        turn(session, A)
        turn(session, A)
        turn(session, A)
        first = session.before_model_call()
        assert first.steer
        assert first.model == "strong"
        assert session.before_model_call("other", 1, 2) == first
        session.feed_text("text")
        session.end_message()
        assert session.before_model_call() == first
        session.after_model_call()
        later = session.before_model_call()
        assert (later.steer, later.model) == ((), None)

    def test_a_stop_is_the_same_answer_too_and_goes_on(self) -> None:
        session = session_with({})
        for _ in range(6):
            session.begin_round([A])
        first = session.before_model_call()
        assert first.stop is not None
        assert session.before_model_call() == first
        session.after_model_call()  # an adapter that made the call all the same
        assert session.before_model_call().stop == first.stop
        session.model_call_failed()
        assert session.before_model_call().stop == first.stop

    def test_a_stop_is_not_steered_past(self) -> None:
        session = session_with({"steer": 2, "block": False, "stop": 3})
        session.begin_round([A])
        session.begin_round([A])
        session.begin_round([A])
        directive = session.before_model_call()
        assert directive.stop is not None
        assert directive.steer == ()
        assert directive.model is None

    def test_what_crossed_its_rung_while_the_call_ran_waits_for_the_next(self) -> None:
        """A message the call did not carry is not taken for delivered."""
        session = session_with(ONLY_STEER)
        for _ in range(2):
            turn(session, A)
        assert session.before_model_call().steer == ()
        session.after_model_call()
        session.begin_round([A])
        assert len(session.before_model_call().steer) == 1


class TestFailure:
    def test_a_failed_call_keeps_its_steering_for_the_retry(self) -> None:
        session = session_with(ONLY_STEER)
        steers(session, 3, A)
        first = session.before_model_call()
        assert first.steer
        for _ in range(3):
            session.model_call_failed(TimeoutError())
            assert session.before_model_call() == first
        session.after_model_call()
        assert session.before_model_call().steer == ()

    def test_a_failed_call_counts_nothing(self) -> None:
        guard = LoopGuard({"ladder": ONLY_STEER})
        session = guard.session()
        steers(session, 2, A)
        before = session.save()
        session.before_model_call()
        session.model_call_failed(TimeoutError())
        assert session.save() | {"seconds": 0} == before | {"seconds": 0}
        assert (session.turns, session.model_calls, session.tool_calls) == (2, 2, 2)
        assert turn(session, A)[0] == ()  # the third round, as if nothing had happened
        assert len(session.before_model_call().steer) == 1

    def test_a_failed_escalation_is_spent_and_the_usual_model_retries(self) -> None:
        """A broken strong model must not break a run the usual one would have finished."""
        session = session_with({**ONLY_ESCALATE, "steer": 3}, escalation=STRONG)
        models(session, 3, A)
        first = session.before_model_call()
        assert (first.model, len(first.steer)) == ("strong", 1)
        session.model_call_failed(TimeoutError())
        retry = session.before_model_call()
        assert (retry.model, retry.steer) == (None, first.steer)

    def test_failed_escalations_use_up_the_budget(self) -> None:
        session = session_with(ONLY_ESCALATE, escalation={**STRONG, "max": 1})
        models(session, 3, A)
        assert session.before_model_call().model == "strong"
        session.model_call_failed()
        session.after_model_call()
        session.user_turn()
        assert models(session, 6, A) == [None] * 6


class TestEscalate:
    def test_one_call_goes_to_the_stronger_model_once_per_streak(self) -> None:
        session = session_with(ONLY_ESCALATE, escalation=STRONG)
        assert models(session, 6, A) == [None, None, None, "strong", None, None]

    def test_no_more_calls_of_a_session_than_allowed(self) -> None:
        session = session_with(ONLY_ESCALATE, escalation=STRONG)
        asked: list[str | None] = []
        for number in range(4):
            asked += models(session, 4, ToolCall("a", "alpha", {"n": number}))
        assert asked.count("strong") == 2

    def test_without_an_escalation_left_the_model_is_told_instead(self) -> None:
        session = session_with(ONLY_ESCALATE, escalation={**STRONG, "max": 1})
        assert [turn(session, A)[1] for _ in range(4)][-1] == "strong"
        session.user_turn()
        told = [turn(session, A) for _ in range(4)][-1]
        assert told[1] is None
        assert len(told[0]) == 1

    def test_without_a_stronger_model_the_model_is_told_instead(self) -> None:
        session = session_with(ONLY_ESCALATE)
        told = [turn(session, A) for _ in range(5)]
        assert [(len(steer), model) for steer, model in told] == [(0, None)] * 3 + [(1, None), (0, None)]

    def test_several_streaks_at_once_are_one_escalated_call(self) -> None:
        session = session_with(ONLY_ESCALATE, escalation=STRONG)
        assert models(session, 5, A, B) == [None, None, None, "strong", None]
        assert session.save()["effects"]["escalations"] == 1

    def test_the_model_is_the_one_of_the_surface_s_sdk(self) -> None:
        by_sdk = {"langchain": "lc", "openai_agents": "oa"}
        guard = LoopGuard({"ladder": ONLY_ESCALATE, "escalation": {"models": by_sdk}})
        surface = Surface("Middleware", "langchain", frozenset({"steer", "escalate", "block", "stop"}))
        assert models(guard.session(surface=surface), 4, A)[-1] == "lc"

    def test_a_model_given_in_code_wins(self) -> None:
        guard = LoopGuard({"ladder": ONLY_ESCALATE, "escalation": STRONG})
        assert models(guard.session(escalation_model="mine"), 4, A)[-1] == "mine"

    def test_zero_allows_none(self) -> None:
        session = session_with(ONLY_ESCALATE, escalation={**STRONG, "max": 0})
        assert models(session, 6, A) == [None] * 6


class TestAddingUp:
    def test_a_blocked_call_is_also_steered_about_and_escalated(self) -> None:
        session = session_with({"steer": 3, "escalate": 3, "block": 3}, escalation=STRONG)
        for _ in range(2):
            turn(session, A)
        session.before_model_call()
        session.after_model_call()
        decision = session.begin_round([A])[0]
        assert (decision.action, decision.blocked) == (Action.BLOCK, True)
        directive = session.before_model_call()
        assert len(directive.steer) == 1
        assert directive.model == "strong"

    def test_each_rung_acts_at_its_own_streak(self) -> None:
        session = session_with({"observe": 2, "steer": 3, "escalate": 4, "block": 5, "stop": 7}, escalation=STRONG)
        seen: list[tuple[str | None, int, str | None]] = []
        for _ in range(7):
            directive = session.before_model_call()
            session.after_model_call()
            decision = session.begin_round([A])[0]
            seen.append((decision.action and decision.action.value, len(directive.steer), directive.model))
        assert seen == [
            (None, 0, None),
            ("observe", 0, None),
            ("steer", 0, None),
            ("escalate", 1, None),
            ("block", 0, "strong"),
            ("block", 0, None),
            ("stop", 0, None),
        ]

    def test_observing_alone_tells_the_model_nothing(self) -> None:
        session = session_with({"observe": 2, "block": False, "stop": False})
        assert steers(session, 9, A) == [0] * 9

    def test_two_calls_of_a_round_act_each_on_its_own(self) -> None:
        session = session_with({"observe": 2, "steer": 2, "block": 3, "stop": 6})
        turn(session, A)
        turn(session, A, B)
        first, second = decisions(session, A, B)
        assert (first.action, first.blocked) == (Action.BLOCK, True)
        assert (second.action, second.blocked) == (Action.STEER, False)
        assert len(session.before_model_call().steer) == 1  # alpha was told about a round ago


def decisions(session: Session, *calls: ToolCall) -> list[Decision]:
    session.before_model_call()
    session.after_model_call()
    return session.begin_round(calls)


class TestSurface:
    @pytest.mark.parametrize(
        ("can", "action", "blocked", "steered"),
        [
            ({"observe", "steer", "escalate", "block", "stop"}, Action.BLOCK, True, True),
            ({"observe", "steer", "stop"}, Action.STEER, False, True),
            ({"observe", "stop"}, Action.OBSERVE, False, False),
            (set(), Action.OBSERVE, False, False),
        ],
    )
    def test_what_a_surface_cannot_do_falls_to_the_next_weaker(
        self, can: set[Any], action: Action, blocked: bool, steered: bool
    ) -> None:
        guard = LoopGuard({"ladder": {"steer": 3}})
        session = guard.session(surface=Surface("Handler", "sdk", frozenset(can)))
        for _ in range(2):
            turn(session, A)
        decision = decisions(session, A)[0]
        assert (decision.action, decision.blocked) == (action, blocked)
        assert bool(session.before_model_call().steer) is steered

    def test_stop_stays_where_it_is(self) -> None:
        session = LoopGuard().session(surface=Surface("Handler", "sdk", frozenset({"observe"})))
        last = [session.begin_round([A])[0] for _ in range(6)][-1]
        assert last.action is Action.STOP
        assert session.before_model_call().stop is not None


class TestHandoff:
    """A call that hands over to another agent cannot be refused: it is steered about instead."""

    def test_it_is_steered_where_others_are_blocked(self) -> None:
        session = session_with({})
        over = ToolCall("1", "transfer_to_billing", None, refusable=False)
        for _ in range(2):
            turn(session, over)
        decision = decisions(session, over)[0]
        assert (decision.action, decision.blocked) == (Action.STEER, False)
        assert len(session.before_model_call().steer) == 1

    def test_an_override_cannot_block_it_either(self) -> None:
        session = LoopGuard(on_loop=lambda _: Action.BLOCK).session()
        over = ToolCall("1", "transfer_to_billing", None, refusable=False)
        turn(session, over)
        decision = decisions(session, over)[0]
        assert (decision.action, decision.blocked) == (Action.STEER, False)

    def test_it_stops_the_run_all_the_same(self) -> None:
        session = session_with({})
        over = ToolCall("1", "transfer_to_billing", None, refusable=False)
        last = [session.begin_round([over])[0] for _ in range(6)][-1]
        assert (last.action, last.blocked) == (Action.STOP, True)


class TestShadow:
    @pytest.mark.parametrize("policy", [{"preset": "observe"}, {"shadow": True}])
    def test_everything_is_reported_with_what_it_would_have_done_and_nothing_is_done(
        self, policy: dict[str, Any]
    ) -> None:
        events: list[Any] = []
        guard = LoopGuard(
            {**policy, "ladder": {"steer": 3, "escalate": 4, "block": 5}, "escalation": STRONG}, on_loop=events.append
        )
        session = guard.session()
        for _ in range(8):
            directive = session.before_model_call()
            assert (directive.stop, directive.steer, directive.model) == (None, (), None)
            session.after_model_call()
            decision = session.begin_round([A])[0]
            assert not decision.blocked
            assert decision.message is None
        assert [event.proposed.value for event in events] == [
            *("observe", "steer", "escalate", "block", "stop"),
            *("stop", "stop"),
        ]
        assert {event.action for event in events} == {Action.OBSERVE}
        assert "stop" in events[-1].message
        assert (session.stop, session.verdict, session.end().reason) == (None, None, "complete")

    def test_an_override_does_nothing_either(self) -> None:
        guard = LoopGuard("observe", on_loop=lambda _: Action.STOP)
        session = guard.session()
        for _ in range(8):
            assert not session.begin_round([A])[0].blocked
        assert session.before_model_call().stop is None


class TestResume:
    def test_what_was_pending_is_told_after_a_resume_and_once(self) -> None:
        guard = LoopGuard({"ladder": {**ONLY_STEER, "escalate": 3}, "escalation": STRONG})
        session = guard.session()
        for _ in range(3):
            turn(session, A)
        asked = session.before_model_call()
        again = guard.session(state=json.loads(json.dumps(session.save())))
        assert again.before_model_call() == asked
        again.after_model_call()
        assert steers(again, 3, A) == [0, 0, 0]

    def test_the_budget_is_kept(self) -> None:
        guard = LoopGuard({"ladder": ONLY_ESCALATE, "escalation": {**STRONG, "max": 1}})
        session = guard.session()
        assert models(session, 4, A)[-1] == "strong"
        again = guard.session(state=json.loads(json.dumps(session.save())))
        again.user_turn()
        assert models(again, 6, A) == [None] * 6
