"""Outcomes: with `outcomes = "aware"`, a repeat counts only if what came back did not change."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core import Action, Decision, LoopGuard, Session, ToolCall
from loopguard_core._ladder import DETECTORS
from loopguard_core._wording import is_empty

CALL = ToolCall("1", "tool", {"n": 1})
MISSING = object()


def streak_after(*results: Any, policy: Any = None) -> int:
    """The streak of a call that was asked for once for each result, and then once more."""
    session = LoopGuard(policy or {}).session()
    for result in results:
        session.begin_round([CALL])
        if result is not MISSING:
            output, is_error = result if isinstance(result, tuple) else (result, None)
            session.record_result("1", output, is_error)
    return session.begin_round([CALL])[0].streak


class TestAware:
    @pytest.mark.parametrize(
        ("results", "streak"),
        [
            pytest.param(["x"], 2, id="a first result is compared with nothing"),
            pytest.param(["x", "x", "x"], 4, id="unchanged"),
            pytest.param(["x", "y"], 1, id="changed"),
            pytest.param(["x", "y", "y"], 2, id="a changed one starts afresh"),
            pytest.param(["x", "y", "x"], 1, id="back again is changed too"),
            pytest.param([MISSING, MISSING], 3, id="never recorded counts as unchanged"),
            pytest.param(["x", MISSING, "x"], 4, id="compared across a round without a result"),
            pytest.param(["x", MISSING, "y"], 1, id="changed across a round without a result"),
            pytest.param(["x", "y", MISSING], 2, id="a change counts once"),
            pytest.param([("no", True), ("no", False)], 1, id="a failure is not a success with the same text"),
            pytest.param([("no", True), ("no", True)], 3, id="the same failure"),
            pytest.param([401, 500], 1, id="401 is not 500"),
            pytest.param(["9 failed", "8 failed"], 1, id="a falling count is progress"),
            pytest.param([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], 3, id="the same value in another order"),
            pytest.param([{"a": 1}, '{"a":1}'], 3, id="canonical text and the value it is the text of"),
            pytest.param([None, None], 3, id="nothing"),
            pytest.param([None, ""], 1, id="nothing is not an empty text"),
            pytest.param([[], {}], 1, id="empty values differ"),
            pytest.param([ValueError("x"), ValueError("x")], 3, id="equal exceptions"),
            pytest.param([ValueError("x"), ValueError("y")], 1, id="exceptions with another text"),
            pytest.param([ValueError("x"), TypeError("x")], 1, id="exceptions of another class"),
            pytest.param(["\ud800", "\ud801"], 1, id="lone surrogates differ"),
        ],
    )
    def test_only_an_unchanged_outcome_counts(self, results: list[Any], streak: int) -> None:
        assert streak_after(*results) == streak

    def test_a_call_that_always_brings_something_new_is_never_refused(self) -> None:
        """Its second request is at streak 2, because one result is no change yet."""
        session = LoopGuard().session()
        seen = []
        for number in range(30):
            decision = session.begin_round([CALL])[0]
            seen.append(decision.streak)
            assert not decision.blocked
            session.record_result("1", f"page {number}")
        assert seen == [1, 2, *[1] * 28]

    @pytest.mark.parametrize("size", [10_000, 300_000])
    def test_a_change_at_either_end_of_a_long_result_is_a_change(self, size: int) -> None:
        long = "x" * size
        assert streak_after(long, long) == 3
        assert streak_after(long, "y" + long[1:]) == 1
        assert streak_after(long, long[1:] + "y") == 1
        assert streak_after(long, long + "x") == 1

    def test_our_own_words_are_no_outcome(self) -> None:
        """What an SDK records for a refused call is our refusal, not a tool's answer."""
        session = LoopGuard({"ladder": {"stop": False}}).session()
        streaks = []
        for _ in range(7):
            decision = session.begin_round([CALL])[0]
            streaks.append(decision.streak)
            session.record_result("1", decision.message if decision.blocked else "same")
        assert streaks == [1, 2, 3, 4, 5, 6, 7]

    @pytest.mark.parametrize("prefix", ["", "Error: ", "Observation: "])
    @pytest.mark.parametrize("is_error", [None, True, False])
    def test_whatever_an_sdk_puts_before_our_words_they_are_no_outcome(
        self, prefix: str, is_error: bool | None
    ) -> None:
        assert streak_after("same", (f"{prefix}[loopguard] This call was not executed.", is_error), "same") == 4

    def test_a_result_that_only_mentions_us_is_an_outcome(self) -> None:
        assert streak_after("x", "x" * 100 + "[loopguard]") == 1

    def test_calls_of_other_tools_keep_their_outcomes(self) -> None:
        session = LoopGuard().session()
        other = ToolCall("2", "other")
        for number in range(4):
            session.begin_round([CALL, other])
            session.record_result("1", number)
            session.record_result("2", "same")
        assert [decision.streak for decision in session.begin_round([CALL, other])] == [1, 5]

    def test_an_outcome_is_compared_across_other_calls_of_its_tool(self) -> None:
        """The last one counts, however long ago: what differs from it is news."""
        session = LoopGuard().session()
        for call, result in ((CALL, "x"), (ToolCall("1", "tool", {"n": 2}), "x"), (CALL, "y")):
            session.begin_round([call])
            session.record_result("1", result)
        assert session.begin_round([CALL])[0].streak == 1


