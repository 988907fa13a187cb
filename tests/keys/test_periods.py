"""Days, weeks, months: in UTC, to the millisecond, the same in both stores."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_tools import Clock

from loopguard_core.keys import KeyLimitExceeded, Ledger, LedgerValueError, Reset
from loopguard_core.keys._periods import check_reset, date_of, day_number, period


def dates(reset: Reset, day: str) -> tuple[str, str]:
    first, after = period(reset, day_number(dt.date.fromisoformat(day)))
    return str(date_of(first)), str(date_of(after))


@pytest.mark.parametrize(
    ("reset", "day", "first", "after"),
    [
        ("daily", "2028-02-29", "2028-02-29", "2028-03-01"),
        ("weekly", "2028-02-28", "2028-02-28", "2028-03-06"),  # a Monday
        ("weekly", "2028-03-05", "2028-02-28", "2028-03-06"),  # the Sunday after it
        ("weekly", "2027-01-01", "2026-12-28", "2027-01-04"),
        ("weekly", "1970-01-01", "1969-12-29", "1970-01-05"),
        ("monthly", "2028-02-29", "2028-02-01", "2028-03-01"),
        ("monthly", "2100-02-28", "2100-02-01", "2100-03-01"),  # no leap year
        ("monthly", "2027-12-31", "2027-12-01", "2028-01-01"),
        ("monthly", "2028-01-31", "2028-01-01", "2028-02-01"),
        ("monthly", "2028-04-30", "2028-04-01", "2028-05-01"),
    ],
)
def test_periods(reset: Reset, day: str, first: str, after: str) -> None:
    assert dates(reset, day) == (first, after)


def test_unknown_resets_are_refused() -> None:
    assert check_reset(None) == "none"
    for wrong in ("hourly", "", 7, ["daily"]):
        with pytest.raises(LedgerValueError, match="must be one of daily, weekly, monthly, none"):
            check_reset(wrong)


EDGES = [
    ("daily", "2028-02-28T23:59:59.999", "2028-02-29T00:00"),
    ("daily", "2028-12-31T23:59:59.999", "2029-01-01T00:00"),
    ("weekly", "2028-03-05T23:59:59.999", "2028-03-06T00:00"),
    ("monthly", "2028-02-29T23:59:59.999", "2028-03-01T00:00"),
    ("monthly", "2027-02-28T23:59:59.999", "2027-03-01T00:00"),
    ("monthly", "2028-12-31T23:59:59.999", "2029-01-01T00:00"),
]


@pytest.mark.parametrize(("reset", "before", "after"), EDGES)
def test_a_key_starts_afresh_at_the_edge_and_not_a_millisecond_earlier(
    ledger: Ledger, clock: Clock, reset: Reset, before: str, after: str
) -> None:
    ledger.set_limit("k", 1, reset)
    clock.set(before)
    edge = dt.datetime.fromisoformat(after).replace(tzinfo=dt.UTC)
    ledger.settle(ledger.reserve("k", 1), 1)
    assert ledger.status("k").resets_at == edge
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.01")
    clock.set(edge)
    assert ledger.status("k").remaining == 1
    ledger.settle(ledger.reserve("k", 1), 1)
    assert ledger.status("k").spent == 1
    assert list(ledger.history("k").values()) == [1, 1]


def test_spending_belongs_to_the_period_of_its_reservation(ledger: Ledger, clock: Clock) -> None:
    ledger.set_limit("k", 1, "monthly")
    clock.set("2028-01-31T23:59:59")
    held = ledger.reserve("k", "0.9")
    clock.set("2028-02-01T00:00:01")
    assert ledger.status("k").reserved == 0  # it is the old month's money that is held
    ledger.reserve("k", 1)
    ledger.settle(held, "0.8")
    assert ledger.status("k").spent == 0
    assert ledger.history("k") == {dt.date(2028, 1, 31): Decimal("0.8")}


def test_another_reset_adds_up_the_same_days(ledger: Ledger, clock: Clock) -> None:
    spent = {"2028-02-29": 1, "2028-03-05": 2, "2028-03-06": 4, "2028-03-07": 8}
    for day, amount in spent.items():
        clock.set(f"{day}T12:00")
        ledger.spend("k", amount)
    held = ledger.reserve("k", 3)
    for reset, total in {"daily": 8, "weekly": 12, "monthly": 14, "none": 15}.items():
        ledger.set_limit("k", 20, reset)  # type: ignore[arg-type]
        status = ledger.status("k")
        assert (status.spent, status.reserved, status.remaining) == (total, 3, 17 - total)
    ledger.release(held)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    day=st.integers(-200_000, 200_000),  # years 1422 to 2517
    spends=st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 9)), max_size=6),
    reset=st.sampled_from(["daily", "weekly", "monthly", "none"]),
)
def test_redis_reckons_periods_as_sqlite_does(
    redis_url: str,
    clock: Clock,
    open_at: Callable[..., Ledger],
    day: int,
    spends: list[tuple[int, int]],
    reset: Reset,
) -> None:
    ledgers = (open_at(redis_url, clock=clock), open_at("memory://", clock=clock))
    for ledger in ledgers:
        ledger.delete("k")
        ledger.set_limit("k", 5, reset)
        for offset, amount in spends:
            clock.now = (day + offset) * 86400
            ledger.spend("k", amount)
        clock.now = day * 86400 + 86399.999
    assert ledgers[0].status("k") == ledgers[1].status("k")
    assert ledgers[0].history("k", 60) == ledgers[1].history("k", 60)
