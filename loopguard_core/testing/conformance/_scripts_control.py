"""Scripts about how a run ends and what goes with it: stopping, plugins, switches, nesting, concurrency, pauses."""

from __future__ import annotations

from collections.abc import Sequence

from loopguard_core._events import DoomLoopDetected
from loopguard_core._hookspec import hookimpl
from loopguard_core._types import Action
from loopguard_core.testing.conformance._personas import DONE, QUERY, call, deaf, for_rounds, repeats, user_text
from loopguard_core.testing.conformance._record import Record, unanswered_calls
from loopguard_core.testing.conformance._script import Expected, Script
from loopguard_core.testing.conformance._scripts_loops import full_ladder, timeout
from loopguard_core.testing.personas import MARK, ChatRequest, Reply


def _end(record: Record, expected: Expected) -> None:
    turn = record.turns[0]
    assert turn.error is None
    assert turn.text is not None
    assert MARK in turn.text
    assert len(record.requests) == 6


def _answer(record: Record, expected: Expected) -> None:
    turn = record.turns[0]
    assert turn.error is None
    assert turn.text == DONE, "the model's own words"
    assert len(record.requests) == 7
    last = record.requests[-1]
    assert not last.get("tools") or last.get("tool_choice") == "none", "the last model call can call no tool"
    assert record.end.reason == "doom_loop"
    assert record.end.model_calls == 7


def _raise(record: Record, expected: Expected) -> None:
    error = record.turns[0].error
    assert error is not None
    assert getattr(error, "reason", None) == "doom_loop"
    assert getattr(error, "verdict", None) is not None
    assert record.end.reason == "doom_loop"
    assert record.end.error is None


class Weaker:
    """Lets every loop go on."""

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> Action:
        """Observe."""
        return Action.OBSERVE


class StopAtOnce:
    """Ends the run at the first verdict."""

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> Action:
        """Stop."""
        return Action.STOP


class Raising:
    """A broken plugin."""

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> Action:
        """Fail."""
        raise RuntimeError("broken plugin")

    @hookimpl
    def session_end(self, event: object) -> None:
        """Fail."""
        raise RuntimeError("broken plugin")

    @hookimpl
    def post_model_call(self, event: object) -> None:
        """Fail."""
        raise RuntimeError("broken plugin")