class TestSeveralCallsOfOneIdentity:
    @pytest.mark.parametrize(
        ("first", "second", "streak"),
        [
            pytest.param(["x", "x"], ["x", "x"], 3, id="all the same"),
            pytest.param(["x", "y"], ["y", "x"], 3, id="order does not matter"),
            pytest.param(["x", "y"], ["x", "x"], 1, id="one differs"),
            pytest.param(["x", "x"], ["x"], 3, id="a set, not a list"),
            pytest.param(["x", "x", "y"], ["x", "y", "y"], 3, id="how often does not matter"),
            pytest.param(["x", MISSING], ["x", "x"], 3, id="what is missing does not count"),
            pytest.param(["x", "y"], [MISSING, MISSING], 3, id="nothing recorded"),
        ],
    )
    def test_their_outcome_is_the_sorted_set_of_what_they_returned(
        self, first: list[Any], second: list[Any], streak: int
    ) -> None:
        session = LoopGuard().session()
        for results in (first, second):
            session.begin_round([ToolCall(str(place), "tool", {"n": 1}) for place in range(len(results))])
            for place, result in enumerate(results):
                if result is not MISSING:
                    session.record_result(str(place), result)
        assert session.begin_round([CALL])[0].streak == streak


def judged_as_failure(output: Any) -> bool:
    """What the core makes of an output, seen from outside: it equals the same output recorded with that flag."""
    answers = {flag: streak_after((output, None), (output, flag)) == 3 for flag in (True, False)}
    assert answers[True] is not answers[False]
    return answers[True]


class ToolError(Exception):
    """Any exception will do."""


