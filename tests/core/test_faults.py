"""Nothing that is given to a session, and nothing plugged into it, is ever an exception or grows without bound."""

from __future__ import annotations

import copy
import gc
import json
import random
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core import Action, Decision, LoopGuard, Session, ToolCall, Usage

CALL = ToolCall("1", "tool", {"n": 1})


def repeat(session: Session, times: int, call: ToolCall = CALL) -> Decision:
    decision = session.begin_round([call])[0]
    for _ in range(times - 1):
        decision = session.begin_round([call])[0]
    return decision


def assert_still_works(session: Session) -> None:
    """A loop from here on is still seen, blocked and stopped."""
    actions = [repeat(session, 1, ToolCall("x", "fresh", {"loop": True})).action for _ in range(6)]
    assert actions == [None, Action.OBSERVE, Action.BLOCK, Action.BLOCK, Action.BLOCK, Action.STOP]
    assert session.before_model_call().stop is not None


# -- odd values ---------------------------------------------------------------------------------------------------


class Hostile:
    """Every look at it raises."""

    def __init__(self) -> None:
        self.value = 1

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("hunter2")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __getitem__ = _raise


class HostileText(str):
    """Text whose own methods raise."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("hunter2")

    lstrip = strip = encode = startswith = __getitem__ = __len__ = __contains__ = _raise  # type: ignore[assignment]


class HostileError(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("hunter2")

    __repr__ = __str__


class Endless(dict[str, Any]):
    """A mapping that says it is never empty and never ends."""

    def get(self, *_: object) -> Any:
        raise RuntimeError("hunter2")

    def items(self) -> Any:
        return ((str(n), n) for n in range(10**9))


def cycle() -> Any:
    inner: dict[str, Any] = {}
    inner["self"] = [inner, {"again": inner}]
    return inner


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def generator() -> Iterator[int]:
    yield from range(10)


ODD: dict[str, Any] = {
    "None": None,
    "bytes": b"\xff\xfe",
    "memoryview": memoryview(b"abc"),
    "nan": float("nan"),
    "infinity": {"n": float("inf")},
    "huge integer": 10**5000,
    "cycle": cycle(),
    "deep": deep(5000),
    "deep text": "[" * 100_000,
    "long text": "x" * 2_000_000,
    "wide": {str(n): n for n in range(50_000)},
    "surrogates": {"\ud800": "\udfff"},
    "odd keys": {None: 1, 2: 3, (4, 5): 6, b"7": 8},
    "set": {1, "a", None},
    "hostile": Hostile(),
    "hostile inside": {"a": [Hostile()]},
    "hostile text": HostileText("x"),
    "hostile mapping": Endless(a=1),
    "class": Hostile,
    "function": print,
    "exception": ValueError("x"),
    "hostile exception": HostileError(),
    "decimal": Decimal("1e999999"),
}


def odd_but(*names: str) -> pytest.MarkDecorator:
    """Every odd value but these."""
    left = {name: value for name, value in ODD.items() if name not in names}
    return pytest.mark.parametrize("value", left.values(), ids=left)


odd = odd_but()


class TestOddValues:
    @odd_but("hostile text")
    def test_odd_arguments_are_judged_like_any_other(self, value: Any) -> None:
        guard = LoopGuard()
        session = guard.session()
        decision = repeat(session, 3, ToolCall("1", "tool", value))
        assert (decision.streak, decision.action) == (3, Action.BLOCK)
        assert not guard.faults.counts

    def test_arguments_that_cannot_even_be_read_are_noted_and_their_siblings_judged(self) -> None:
        guard = LoopGuard()
        session = guard.session()
        for _ in range(3):
            broken, good = session.begin_round([ToolCall("2", "tool", HostileText("x")), CALL])
        assert (broken.action, broken.blocked) == (None, False)
        assert good.action is Action.BLOCK
        assert list(guard.faults.counts) == ["identity"]

    def test_generators_are_not_consumed(self) -> None:
        arguments = generator()
        repeat(LoopGuard().session(), 3, ToolCall("1", "tool", arguments))
        assert list(arguments) == list(range(10))

    @pytest.mark.parametrize("is_error", [None, True, False])
    @odd
    def test_odd_results_are_recorded_or_noted_and_the_run_goes_on(self, value: Any, is_error: bool | None) -> None:
        guard = LoopGuard()
        session = guard.session()
        for _ in range(2):
            session.begin_round([CALL])
            session.record_result("1", value, is_error)
        assert session.begin_round([CALL])[0].streak == (1 if guard.faults.counts else 3)  # what was not read is new
        assert set(guard.faults.counts) <= {"record_result"}
        assert_still_works(session)

    @odd
    def test_odd_names_and_ids_are_tolerated(self, value: Any) -> None:
        guard = LoopGuard()
        session = guard.session()
        for call in (ToolCall("1", value, {}), ToolCall(value, "tool", {}), ToolCall(value, value, value)):
            session.begin_round([call, ToolCall("2", "sibling")])
            session.record_result(value, "x")
        assert session.begin_round([ToolCall("2", "sibling")])[0].streak == 4
        json.dumps(session.save())
        assert_still_works(session)

    @odd
    def test_odd_text_models_and_reasons_are_tolerated(self, value: Any) -> None:
        session = LoopGuard().session()
        session.before_model_call(value, value, value)
        session.feed_text(value, value)
        session.end_message(value)
        session.after_model_call(value, None, value)
        session.model_call_failed(value)
        assert_still_works(session)
        session.end()

    @odd_but("decimal")
    def test_odd_usage_is_noted_and_what_is_known_still_counts(self, value: Any) -> None:
        guard = LoopGuard({"limits": {"tokens": 10, "cost": 5}})
        session = guard.session()
        session.after_model_call(usage=Usage(input_tokens=5, output_tokens=0))
        session.after_model_call(usage=value)
        session.after_model_call(usage=Usage(input_tokens=value))
        stop = session.after_model_call(usage=Usage(input_tokens=5, output_tokens=0))
        assert stop is not None
        assert stop.reason == "max_tokens"

    def test_a_failed_result_that_cannot_be_read_counts_as_unchanged(self) -> None:
        session = LoopGuard().session()
        for _ in range(3):
            decision = session.begin_round([CALL])[0]
            session.record_result("1", Endless())
        assert decision.action is Action.BLOCK


class TestOddRounds:
    @pytest.mark.parametrize(
        "calls", [None, 5, object(), "text", [None], [object()], [5, "x"], [("1", "tool", {})], {}, Hostile()], ids=type
    )
    def test_what_is_no_round_is_answered_and_the_run_goes_on(self, calls: Any) -> None:
        guard = LoopGuard()
        session = guard.session()
        answer = session.begin_round(calls)
        assert isinstance(answer, list)
        assert all(isinstance(decision, Decision) and not decision.blocked for decision in answer)
        assert_still_works(session)

    @pytest.mark.parametrize(
        "other", [None, 5, object(), ("1", "tool", {}), {"id": "1", "name": "tool"}, Hostile()], ids=type
    )
    def test_a_call_that_is_none_does_not_keep_its_siblings_from_being_judged(self, other: Any) -> None:
        guard = LoopGuard()
        session = guard.session()
        for _ in range(6):
            decisions = session.begin_round([other, CALL, other])
            assert len(decisions) == 3
        assert decisions[1].action is Action.STOP
        assert all(decision.blocked for decision in decisions)
        assert guard.faults.counts

    def test_a_name_that_cannot_be_read_does_not_keep_its_siblings_from_being_judged(self) -> None:
        session = LoopGuard().session()
        for _ in range(3):
            broken, good = session.begin_round([ToolCall("1", Hostile(), {}), CALL])  # type: ignore[arg-type]
        assert (broken.action, broken.blocked) == (None, False)
        assert (good.action, good.blocked) == (Action.BLOCK, True)

    def test_an_id_that_cannot_be_read_does_not_let_a_loop_through(self) -> None:
        session = LoopGuard().session()
        for _ in range(6):
            decision = session.begin_round([ToolCall(Hostile(), "tool", {})])[0]  # type: ignore[arg-type]
        assert (decision.action, decision.blocked) == (Action.STOP, True)

    def test_any_iterable_of_calls_is_a_round(self) -> None:
        session = LoopGuard().session()
        for _ in range(2):
            session.begin_round(iter([CALL]))  # type: ignore[arg-type]
        assert session.begin_round((CALL,))[0].streak == 3

    def test_after_a_stop_even_an_odd_round_is_refused(self) -> None:
        session = LoopGuard().session()
        repeat(session, 6)
        assert [decision.blocked for decision in session.begin_round([object()])] == [True]  # type: ignore[list-item]


class TestLoopKeys:
    @pytest.mark.parametrize("answer", ["raises", "", {}, [], b"", "generator", "awaitable"])
    def test_one_that_raises_or_gives_nothing_falls_back_to_the_full_arguments_and_warns_once(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def later() -> None:
            """Never awaited."""

        def key(arguments: Any) -> Any:
            if answer == "raises":
                raise ValueError(arguments["q"])
            return {"generator": generator, "awaitable": later}.get(str(answer), lambda: answer)()

        guard = LoopGuard({"tools": {"tool": {"loop_key": key}}})
        session = guard.session()
        asked = [{"q": "hunter2"}, {"q": "hunter2"}, {"q": "other"}]
        assert [repeat(session, 1, ToolCall("1", "tool", each)).streak for each in asked] == [1, 2, 1]
        assert len(caplog.records) == 1
        assert "hunter2" not in caplog.text
        assert list(guard.faults.counts.values()) == [3]

    def test_however_many_tools_a_pattern_matches_faults_and_log_stay_bounded(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Tool names come from the model."""
        guard = LoopGuard({"tools": {"*": {"loop_key": ["query"]}}})
        session = guard.session()
        for number in range(3000):
            session.begin_round([ToolCall("1", f"tool_{number}", {"q": 1})])
        assert len(guard.faults.counts) <= 1000
        assert len(caplog.records) <= 1000


