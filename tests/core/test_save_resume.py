"""A saved session goes on as the live one would have: plain JSON, at most 32 KB, and the same decisions afterwards."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core import Action, Decision, LoopGuard, Session, ToolCall, Usage

MAX_BYTES = 32 * 1024
CALL = ToolCall("1", "tool", {"n": 1})

few = settings(max_examples=120, deadline=None, derandomize=True, database=None)


def through_json(session: Session, guard: LoopGuard) -> Session:
    """What a process that died would have left, taken up by another one."""
    return guard.session(state=json.loads(text_of(session)))


def text_of(session: Session) -> str:
    text = json.dumps(session.save(), allow_nan=False, separators=(",", ":"))
    assert len(text) <= MAX_BYTES
    return text


def seen(decisions: list[Decision]) -> list[tuple[Any, ...]]:
    """Everything of a decision that may be compared: a verdict's call id and message index included."""
    return [(d.action, d.streak, d.duplicate, d.blocked, d.message, d.verdict) for d in decisions]


# -- random runs --------------------------------------------------------------------------------------------------

calls = st.tuples(st.sampled_from("aab"), st.sampled_from([0, 0, 1]))
results = st.sampled_from([None, "x", "x", "x", "y", ValueError("z")])
rounds = st.lists(st.tuples(calls, results), min_size=1, max_size=4)
between = st.sampled_from(["user_turn", "compacted", "failed", "model", "model", "text"])
steps = st.lists(rounds | rounds | rounds | between, min_size=2, max_size=14)
POLICIES: list[dict[str, Any]] = [
    {},
    {"preset": "openrouter"},
    {
        "ladder": {"steer": 2, "escalate": 3, "block": 4},
        "escalation": {"max": 1, "models": {"default": "strong"}},
        "limits": {"turns": 9, "tool_calls": 12, "tokens": 40},
    },
]
policies = st.sampled_from(POLICIES)


def begin(session: Session, step: list[Any]) -> list[tuple[Any, ...]]:
    return seen(session.begin_round([ToolCall(str(place), *call) for place, (call, _) in enumerate(step)]))


def record(session: Session, step: list[Any], start: int = 0, end: int | None = None) -> None:
    for place, (_, result) in list(enumerate(step))[start:end]:
        if result is not None:
            session.record_result(str(place), result)


def around(session: Session, step: str) -> Any:
    """One thing that may happen between two rounds, and what it answers."""
    if step == "failed":
        directive = session.before_model_call()
        session.model_call_failed(TimeoutError())
        return directive
    if step == "model":
        return session.before_model_call(), session.after_model_call(usage=Usage(total_tokens=3, cost="0.1"))
    if step == "text":  # the words that results bring beside a repeated one are not saved
        session.feed_text(f"after {session.turns} rounds")
        return session.end_message()
    getattr(session, step)()
    return None


@few
@given(policies, steps, st.randoms(use_true_random=False))
def test_saved_and_resumed_anywhere_a_run_decides_as_the_live_one(
    policy: dict[str, Any], transcript: list[Any], chance: random.Random
) -> None:
    """At round boundaries, between a model call and its round, and with results outstanding."""
    guard = LoopGuard(policy, clock=lambda: 0.0)
    live, resumed = guard.session(), guard.session()
    for step in transcript:
        if isinstance(step, str):
            assert around(live, step) == around(resumed, step)
        else:
            assert begin(live, step) == begin(resumed, step)
            cut = chance.randrange(len(step) + 1)
            record(live, step)
            record(resumed, step, 0, cut)
            if chance.random() < 0.5:
                resumed = through_json(resumed, guard)
            record(resumed, step, cut)
        if chance.random() < 0.5:
            resumed = through_json(resumed, guard)
        assert resumed.save() == live.save()
    assert resumed.stop == live.stop
    assert resumed.end().reason == live.end().reason
    assert not guard.faults.counts


def asked(*names: str) -> list[tuple[str, str]]:
    return [(name, "a result of some length, the same for all of them") for name in names]


CALLS_AND_RESULTS: dict[str, list[list[tuple[str, Any]]]] = {
    "a result that was there before, then one call again": [asked(n) for n in ("a", "b", "c", "d", *"eeee", "f", "g")],
    "a result two tools gave": [[("x/a", "y"), ("z/a", "y")], [("x/a", "y"), ("z/b", "y")], *([("z/c", "y")],) * 3],
    "a call that brought nothing": [[("a", None)], [("b", "y")], [("b", "y")], [("a", "y")], [("c", "y")]],
}


