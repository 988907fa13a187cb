"""Scripts about what is a loop and what is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopguard_core._types import EndReason
from loopguard_core.testing.conformance._driver import Turn
from loopguard_core.testing.conformance._personas import (
    DONE,
    call,
    deaf,
    for_rounds,
    listening,
    repeats,
    unless_thanked,
    user_text,
)
from loopguard_core.testing.conformance._record import Record
from loopguard_core.testing.conformance._script import Expected, Script
from loopguard_core.testing.personas import MARK, ChatRequest, Reply

TIMEOUT = "Error: the billing service timed out"


def timeout(arguments: Mapping[str, Any], ran: int) -> str:
    """A tool that always says the same."""
    return TIMEOUT


def raising(arguments: Mapping[str, Any], ran: int) -> str:
    """A tool that always fails the same way."""
    raise RuntimeError("the billing service timed out")


def counting(arguments: Mapping[str, Any], ran: int) -> str:
    """A tool whose result is new every time."""
    return f"{10 * ran} % done"


def reading(arguments: Mapping[str, Any], ran: int) -> str:
    """A healthy tool: what it says depends on what it is asked."""
    return f"{arguments['query']} has {7 + ran * ran} lines, the first of which names customer {1000 - ran}"


def full_ladder(expected: Expected) -> list[str]:
    """What an identical call brings out of the default ladder."""
    middle = expected.performs("block")
    return ["observe 2", f"{middle} 3", f"{middle} 4", f"{middle} 5", "stop 6"]


def assert_closed(turn: Turn, expected: Expected, reason: EndReason) -> None:
    """A stop reached the caller as this surface promises it."""
    if "on_stop" in expected.features:
        assert turn.error is None, turn.error
        assert MARK in str(turn.text)
    else:
        assert turn.error is not None
    if "notice" in expected.features:
        assert turn.notice is not None
        assert turn.notice["reason"] == reason


def _deaf(record: Record, expected: Expected) -> None:
    assert record.recorder.ladder() == full_ladder(expected)
    assert record.ran("fetch") == expected.loop_executions()
    assert [end.reason for end in record.recorder.ends] == ["doom_loop"]
    end = record.end
    assert end.verdict is not None
    assert end.verdict.detector == "repeated_call"
    assert (end.turns, end.model_calls, end.tool_calls) == (6, 6, record.ran("fetch") if expected.blocks else 5)
    assert len(record.requests) == 6
    if expected.blocks:
        assert len(record.told(6, "tool")) == 3, "the model was told why, in the place of each refused result"
    assert not any("INV-2291" in text for number in range(1, 7) for text in record.told(number)), "arguments quoted"
    assert_closed(record.turns[0], expected, "doom_loop")


def _second_turn(record: Record, expected: Expected) -> None:
    assert record.turns[-1].text == "you are welcome"
    assert record.turns[-1].error is None
    assert [end.reason for end in record.recorder.ends] == ["doom_loop", "complete"]


def _listening(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 2
    assert record.recorder.ladder() == ["observe 2", "block 3"]
    assert record.turns[0].text == DONE
    assert record.end.reason == "complete"
    assert record.end.verdict is None


def _fan_out_whole(record: Record, expected: Expected) -> None:
    per_round = 3
    assert record.ran("fetch") == per_round * expected.loop_executions()
    assert record.recorder.ladder().count("stop 6") == per_round, "each distinct call has its own verdict"
    assert record.end.reason == "doom_loop"


def _fan_out_partly(record: Record, expected: Expected) -> None:
    fresh = {str(arguments.get("query")) for _, arguments in record.executions}
    assert {f"new-{number}" for number in range(1, 6)} <= fresh, "the healthy calls of a round run"
    offender = sum(arguments.get("query") == "same" for _, arguments in record.executions)
    assert offender == (2 if expected.blocks else 5)
    assert record.end.reason == "complete"


def _once_a_round(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 6
    assert record.recorder.ladder() == ["observe 2"]
    assert record.end.reason == "complete"


def _healthy(record: Record, expected: Expected) -> None:
    assert record.recorder.loops == []
    assert record.ran("fetch") == 30
    assert record.turns[0].text == DONE
    assert record.end.reason == "complete"
    assert not any(record.told_counts())


def _polling(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 30
    assert {event.action.value for event in record.recorder.loops} <= {"observe"}
    assert record.end.reason == "complete"


def _order(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 2 * expected.loop_executions()
    assert record.end.reason == "doom_loop"


def _unknown_tool(record: Record, expected: Expected) -> None:
    assert record.recorder.ladder()[-1] == "stop 6"
    assert record.end.reason == "doom_loop"
    assert len(record.requests) == 6


def _invalid_json(record: Record, expected: Expected) -> None:
    assert record.recorder.ladder()[-1] == "stop 6"
    assert record.end.reason == "doom_loop"


def _user_asks_again(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 5
    assert {event.action.value for event in record.recorder.loops} <= {"observe"}
    assert [turn.text for turn in record.turns] == [DONE] * 5


def _one_call_a_turn(request: ChatRequest) -> Reply:
    last = request.messages[-1].get("role")
    return Reply(tool_calls=(call(),)) if last == "user" and user_text(request) else Reply(text=DONE)


LOOPS: tuple[Script, ...] = (
    Script(
        name="identical call, deaf model",
        rule="An identical call with an unchanged result is refused from round 3 on, and the run is ended at round 6.",
        persona=deaf(),
        tools={"fetch": timeout},
        needs=frozenset({"stop"}),
        check=_deaf,
    ),
    Script(
        name="the turn after a stop",
        rule="After a stop the same thread can be used for the next turn.",
        persona=unless_thanked(deaf()),
        tools={"fetch": timeout},
        turns=("go", "thanks"),
        features=frozenset({"history"}),
        needs=frozenset({"stop"}),
        check=_second_turn,
    ),
    Script(
        name="identical call, listening model",
        rule="A model that gives up when it is refused ends the run itself.",
        persona=listening(),
        tools={"fetch": timeout},
        needs=frozenset({"block"}),
        check=_listening,
    ),
    Script(
        name="a tool that raises",
        rule="A failure that never changes is a repeat like any other.",
        persona=listening(),
        tools={"fetch": raising},
        needs=frozenset({"block"}),
        features=frozenset({"tool_errors"}),
        check=_listening,
    ),
    Script(
        name="fan-out repeated whole",
        rule="Each distinct call of a repeated round climbs its own ladder.",
        persona=deaf(*(call(arguments={"query": f"q{n}"}) for n in range(3))),
        tools={"fetch": timeout},
        needs=frozenset({"stop"}),
        features=frozenset({"fan_out"}),
        check=_fan_out_whole,
    ),
    Script(
        name="fan-out repeated partly",
        rule="Only the offending calls of a round are refused.",
        persona=for_rounds(5, lambda n: (call(arguments={"query": "same"}), call(arguments={"query": f"new-{n}"}))),
        tools={"fetch": timeout},
        features=frozenset({"fan_out"}),
        check=_fan_out_partly,
    ),
    Script(
        name="identical calls in one round",
        rule="Identical calls in one round count once.",
        persona=for_rounds(2, lambda n: (call(), call(), call())),
        tools={"fetch": timeout},
        features=frozenset({"fan_out"}),
        check=_once_a_round,
    ),
    Script(
        name="order within a round",
        rule="The order of the calls in a round does not matter.",
        persona=lambda request: (
            Reply(tool_calls=tuple(call(arguments={"query": q}) for q in ("ab" if request.number % 2 else "ba")))
            if request.may_call
            else Reply(text=DONE)
        ),
        tools={"fetch": timeout},
        needs=frozenset({"stop"}),
        features=frozenset({"fan_out"}),
        check=_order,
    ),
    Script(
        name="healthy work",
        rule="Thirty different calls are left alone, and the model is told nothing.",
        persona=for_rounds(30, lambda n: (call(arguments={"query": f"page {n}", "n": n}),)),
        tools={"fetch": reading},
        check=_healthy,
    ),
    Script(
        name="polling with changing results",
        rule="A call whose result changes every time is progress.",
        persona=repeats(30),
        tools={"fetch": counting},
        features=frozenset({"tool_names"}),
        check=_polling,
    ),
    Script(
        name="unknown tool",
        rule="A loop on a tool that does not exist is seen and ended.",
        persona=deaf(call("no_such_tool")),
        tools={"fetch": timeout},
        features=frozenset({"unknown_tool"}),
        needs=frozenset({"stop"}),
        check=_unknown_tool,
    ),
    Script(
        name="invalid JSON",
        rule="A loop on arguments that are no JSON is seen and ended.",
        persona=deaf(call(arguments='{"query": ')),
        tools={"fetch": timeout},
        features=frozenset({"invalid_json"}),
        needs=frozenset({"stop"}),
        check=_invalid_json,
        well_formed=False,
    ),
    Script(
        name="a user asks again",
        rule="The same call in each of a user's turns is legitimate.",
        persona=_one_call_a_turn,
        tools={"fetch": timeout},
        turns=("again",) * 5,
        features=frozenset({"history"}),
        check=_user_asks_again,
    ),
)
