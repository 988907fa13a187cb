"""Calls out of order: every call has a defined answer in every state, and none is an exception.

`docs/session.md` has the table these tests hold.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from loopguard_core import Action, Directive, LoopGuard, Session, ToolCall, Usage

CALL = ToolCall("1", "tool", {"n": 1})


def looping(session: Session, rounds: int) -> None:
    for _ in range(rounds):
        session.begin_round([CALL])
        session.record_result("1", "same")


def fresh(session: Session) -> None:
    """Nothing happened yet."""


def asked(session: Session) -> None:
    session.before_model_call()


def streaming(session: Session) -> None:
    asked(session)
    session.feed_text("hello")


def answered(session: Session) -> None:
    streaming(session)
    session.end_message("tool_calls")
    session.after_model_call(usage=Usage(input_tokens=1, output_tokens=1))


def running(session: Session) -> None:
    answered(session)
    session.begin_round([CALL, ToolCall("2", "other")])


def recorded(session: Session) -> None:
    running(session)
    session.record_result("1", "same")
    session.record_result("2", "same")


def paused(session: Session) -> None:
    running(session)
    session.pause()
    session.end()


def stopped(session: Session) -> None:
    looping(session, 6)


def ended(session: Session) -> None:
    recorded(session)
    session.end()


STATES: list[Callable[[Session], None]] = [
    *(fresh, asked, streaming, answered, running, recorded, paused, stopped, ended)
]
CALLS: dict[str, Callable[[Session], Any]] = {
    "before_model_call": lambda s: s.before_model_call("m", 10, 10),
    "feed_text": lambda s: s.feed_text("text", "reasoning"),
    "end_message": lambda s: s.end_message(),
    "after_model_call": lambda s: s.after_model_call("m", Usage(total_tokens=1), 0.1),
    "message_restarted": lambda s: s.message_restarted(),
    "model_call_failed": lambda s: s.model_call_failed(TimeoutError()),
    "begin_round": lambda s: s.begin_round([CALL]),
    "begin_round, empty": lambda s: s.begin_round([]),
    "record_result": lambda s: s.record_result("1", "same"),
    "record_result, unknown id": lambda s: s.record_result("never", "same"),
    "refusal": lambda s: s.refusal("1", "tool"),
    "user_turn": lambda s: s.user_turn(),
    "compacted": lambda s: s.compacted(),
    "pause": lambda s: s.pause(),
    "continued": lambda s: s.continued(),
    "final_answer": lambda s: s.final_answer(),
    "save": lambda s: s.save(),
    "end": lambda s: s.end(),
}
states = pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
calls = pytest.mark.parametrize("name", CALLS)


@pytest.fixture
def guard() -> LoopGuard:
    return LoopGuard()


DOCUMENT = (pathlib.Path(__file__).parents[2] / "docs" / "session.md").read_text(encoding="utf-8")


class TestDocument:
    def test_every_call_of_a_session_is_documented_and_tried_here(self) -> None:
        public = {name for name in dir(Session) if callable(getattr(Session, name)) and not name.startswith("_")}
        tried = {name.partition(",")[0] for name in CALLS}
        assert public - {"abefore_model_call", "aafter_model_call", "restore"} == tried
        (table,) = [part for part in DOCUMENT.split("\n\n") if part.startswith("| call | between |")]
        assert tried == {
            cell.strip("`").partition("(")[0] for cell in re.findall(r"^\| (`[^`]+`)", table, re.MULTILINE)
        }


class TestAnyOrder:
    @states
    @calls
    def test_every_call_in_every_state_is_answered_without_a_fault(
        self, guard: LoopGuard, state: Callable[[Session], None], name: str
    ) -> None:
        session = guard.session()
        state(session)
        CALLS[name](session)
        CALLS[name](session)
        assert not guard.faults.counts

    @states
    @calls
    def test_whatever_was_called_detection_still_works_afterwards(
        self, guard: LoopGuard, state: Callable[[Session], None], name: str
    ) -> None:
        session = guard.session()
        state(session)
        CALLS[name](session)
        last = [session.begin_round([ToolCall("x", "another")])[0] for _ in range(6)][-1]
        assert (last.streak, last.action, last.blocked) == (6, Action.STOP, True)
        assert session.before_model_call().stop is not None
        assert not guard.faults.counts

    @states
    @calls
    def test_a_call_gives_the_same_answer_in_a_restored_session(
        self, guard: LoopGuard, state: Callable[[Session], None], name: str
    ) -> None:
        live = guard.session()
        state(live)
        if live.ended is not None:
            return  # an ended run is not resumed; a paused one wakes first
        restored = guard.session(state=live.save())
        if name == "end":  # ids, durations
            assert CALLS[name](live).reason == CALLS[name](restored).reason
        elif name == "refusal":  # its texts are not saved; until the next round it knows nothing
            assert CALLS[name](restored) is None
        elif name != "save":
            assert CALLS[name](live) == CALLS[name](restored)

    @pytest.mark.parametrize("seed", range(40))
    def test_random_orders_are_tolerated(self, guard: LoopGuard, seed: int) -> None:
        import random

        chance = random.Random(seed)
        session = guard.session()
        for _ in range(60):
            CALLS[chance.choice(list(CALLS))](session)
        assert not guard.faults.counts


class TestAnswers:
    def test_an_empty_round_counts_for_nothing(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 2)
        session.begin_round([CALL])
        assert session.begin_round([]) == []
        assert session.turns == 3
        session.record_result("1", "a new result")  # the round is still open
        assert session.begin_round([CALL])[0].streak == 1

    def test_a_second_round_before_the_results_closes_the_first(self, guard: LoopGuard) -> None:
        """What was not recorded by then counts as unchanged."""
        session = guard.session()
        assert [session.begin_round([CALL])[0].streak for _ in range(4)] == [1, 2, 3, 4]

    def test_results_recorded_before_the_next_round_count_for_their_own(self, guard: LoopGuard) -> None:
        session = guard.session()
        first, second = ToolCall("1", "a"), ToolCall("2", "b")
        for number in range(3):
            session.begin_round([first, second])
            session.record_result("2", "same")
            session.record_result("1", number)
        assert [decision.streak for decision in session.begin_round([first, second])] == [1, 4]

    @pytest.mark.parametrize("unknown", ["never", "", None, 7, "x" * 10_000])
    def test_a_result_of_an_unknown_call_is_ignored_and_counted(self, guard: LoopGuard, unknown: Any) -> None:
        session = guard.session()
        looping(session, 2)
        session.record_result(unknown, "other")
        assert session.begin_round([CALL])[0].streak == 3
        assert guard.counts == {"result of an unknown call": 1}
        assert not guard.faults.counts

    def test_a_result_that_comes_too_late_is_ignored(self, guard: LoopGuard) -> None:
        session = guard.session()
        session.begin_round([ToolCall("old", "tool")])
        session.begin_round([ToolCall("new", "tool")])
        session.record_result("old", "news")
        assert session.begin_round([ToolCall("3", "tool")])[0].streak == 3

    def test_the_last_result_for_an_id_counts(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 2)
        session.begin_round([CALL])
        session.record_result("1", "streaming, 50 %")
        session.record_result("1", "same")
        assert session.begin_round([CALL])[0].streak == 4

    def test_calls_that_share_an_id_are_answered_in_order(self, guard: LoopGuard) -> None:
        session = guard.session()
        both = [ToolCall("", "a"), ToolCall("", "b")]
        for number in range(3):
            session.begin_round(both)
            session.record_result("", "same")
            session.record_result("", number)
        assert [decision.streak for decision in session.begin_round(both)] == [4, 1]

    def test_a_refusal_answers_its_call_where_calls_share_an_id(self, guard: LoopGuard) -> None:
        """Else the next call's result would be taken for the refused one's, and end its streak."""
        session = guard.session()
        refused = ToolCall("", "a")
        for _ in range(2):
            session.begin_round([refused])
            session.record_result("", "same")
        decision, _ = session.begin_round([refused, ToolCall("", "b")])
        assert decision.blocked
        session.record_result("", decision.message)
        session.record_result("", "the result of b")
        assert session.begin_round([refused])[0].streak == 4

    def test_a_round_without_a_model_call_is_scored(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 5)
        decision = session.begin_round([CALL])[0]
        assert decision.action is Action.STOP
        assert decision.verdict is not None
        assert (decision.verdict.round, decision.verdict.message_index) == (6, 6)

    def test_messages_are_counted_once_whichever_calls_announce_them(self, guard: LoopGuard) -> None:
        session = guard.session()
        rounds: list[Callable[[], object]] = [
            lambda: None,
            lambda: session.before_model_call(),
            lambda: (session.before_model_call(), session.after_model_call()),
            lambda: (session.feed_text("x"), session.end_message()),
            lambda: (session.before_model_call(), session.feed_text("x"), session.end_message()),
            lambda: (session.before_model_call(), session.end_message(), session.after_model_call()),
        ]
        seen = []
        for announce in rounds:
            announce()
            verdict = session.begin_round([CALL])[0].verdict
            seen.append(verdict and verdict.message_index)
        assert seen == [None, 2, 3, 4, 5, 6]

    def test_a_message_without_calls_counts_too(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 1)
        session.before_model_call()
        session.after_model_call()
        session.before_model_call()
        session.after_model_call()
        verdict = session.begin_round([CALL])[0].verdict
        assert verdict is not None
        assert (verdict.round, verdict.message_index) == (2, 3)

    def test_a_model_call_nobody_announced_is_counted(self, guard: LoopGuard) -> None:
        session = guard.session()
        session.after_model_call(usage=Usage(total_tokens=5))
        assert (session.model_calls, session.usage.total_tokens) == (1, 5)

    def test_a_failure_nobody_announced_changes_nothing(self, guard: LoopGuard) -> None:
        session = guard.session()
        before = session.save()
        session.model_call_failed()
        assert session.save() | {"seconds": 0} == before | {"seconds": 0}

    def test_a_round_shows_that_its_model_call_succeeded(self, guard: LoopGuard) -> None:
        """A surface without a seam after the model call must not be given the old directive for ever."""
        session = guard.session()
        for _ in range(6):
            assert session.before_model_call().stop is None
            session.begin_round([CALL])
            session.record_result("1", "same")
        assert session.before_model_call().stop is session.stop is not None

    def test_a_round_shows_that_its_steering_was_delivered(self) -> None:
        session = LoopGuard({"ladder": {"steer": 2, "block": False, "stop": False}}).session()
        seen = []
        for _ in range(4):
            seen.append(len(session.before_model_call().steer))
            session.begin_round([CALL])
        assert seen == [0, 0, 1, 0]

    def test_an_ended_session_still_answers_and_its_end_stands(self, guard: LoopGuard) -> None:
        session = guard.session()
        event = session.end()
        assert session.before_model_call() == Directive()
        assert session.begin_round([CALL])[0].streak == 1
        session.record_result("1", "x")
        assert session.end() is event
        assert guard.last_end is event

    def test_a_user_turn_closes_the_round(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 2)
        session.begin_round([CALL])
        session.user_turn()
        session.record_result("1", "late")
        assert guard.counts == {"result of an unknown call": 1}
        assert session.begin_round([CALL])[0].streak == 1

    def test_a_refused_call_is_known_by_its_id_until_the_next_round(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 2)
        assert session.refusal("1", "tool") is None
        decision, _ = session.begin_round([CALL, ToolCall("2", "tool", {"n": 2})])
        assert session.refusal("1") == session.refusal("1", "tool") == decision.message is not None
        assert session.refusal("2", "tool") is None
        assert session.refusal("3", "tool") is None
        session.begin_round([ToolCall("1", "another")])
        assert session.refusal("1") is None

    def test_a_refused_id_with_another_tool_is_another_call(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 2)
        session.begin_round([CALL])
        assert session.refusal("1", "another") is None

    @pytest.mark.parametrize("call_id", [None, ""])
    def test_without_an_id_a_call_is_refused_if_all_of_its_tool_are(self, guard: LoopGuard, call_id: str) -> None:
        session = guard.session()
        looping(session, 2)
        session.begin_round([CALL, ToolCall("2", "other")])
        assert session.refusal(call_id, "tool") is not None
        assert session.refusal(call_id, "other") is None
        assert session.refusal(call_id) is None
        session.begin_round([CALL, ToolCall("2", "tool", {"n": 2})])
        assert session.refusal(call_id, "tool") is None

    def test_calls_that_share_an_id_are_only_refused_together(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 2)
        session.begin_round([CALL, ToolCall("1", "tool", {"n": 2})])
        assert session.refusal("1", "tool") is None

    def test_every_call_of_the_round_that_ends_the_run_is_refused(self, guard: LoopGuard) -> None:
        session = guard.session()
        looping(session, 5)
        decisions = session.begin_round([CALL, ToolCall("2", "other")])
        assert [session.refusal("1"), session.refusal("2")] == [decision.message for decision in decisions]
        assert None not in [decision.message for decision in decisions]