def _weaker(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 9
    assert record.end.reason == "complete"
    assert {event.action for event in record.recorder.loops} == {Action.OBSERVE}
    assert Action.STOP in {event.proposed for event in record.recorder.loops}


def _stronger(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == (2 if expected.drains else 1)
    assert record.recorder.ladder() == ["stop 2"]
    assert record.end.reason == "doom_loop"


def _raising(record: Record, expected: Expected) -> None:
    assert record.recorder.ladder() == full_ladder(expected)
    assert record.end.reason == "doom_loop"


def _shadow(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 9
    assert {event.action for event in record.recorder.loops} == {Action.OBSERVE}
    assert [event.proposed.value for event in record.recorder.loops][:2] == ["observe", "block"]
    assert record.end.reason == "complete"
    assert not any(record.told_counts())


def _switched_off(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 9
    assert record.recorder.loops == []
    assert record.recorder.ends == []
    assert record.turns[0].text == DONE


def _exempt(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 9
    assert record.recorder.loops == []


def _loop_key(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == expected.loop_executions()
    assert record.end.reason == "doom_loop"


def _nested_loop(record: Record, expected: Expected) -> None:
    outer = [end for end in record.recorder.ends if end.parent_id is None]
    inner = [end for end in record.recorder.ends if end.parent_id is not None]
    assert len(outer) == len(inner) == 1
    assert inner[0].parent_id == outer[0].session_id
    assert inner[0].reason == outer[0].reason == "doom_loop", "a stop inside reaches the outside"
    assert record.ran("fetch") == expected.loop_executions()
    outer_calls = [request for request in record.requests if "/" not in request["model"]]
    assert len(outer_calls) == 1, "no further model call of the outer run starts"
    if expected.blocks and record.history is not None:
        assert not unanswered_calls(record.history)


def _nested_healthy(record: Record, expected: Expected) -> None:
    assert {end.reason for end in record.recorder.ends} == {"complete"}
    assert len(record.recorder.ends) == 4, "three inner runs and the outer one"
    assert record.recorder.loops == []
    outer = next(end for end in record.recorder.ends if end.parent_id is None)
    assert outer.usage.total_tokens == sum((event.usage.total_tokens or 0) for event in record.recorder.model_calls), (
        "the outer run's usage covers what ran inside it"
    )


def _concurrent(record: Record, expected: Expected) -> None:
    assert sorted(end.reason for end in record.recorder.ends) == ["doom_loop"] * 10
    assert record.ran("fetch") == 10 * expected.loop_executions()
    by_session: dict[str, list[str]] = {}
    for event in record.recorder.loops:
        by_session.setdefault(event.session_id, []).append(f"{event.action.value} {event.streak}")
    assert len(by_session) == 10
    assert all(ladder == full_ladder(expected) for ladder in by_session.values()), by_session


def _paused(record: Record, expected: Expected) -> None:
    reasons = [end.reason for end in record.recorder.ends]
    assert reasons[-1] == "doom_loop", reasons
    assert set(reasons[:-1]) <= {"paused"}
    assert record.recorder.ladder() == full_ladder(expected), "the streak goes on over every pause"
    assert record.ran("fetch") == expected.loop_executions()


def _inner_rounds(request: ChatRequest) -> Reply:
    arguments = {"query": f"{user_text(request)} part {request.number}"}
    return for_rounds(2, lambda n: (call(arguments=arguments),))(request)


def _plugins(*made: type) -> Sequence[object]:
    return [plugin() for plugin in made]


ON_STOP = frozenset({"on_stop"})

CONTROL: tuple[Script, ...] = (
    Script(
        name="on_stop end",
        rule="`end` closes the run with a message and without an exception.",
        persona=deaf(),
        tools={"fetch": timeout},
        on_stop="end",
        features=ON_STOP,
        check=_end,
    ),
    Script(
        name="on_stop answer",
        rule="`answer` gives the model one last call without tools, and its words close the run.",
        persona=deaf(),
        tools={"fetch": timeout},
        policy={"on_stop": {"how": "answer"}},
        features=ON_STOP,
        check=_answer,
    ),
    Script(
        name="on_stop raise",
        rule="`raise` raises LoopGuardStop, with a complete history where there is one.",
        persona=deaf(),
        tools={"fetch": timeout},
        on_stop="raise",
        features=frozenset({"raise"}),
        check=_raise,
    ),
    Script(
        name="a plugin chooses a weaker action",
        rule="A plugin's weaker action replaces the verdict's.",
        persona=repeats(9),
        tools={"fetch": timeout},
        plugins=lambda record: _plugins(Weaker),
        check=_weaker,
    ),
    Script(
        name="a plugin chooses a stronger action",
        rule="A plugin's stronger action replaces the verdict's.",
        persona=deaf(),
        tools={"fetch": timeout},
        plugins=lambda record: _plugins(StopAtOnce),
        needs=frozenset({"stop"}),
        check=_stronger,
    ),
    Script(
        name="a plugin that raises",
        rule="A plugin that raises changes nothing.",
        persona=deaf(),
        tools={"fetch": timeout},
        plugins=lambda record: _plugins(Raising),
        needs=frozenset({"stop"}),
        check=_raising,
    ),
    Script(
        name="shadow mode",
        rule="Preset observe reports what it would have done and does nothing.",
        persona=repeats(9),
        tools={"fetch": timeout},
        policy={"preset": "observe"},
        check=_shadow,
    ),
    Script(
        name="kill switch",
        rule="LOOPGUARD_ENABLED=0 leaves the run as it is without loopguard.",
        persona=repeats(9),
        tools={"fetch": timeout},
        environment={"LOOPGUARD_ENABLED": "0"},
        check=_switched_off,
    ),
    Script(
        name="exempt tool",
        rule="A tool with `loop_key = false` is not judged.",
        persona=repeats(9),
        tools={"fetch": timeout},
        policy={"tools": {"fetch": {"loop_key": False}}},
        features=frozenset({"tool_names"}),
        check=_exempt,
    ),
    Script(
        name="loop key",
        rule="Only the arguments named in `loop_key` count.",
        persona=lambda request: (
            Reply(tool_calls=(call(arguments={**QUERY, "n": request.number}),))
            if request.may_call
            else Reply(text=DONE)
        ),
        tools={"fetch": timeout},
        policy={"tools": {"fetch": {"loop_key": ["query"]}}},
        needs=frozenset({"stop"}),
        features=frozenset({"tool_names"}),
        check=_loop_key,
    ),
    Script(
        name="nested agent in a loop",
        rule="An agent inside a tool has a session of its own, and its stop ends the outer run too.",
        persona=deaf(call("ask", {"query": "the invoice"})),
        nested={"ask": (deaf(), {"fetch": timeout})},
        features=frozenset({"nested"}),
        needs=frozenset({"stop"}),
        check=_nested_loop,
        well_formed=False,  # an exception that ends the inner run leaves the outer call open
    ),
    Script(
        name="nested agents at work",
        rule="Healthy nested runs complete, and the outer run's usage covers them.",
        persona=for_rounds(3, lambda n: (call("ask", {"query": f"invoice {n}"}),)),
        nested={"ask": (_inner_rounds, {"fetch": timeout})},
        features=frozenset({"nested", "usage"}),
        check=_nested_healthy,
    ),
    Script(
        name="ten runs at once",
        rule="Concurrent runs that share one guard and one agent do not mix.",
        persona=deaf(),
        tools={"fetch": timeout},
        threads=10,
        needs=frozenset({"stop"}),
        check=_concurrent,
    ),
    Script(
        name="a human approves each call",
        rule="A run that waits for a human and goes on keeps its counts.",
        persona=deaf(),
        tools={"fetch": timeout},
        approval=frozenset({"fetch"}),
        features=frozenset({"approval"}),
        check=_paused,
    ),
)
