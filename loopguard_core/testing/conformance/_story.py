"""Scripts told as a story: what the model asks for round by round, and every verdict that must come of it.

From the verdicts follows everything else that must be true, on each surface according to what it can perform: which
calls really ran, what stands before the model in each request, how the run ended, and that the next turn is clean. So a
story is exact without saying things twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopguard_core._advice import advice_for
from loopguard_core.testing.conformance._personas import DONE, user_text
from loopguard_core.testing.conformance._record import Record
from loopguard_core.testing.conformance._script import Expected, Script
from loopguard_core.testing.personas import MARK, ChatRequest, Persona, Reply, ScriptedCall

Round = tuple[ScriptedCall, ...]
ToolFunction = Callable[[Mapping[str, Any], int], Any]

NEXT = "and again"
"""What the user says in the turn after: the first call of the story is then a request like any other."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One verdict, as it is on a surface that can perform everything.

    Attributes:
        round: The round it is about.
        row: Detector and kind: the row of the advice the model is given, for example `repeated_call.poll`.
        action: The ladder's action.
        streak: The streak it has.
        call: Which call of the round, from 0.
        told: Whether the model call after this round carries a steering message for it.
    """

    round: int
    row: str
    action: str
    streak: int
    call: int = 0
    told: bool = False

    @property
    def detector(self) -> str:
        """The detector."""
        return self.row.partition(".")[0]

    @property
    def advice(self) -> tuple[str, str]:
        """What a model that is to act on it must read."""
        detector, _, kind = self.row.partition(".")
        advice = advice_for(detector, kind or None)
        return advice.why, advice.ways


def climb(row: str, first: int, *rungs: str, streak: int | None = None, call: int = 0) -> tuple[Seen, ...]:
    """Verdicts in consecutive rounds whose streak grows by one each; a rung in capitals also steers the model.

    Args:
        row: As in `Seen`.
        first: The round of the first.
        rungs: The action in each round; `STEER` and `BLOCK` mark where the model is told at its next call.
        streak: Of the first; None takes the round's number.
        call: As in `Seen`.
    """
    start = first if streak is None else streak
    return tuple(
        Seen(first + place, row, rung.lower(), start + place, call, told=rung.isupper())
        for place, rung in enumerate(rungs)
    )


@dataclass(frozen=True, slots=True)
class Story:
    """What must come of some rounds.

    Attributes:
        rounds: What the model asks for in each round. Where a verdict stops the run, it is in the last one.
        seen: Every verdict, in order.
        says: What the text of each verdict contains, so that its kind is known where nothing is done about it.
        words: What the model says beside its calls.
    """

    rounds: Sequence[Round]
    seen: Sequence[Seen]
    says: Sequence[str]
    words: str | None = None

    def persona(self) -> Persona:
        """Asks for the rounds, whatever it is told, and then answers; in the next turn it asks for the first call."""

        def persona(request: ChatRequest) -> Reply:
            if user_text(request) == NEXT:
                asks = request.messages[-1].get("role") == "user" and request.may_call
                return Reply(tool_calls=self.rounds[0][:1]) if asks else Reply(text=DONE)
            if request.number > len(self.rounds) or not request.may_call:
                return Reply(text=DONE)
            return Reply(text=self.words, tool_calls=self.rounds[request.number - 1])

        return persona

    def check(self, record: Record, expected: Expected) -> None:
        """Assert all of it."""
        self._check_verdicts(record, expected)
        self._check_executions(record, expected)
        self._check_told(record, expected)
        self._check_end(record, expected)
        if "history" in expected.features:
            assert record.turns[-1].error is None, "the next turn runs"
            assert record.turns[-1].text == DONE
            assert [end.reason for end in record.recorder.ends[1:]] == ["complete"]

    @property
    def stopped(self) -> bool:
        """Whether a verdict stops the run."""
        return any(seen.action == "stop" for seen in self.seen)

    def _refused(self, number: int, expected: Expected) -> dict[int, Seen]:
        """Calls of a round that are refused by themselves."""
        refused = (seen for seen in self.seen if seen.round == number)
        return {seen.call: seen for seen in refused if expected.performs(seen.action) == "block"}

    def _telling(self, expected: Expected) -> list[Seen]:
        """Verdicts that put a steering message before the next model call: once a streak."""
        if not expected.steers:
            return []
        told: dict[object, Seen] = {}
        for seen in self.seen:
            # Where a call cannot be refused the model is told instead, unless it was told already.
            if seen.told or (seen.action == "block" and expected.performs("block") == "steer"):
                call = self.rounds[seen.round - 1][seen.call]
                told.setdefault((seen.row, _named(call) if seen.detector == "repeated_call" else None), seen)
        return list(told.values())

    def _ends_here(self, number: int, expected: Expected) -> bool:
        return self.stopped and expected.stops and number == len(self.rounds)  # where it can be ended at all

    def _check_verdicts(self, record: Record, expected: Expected) -> None:
        named = "tool_names" in expected.features
        wanted = [
            (
                *(seen.round, seen.detector, expected.performs(seen.action), seen.action, seen.streak),
                self._tool(seen) if named else None,
            )
            for seen in self.seen
        ]
        found = [
            (
                *(event.round, event.detector, event.action.value, event.proposed.value, event.streak),
                event.tool if named else None,
            )
            for event in record.recorder.loops
        ]
        assert found == wanted, _difference(found, wanted)
        for event in record.recorder.loops:
            assert event.message.startswith(MARK)
            assert any(text in event.message for text in self.says), f"says something else: {event.message}"

    def _tool(self, seen: Seen) -> str:
        return self.rounds[seen.round - 1][seen.call].name

    def _check_executions(self, record: Record, expected: Expected) -> None:
        wanted: Counter[tuple[str, str]] = Counter()
        let_through = 0
        for number, round_ in enumerate(self.rounds, 1):
            refused = self._refused(number, expected)
            ran = [_named(call) for place, call in enumerate(round_) if place not in refused]
            stopped = self.stopped and number == len(self.rounds)
            if not stopped:
                let_through += len(ran)
            if not self._ends_here(number, expected):
                wanted.update(ran)
            elif expected.drains:
                wanted.update(_named(call) for call in round_)
        if "history" in expected.features:
            wanted[_named(self.rounds[0][0])] += 1
        found = Counter((name, _text(arguments)) for name, arguments in record.executions)
        assert found == wanted, f"ran {found - wanted} too often, {wanted - found} not"
        assert record.end.tool_calls == let_through, f"SessionEnd.tool_calls {record.end.tool_calls}, not {let_through}"

    def _check_told(self, record: Record, expected: Expected) -> None:
        answered = 0
        for number in range(1, len(self.rounds) + 1):
            if self._ends_here(number, expected):
                break
            refused = self._refused(number, expected)
            answered += len(refused)
            after = record.told(number + 1, "tool")
            assert len(after) == answered, f"request {number + 1} has {len(after)} refusals, not {answered}"
            assert all(text.startswith(MARK) for text in after)
            for text, seen in zip(after[answered - len(refused) :], refused.values(), strict=True):
                _assert_advised(text, seen)
            self._check_steered(record, expected, number)

    def _check_steered(self, record: Record, expected: Expected, number: int) -> None:
        wanted = [seen for seen in self._telling(expected) if seen.round == number]
        found = record.told(number + 1, "user")
        assert len(found) == len(wanted), f"request {number + 1} steers {len(found)} times, not {len(wanted)}: {found}"
        if wanted:
            last = record.requests[number]["messages"][-1]
            assert MARK in str(last.get("content")), "it comes after everything the model has seen"
        for text, seen in zip(found, wanted, strict=True):
            assert text.startswith(MARK)
            _assert_advised(text, seen)

    def _check_end(self, record: Record, expected: Expected) -> None:
        end, turn, rounds = record.end, record.turns[0], len(self.rounds)
        cut_short = self.stopped and expected.stops
        assert end.reason == ("doom_loop" if self.stopped else "complete")
        assert end.turns == rounds
        if cut_short or "sees_answers" in expected.features:
            assert end.model_calls == rounds + (not cut_short), f"SessionEnd.model_calls is {end.model_calls}"
        after = 2 if "history" in expected.features else 0
        assert len(record.requests) == rounds + (not cut_short) + after, f"{len(record.requests)} model calls"
        if self.stopped:
            last = self.seen[-1]
            assert end.verdict is not None
            assert (end.verdict.detector, end.verdict.action, end.verdict.streak, end.verdict.round) == (
                last.detector,
                "stop",
                last.streak,
                last.round,
            )
        else:
            assert end.verdict is None
        if not cut_short:
            assert (turn.error, turn.text) == (None, DONE)
        elif "on_stop" in expected.features:
            assert turn.error is None
            assert turn.text is not None
            assert MARK in turn.text
        else:
            assert turn.error is not None
        if cut_short and "notice" in expected.features:
            assert turn.notice is not None
            assert turn.notice["reason"] == "doom_loop"


def story(
    name: str,
    rule: str,
    *,
    rounds: Sequence[Round | ScriptedCall],
    tools: Mapping[str, ToolFunction],
    seen: Sequence[Seen] = (),
    says: str | Sequence[str] = (),
    words: str | None = None,
    policy: Mapping[str, Any] | None = None,
    features: frozenset[str] = frozenset(),
) -> Script:
    """A script from a story.

    Args:
        name: As in `Script`.
        rule: As in `Script`.
        rounds: What the model asks for in each round.
        tools: As in `Script`.
        seen: Every verdict.
        says: What the text of each verdict contains; of several texts, one of them.
        words: What the model says beside its calls in each round.
        policy: As in `Script`.
        features: As in `Script`. A story with several calls in a round needs `fan_out` by itself.
    """
    made = [call if isinstance(call, tuple) else (call,) for call in rounds]
    told = Story(made, tuple(seen), (says,) if isinstance(says, str) else tuple(says), words)
    several = frozenset({"fan_out"} if any(len(round_) > 1 for round_ in made) else ())
    return Script(
        name=name,
        rule=rule,
        persona=told.persona(),
        check=told.check,
        tools=tools,
        policy={} if policy is None else policy,
        features=features | several,
        then=NEXT,
    )


def _assert_advised(text: str, seen: Seen) -> None:
    for part in seen.advice:
        assert part in text, f"lacks the advice for {seen.row} ({part!r}): {text}"


def _named(call: ScriptedCall) -> tuple[str, str]:
    return call.name, call.arguments if isinstance(call.arguments, str) else _text(call.arguments)


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), sort_keys=True)


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    lines = [f"- {row}" for row in wanted if row not in found] + [f"+ {row}" for row in found if row not in wanted]
    return "verdicts (round, detector, action, proposed, streak, tool):\n" + "\n".join(lines)