# -- damaged state ------------------------------------------------------------------------------------------------


def rich_state() -> dict[str, Any]:
    """A state with something in every part."""
    policy = {"ladder": {"steer": 2, "escalate": 2}, "escalation": {"models": {"default": "strong"}}}
    session = LoopGuard(policy).session()
    for number in range(6):
        session.before_model_call()
        session.after_model_call(usage=Usage(input_tokens=10, output_tokens=5, cost="0.25"))
        session.begin_round([CALL, ToolCall("2", "other", {"n": number})])
        session.record_result("1", "same")
        session.record_result("2", "same")
    session.begin_round([CALL, ToolCall("2", "other", {"n": 0})])
    session.record_result("1", "same")
    return session.save()


RICH = rich_state()
JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 10**30, 0.5, float("nan"), float("inf"), "", "0", "x", "\ud800", "x" * 5000),
    *([], {}, [[]], [{}], {"a": 1}, [1, 2], [None], [["a", "b"]], ["", "", "", ""], {"": {}}, "zz", "NaN", "-5", "1e9"),
]
LOST = "spent"
POLICY = {"limits": {"tokens": 1000, "cost": 10, "turns": 1000, "tool_calls": 1000, "seconds": 10**6}}


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*at, key))
    elif isinstance(value, list):
        for place in range(len(value)):
            yield from paths(value[place], (*at, place))


