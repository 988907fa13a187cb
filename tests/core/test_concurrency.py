"""Sessions are used from many threads: nothing is lost, nothing is counted twice, nothing raises."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from loopguard_core import Action, LoopGuard, SessionEnd, ToolCall, Usage

THREADS = 16


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Threads change places as often as the interpreter allows, so that what can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], object]) -> list[Any]:
    """Run all of it at the same time; what each returned. What any of them raised is raised."""
    start = threading.Barrier(len(works))
    answers: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def run(place: int, work: Callable[[], object]) -> None:
        try:
            start.wait(30)
            answers[place] = work()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return answers


def test_results_come_in_from_many_threads_while_rounds_go_on() -> None:
    guard = LoopGuard({"ladder": {"stop": False, "block": False}})
    session = guard.session()
    calls = [ToolCall(f"{n}", f"tool_{n}", {"n": n}) for n in range(THREADS)]
    rounds = 60
    done = threading.Event()

    def record(call: ToolCall) -> int:
        recorded = 0
        while not done.is_set():
            session.record_result(call.id, "same")
            recorded += 1
        return recorded

    def ask() -> list[int]:
        try:
            for _ in range(rounds):
                session.before_model_call()
                session.after_model_call(usage=Usage(input_tokens=1, output_tokens=1))
                streaks = [decision.streak for decision in session.begin_round(calls)]
            return streaks
        finally:
            done.set()

    *_, streaks = at_once(*(lambda call=call: record(call) for call in calls), ask)
    assert streaks == [rounds] * THREADS
    assert (session.turns, session.model_calls, session.tool_calls) == (rounds, rounds, rounds * THREADS)
    assert session.usage.total_tokens == 2 * rounds
    assert not guard.faults.counts


def test_every_result_of_a_fan_out_is_kept() -> None:
    """Each thread answers its own call; the next round sees all of it."""
    climbs = {"observe": 2, "steer": False, "block": 3, "stop": 6}  # what stays among things that move is a poll
    session = LoopGuard({"detectors": {"repeated_call.poll": {"ladder": climbs}}}).session()
    calls = [ToolCall(f"{n}", f"tool_{n}") for n in range(THREADS)]
    for turn in range(20):
        streaks = [decision.streak for decision in session.begin_round(calls)]
        # Even calls bring news each time, odd ones never.
        expected = [min(turn + 1, 2) if turn < 2 else 1 if n % 2 == 0 else turn + 1 for n in range(THREADS)]
        assert streaks == expected
        if session.stop is not None:
            break
        results = [f"page {turn}" if n % 2 == 0 else "same" for n in range(THREADS)]
        at_once(*(lambda pair=pair: session.record_result(str(pair[0]), pair[1]) for pair in enumerate(results)))
    assert session.stop is not None


def test_rounds_from_many_threads_are_all_counted() -> None:
    session = LoopGuard({"ladder": {"stop": False}}).session()

    def work(n: int) -> list[int]:
        return [session.begin_round([ToolCall("1", f"tool_{n}")])[0].streak for _ in range(50)]

    for streaks in at_once(*(lambda n=n: work(n) for n in range(THREADS))):
        assert streaks == list(range(1, 51))
    assert session.turns == 50 * THREADS


def test_many_sessions_on_one_guard_do_not_mix() -> None:
    ends: list[SessionEnd] = []
    guard = LoopGuard(on_end=ends.append)

    def run(n: int) -> list[Any]:
        actions = []
        for part in range(20):
            with guard.session(f"run-{n}-{part}") as session:
                for _ in range(6):
                    actions.append(session.begin_round([ToolCall("1", "tool", n)])[0].action)
                    session.record_result("1", "same")
                    session.record_result("unknown", "same")
        return actions

    once = [None, Action.OBSERVE, Action.BLOCK, Action.BLOCK, Action.BLOCK, Action.STOP]
    assert at_once(*(lambda n=n: run(n) for n in range(THREADS))) == [once * 20] * THREADS
    assert len(ends) == 20 * THREADS
    assert {event.reason for event in ends} == {"doom_loop"}
    assert guard.counts == {"result of an unknown call": 20 * 6 * THREADS}
    assert not guard.faults.counts
    assert guard.live("run-0-0") is None


def test_asking_for_one_id_from_many_threads_gives_one_session() -> None:
    guard = LoopGuard()
    assert len({id(session) for session in at_once(*[lambda: guard.session("run-1")] * THREADS)}) == 1


def test_a_session_that_many_threads_end_ends_once() -> None:
    ends: list[SessionEnd] = []
    session = LoopGuard(on_end=ends.append).session()
    assert len({id(event) for event in at_once(*[session.end] * THREADS)}) == 1
    assert len(ends) == 1


def test_what_nested_runs_use_adds_up_outside() -> None:
    guard = LoopGuard()
    outer = guard.session()

    def run() -> None:
        inner = guard.session(parent=guard.session(parent=outer))
        for turn in range(40):
            inner.before_model_call()
            inner.after_model_call(usage=Usage(input_tokens=2, output_tokens=1, cost="0.01"))
            inner.begin_round([ToolCall("1", "tool", turn), ToolCall("2", "tool", -turn - 1)])
        inner.end()

    at_once(*[run] * THREADS)
    assert outer.usage.total_tokens == 3 * 40 * THREADS
    assert outer.usage.cost == Decimal("0.01") * 40 * THREADS
    assert outer.tool_calls == 2 * 40 * THREADS


def test_a_limit_on_tool_calls_holds_to_the_call_across_parallel_nested_runs() -> None:
    guard = LoopGuard({"limits": {"tool_calls": 50}})
    outer = [guard.session() for _ in range(150)]
    calls = [ToolCall(str(n), "tool", n) for n in range(10)]
    together = threading.Barrier(8)

    def run() -> list[int]:
        let_through = []
        for session in outer:
            inner = guard.session(parent=session)
            together.wait(30)
            let_through.append(sum(not decision.blocked for decision in inner.begin_round(calls)))
        return let_through

    rows = at_once(*[run] * 8)
    assert [sum(column) for column in zip(*rows, strict=True)] == [50] * 150
    assert [session.tool_calls for session in outer] == [50] * 150


def test_a_stop_in_one_of_many_parallel_runs_reaches_all_of_them() -> None:
    guard = LoopGuard()
    outer = guard.session()
    inner = [guard.session(parent=outer) for _ in range(THREADS)]

    def run(n: int) -> bool:
        for turn in range(2000):
            if inner[n].before_model_call().stop is not None:
                return True
            inner[n].after_model_call()
            inner[n].begin_round([ToolCall("1", "tool", "loop" if n == 0 else turn)])
        return False

    assert all(at_once(*(lambda n=n: run(n) for n in range(THREADS))))
    assert outer.verdict is not None
    assert {session.end().reason for session in [*inner, outer]} == {"doom_loop"}


def test_runs_that_stop_at_the_same_moment_do_not_wait_for_each_other() -> None:
    """Locks are taken from the inside out, whatever the threads do."""
    guard = LoopGuard()
    outer = guard.session()
    inner = [guard.session(parent=outer) for _ in range(THREADS)]

    def loop(session: Any) -> None:
        for _ in range(8):
            session.begin_round([ToolCall("1", "tool")])
            session.before_model_call()
            session.after_model_call(usage=Usage(total_tokens=1))

    at_once(*(lambda session=session: loop(session) for session in [*inner, outer]))
    assert outer.stop is not None


def test_saving_while_others_work_gives_a_state_that_can_be_read() -> None:
    guard = LoopGuard({"ladder": {"stop": False}})
    session = guard.session()

    def save() -> list[Any]:
        return [session.save() for _ in range(50)]

    def work(n: int) -> None:
        for turn in range(50):
            session.begin_round([ToolCall(f"{n}", f"tool_{n}", turn)])
            session.record_result(f"{n}", turn)

    states, *_ = at_once(save, *(lambda n=n: work(n) for n in range(4)))
    other = LoopGuard()
    for state in states:
        other.session(state=state)
    assert not other.faults.counts
    assert not guard.faults.counts


def test_faults_of_many_threads_are_all_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def on_end(event: SessionEnd) -> None:
        raise ValueError

    guard = LoopGuard(on_end=on_end)

    def run() -> None:
        for _ in range(30):
            guard.session().end()

    at_once(*[run] * THREADS)
    assert list(guard.faults.counts.values()) == [30 * THREADS]
    assert len(caplog.records) == 1


async def test_concurrent_tasks_with_sessions_of_their_own_do_not_mix() -> None:
    guard = LoopGuard()

    async def run(n: int) -> list[int]:
        streaks = []
        with guard.session() as session:
            for _ in range(5):
                await session.abefore_model_call()
                await asyncio.sleep(0)
                await session.aafter_model_call()
                streaks.append(session.begin_round([ToolCall("1", "tool", n)])[0].streak)
                await asyncio.sleep(0)
        return streaks

    assert await asyncio.gather(*(run(n) for n in range(50))) == [[1, 2, 3, 4, 5]] * 50
