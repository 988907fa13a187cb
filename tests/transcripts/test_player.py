from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopguard_core import (
    Action,
    Channel,
    Detector,
    DoomLoopDetected,
    Finding,
    LoopGuard,
    ObservedCall,
    Policy,
    PostModelCall,
    ToolCall,
    Usage,
    fingerprint,
    hookimpl,
)
from loopguard_core._ladder import DETECTORS
from loopguard_core.transcripts import (
    AssistantMessage,
    Message,
    Replayed,
    SystemMessage,
    ToolResult,
    Transcript,
    UserMessage,
    guard_for_replay,
    parse_transcript,
    play,
    read_transcript,
)

CASES = Path(__file__).parents[1] / "data" / "cases"
ALONE = {name: {"enabled": name == "repeated_call"} for name in DETECTORS}
"""`repeated_call` alone, so that what is said here holds whatever detectors join it."""


def guard(**policy: Any) -> LoopGuard:
    return guard_for_replay(Policy(**{"detectors": ALONE, **policy}))


def said(*messages: Message, guard: LoopGuard) -> Replayed:
    return play(Transcript(None, messages), guard)


def rounds(count: int, output: str | None = "same") -> Iterator[Message]:
    for number in range(count):
        yield AssistantMessage(calls=(ToolCall(f"id-{number}", "look", '{"at": 1}'),))
        if output is not None:
            yield ToolResult(f"id-{number}", output)


def actions(replayed: Replayed) -> list[tuple[int, str]]:
    return [(verdict.round, verdict.action.value) for verdict in replayed.verdicts]


# -- labelled cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "blocked_at"),
    [
        ("field-l01-identical-success-x10", 3),
        ("field-l18-denied-reissued", 3),
        ("report-03-empty-args-missing-param", 3),
        ("report-04-save-memory-after-answer", 4),
        ("report-10-parallel-fanout-repeated", 3),
    ],
)
def test_loops_of_unchanged_calls_are_blocked_in_time(case: str, blocked_at: int) -> None:
    replayed = play(read_transcript(CASES / f"{case}.json"), guard())
    assert next(at for at, action in actions(replayed) if action == "block") == blocked_at
    assert {verdict.detector for verdict in replayed.verdicts} == {"repeated_call"}


@pytest.mark.parametrize(
    "case",
    [
        "field-f01-poll-build-changing",
        "field-f09-parallel-identical-one-round",
        "field-f15-same-call-each-user-turn",
        "own-04-bash-only-progress",
        "own-08-user-asks-again",
        "report-52-red-green-test-cycle",
        "report-55-five-parallel-metrics-queries",
    ],
)
def test_healthy_runs_are_neither_blocked_nor_stopped(case: str) -> None:
    replayed = play(read_transcript(CASES / f"{case}.json"), guard())
    assert {verdict.action for verdict in replayed.verdicts} <= {Action.OBSERVE}
    assert replayed.ended == "complete"


@pytest.mark.parametrize("case", ["field-f01-poll-build-changing", "report-52-red-green-test-cycle"])
def test_with_outcomes_ignored_progress_looks_like_a_loop(case: str) -> None:
    replayed = play(read_transcript(CASES / f"{case}.json"), guard(preset="openrouter"))
    assert "block" in {action for _, action in actions(replayed)}


def test_a_loop_whose_arguments_shift_is_not_repeated_calls_to_see() -> None:
    replayed = play(read_transcript(CASES / "report-21-shifting-arg-shapes-same-validation.json"), guard())
    assert (replayed.verdicts, replayed.ended) == ((), "complete")


# -- the order of a run ----------------------------------------------------------------------------------------


def test_everything_is_played_past_blocks_and_the_stop() -> None:
    replayed = said(*rounds(9), AssistantMessage("done"), guard=guard())
    assert actions(replayed) == [
        (2, "observe"),
        *[(n, "block") for n in (3, 4, 5)],
        *[(n, "stop") for n in (6, 7, 8, 9)],
    ]
    assert (replayed.rounds, replayed.messages, replayed.ended, replayed.stop_round) == (9, 10, "doom_loop", 6)
    assert replayed.stop is not None
    assert replayed.stop.verdict == replayed.verdicts[4]


def test_recorded_results_of_calls_the_policy_refuses_count() -> None:
    changes_at_last = [*rounds(4), *rounds(1, "changed"), *rounds(2, "changed")]
    assert actions(said(*changes_at_last, guard=guard())) == [
        (2, "observe"),
        (3, "block"),
        (4, "block"),
        (5, "block"),
        (7, "observe"),
    ]


def test_a_verdict_names_its_round_and_its_assistant_message() -> None:
    talk = AssistantMessage("Let me think.")
    replayed = said(*rounds(1), talk, *rounds(1), guard=guard())
    assert [(verdict.round, verdict.message_index) for verdict in replayed.verdicts] == [(2, 3)]


