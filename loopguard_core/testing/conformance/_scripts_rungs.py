"""Scripts about what is done: limits, and the rungs that tell the model or ask a stronger one."""

from __future__ import annotations

from decimal import Decimal

from loopguard_core.testing.conformance._personas import DONE, call, differs, for_rounds, repeats
from loopguard_core.testing.conformance._record import Record
from loopguard_core.testing.conformance._script import STRONG, Expected, Script
from loopguard_core.testing.conformance._scripts_loops import counting, timeout
from loopguard_core.testing.personas import MARK, ChatRequest, Reply

PRICE = (Decimal(10), Decimal(30))


def _turns(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 40
    assert len(record.requests) == 40
    assert record.end.reason == "max_turns"
    assert record.end.verdict is None
    assert record.end.turns == 40


def _tool_calls(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 3, "of the second round's two calls the first runs, the second is refused"
    assert record.end.reason == "max_tool_calls"
    assert len(record.requests) == 2


def _tokens(record: Record, expected: Expected) -> None:
    spent, calls = 0, 0
    for event in record.recorder.model_calls:
        assert spent < 3_000, "a model call started after the limit was reached"
        spent += (event.usage.input_tokens or 0) + (event.usage.output_tokens or 0)
        calls += 1
    assert spent >= 3_000
    assert len(record.requests) == calls
    assert record.end.reason == "max_tokens"


def _cost(record: Record, expected: Expected) -> None:
    spent = Decimal(0)
    for event in record.recorder.model_calls:
        assert spent < Decimal("0.02"), "a model call started after the limit was reached"
        assert event.usage.cost is not None, "the provider reported a cost"
        spent += event.usage.cost
    assert spent >= Decimal("0.02")
    assert len(record.requests) == len(record.recorder.model_calls)
    assert record.end.reason == "max_cost"
    assert record.end.usage.cost == spent


def _steer(record: Record, expected: Expected) -> None:
    counts = record.told_counts("user")
    assert counts == [0, 0, 1, 0, 0], f"told once, before the model call after round 2: {counts}"
    last = record.requests[2]["messages"][-1]
    assert MARK in str(last.get("content")), "it comes after everything the model has seen"
    assert record.end.reason == "complete"
    assert record.ran("fetch") == 4, "steering refuses nothing"


def _steer_where_blocked(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 2
    counts = record.told_counts("user")
    assert sum(counts) == 1
    assert counts[3] == 1, "the model call after the refused round carries the steer too"
    assert record.told(4, "tool")


def _escalate(record: Record, expected: Expected) -> None:
    models = [request["model"] for request in record.requests]
    assert [model == STRONG for model in models] == [False, False, True, False, False]
    assert record.end.reason == "complete"


def _strong_model_fails(record: Record, expected: Expected) -> None:
    answered = [request["model"] for request in record.requests]
    assert STRONG in answered
    assert record.turns[0].error is None
    assert record.turns[0].text == DONE
    assert record.end.reason == "complete"


def _fails_when_strong(request: ChatRequest) -> Reply:
    if request.raw.get("model") == STRONG:
        return Reply(status=400, error={"message": "no such model", "code": "model_not_found"})
    return repeats(4)(request)


RUNGS: tuple[Script, ...] = (
    Script(
        name="limit on turns",
        rule="`turns = 40` runs exactly 40 rounds of tools, and no further model call starts.",
        persona=differs(60),
        tools={"fetch": counting},
        policy={"limits": {"turns": 40}},
        needs=frozenset({"stop"}),
        check=_turns,
    ),
    Script(
        name="limit on tool calls",
        rule="The excess calls of a round are refused in order, and the run ends before the next model call.",
        persona=for_rounds(9, lambda n: (call(arguments={"n": n}), call(arguments={"n": -n}))),
        tools={"fetch": counting},
        policy={"limits": {"tool_calls": 3}},
        needs=frozenset({"block", "stop"}),
        features=frozenset({"fan_out"}),
        check=_tool_calls,
    ),
    Script(
        name="limit on tokens",
        rule="No model call starts once the limit on tokens is reached.",
        persona=differs(60),
        tools={"fetch": counting},
        policy={"limits": {"tokens": 3_000}},
        features=frozenset({"usage"}),
        needs=frozenset({"stop"}),
        check=_tokens,
    ),
    Script(
        name="limit on cost",
        rule="No model call starts once the limit on cost is reached.",
        persona=differs(60),
        tools={"fetch": counting},
        policy={"limits": {"cost": 0.02}},
        price=PRICE,
        features=frozenset({"cost"}),
        needs=frozenset({"stop"}),
        check=_cost,
    ),
    Script(
        name="steer",
        rule="A steered model is told once a streak, after everything it has seen, and nothing is refused.",
        persona=repeats(4),
        tools={"fetch": timeout},
        policy={"ladder": {"observe": False, "steer": 2, "block": False, "stop": 9}},
        needs=frozenset({"steer"}),
        check=_steer,
    ),
    Script(
        name="steer where the call was blocked",
        rule="Effects add up: the model call after a refused call carries the steer too.",
        persona=repeats(4),
        tools={"fetch": timeout},
        policy={"ladder": {"steer": 3, "block": 3, "stop": 9}},
        needs=frozenset({"steer", "block"}),
        check=_steer_where_blocked,
    ),
    Script(
        name="escalate for one turn",
        rule="The stronger model takes exactly one model call of a streak.",
        persona=repeats(4),
        tools={"fetch": timeout},
        policy={"ladder": {"escalate": 2, "block": False, "stop": 9}},
        needs=frozenset({"escalate"}),
        escalation=True,
        check=_escalate,
    ),
    Script(
        name="a stronger model that fails",
        rule="If the stronger model fails, the usual one takes the call and the run goes on.",
        persona=_fails_when_strong,
        tools={"fetch": timeout},
        policy={"ladder": {"escalate": 2, "block": False, "stop": 9}},
        needs=frozenset({"escalate"}),
        escalation=True,
        check=_strong_model_fails,
    ),
)