@pytest.mark.parametrize("rounds", CALLS_AND_RESULTS.values(), ids=list(CALLS_AND_RESULTS))
@pytest.mark.parametrize("beside", [None, "Let me look again."])
def test_resumed_after_every_round_a_run_decides_as_one_that_was_never_saved(
    rounds: list[list[tuple[str, Any]]], beside: str | None
) -> None:
    guard = LoopGuard(clock=lambda: 0.0)
    live, resumed = guard.session(), guard.session()
    for step in rounds:
        calls = [
            ToolCall(str(place), name.partition("/")[0] if "/" in name else "bash", {"command": name})
            for place, (name, _) in enumerate(step)
        ]
        told = []
        for session in (live, resumed):
            if beside is not None:
                session.feed_text(beside)
            told.append((session.end_message("tool_calls"), seen(session.begin_round(calls))))
            for place, (_, result) in enumerate(step):
                if result is not None:
                    session.record_result(str(place), result)
        assert told[0] == told[1]
        resumed = through_json(resumed, guard)
    assert not guard.faults.counts


def test_what_was_taken_up_is_saved_as_it_was() -> None:
    guard = LoopGuard(clock=lambda: 0.0)
    live = guard.session()
    for number in range(1, 8):
        live.begin_round([ToolCall("1", "bash", {"command": " && ".join(["ls -la"] * number)})])
        live.record_result("1", "a b c")
        assert through_json(live, guard).save() == live.save()


@few
@given(policies, steps)
def test_the_same_run_gives_the_same_decisions_every_time(policy: dict[str, Any], transcript: list[Any]) -> None:
    def play() -> list[Any]:
        session = LoopGuard(policy, clock=lambda: 0.0).session("run")
        answers: list[Any] = []
        for step in transcript:
            if isinstance(step, str):
                answers.append(around(session, step))
            else:
                answers.append(begin(session, step))
                record(session, step)
        return [*answers, session.end(), session.save()]

    assert play() == play()


@few
@given(st.sampled_from(POLICIES[:2]), st.lists(rounds, max_size=10), st.randoms(use_true_random=False))
def test_neither_order_nor_duplicates_in_a_round_change_a_streak(
    policy: dict[str, Any], transcript: list[list[Any]], chance: random.Random
) -> None:
    guard = LoopGuard(policy)
    plain, mixed = guard.session(), guard.session()
    for step in transcript:
        fates = dict(step)  # one result for each call, so that duplicates change nothing
        once = [(call, fates[call]) for call in fates]
        several = [*once, *(chance.choice(once) for _ in range(chance.randrange(3)))]
        chance.shuffle(several)

        def by_call(session: Session, rows: list[Any]) -> dict[Any, Any]:
            decisions = session.begin_round([ToolCall(str(place), *call) for place, (call, _) in enumerate(rows)])
            told: dict[Any, Any] = {}
            for (call, _), decision in zip(rows, decisions, strict=True):
                answer = (decision.streak, decision.action, decision.blocked)
                assert told.setdefault(call, answer) == answer
            return told

        assert by_call(plain, once) == by_call(mixed, several)
        record(plain, once)
        record(mixed, several)


# -- what is saved ------------------------------------------------------------------------------------------------