def test_a_duplicate_in_a_round_has_no_row_of_its_own() -> None:
    twice = AssistantMessage(
        calls=(ToolCall("1", "look", "{}"), ToolCall("2", "look", "{ }"), ToolCall("3", "other", "{}"))
    )
    replayed = said(twice, twice, guard=guard())
    assert [(verdict.call_id, verdict.tool) for verdict in replayed.verdicts] == [("1", "look"), ("3", "other")]


def test_a_user_message_is_a_user_turn_and_our_own_words_are_not() -> None:
    user, ours = UserMessage("again, please"), UserMessage("[loopguard] Do something else now.")
    assert actions(said(user, *rounds(2), user, *rounds(1), guard=guard())) == [(2, "observe")]
    assert actions(said(user, *rounds(2), ours, SystemMessage("x"), *rounds(1), guard=guard())) == [
        (2, "observe"),
        (3, "block"),
    ]


def test_one_guard_serves_many_recordings_that_do_not_mix() -> None:
    shared = guard()
    first, second = (play(Transcript("same-id", tuple(rounds(3))), shared) for _ in range(2))
    assert first == second
    assert actions(first) == [(2, "observe"), (3, "block")]


def test_an_empty_recording_is_complete() -> None:
    assert said(guard=guard()) == Replayed(None, 0, 0, "complete")


# -- limits ----------------------------------------------------------------------------------------------------


def test_a_limit_ends_the_run_before_the_call_it_forbids_and_the_rest_is_played() -> None:
    replayed = said(*rounds(2), *rounds(3, None), guard=guard(limits={"turns": 2}))
    assert (replayed.ended, replayed.stop_round, replayed.rounds) == ("max_turns", 2, 5)
    assert [at for at, _ in actions(replayed)] == [2, 3, 4, 5]


def test_the_first_stop_counts() -> None:
    assert said(*rounds(8), guard=guard(limits={"turns": 7})).ended == "doom_loop"
    assert said(*rounds(8), guard=guard(limits={"turns": 4})).ended == "max_turns"


def test_recorded_usage_counts_against_limits() -> None:
    answer = AssistantMessage("x", usage=Usage(input_tokens=90, output_tokens=10, cost=Decimal("0.3")))
    assert said(answer, answer, answer, guard=guard(limits={"cost": 0.6})).ended == "max_cost"
    assert said(answer, answer, guard=guard(limits={"cost": 0.6})).ended == "complete"
    assert said(answer, answer, guard=guard(limits={"tokens": 100})).ended == "max_tokens"


def test_time_stands_still_in_a_replay() -> None:
    replaying = guard(limits={"seconds": 1e-9})
    assert said(AssistantMessage("x"), AssistantMessage("y"), guard=replaying).ended == "complete"


# -- fingerprints and plugins ----------------------------------------------------------------------------------


def test_fingerprints_are_plain_whatever_the_policy_says_of_keys(caplog: pytest.LogCaptureFixture) -> None:
    replayed = said(*rounds(2), guard=guard(privacy={"fingerprint_key": "secret"}))
    assert [verdict.fingerprint for verdict in replayed.verdicts] == [fingerprint("look", {"at": 1})]
    assert caplog.messages == []


class Overrides:
    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> Action | None:
        return Action.STEER if event.action is Action.BLOCK else None


class Repeats(Detector):
    """Finds something in every call."""

    name = "acme"

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> list[Finding]:
        return [Finding(number, 1, identity=call.identity) for call in calls]


class Adds:
    @hookimpl
    def detectors(self, policy: Policy) -> list[Detector]:
        return [Repeats()]


def test_what_plugins_override_is_what_is_reported() -> None:
    replaying = LoopGuard(Policy(detectors=ALONE), plugins=[Overrides()])
    assert actions(said(*rounds(6), guard=replaying)) == [
        *[(2, "observe"), (3, "steer"), (4, "steer"), (5, "steer"), (6, "stop")]
    ]


def test_detectors_of_plugins_are_heard() -> None:
    policy = Policy(detectors={**ALONE, "repeated_call": {"enabled": False}, "acme": {"ladder": {"stop": 1}}})
    replayed = said(*rounds(1), guard=LoopGuard(policy, plugins=[Adds()]))
    assert [verdict.detector for verdict in replayed.verdicts] == ["acme"]
    assert replayed.ended == "doom_loop"


# -- text ------------------------------------------------------------------------------------------------------


class Listens(Detector):
    """Notes what it is asked, and fires at each `!`, as a detector of text would."""

    name = "acme"

    def __init__(self, log: list[tuple[str, Any]]) -> None:
        self._log = log
        self._fired = 0

    def feed_text(self, delta: str, channel: Channel) -> Finding | None:
        self._log.append((channel, delta))
        if "!" not in delta:
            return None
        self._fired += 1
        return Finding(self._fired, 1, char=delta.index("!"))

    def end_message(self, finish_reason: str | None) -> Finding | None:
        self._log.append(("end", finish_reason))
        return None

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> list[Finding]:
        self._log.append(("round", number))
        return []

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        self._log.append(("close", [call.outcome is not None for call in calls]))


