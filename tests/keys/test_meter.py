"""What a session does with a key, with stores that fail in between."""

import logging
import pathlib
import sqlite3
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest
from ledger_tools import Clock

from loopguard_core import Usage
from loopguard_core.keys import Ledger, Meter, open_ledger
from loopguard_core.keys._sqlite import SqliteStore

Locked = tuple[Ledger, Callable[[], None], Callable[[], None]]
"""A ledger, and how to lock and unlock its file."""

COST = Usage(input_tokens=10, output_tokens=10, cost="0.30")


@pytest.fixture
def ledger(clock: Clock) -> Iterator[Ledger]:
    with open_ledger("memory://", clock=clock) as ledger:
        ledger.set_limit("k", 1)
        yield ledger


def test_calls_run_until_the_limit(ledger: Ledger) -> None:
    meter = Meter(ledger, ["k"])
    calls = 0
    while (reason := meter.before()) is None:
        assert meter.before() is None  # asked again it is the same call
        assert meter.after(None, COST) == Decimal("0.30")
        calls += 1
    # After three calls $0.10 is left, and a call of this run costs $0.30.
    assert calls == 3
    assert reason.startswith('The spending limit is reached: key "k": $0.30 asked for, $0.10 of $1.00 left')
    assert (ledger.status("k").spent, ledger.status("k").reserved) == (Decimal("0.90"), 0)


def test_a_failed_call_gives_back(ledger: Ledger) -> None:
    meter = Meter(ledger, ["k"])
    meter.before()
    meter.after(None, COST)
    assert meter.before() is None
    assert ledger.status("k").reserved == Decimal("0.30")
    meter.failed()
    meter.failed()
    assert ledger.status("k").reserved == 0


def test_the_worst_case_is_reserved_where_it_is_known(ledger: Ledger) -> None:
    pytest.importorskip("genai_prices")
    meter = Meter(ledger, ["k"])
    assert meter.before("openai:gpt-4o", 1000, 1000) is None
    assert ledger.status("k").reserved >= Decimal("0.0125")
    cost = meter.after("openai:gpt-4o", Usage(1000, 100))
    assert ledger.status("k").spent == cost
    assert "limit is reached" in (meter.before("openai:gpt-4o", 1000, 1_000_000) or "")


def test_unknown_costs_are_said_once(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter(ledger, ["k"])
    with caplog.at_level(logging.WARNING, "loopguard"):
        for _ in range(3):
            assert meter.before("my-model") is None
            assert meter.after("my-model", Usage(10, 10)) is None
    assert caplog.text.count("is not known") == 1
    assert meter.unknown == 3
    assert ledger.status("k").spent == 0


def test_unknown_costs_can_be_denied_or_priced(ledger: Ledger) -> None:
    denying = Meter(ledger, ["k"], unpriced="deny")
    assert denying.before("my-model") is None  # the provider may report what it costs
    denying.after("my-model", Usage(10, 10))
    assert "the policy denies" in (denying.before("my-model") or "")
    priced = Meter(ledger, ["k"], unpriced=Decimal(3000))  # dollars a million tokens
    assert priced.before("my-model", 100, 100) is None
    assert ledger.status("k").reserved == Decimal("0.6")
    assert priced.after("my-model", Usage(100, 100)) == Decimal("0.6")
    assert "limit is reached" in (priced.before("my-model") or "")
    assert priced.after("my-model", Usage(total_tokens=10)) == Decimal("0.03")
    assert priced.after("my-model", Usage()) is None


def test_a_stream_renews_its_reservation(ledger: Ledger, clock: Clock) -> None:
    meter = Meter(ledger, ["k"], clock=clock)
    meter.before()
    meter.after(None, COST)
    meter.before()
    for _ in range(10):  # of half an hour each; the ttl is an hour
        clock.move(1800)
        meter.running()
        ledger.close()  # waits for the thread
        assert ledger.status("k").reserved == Decimal("0.30")
    meter.after(None, COST)
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
    assert "cannot be checked" in (meter.before() or "")
    unlock()
    assert meter.before() is None


def test_that_it_is_down_is_said_once_each_time(locked: Locked, caplog: pytest.LogCaptureFixture) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k"], on_store_error="allow")
    for times in (1, 2):
        lock()
        for _ in range(3):
            assert meter.before() is None
        unlock()
        assert caplog.text.count("cannot be checked") == times
        assert meter.before() is None
        meter.failed()


def test_or_let_through_and_counted_later(locked: Locked) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k", "team"], on_store_error="allow")
    lock()
    for _ in range(3):
        assert meter.before() is None
        meter.after(None, COST)
    unlock()
    assert "limit is reached" in (meter.before() or "")
    assert ledger.status("k").spent == ledger.status("team").spent == Decimal("0.90")


def test_a_settlement_the_store_cannot_take_is_made_up_for(
    locked: Locked,
) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k"])
    meter.before()
    lock()
    meter.after(None, COST)
    unlock()
    assert ledger.status("k").spent == 0
    assert meter.before() is None
    assert ledger.status("k").spent == Decimal("0.30")
    assert ledger.status("k").reserved == Decimal("0.30")


def test_the_end_of_a_run_settles_what_is_owed(locked: Locked, caplog: pytest.LogCaptureFixture) -> None:
    ledger, lock, unlock = locked
    meter = Meter(ledger, ["k"])
    meter.before()
    lock()
    meter.after(None, COST)
    unlock()
    meter.close()
    assert (ledger.status("k").spent, ledger.status("k").reserved) == (Decimal("0.30"), 0)
    meter.before()
    lock()
    meter.after(None, COST)
    meter.close()
    unlock()
    assert '$0.30 could not be counted on "k", and the run is over' in caplog.text


async def test_the_same_for_event_loops(ledger: Ledger) -> None:
    meter = Meter(ledger, ["k"])
    assert await meter.abefore() is None
    assert await meter.aafter(None, COST) == Decimal("0.30")
    assert await meter.abefore() is None
    await meter.afailed()
    assert await meter.abefore() is None
    await meter.aclose()
    assert (ledger.status("k").spent, ledger.status("k").reserved) == (Decimal("0.30"), 0)


def test_many_runs_on_one_key_keep_within_the_bound(ledger: Ledger) -> None:
    """The limit, plus what each running call costs beyond its reservation: here nothing is known of the first ones."""
    meters = [Meter(ledger, ["k"]) for _ in range(5)]
    started = [meter for meter in meters if meter.before() is None]
    for meter in started:
        meter.after(None, COST)
    assert ledger.status("k").spent == 5 * Decimal("0.30")
    assert all(meter.before() is not None for meter in meters)
