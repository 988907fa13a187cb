"""What a session does with a key, with stores that fail in between."""

import pathlib
import sqlite3
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest
from ledger_tools import Clock

from loopguard_core.keys import Ledger, open_ledger
from loopguard_core.keys._meter import Meter
from loopguard_core.keys._sqlite import SqliteStore

Locked = tuple[Ledger, Callable[[], None], Callable[[], None]]
"""A ledger, and how to lock and unlock its file."""

COST = Decimal("0.30")


def spend(meter: Meter, cost: Decimal = COST) -> None:
    meter.ended(cost)
    meter.pay()


@pytest.fixture
def ledger(clock: Clock) -> Iterator[Ledger]:
    with open_ledger("memory://", clock=clock) as ledger:
        ledger.set_limit("k", 1)
        yield ledger


def test_calls_run_until_the_limit(ledger: Ledger) -> None:
    meter = Meter(ledger, ["k"])
    calls = 0
    while (reason := meter.hold(COST)) is None:
        assert meter.hold(COST) is None  # asked again it is the same call
        spend(meter)
        calls += 1
    assert calls == 3
    assert reason.startswith('The spending limit is reached: key "k": $0.30 asked for, $0.10 of $1.00 left')
    assert (ledger.status("k").spent, ledger.status("k").reserved) == (Decimal("0.90"), 0)


def test_a_failed_call_gives_back(ledger: Ledger) -> None:
    meter = Meter(ledger, ["k"])
    assert meter.hold(COST) is None
    assert ledger.status("k").reserved == COST
    meter.failed()
    meter.failed()
    assert ledger.status("k").reserved == 0


def test_a_stream_renews_its_reservation(ledger: Ledger, clock: Clock) -> None:
    meter = Meter(ledger, ["k"], clock=clock)
    meter.hold(COST)
    for _ in range(10):  # of half an hour each; the ttl is an hour
        clock.move(1800)
        meter.running()
        ledger.close()  # waits for the thread
        assert ledger.status("k").reserved == Decimal("0.30")
    spend(meter)
    meter.running()


@pytest.fixture
def locked(tmp_path: pathlib.Path) -> Iterator[Locked]:
    path = tmp_path / "budget.db"
    ledger = Ledger(SqliteStore(path, busy_seconds=0.01))
    ledger.set_limit("k", 1)
    other = sqlite3.connect(path, isolation_level=None)
    yield ledger, lambda: other.execute("BEGIN IMMEDIATE") and None, lambda: other.execute("ROLLBACK") and None
    other.close()
    ledger.close()


def test_while_the_store_is_down_calls_are_denied(
    locked: Locked,
) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k"])
    lock()
    assert "cannot be checked" in (meter.hold(COST) or "")
    unlock()
    assert meter.hold(COST) is None


def test_that_it_is_down_is_said_once_each_time(locked: Locked, caplog: pytest.LogCaptureFixture) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k"], on_store_error="allow")
    for times in (1, 2):
        lock()
        for _ in range(3):
            assert meter.hold(COST) is None
        unlock()
        assert caplog.text.count("cannot be checked") == times
        assert meter.hold(COST) is None
        meter.failed()


def test_or_let_through_and_counted_later(locked: Locked) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k", "team"], on_store_error="allow")
    lock()
    for _ in range(3):
        assert meter.hold(COST) is None
        spend(meter)
    unlock()
    assert "limit is reached" in (meter.hold(COST) or "")
    assert ledger.status("k").spent == ledger.status("team").spent == Decimal("0.90")


def test_a_settlement_the_store_cannot_take_is_made_up_for(
    locked: Locked,
) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k"])
    meter.hold(COST)
    lock()
    spend(meter)
    unlock()
    assert ledger.status("k").spent == 0
    assert meter.hold(COST) is None
    assert ledger.status("k").spent == Decimal("0.30")
    assert ledger.status("k").reserved == Decimal("0.30")


def test_the_end_of_a_run_settles_what_is_owed(locked: Locked, caplog: pytest.LogCaptureFixture) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k"])
    meter.hold(COST)
    lock()
    spend(meter)
    unlock()
    meter.close()
    assert (ledger.status("k").spent, ledger.status("k").reserved) == (Decimal("0.30"), 0)
    meter.hold(COST)
    lock()
    spend(meter)
    meter.close()
    unlock()
    assert '$0.30 could not be counted on "k", and the run is over' in caplog.text


async def test_on_an_event_loop_paying_is_waited_for_elsewhere(ledger: Ledger) -> None:
    meter = Meter(ledger, ["k"])
    assert meter.hold(COST) is None
    meter.ended(COST)
    await meter.apay()
    assert ledger.status("k").spent == COST
    assert meter.hold(COST) is None
    meter.close()
    ledger.close()  # waits for the thread
    assert (ledger.status("k").spent, ledger.status("k").reserved) == (COST, 0)


def test_many_runs_on_one_key_keep_within_the_bound(ledger: Ledger) -> None:
    """The limit, plus what each running call costs beyond its reservation: here nothing is known of the first ones."""
    meters = [Meter(ledger, ["k"]) for _ in range(5)]
    started = [meter for meter in meters if meter.hold(Decimal(0)) is None]
    for meter in started:
        spend(meter)
    assert ledger.status("k").spent == 5 * Decimal("0.30")
    assert all(meter.hold(COST) is not None for meter in meters)
