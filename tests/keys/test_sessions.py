"""Sessions and their keys, with Redis; what they do with a store that does not answer."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from ledger_tools import in_processes

from loopguard_core import LoopGuard, Session, Usage
from loopguard_core.keys import Ledger
from loopguard_core.session_store import open_session_store


def policy(url: str, **more: Any) -> dict[str, Any]:
    return {"key": {"name": "team", "limit": 1, "store": url, **more}, "limits": {"unpriced": 100}}


def calls(session: Session) -> int:
    """$0.10 each, and no more."""
    count = 0
    while session.before_model_call("m", 500, 500).stop is None:
        session.after_model_call("m", Usage(500, 500))
        count += 1
    assert session.end().reason == "key_limit"
    return count


def in_a_process(number: int, url: str) -> int:
    with LoopGuard(policy(url)) as guard:
        return calls(guard.session())


def test_processes_share_one_limit_to_the_exact_call(url: str, open_at: Callable[..., Ledger]) -> None:
    assert sum(in_processes(4, in_a_process, url)) == 10
    status = open_at(url).status("team")
    assert (status.spent, status.reserved) == (1, 0)


def test_a_nested_run_on_another_guard_counts_once(url: str, open_at: Callable[..., Ledger]) -> None:
    with LoopGuard(policy(url)) as outer, LoopGuard(policy(url)) as inner:
        session = inner.session(parent=outer.session(key="alice"))
        session.before_model_call("m", 500, 500)
        session.after_model_call("m", Usage(500, 500))
    ledger = open_at(url)
    assert ledger.status("team").spent == ledger.status("alice").spent == Decimal("0.1")


@pytest.fixture
def stalled() -> Iterator[str]:
    """The address of a store that takes connections and never answers."""
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0?socket_timeout=0.2"


async def longest_stop(work: Any) -> tuple[Any, float, float]:
    """What `work` gave, how long it took, and how long the event loop stood still meanwhile."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            worst = max(worst, time.perf_counter() - before)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    started = time.perf_counter()
    answer = await work
    took = time.perf_counter() - started
    await asyncio.sleep(0.01)
    ticking.cancel()
    return answer, took, worst


@pytest.mark.parametrize("answer", ["deny", "allow"])
async def test_a_store_that_does_not_answer_stops_no_event_loop(stalled: str, answer: str) -> None:
    guard = LoopGuard(policy(stalled, on_store_error=answer))
    session = guard.session()
    directive, took, stood_still = await longest_stop(session.abefore_model_call("m", 500, 500))
    assert took > 0.5  # three tries of 0.2 s
    assert stood_still < took / 2
    assert (directive.stop is None) == (answer == "allow")
    if answer == "deny":
        assert directive.stop.reason == session.end().reason == "key_limit"
        return
    _, took, stood_still = await longest_stop(session.aafter_model_call("m", Usage(500, 500)))
    assert took > 0.5
    assert stood_still < took / 2
    session.end()
    await asyncio.to_thread(guard.close)


def test_sessions_go_on_through_redis(redis_url: str) -> None:
    with open_session_store(redis_url) as here, open_session_store(redis_url) as there:
        session = LoopGuard().session("run")
        session.after_model_call(usage=Usage(cost="0.1"))
        here.save(session)
        again = LoopGuard().session("run", state=there.load("run"))
        assert again.save()["counters"] == session.save()["counters"]
        assert there.load("another") is None
        assert there.delete("run")
        assert here.load("run") is None


def test_sessions_in_redis_expire(redis_url: str) -> None:
    with open_session_store(redis_url, ttl=0.05) as store:
        store.save(LoopGuard().session("run"))
        deadline = time.monotonic() + 5
        while store.load("run") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