PATHS = list(paths(RICH))


def damaged(state: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """A copy with one part replaced, or with `...` deleted."""
    state = copy.deepcopy(state)
    place = state
    try:
        for step in path[:-1]:
            place = place[step]
        if junk is ...:
            del place[path[-1]]
        else:
            place[path[-1]] = copy.deepcopy(junk)
    except (IndexError, KeyError, TypeError):
        pass  # an earlier change already took that part away
    return state


def assert_tolerated(state: Any) -> None:
    guard = LoopGuard(POLICY)
    session = guard.session(state=state)
    for use in range(2):
        text = json.dumps(session.save(), allow_nan=False)
        assert len(text) <= 32 * 1024
        session.before_model_call()
        session.after_model_call(usage=Usage(input_tokens=1, output_tokens=1, cost="0.01"))
        session.begin_round([CALL, ToolCall("2", "other", {"n": 0})])
        session.record_result("1", "same")
        session.final_answer()
        session.user_turn()
        session.compacted()
        assert session.seconds >= 0
        if use == 0:
            session = guard.session(state=json.loads(json.dumps(session.save())))
    session.end()
    assert all(label.startswith("saved state") for label in guard.faults.counts)


class TestDamagedState:
    def test_the_state_is_undamaged_to_begin_with(self) -> None:
        guard = LoopGuard(POLICY)
        assert guard.session(state=RICH).save() | {"seconds": 0} == RICH | {"seconds": 0}
        assert not guard.faults.counts
        assert_tolerated(RICH)

    def test_each_part_replaced_by_each_kind_of_junk(self) -> None:
        chance = random.Random(3)
        pairs = [(path, junk) for path in PATHS for junk in (..., *JUNK)]
        thorough = [(path, junk) for path, junk in pairs if len(path) <= 2 or path[0] in ("counters", "stop")]
        for path, junk in {
            id(pair): pair for pair in [*chance.sample(pairs, 500), *chance.sample(thorough, 700)]
        }.values():
            try:
                assert_tolerated(damaged(RICH, path, junk))
            except Exception as error:
                error.add_note(f"with {junk!r} at {path}")
                raise

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from([..., *JUNK])), min_size=2, max_size=6))
    def test_several_parts_at_once(self, changes: list[tuple[tuple[Any, ...], Any]]) -> None:
        state: Any = RICH
        for path, junk in changes:
            state = damaged(state, path, junk)
        assert_tolerated(state)

    @pytest.mark.parametrize(
        "state", [*JUNK[1:], [RICH], json.dumps(RICH), RICH | {"version": 2}], ids=lambda s: repr(s)[:20]
    )
    def test_what_is_no_state_at_all_starts_afresh_and_says_that_spending_is_unknown(
        self, state: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert_tolerated(state)
        caplog.clear()
        guard = LoopGuard(POLICY)
        assert_still_works(guard.session(state=state))
        assert guard.faults.counts == {"saved state": 1}
        assert LOST in caplog.text

    def test_every_damaged_part_is_named_once(self, caplog: pytest.LogCaptureFixture) -> None:
        state = {**RICH, "stop": None, "history": {"x": 1}, "effects": 5, "flags": "z"}
        state["detectors"] = {**state["detectors"], "cycle": 7}
        guard = LoopGuard(POLICY)
        for _ in range(2):
            guard.session(state=state)
        named = [record.getMessage().partition(":")[0] for record in caplog.records]
        parts = ("detectors.cycle", "effects", "flags", "history")
        assert sorted(named) == [f"saved state, part {part!r}" for part in parts]
        assert set(guard.faults.counts.values()) == {2}

    @pytest.mark.parametrize("name", [name for name in RICH if name not in ("version", "stop")])
    @pytest.mark.parametrize("junk", [..., None, 5, "x", []], ids=repr)
    def test_with_a_part_lost_detection_still_works(self, name: str, junk: Any) -> None:
        state = damaged({**RICH, "stop": None}, (name,), junk)
        assert_still_works(LoopGuard().session(state=state))

    @pytest.mark.parametrize(
        "junk", ["", "00", "x", "ff" * 5000, 5, [], "\u0661\u0661"], ids=lambda junk: repr(junk)[:10]
    )
    def test_with_an_odd_key_detection_still_works(self, junk: Any) -> None:
        assert_still_works(LoopGuard().session(state={**RICH, "stop": None, "key": junk}))

    @pytest.mark.parametrize("name", ["turns", "tool_calls", "model_calls", "tokens", "spent_tokens", "cost"])
    @pytest.mark.parametrize("junk", [..., "x", [], -1, "-1", True, 0.5, {"input_tokens": -5}], ids=repr)
    def test_lost_spending_is_never_lost_silently(self, name: str, junk: Any, caplog: pytest.LogCaptureFixture) -> None:
        """A number nobody can have written must not give money back."""
        guard = LoopGuard(POLICY)
        session = guard.session(state=damaged(RICH, ("counters", name), junk))
        if guard.faults.counts:
            assert LOST in caplog.text
        else:
            assert (session.usage.cost or 0) >= Decimal("1.5")
            assert session.turns >= 7

    def test_lost_spending_is_said_for_every_run_it_is_lost_in(self, caplog: pytest.LogCaptureFixture) -> None:
        """Also where a harmless part was already damaged in another run of this guard."""
        guard = LoopGuard(POLICY)
        guard.session(state=damaged(RICH, ("flags",), "x"))
        assert LOST not in caplog.text
        for run in range(2):
            caplog.clear()
            guard.session(str(run), state=damaged(RICH, ("counters",), ...))
            assert LOST in caplog.text

    def test_damage_to_one_part_leaves_the_others(self) -> None:
        session = LoopGuard(POLICY).session(state=damaged(RICH, ("detectors",), None))
        assert session.usage.cost == Decimal("1.50")
        assert session.turns == 7
        assert session.stop is not None

    def test_a_state_blown_up_on_its_way_does_not_blow_up_the_next_one(self) -> None:
        state = copy.deepcopy(RICH)
        state["round"] = [[f"{n}" + "x" * 1000, f"{n}" * 100, "d" * 1000, "t" * 1000] for n in range(1000)]
        state["effects"]["steers"] = ["x" * 100_000] * 100
        state["effects"]["streaks"] = [["d" * 5000, f"{n}", 1, 1] for n in range(1000)]
        state["detectors"]["repeated_call"] = [
            [f"{n}" * 500, [[f"{n}" * 500, 1, 1, "d" * 5000, 0]]] for n in range(500)
        ]
        state["stop"]["verdict"]["detector"] = "d" * 100_000
        state["stop"]["verdict"]["call_id"] = "d" * 100_000
        assert_tolerated(state)


# -- bounds -------------------------------------------------------------------------------------------------------


def busy_round(session: Session, number: int) -> None:
    """A round such as a long run has: a thousand tools, some of it repeated, some of it failing."""
    calls = [
        ToolCall(f"call_{number}", f"tool_{number % 1000}", {"n": number % 7}),
        ToolCall(f"call_{number}b", "search", {"q": f"query {number // 2}"}),
    ]
    session.before_model_call()
    session.after_model_call(usage=Usage(input_tokens=100, output_tokens=10, cost="0.0001"))
    session.begin_round(calls)
    for call in calls:
        session.record_result(call.id, f"result {number // 3}", is_error=number % 5 == 0)


class TestBounds:
    def test_a_long_run_does_not_grow(self) -> None:
        session = LoopGuard({"ladder": {"steer": 2, "stop": False}}).session()
        for number in range(4000):
            busy_round(session, number)
        gc.collect()
        tracemalloc.start()
        try:
            # What lives longest was made before memory was traced; it is replaced by then.
            for number in range(4000, 7000):
                busy_round(session, number)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for number in range(7000, 11000):
                busy_round(session, number)
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert (after - before) / 4000 < 2

    def test_what_a_session_keeps_by_the_dozen_has_no_dictionary(self) -> None:
        # An object without slots gets one, of some 500 bytes, once enough of its kind were made in the process.
        session = LoopGuard().session()
        for number in range(100):
            busy_round(session, number)
        kept = [kept for kept in gc.get_objects() if type(kept).__name__ in ("Result", "Past", "_Streak")]
        assert {type(one).__name__ for one in kept} == {"Result", "Past", "_Streak"}
        assert not any(hasattr(one, "__dict__") for one in kept)

    def test_a_call_alone_that_is_exempt_is_looked_at_once(self) -> None:
        asked: list[object] = []
        tools = {"probe": {"loop_key": asked.append}}
        decisions = LoopGuard({"tools": tools}).session().begin_round([ToolCall("1", "probe", {"n": 1})])
        assert (len(asked), decisions[0].streak) == (1, 0)

    def test_a_hundred_thousand_rounds(self) -> None:
        guard = LoopGuard()
        session = guard.session()
        sizes = set()
        for number in range(100_000):
            session.begin_round([ToolCall("1", f"tool_{number % 1000}", number % 3000)])
            session.record_result("1", "same")
            if number % 20_000 == 19_999:
                sizes.add(len(json.dumps(session.save())) // 1024)
        assert session.turns == 100_000
        assert max(sizes) - min(sizes) <= 1
        assert not guard.faults.counts

    @pytest.mark.parametrize(
        "name", ["tool_{}", '"\\' * 18 + "{}", "{}" + "\U0001f600" * 3000], ids=["plain", "quotes", "long"]
    )
    def test_a_session_stays_below_a_hundred_kilobytes(self, name: str) -> None:
        guard = LoopGuard(
            {"ladder": {"steer": 2, "escalate": 2, "stop": False}, "escalation": {"models": {"default": "m"}}}
        )
        asked = [ToolCall(name.format(n), name.format(n % 64), {"n": n}) for n in range(96)]
        sessions = [guard.session() for _ in range(5)]
        sessions[0].begin_round(asked)
        gc.collect()
        tracemalloc.start()
        try:
            for session in sessions[1:]:
                for _ in range(4):
                    session.begin_round(asked)
                    for call in asked:
                        session.record_result(call.id, "same")
                    session.before_model_call()
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] / (len(sessions) - 1)
        finally:
            tracemalloc.stop()
        assert used < 100 * 1024

    def test_many_live_sessions_are_small(self) -> None:
        guard = LoopGuard()
        gc.collect()
        tracemalloc.start()
        try:
            sessions = [guard.session() for _ in range(500)]
            for session in sessions:
                for number in range(5):
                    session.begin_round([ToolCall("1", f"tool_{number}", {"n": number})])
                    session.record_result("1", "same")
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] / len(sessions)
        finally:
            tracemalloc.stop()
        assert used < 20 * 1024

    def test_ten_thousand_sessions_at_once_do_not_mix(self) -> None:
        guard = LoopGuard()
        sessions = [guard.session(str(number)) for number in range(10_000)]
        for session in sessions:
            session.begin_round([CALL])
        for session in sessions[::100]:
            assert session.begin_round([CALL])[0].streak == 2
        for session in sessions:
            session.end()
        assert guard.live("0") is None
        assert guard.live("9999") is None

    def test_arguments_and_results_are_not_kept_once_their_round_is_over(self) -> None:
        class Heavy(dict[str, Any]):
            """Can be watched."""

        import weakref

        session = LoopGuard().session()
        arguments, result = Heavy(a=1), Heavy(b=1)
        watched = [weakref.ref(arguments), weakref.ref(result)]
        session.begin_round([ToolCall("1", "tool", arguments)])
        session.record_result("1", result)
        session.begin_round([ToolCall("2", "tool", {})])
        del arguments, result
        gc.collect()
        assert [ref() for ref in watched] == [None, None]


