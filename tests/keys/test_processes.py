"""Many processes on one limit; processes that are killed; forks."""

import contextlib
import os
import pathlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal

import pytest
from ledger_tools import in_processes

from loopguard_core.keys import DEFAULT_TTL, KeyLimitExceeded, Ledger, open_ledger

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")

PRICE = Decimal("0.01")


def reserve_many(number: int, url: str, count: int) -> tuple[int, int]:
    """Reserve `count` times, settle every fourth grant for less; grants, and those settled."""
    granted = settled = 0
    with open_ledger(url) as ledger:
        for _ in range(count):
            try:
                held = ledger.reserve("k", PRICE)
            except KeyLimitExceeded:
                continue
            granted += 1
            if granted % 4 == 0:
                ledger.settle(held, PRICE / 2)
                settled += 1
    return granted, settled


def test_eight_processes_share_one_limit(url: str, open_at: Callable[..., Ledger]) -> None:
    """8 x 1,000 reservations: never above the limit while they run, and not one lost or granted twice."""
    ledger = open_at(url)
    ledger.set_limit("k", 10)
    seen: list[Decimal] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            status = ledger.status("k")
            seen.append(status.spent + status.reserved)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        results = in_processes(8, reserve_many, url, 1_000)
    finally:
        done.set()
        watcher.join()
    granted, settled = (sum(column) for column in zip(*results, strict=True))
    status = ledger.status("k")
    assert len(seen) > 10
    assert max(seen) <= 10
    assert status.spent == settled * PRICE / 2
    assert status.reserved == (granted - settled) * PRICE
    assert status.remaining is not None
    assert status.remaining < PRICE  # they took what they could get
    assert granted < 8_000


def test_threads_share_one_ledger(url: str, open_at: Callable[..., Ledger]) -> None:
    ledger = open_at(url)
    ledger.set_limit("k", 1)
    granted: list[bool] = []

    def work() -> None:
        for _ in range(50):
            with contextlib.suppress(KeyLimitExceeded):
                ledger.settle(ledger.reserve("k", PRICE), PRICE)
                granted.append(True)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 100
    assert ledger.status("k").spent == 1


def spend_until_killed(url: str, pipe: int, seed: int) -> None:
    """Reserve and settle for ever; one byte for every settle that returned."""
    costs = random.Random(seed)
    with open_ledger(url) as ledger:
        while True:
            try:
                held = ledger.reserve("k", PRICE)
            except KeyLimitExceeded:
                os.write(pipe, b"x")
                time.sleep(30)  # until it is killed
            if costs.random() < 0.2:
                continue  # one that nobody settles
            ledger.settle(held, PRICE)
            os.write(pipe, b".")


def test_killed_processes_leave_only_what_expires(url: str, open_at: Callable[..., Ledger]) -> None:
    """SIGKILL at any moment: no settled cent is lost or counted twice, and what was held comes back."""
    children, patience = 6, random.Random(1)
    ledger = open_at(url)
    ledger.set_limit("k", 5)
    reader, writer = os.pipe()
    pids = []
    for seed in range(children):
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            with contextlib.suppress(BaseException):
                spend_until_killed(url, writer, seed)
            os._exit(1)
        pids.append(pid)
    os.close(writer)
    reported = b""
    for pid in pids:
        until = len(reported) + patience.randint(10, 40)
        while len(reported) < until and b"x" not in reported:
            reported += os.read(reader, 64)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    while more := os.read(reader, 4096):
        reported += more
    os.close(reader)
    settled = reported.count(b".")
    status = ledger.status("k")
    # A child may have died between its settle and its report.
    assert settled * PRICE <= status.spent <= (settled + children) * PRICE
    assert status.spent + status.reserved <= 5
    assert status.reserved > 0
    later = open_at(url, clock=lambda: time.time() + DEFAULT_TTL + 1)
    back = later.status("k")
    assert (back.reserved, back.spent) == (0, status.spent)
    rest = back.remaining
    assert rest is not None
    later.reserve("k", rest)
    with pytest.raises(KeyLimitExceeded):
        later.reserve("k", "0.000000001")


def test_usable_after_fork(url: str, open_at: Callable[..., Ledger]) -> None:
    ledger = open_at(url)
    ledger.set_limit("k", 1)
    held = ledger.reserve("k", "0.5")

    def child(number: int) -> str:
        if number == 0:
            ledger.settle(held, "0.25")  # what the parent reserved
        return str(ledger.reserve(f"child-{number}", 1).amount)

    assert in_processes(4, child) == ["1.00"] * 4
    assert ledger.status("k").spent == Decimal("0.25")
    assert ledger.names() == ["child-0", "child-1", "child-2", "child-3", "k"]


def test_a_fork_in_the_middle_of_other_threads_work(url: str, open_at: Callable[..., Ledger]) -> None:
    ledger = open_at(url)
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            ledger.settle(ledger.reserve("k", PRICE), PRICE)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_processes(2, lambda number: ledger.reserve("c", PRICE).keys) == [("c",), ("c",)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert ledger.status("c").reserved == 10 * PRICE


@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_open_database_is_carried_across_a_fork(sqlite_url: str, open_at: Callable[..., Ledger]) -> None:
    ledger = open_at(sqlite_url)
    ledger.spend("k", 1)

    def open_files(number: int) -> list[str]:
        links = [str(entry.readlink()) for entry in pathlib.Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return [link for link in links if "budget.db" in link]

    assert open_files(0)
    assert in_processes(1, open_files) == [[]]
    ledger.spend("k", 1)
    assert ledger.status("k").spent == 2


def test_two_processes_make_the_file_at_once(tmp_path: pathlib.Path) -> None:
    for attempt in range(5):
        url = f"sqlite:///{tmp_path / str(attempt)}.db"
        in_processes(4, lambda number, url=url: open_ledger(url).spend("k", 1))
        assert open_ledger(url).status("k").spent == 4


def test_async_twins_work_in_a_forked_child(url: str, open_at: Callable[..., Ledger]) -> None:
    import asyncio

    ledger = open_at(url)
    asyncio.run(ledger.aspend("k", 1))
    in_processes(1, lambda number: asyncio.run(ledger.aspend("k", 1)))
    assert asyncio.run(ledger.astatus("k")).spent == 2
