"""The twins for event loops: they never block one, and a cancelled call leaves nothing behind."""

import asyncio
import pathlib
import sqlite3
import threading
from collections.abc import Callable

import pytest
from ledger_tools import Clock

from loopguard_core.keys import KeyLimitExceeded, Ledger, ReservationError
from loopguard_core.keys._sqlite import SqliteStore


async def test_the_same_calls(url: str, open_at: Callable[..., Ledger], clock: Clock) -> None:
    ledger = open_at(url, clock=clock)
    await ledger.aset_limit("k", 1, "daily")
    held = await ledger.areserve(["k", "team"], "0.6", ttl=60)
    with pytest.raises(KeyLimitExceeded):
        await ledger.areserve("k", "0.6")
    clock.move(30)
    held = await ledger.arenew(held)
    await ledger.asettle(held, "0.5")
    with pytest.raises(ReservationError):
        await ledger.arelease(held)
    await ledger.arelease(await ledger.areserve("k", "0.5"))
    await ledger.aspend("k", "0.5")
    status = await ledger.astatus("k")
    assert (status.spent, status.reserved, status.remaining) == (1, 0, 0)


async def test_many_at_once_hold_the_limit(url: str, open_at: Callable[..., Ledger]) -> None:
    ledger = open_at(url)
    ledger.set_limit("k", 5)
    answers = await asyncio.gather(*(ledger.areserve("k", 1) for _ in range(30)), return_exceptions=True)
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 5
    assert all(isinstance(answer, KeyLimitExceeded) for answer in answers if isinstance(answer, BaseException))


async def test_the_loop_runs_on_while_the_store_is_locked(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "budget.db"
    with Ledger(SqliteStore(path)) as ledger:
        ledger.set_limit("k", 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(ledger.areserve("k", 1))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not waiting.done()
        other.execute("ROLLBACK")
        other.close()
        assert (await waiting).amount == 1


async def test_busy_threads_of_the_loop_do_not_delay_it(url: str, open_at: Callable[..., Ledger]) -> None:
    ledger = open_at(url)
    loop, gate = asyncio.get_running_loop(), threading.Event()
    tools = [loop.run_in_executor(None, gate.wait) for _ in range(64)]
    await asyncio.wait_for(ledger.aspend("k", 1), 10)
    gate.set()
    await asyncio.gather(*tools)


@pytest.mark.parametrize("kind", ["reserve", "settle"])
async def test_cancelled_while_the_store_works(tmp_path: pathlib.Path, kind: str) -> None:
    """A reservation nobody waits for goes back; a settlement is carried out."""
    path = tmp_path / "budget.db"
    ledger = Ledger(SqliteStore(path))
    ledger.set_limit("k", 2)
    held = ledger.reserve("k", 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    work = ledger.areserve("k", 1) if kind == "reserve" else ledger.asettle(held, 1)
    task = asyncio.ensure_future(work)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other.execute("ROLLBACK")
    other.close()
    ledger.close()  # waits for the threads
    status = ledger.status("k")
    assert (status.spent, status.reserved) == ((0, 1) if kind == "reserve" else (1, 0))
    ledger.close()