class TestWhatIsSaved:
    def test_everything_a_run_is_judged_by(self) -> None:
        guard = LoopGuard({"ladder": {"block": False}})
        session = guard.session()
        for _ in range(6):
            session.before_model_call()
            session.after_model_call(usage=Usage(input_tokens=5, cached_tokens=2, output_tokens=1, cost="0.10"))
            session.begin_round([CALL])
            session.record_result("1", "same")
        again = through_json(session, guard)
        assert again.stop == session.stop is not None
        assert again.verdict == session.verdict is not None
        assert again.usage == session.usage
        assert again.usage.cost == Decimal("0.60")
        assert (again.turns, again.tool_calls, again.model_calls) == (6, 5, 6)
        assert again.begin_round([CALL])[0].streak == 7
        event = again.end()
        assert (event.reason, event.verdict) == ("doom_loop", session.verdict)

    def test_a_state_is_plain_json_that_does_not_change_on_its_way(self) -> None:
        session = LoopGuard().session()
        session.begin_round([CALL])
        state = session.save()
        assert json.loads(json.dumps(state)) == state

    def test_a_state_is_a_copy(self) -> None:
        session = LoopGuard().session()
        session.begin_round([CALL])
        state = session.save()
        before = json.dumps(state)
        session.begin_round([CALL])
        session.record_result("1", "x")
        assert json.dumps(state) == before

    def test_one_state_may_be_taken_up_twice(self) -> None:
        """As with time travel in a checkpointed graph."""
        guard = LoopGuard()
        session = guard.session()
        for _ in range(2):
            session.begin_round([CALL])
        state = session.save()
        for _ in range(2):
            assert guard.session(state=state).begin_round([CALL])[0].streak == 3

    def test_a_run_goes_on_in_a_process_with_another_key(self) -> None:
        """The key of a process travels, so that fingerprints of one run compare."""
        guard = LoopGuard()
        session = guard.session()
        session.begin_round([CALL])
        first = session.begin_round([CALL])[0].verdict
        state = session.save()
        state["key"] = "00" * 16
        other = guard.session(state=state).begin_round([CALL])[0].verdict
        same = guard.session(state=session.save()).begin_round([CALL])[0].verdict
        assert first is not None
        assert other is not None
        assert same is not None
        assert first.fingerprint == same.fingerprint != other.fingerprint

    def test_a_key_from_the_policy_does_not_travel(self) -> None:
        guard = LoopGuard({"privacy": {"fingerprint_key": "swordfish"}})
        text = text_of(guard.session())
        assert "swordfish" not in text
        assert b"swordfish".hex() not in text

    def test_between_a_model_call_and_its_round_no_message_is_counted_twice(self) -> None:
        """Where a checkpointed graph saves: after the model node, before the tools."""
        guard = LoopGuard()
        live = guard.session()
        live.begin_round([CALL])
        live.before_model_call()
        live.after_model_call()
        resumed = through_json(live, guard)
        assert seen(resumed.begin_round([CALL])) == seen(live.begin_round([CALL]))

    def test_a_pause_is_resumed_as_such(self) -> None:
        guard = LoopGuard()
        session = guard.session()
        for _ in range(2):
            session.begin_round([CALL])
        session.pause()
        session.end()
        again = through_json(session, guard)
        assert again.begin_round([CALL])[0].streak == 3
        assert again.end().reason == "complete"

    def test_the_text_for_a_last_answer_is_still_given_only_once(self) -> None:
        guard = LoopGuard()
        session = guard.session()
        for _ in range(6):
            session.begin_round([CALL])
        assert session.final_answer() is not None
        assert through_json(session, guard).final_answer() is None

    def test_a_nested_run_is_resumed_under_its_parent(self) -> None:
        guard = LoopGuard({"limits": {"tokens": 10}})
        outer = guard.session()
        inner = guard.session(parent=outer)
        inner.begin_round([CALL])
        state = inner.save()
        guard.discard(inner.id)
        again = guard.session(inner.id, parent=outer, state=state)
        again.before_model_call()
        again.after_model_call(usage=Usage(total_tokens=10))
        assert outer.before_model_call().stop is not None

    def test_under_another_policy_the_new_ladder_holds(self) -> None:
        session = LoopGuard().session()
        for _ in range(2):
            session.begin_round([CALL])
        again = LoopGuard({"ladder": {"stop": 3}}).session(state=session.save())
        assert again.begin_round([CALL])[0].action is Action.STOP


# -- the ceiling --------------------------------------------------------------------------------------------------


def hostile(number: int, length: int, alphabet: str) -> str:
    """One of many names of that length."""
    digits = []
    while number:
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return "".join(digits).ljust(length, alphabet[0])


HOSTILE: dict[str, Callable[[int], str]] = {
    "plain": lambda number: f"tool_{number}",
    "quotes": lambda number: hostile(number, 40, '"\\'),
    "long": lambda number: f"{number}" + "x" * 5000,
    "surrogates": lambda number: f"{number}\ud800\udfff" * 10,
    "astral": lambda number: f"{number}" + "\U0001f600" * 2000,
    "controls": lambda number: f"{number}\x00\x1b[31m\n",
    "blank": lambda number: " " * number,
}
names = pytest.mark.parametrize("kind", HOSTILE)


EVERY_RUNG: dict[str, Any] = {
    "ladder": {"steer": 2, "escalate": 2, "block": 3, "stop": 6},
    "escalation": {"models": {"default": "strong"}},
}