class Fields(Mapping[str, Any]):
    """An object that is no dict."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def __iter__(self) -> Any:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


class TestIsErrorNone:
    """The one rule where the SDK did not say (`docs/session.md`)."""

    @pytest.mark.parametrize(
        "output",
        [
            ToolError("x"),
            {"error": "no"},
            {"errors": ["no"]},
            {"isError": True, "content": []},
            {"is_error": True},
            {"success": False},
            {"ok": False, "data": 1},
            {"status": "error"},
            {"status": "FAILED"},
            {"status": "failure"},
            {"status": 404},
            {"status_code": 400},
            {"statusCode": 503},
            Fields(error="no"),
            '{"error": "no"}',
            '  {"status": 500}',
            "Error: no such file",
            "error: no",
            "  Error\n",
            "ERROR!",
            "[ERROR] no",
            "Fatal error: no",
            "Exception: no",
            "TimeoutError: no",
            "requests.exceptions.ConnectionError: no",
            "ValueError('no')",
            "Traceback (most recent call last):\n  File",
        ],
        ids=lambda output: repr(output).partition(" object at ")[0],
    )
    def test_is_a_failure(self, output: Any) -> None:
        assert judged_as_failure(output)

    @pytest.mark.parametrize(
        "output",
        [
            None,
            "",
            "ok",
            [],
            {},
            0,
            False,
            404,
            ["error"],
            {"error": None},
            {"error": ""},
            {"errors": []},
            {"error": False},
            {"isError": False},
            {"success": True},
            {"success": None},
            {"ok": True},
            {"status": "ok"},
            {"status": 200},
            {"status": 399},
            {"status": True},
            {"message": "error"},
            {"result": {"error": "nested"}},
            '{"error": null}',
            '{"a": "Error: no"}',
            '["error"]',
            "{Error: no json",
            "no error",
            "0 errors",
            "errors: none",
            "Errors.log was written",
            "The command failed",
            "x" * 600 + "Error: no",
            b"Error: bytes",
            dt.date(2026, 1, 1),
        ],
        ids=lambda output: repr(output).partition(" object at ")[0][:40],
    )
    def test_is_a_success(self, output: Any) -> None:
        assert not judged_as_failure(output)

    def test_what_the_sdk_says_wins(self) -> None:
        assert streak_after(("Error: no", False), ("Error: no", None)) == 1
        assert streak_after(("fine", True), ("fine", None)) == 1


class TestLoopKeys:
    def streaks(self, policy: dict[str, Any], *arguments: Any, tool: str = "search") -> list[int]:
        session = LoopGuard({"tools": policy}).session()
        return [session.begin_round([ToolCall("1", tool, each)])[0].streak for each in arguments]

    def test_all_arguments_count_by_default_in_any_order(self) -> None:
        assert self.streaks({}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, '{"a": 1.0, "b": 2}', {"a": 1}) == [1, 2, 3, 1]

    def test_nothing_an_empty_object_and_blank_text_are_the_same_arguments(self) -> None:
        assert self.streaks({}, None, {}, "", "{}", " ") == [1, 2, 3, 4, 5]

    def test_repeated_invalid_json_counts(self) -> None:
        assert self.streaks({}, '{"a": ', '{"a": ', '{"a"') == [1, 2, 1]

    def test_named_fields_alone_identify_a_call(self) -> None:
        policy = {"search": {"loop_key": ["query"]}}
        asked = [{"query": "a", "nonce": 1}, {"query": "a", "nonce": 2}, {"query": "b", "nonce": 2}, {"query": "b"}]
        assert self.streaks(policy, *asked) == [1, 2, 1, 2]

    def test_patterns_reach_tools_by_name(self) -> None:
        policy = {"web_*": {"loop_key": ["query"]}}
        asked = [{"query": "a", "nonce": 1}, {"query": "a", "nonce": 2}]
        assert self.streaks(policy, *asked, tool="web_search") == [1, 2]
        assert self.streaks(policy, *asked, tool="search") == [1, 1]

    def test_absent_fields_fall_back_to_the_full_arguments_with_a_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        policy = {"search": {"loop_key": ["query"]}}
        assert self.streaks(policy, {"q": "secret", "n": 1}, {"q": "secret", "n": 1}, {"q": "secret", "n": 2}) == [
            *(1, 2),
            1,
        ]
        (record,) = caplog.records
        assert "search" in record.getMessage()
        assert "secret" not in record.getMessage()

    def test_false_exempts_the_tool(self) -> None:
        session = LoopGuard({"tools": {"check_*": {"loop_key": False}}}).session()
        for _ in range(20):
            first, second = session.begin_round([ToolCall("1", "check_status"), ToolCall("2", "check_status")])
            assert first == second == Decision(action=None, streak=0)
            session.record_result("1", "same")
        assert session.stop is None
        assert session.tool_calls == 40

    def test_an_exempt_call_is_refused_with_the_round_that_ends_the_run(self) -> None:
        session = LoopGuard({"tools": {"wait": {"loop_key": False}}}).session()
        for _ in range(5):
            session.begin_round([CALL])
        exempt, offender = session.begin_round([ToolCall("2", "wait"), CALL])
        assert exempt.blocked
        assert exempt.verdict is None
        assert offender.verdict is not None

    def test_a_function_decides_and_none_exempts_that_call(self) -> None:
        def key(arguments: Any) -> Any:
            return None if arguments.get("force") else arguments["q"]

        asked = [{"q": "a", "n": 1}, {"q": "a", "n": 2}, {"q": "a", "force": True}, {"q": "a", "n": 3}]
        assert self.streaks({"search": {"loop_key": key}}, *asked) == [1, 2, 0, 3]

    def test_normalizers_apply_with_and_without_a_loop_key(self) -> None:
        asked = [{"query": "Secret  Weather!"}, {"query": " secret weather"}]
        evened = ["nfkc", "casefold", "whitespace", "punctuation"]
        assert self.streaks({"search": {"normalize": evened}}, *asked) == [1, 2]
        assert self.streaks({"search": {"normalize": evened, "loop_key": ["query"]}}, *asked) == [1, 2]
        assert self.streaks({}, *asked) == [1, 1]

    def test_tools_of_different_names_are_different_calls(self) -> None:
        session = LoopGuard().session()
        seen = [session.begin_round([ToolCall("1", tool, {"a": 1})])[0].streak for tool in ("a", "b", "a", "b", "A")]
        assert seen == [1, 1, 2, 2, 1]


class TestRounds:
    def test_a_call_that_is_in_every_round_counts_whatever_stands_beside_it(self) -> None:
        """[a,b] [a,c] [a,d]: `a` is at 3."""
        session = LoopGuard().session()
        seen = []
        for beside in "bcd":
            decisions = session.begin_round([ToolCall("1", "tool", "a"), ToolCall("2", "tool", beside)])
            seen.append([decision.streak for decision in decisions])
        assert seen == [[1, 1], [2, 1], [3, 1]]

    def test_a_round_of_the_tool_without_it_ends_its_streak(self) -> None:
        session = LoopGuard().session()
        seen = [session.begin_round([ToolCall("1", "tool", each)])[0].streak for each in "aabaa"]
        assert seen == [1, 2, 1, 1, 2]

    def test_rounds_of_other_tools_leave_it_alone(self) -> None:
        session = LoopGuard().session()
        seen = []
        for number in range(4):
            seen.append(session.begin_round([CALL])[0].streak)
            session.begin_round([ToolCall("1", "other", number)])
        assert seen == [1, 2, 3, 4]

    def test_identical_calls_in_one_round_count_once(self) -> None:
        decisions = LoopGuard().session().begin_round([CALL, ToolCall("2", "tool", {"n": 1}), CALL])
        assert [decision.streak for decision in decisions] == [1, 1, 1]
        assert [decision.duplicate for decision in decisions] == [False, True, True]


class TestBetween:
    def test_a_user_turn_starts_streaks_afresh(self) -> None:
        session = LoopGuard().session()
        for _ in range(4):
            assert session.begin_round([CALL])[0].streak == 1
            session.record_result("1", "same")
            session.user_turn()

    @pytest.mark.parametrize("counted", [1, 2, 5])
    def test_a_summary_grants_each_known_call_one_more_request_without_counting_it(self, counted: int) -> None:
        session = LoopGuard({"ladder": {"stop": 9}}).session()
        for _ in range(counted):
            session.begin_round([CALL])
            session.record_result("1", "same")
        session.compacted()
        session.compacted()
        seen = []
        for _ in range(3):
            seen.append(session.begin_round([CALL])[0].streak)
            session.record_result("1", "same")
        assert seen == [counted, counted + 1, counted + 2]

    def test_a_summary_in_every_round_does_not_hide_a_loop(self) -> None:
        session = LoopGuard().session()
        seen = []
        for _ in range(7):
            seen.append(session.begin_round([CALL])[0].streak)
            session.record_result("1", "same")
            session.compacted()
        assert seen == [1, 1, 2, 3, 4, 5, 6]

    def test_a_summary_is_about_the_calls_there_were(self) -> None:
        session = LoopGuard().session()
        session.compacted()
        assert [session.begin_round([CALL])[0].streak for _ in range(3)] == [1, 2, 3]


# -- against an independent model ---------------------------------------------------------------------------------


@dataclass
class Asked:
    """One round: which calls, and what they returned, by identity."""

    calls: set[tuple[str, int]]
    results: dict[tuple[str, int], set[tuple[bool, str]]] = field(default_factory=dict)


SUMMARY, USER = "summary", "user"
OTHERS = [*(name for name in DETECTORS if name != "repeated_call"), "repeated_call.changing"]
# What is looked at together with things that change is asked as a poll is; here it climbs as anything else.
AS_ANY = {"ladder": {"observe": 2, "steer": False, "block": 3, "stop": 6}}
ALONE = {"detectors": {**{name: {"enabled": False} for name in OTHERS}, "repeated_call.poll": AS_ANY}}


def expected_streak(history: list[Asked | str], identity: tuple[str, int]) -> int:  # the prose, rule by rule
    """The streak of a call of the last round, worked out from the prose alone.

    An identity's streak is the number of its tool's rounds in a row that contain it. An outcome that differs from the
    identity's last one makes the next request streak 1; one never recorded counts as unchanged. A user starts afresh.
    After a summary one request is not counted, once a streak.
    """
    start = 0
    for place, entry in enumerate(history):
        left = (
            isinstance(entry, Asked) and identity not in entry.calls and any(t == identity[0] for t, _ in entry.calls)
        )
        if entry == USER or left:
            start = place + 1
    streak, last, changed, granted, spared = 0, None, False, False, False
    for place, entry in enumerate(history):
        if isinstance(entry, str):
            granted = entry == SUMMARY and streak > 0 and not spared
            streak = 0 if entry == USER else streak
            continue
        if identity not in entry.calls:
            continue
        if place < start or streak == 0 or changed:
            streak, spared = 1, False
        elif granted:
            spared = True
        else:
            streak += 1
        outcome = entry.results.get(identity)
        changed = outcome is not None and last is not None and outcome != last
        last = outcome or last
        granted = False
        if place < start:
            streak = 0
    return streak


# Weighted, so that long streaks occur.
identities = st.sampled_from([("a", 0), ("a", 0), ("a", 0), ("a", 1), ("b", 0)])
outcomes = st.sampled_from([None, *[(False, "x")] * 4, (True, "x"), (False, "y")])
one_round = st.lists(st.tuples(identities, outcomes), min_size=1, max_size=4)
transcripts = st.lists(st.one_of(*[one_round] * 6, st.sampled_from([SUMMARY, USER])), min_size=4, max_size=16)
RUNGS = {1: None, 2: "observe", 3: "block", 4: "block", 5: "block"}


def act(session: Session, calls: list[tuple[tuple[str, int], tuple[bool, str] | None]]) -> list[tuple[int, str | None]]:
    asked = [ToolCall(f"{place}", *identity) for place, (identity, _) in enumerate(calls)]
    decisions = session.begin_round(asked)
    for place, (_, outcome) in enumerate(calls):
        if outcome is not None:
            session.record_result(str(place), outcome[1], is_error=outcome[0])
    return [(decision.streak, None if decision.action is None else decision.action.value) for decision in decisions]


def follow(transcript: list[Any]) -> int:
    """Play a transcript against the model; the longest streak it had."""
    session = LoopGuard(ALONE).session()
    history: list[Asked | str] = []
    longest = 0
    for step in transcript:
        if step == USER:
            session.user_turn()
            history.append(USER)
        elif step == SUMMARY:
            session.compacted()
            history.append(SUMMARY)
        else:
            asked = Asked({identity for identity, _ in step})
            history.append(asked)
            expected = [expected_streak(history, identity) for identity, _ in step]
            for identity, outcome in step:
                if outcome is not None:
                    asked.results.setdefault(identity, set()).add(outcome)
            assert act(session, step) == [(streak, RUNGS.get(streak, "stop")) for streak in expected]
            longest = max(longest, *expected)
    return longest


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(transcripts)
def test_every_streak_and_action_is_what_the_prose_says(transcript: list[Any]) -> None:
    follow(transcript)


def test_long_transcripts_are_what_the_prose_says() -> None:
    """Weighted by hand, so that every rung is reached often."""
    chance = random.Random(7)
    longest: list[int] = []
    for _ in range(300):
        transcript: list[Any] = []
        for _ in range(chance.randrange(8, 30)):
            if chance.random() < 0.06:
                transcript.append(chance.choice([USER, SUMMARY, SUMMARY]))
                continue
            step = [(("a", 0), (False, "x") if chance.random() < 0.85 else None)]
            for _ in range(chance.choice([0, 0, 1, 3])):
                outcome = chance.choice([None, (False, "x"), (False, "x"), (True, "x"), (False, "y")])
                step.append(((chance.choice("ab"), chance.randrange(2)), outcome))
            if chance.random() < 0.1:
                step = step[1:] or [(("b", 0), None)]
            chance.shuffle(step)
            transcript.append(step)
        longest.append(follow(transcript))
    assert sum(streak >= 6 for streak in longest) > 60
    assert sum(streak >= 3 for streak in longest) > 200


def test_a_tool_whose_output_names_loopguard_is_judged_like_any_other() -> None:
    """Only the text that stands in place of a result is no result: a tool may well read our logs."""
    session = LoopGuard().session()
    for number in range(10):
        assert session.begin_round([ToolCall("1", "tail_log", {})])[0].action is not Action.BLOCK
        session.record_result("1", f"12:00:0{number} [loopguard] policy event {number}")


@pytest.mark.parametrize(
    ("text", "empty"),
    [("", True), ("[]", True), ("{}", True), ("0", True), ("no", True), ("42", False), ("ok", False), ("是", False)],
)
def test_a_short_answer_is_an_answer(text: str, empty: bool) -> None:
    assert is_empty(text) is empty