class Tells:
    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []

    @hookimpl
    def detectors(self, policy: Policy) -> list[Detector]:
        return [Listens(self.log)]

    @hookimpl
    def post_model_call(self, event: PostModelCall) -> None:
        self.log.append(("after", (event.model, event.usage)))


def listening(plugin: Tells) -> LoopGuard:
    return LoopGuard(Policy(detectors={**ALONE, "acme": {"ladder": {"steer": 1, "stop": 2}}}), plugins=[plugin])


def test_a_response_is_played_in_the_documented_order() -> None:
    plugin, usage = Tells(), Usage(input_tokens=1)
    message = AssistantMessage("c" * 300, "why", (ToolCall("1", "t"),), "tool_calls", usage, "m")
    said(message, ToolResult("1", "x"), AssistantMessage(calls=(ToolCall("2", "t"),)), guard=listening(plugin))
    kinds = [kind for kind, _ in plugin.log]
    first = ["reasoning", "content", "content", "content", "end", "after", "round"]
    assert kinds == [*first, "content", "end", "after", "close", "round"]
    assert "".join(text for kind, text in plugin.log if kind == "content") == message.content
    assert plugin.log[4:6] == [("end", "tool_calls"), ("after", ("m", usage))]
    assert plugin.log[10] == ("close", [True])


def test_a_verdict_on_text_belongs_to_the_last_round_and_its_own_message() -> None:
    replayed = said(*rounds(1), AssistantMessage("ab!", calls=(ToolCall("2", "other"),)), guard=listening(Tells()))
    (verdict,) = replayed.verdicts
    assert (verdict.round, verdict.message_index, verdict.channel, verdict.char) == (1, 2, "content", 2)
    assert (verdict.tool, verdict.fingerprint, replayed.ended) == (None, None, "complete")


def test_text_goes_on_being_read_past_its_own_stop() -> None:
    text = "".join(f"{'x' * 255}!" for _ in range(3))
    replayed = said(*rounds(1), AssistantMessage(text, calls=(ToolCall("2", "other"),)), guard=listening(Tells()))
    assert actions(replayed) == [(1, "steer"), (1, "stop"), (1, "stop")]
    assert (replayed.ended, replayed.stop_round) == ("doom_loop", 1)


@pytest.mark.parametrize(
    "text",
    [
        "[context compacted] Task: mend the login test. Next: look at it.",
        "This session is being continued from a previous conversation that ran out of context.",
        "Another language model started to solve this problem and produced a summary of its thinking process:",
        "[Summary of earlier conversation]\nThe user wants a report.",
        "Conversation summarized: three files are done.",
    ],
)
def test_a_summary_in_place_of_the_conversation_is_no_user(text: str) -> None:
    """It spares the streak one count, as `Session.compacted` does, and a lap of the same work after each is a loop."""
    looped = said(*rounds(2), UserMessage(text), *rounds(3), guard=guard())
    assert ("block" in dict(actions(looped)).values()) or any(action == "block" for _, action in actions(looped))
    asked = said(*rounds(2), UserMessage("Please summarize the conversation we had."), *rounds(2), guard=guard())
    assert all(action == "observe" for _, action in actions(asked))


class TestAgentsByName:
    """Agents of one recording that speak by name are runs of their own."""

    @staticmethod
    def read(agents: Iterable[str], guard: LoopGuard) -> Replayed:
        messages: list[Message] = []
        for number, agent in enumerate(agents):
            call = ToolCall(f"c{number}", "read_file", {"path": "package.json"})
            messages += [AssistantMessage(calls=(call,), agent=agent), ToolResult(call.id, '{"name": "app"}')]
        return said(*messages, guard=guard)

    def test_each_may_read_the_same_file(self) -> None:
        assert actions(self.read("abcdefgh", guard())) == []

    def test_one_of_them_that_loops_is_found_where_it_stands(self) -> None:
        replayed = self.read("abacadaeafag", guard())
        observed, blocked, *rest = replayed.verdicts
        assert (observed.round, observed.message_index, observed.action) == (3, 3, Action.OBSERVE)
        assert (blocked.round, blocked.message_index, blocked.action) == (5, 5, Action.BLOCK)
        assert blocked.evidence["at_rounds"] == [1, 3, 5]
        assert replayed.ended == "doom_loop"
        assert (replayed.stop_round, replayed.answered, replayed.rounds) == (11, 11, 12)
        assert len(rest) == 3

    def test_one_name_alone_is_one_run(self) -> None:
        assert (3, "block") in actions(self.read("aaaa", guard()))

    def test_a_chat_has_the_names(self) -> None:
        messages = [
            {
                "role": "assistant",
                "name": name,
                "content": "",
                "tool_calls": [
                    {"id": f"c{n}", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
                ],
            }
            for n, name in enumerate(("ann", "ben", "cid", "dee"))
        ]
        transcript = parse_transcript(json.dumps({"messages": messages}).encode())
        assert actions(play(transcript, guard())) == []