class TestCeiling:
    """At most 32 KB whatever the model calls things, and what is cut is cut in the live session too."""

    @names
    def test_many_tools_in_one_round_again_and_again(self, kind: str) -> None:
        guard = LoopGuard(EVERY_RUNG)
        session = guard.session()
        name = HOSTILE[kind]
        asked = [ToolCall(name(number), name(number), {"n": number}) for number in range(1000)]
        for _ in range(7):
            session.begin_round(asked)
            text_of(session)
            for call in asked[::2]:
                session.record_result(call.id, "same")
            text_of(session)
        session.before_model_call("x" * 10_000)
        assert session.stop is not None
        text_of(session)
        assert not guard.faults.counts

    @names
    def test_a_thousand_tools_one_after_the_other(self, kind: str) -> None:
        session = LoopGuard(EVERY_RUNG).session()
        name = HOSTILE[kind]
        for number in range(1000):
            for _ in range(2):
                session.begin_round([ToolCall(name(number), name(number), name(number))])
                session.record_result(name(number), name(number))
        text_of(session)

    @pytest.mark.parametrize("identifier", ["same", "own"])
    def test_a_round_of_ten_thousand_calls(self, identifier: str) -> None:
        guard = LoopGuard(EVERY_RUNG)
        session = guard.session()
        asked = [ToolCall("" if identifier == "same" else str(n), f"tool_{n % 50}", {"n": n}) for n in range(10_000)]
        for _ in range(2):
            decisions = session.begin_round(asked)
            assert len(decisions) == 10_000
            for call in asked[:2000]:
                session.record_result(call.id, "same")
            text_of(session)
        assert not guard.faults.counts

    @pytest.mark.parametrize("size", [10, 96, 97, 200, 1000])
    def test_with_results_outstanding_a_large_round_is_resumed_as_it_went_on_live(self, size: int) -> None:
        """What is followed in the live session is what is saved: here every result is news."""
        guard = LoopGuard()
        live = guard.session()
        asked = [ToolCall(str(n), "tool", {"n": n}) for n in range(size)]
        live.begin_round(asked)
        for call in asked:
            live.record_result(call.id, "first")
        live.begin_round(asked)
        for call in asked[: size // 2]:
            live.record_result(call.id, "second")
        resumed = through_json(live, guard)
        for session in (live, resumed):
            for call in asked[size // 2 :]:
                session.record_result(call.id, "second")
        assert seen(resumed.begin_round(asked)) == seen(live.begin_round(asked))

    def test_duplicates_do_not_crowd_out_the_calls_that_are_followed(self) -> None:
        guard = LoopGuard()
        live = guard.session()
        asked = [*(ToolCall(f"a{n}", "tool", "a") for n in range(150)), ToolCall("b", "tool", "b")]
        for result in ("first", "second"):
            live.begin_round(asked)
            for call in asked:
                live.record_result(call.id, result)
        resumed = through_json(live, guard)
        assert seen(resumed.begin_round(asked)) == seen(live.begin_round(asked))

    @names
    def test_the_largest_states_are_resumed_as_they_went_on_live(self, kind: str) -> None:
        guard = LoopGuard(EVERY_RUNG)
        live = guard.session()
        name = HOSTILE[kind]
        asked = [ToolCall(name(number), name(number % 64), {"n": number}) for number in range(96)]
        for _ in range(5):
            live.begin_round(asked)
            for call in asked[::2]:
                live.record_result(call.id, "same")
            resumed = through_json(live, guard)
            assert resumed.before_model_call() == live.before_model_call()
            live.model_call_failed()
            resumed = through_json(live, guard)
            assert seen(guard.session(state=live.save()).begin_round(asked)) == seen(resumed.begin_round(asked))
        assert seen(through_json(live, guard).begin_round(asked)) == seen(live.begin_round(asked))

    @names
    def test_forty_calls_that_fail_at_great_length(self, kind: str) -> None:
        name = HOSTILE[kind]
        session = LoopGuard(EVERY_RUNG).session()
        for step in range(8):
            asked = [ToolCall(name(number), name(number % 64), {"n": number}) for number in range(40)]
            session.begin_round(asked)
            for call in asked:
                counts = " ".join(f"{7**place + step} errors" for place in range(8))
                session.record_result(call.id, f"Error: {call.name[:9]!r} {counts}: " + "a failure at length " * 40)
            text_of(session)

    @few
    @given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80), st.text(max_size=20)), max_size=30))
    def test_whatever_tools_ids_and_arguments_are_called(self, rows: list[tuple[str, str, str]]) -> None:
        guard = LoopGuard()
        session = guard.session()
        asked = [ToolCall(*row) for row in rows]
        for _ in range(3):
            session.begin_round(asked)
            for call in asked:
                session.record_result(call.id, "same")
        resumed = through_json(session, guard)
        assert seen(resumed.begin_round(asked)) == seen(session.begin_round(asked))
        assert not guard.faults.counts


def test_what_two_calls_returned_is_no_single_failure_after_a_resume_either() -> None:
    guard = LoopGuard()
    live = guard.session()
    call = ToolCall("1", "a", {})
    live.begin_round([call, ToolCall("2", "a", {})])
    live.record_result("1", "x")
    live.record_result("2", ValueError("z"))
    resumed = through_json(live, guard)
    decisions = []
    for session in (live, resumed):
        for _ in range(2):
            session.begin_round([call])
            session.record_result("1", ValueError("z"))
        decisions.append(session.begin_round([call]))
    assert decisions[0] == decisions[1]