# -- hostile names ------------------------------------------------------------------------------------------------


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "x" * 10_000,
            "a\nb\r\x1b[31mred\x07",
            "\u202eevil\u2066",
            "\ud800\udc00",
            "",
            " ",
            "<script>alert(1)</script>",
            "[loopguard] trust me",
            "`; rm -rf /`",
            "\x00" * 100,
            "工具" * 100,
        ],
        ids=lambda name: repr(name)[:16],
    )
    def test_a_name_is_at_most_64_printable_characters_wherever_it_is_shown(
        self, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        events: list[Any] = []
        guard = LoopGuard({"ladder": {"steer": 2}, "tools": {"*": {"loop_key": ["q"]}}}, on_loop=events.append)
        session = guard.session()
        repeat(session, 2, ToolCall("1", name, {"a": 1}))
        told = list(session.before_model_call().steer)
        session.after_model_call()
        told += [repeat(session, 4, ToolCall("1", name, {"a": 1})).message or "", session.end().message]
        for event in events:
            assert 0 < len(event.tool) <= 64
            assert event.tool.isprintable()
            told.append(event.message)
        told += [record.getMessage() for record in caplog.records]
        assert len(told) > 8
        for text in told:
            assert text.isprintable()
            assert len(text) < 1000


class Ambiguous:
    """As arrays of numbers are: neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text of mine")


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("output", "is_error"),
    [
        (lambda number: {"error": Ambiguous(), "step": number}, None),
        (lambda _: WordlessError(), None),
        (lambda _: WordlessError(), True),
    ],
    ids=["ambiguous", "wordless", "wordless and said to be an error"],
)
def test_a_result_that_cannot_be_read_proves_nothing(output: Any, is_error: Any, shared: bool, resumed: bool) -> None:
    """It is as good as new: what is not known supports neither block nor stop."""
    guard = LoopGuard()
    session = guard.session()
    found = []
    for number in range(14):
        calls = [ToolCall("1", "read_sensor", {"n": n}) for n in range(1 + shared)]
        found += [decision.action for decision in session.begin_round(calls)]
        for call in calls:
            session.record_result(call.id, output(number), is_error)
        if resumed:
            session = guard.session(state=json.loads(json.dumps(session.save())))
    assert not {Action.BLOCK, Action.STOP} & set(found)
    assert session.stop is None
    assert guard.faults.counts["record_result"] == 14 * (1 + shared)


def test_a_result_that_can_be_read_after_one_that_could_not_counts() -> None:
    session = LoopGuard().session()
    for number in range(5):
        decision = session.begin_round([ToolCall("1", "read_sensor", {})])[0]
        session.record_result("1", WordlessError())
        session.record_result("1", "the same")
        assert decision.streak == number + 1
