"""The ledger against a model that keeps everything in lists, with any order of calls and any movement of the clock."""

import math
import pathlib
import tempfile
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ledger_tools import Clock

from loopguard_core.keys import KeyLimitExceeded, Ledger, Reservation, ReservationError, Reset, open_ledger
from loopguard_core.keys._periods import date_of, day_of, period

KEYS = ("a", "b")
RESETS: tuple[Reset, ...] = ("daily", "weekly", "monthly", "none")
amounts = st.one_of(
    st.integers(0, 3), st.decimals(0, 3, places=2), st.decimals(0, 1, places=11), st.just(Decimal("0.000000001"))
)


def nano(amount: object) -> int:
    return math.ceil(Fraction(amount) * 10**9)  # type: ignore[call-overload]


class Hold:
    """A reservation as the model has it. `settled`: what it cost; `covered`: what was still held for that."""

    def __init__(self, keys: tuple[str, ...], amount: int, day: int, expires: float, ttl: float) -> None:
        self.keys, self.amount, self.day, self.expires, self.ttl = keys, amount, day, expires, ttl
        self.expired = False
        self.open = True


class LedgerAgainstModel(RuleBasedStateMachine):
    """Calls in any order do what the model says."""

    reservations = Bundle("reservations")
    closed = Bundle("closed")
    open_ledger: ClassVar[Callable[[Clock], Ledger]]

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock("2028-02-27T23:59:00")
        self.ledger = type(self).open_ledger(self.clock)
        for name in self.ledger.names():
            self.ledger.delete(name)
        self.limits: dict[str, tuple[int | None, Reset]] = dict.fromkeys(KEYS, (None, "none"))
        self.spent: list[tuple[str, int, int]] = []
        self.excess: list[tuple[str, int, int]] = []  # what was spent beyond what was held for it
        self.holds: dict[str, Hold] = {}
        self.fixed = True  # whether limits never changed since money moved

    def teardown(self) -> None:
        self.ledger.close()

    # -- the model ---------------------------------------------------------------------------------------------

    @property
    def today(self) -> int:
        return day_of(int(self.clock.now * 1000))

    def _expire(self) -> None:
        for hold in self.holds.values():
            hold.expired = hold.expires <= self.clock.now

    def _sum(self, rows: list[tuple[str, int, int]], key: str, first: int, after: int) -> int:
        return sum(amount for name, day, amount in rows if name == key and first <= day < after)

    def _used(self, key: str) -> tuple[int, int]:
        self._expire()
        first, after = period(self.limits[key][1], self.today)
        held = [(key, h.day, h.amount) for h in self.holds.values() if h.open and not h.expired and key in h.keys]
        return self._sum(self.spent, key, first, after), self._sum(held, key, first, after)

    def _has_room(self, key: str, amount: int) -> bool:
        limit = self.limits[key][0]
        used = sum(self._used(key))
        return limit is None or (used < limit and used + amount <= limit)

    # -- what happens ------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.spent and not self.holds)
    @rule(key=st.sampled_from(KEYS), limit=st.sampled_from([None, 0, 1, 3, 10]), reset=st.sampled_from(RESETS))
    def set_limit_first(self, key: str, limit: int | None, reset: Reset) -> None:
        self._set(key, limit, reset)

    @precondition(lambda self: self.spent or self.holds)
    @rule(key=st.sampled_from(KEYS), limit=st.sampled_from([None, 0, 1, 3, 10]), reset=st.sampled_from(RESETS))
    def change_limit(self, key: str, limit: int | None, reset: Reset) -> None:
        self.fixed = False
        self._set(key, limit, reset)

    def _set(self, key: str, limit: int | None, reset: Reset) -> None:
        self.ledger.set_limit(key, limit, reset)
        self.limits[key] = (None if limit is None else nano(limit), reset)

    @rule(
        target=reservations,
        keys=st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]),
        amount=amounts,
        ttl=st.sampled_from([60, 3600]),
    )
    def reserve(self, keys: tuple[str, ...], amount: Decimal, ttl: int) -> Reservation | None:
        full = next((key for key in keys if not self._has_room(key, nano(amount))), None)
        if full is not None:
            with pytest.raises(KeyLimitExceeded) as caught:
                self.ledger.reserve(keys, amount, ttl=ttl)
            assert caught.value.key == full
            return None
        held = self.ledger.reserve(keys, amount, ttl=ttl)
        self.holds[held.id] = Hold(keys, nano(amount), self.today, self.clock.now + ttl, ttl)
        return held

    @rule(target=closed, held=consumes(reservations), actual=amounts)
    def settle(self, held: Reservation | None, actual: Decimal) -> Reservation | None:
        if held is None:
            return None
        self._expire()
        hold = self.holds[held.id]
        self.ledger.settle(held, actual)
        hold.open = False
        covered = 0 if hold.expired else hold.amount
        for key in hold.keys:
            self.spent.append((key, hold.day, nano(actual)))
            self.excess.append((key, hold.day, max(0, nano(actual) - covered)))
        return held

    @rule(target=closed, held=consumes(reservations))
    def release(self, held: Reservation | None) -> Reservation | None:
        if held is not None:
            self.ledger.release(held)
            self.holds[held.id].open = False
        return held

    @rule(held=reservations)
    def renew(self, held: Reservation | None) -> None:
        if held is not None:
            self._expire()
            hold = self.holds[held.id]
            # Money that was free for a while may have been granted since: from here on it is in excess.
            if hold.expired:
                for key in hold.keys:
                    self.excess.append((key, hold.day, hold.amount))
            self.ledger.renew(held)
            hold.expires = self.clock.now + hold.ttl

    @rule(held=closed)
    def close_again(self, held: Reservation | None) -> None:
        if held is not None:
            for again in (lambda: self.ledger.settle(held, 1), lambda: self.ledger.release(held)):
                with pytest.raises(ReservationError):
                    again()

    @rule(key=st.sampled_from(KEYS), amount=amounts)
    def spend(self, key: str, amount: Decimal) -> None:
        self.ledger.spend(key, amount)
        self.spent.append((key, self.today, nano(amount)))
        self.excess.append((key, self.today, nano(amount)))

    @rule(seconds=st.sampled_from([1, 59, 60, 61, 3600, 86400, 7 * 86400]))
    def wait(self, seconds: int) -> None:
        self.clock.move(seconds)

    @rule()
    def reopen(self) -> None:
        self.ledger.close()

    # -- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_stands_as_the_model(self) -> None:
        for key in KEYS:
            status = self.ledger.status(key)
            spent, held = self._used(key)
            limit = self.limits[key][0]
            assert (nano(status.spent), nano(status.reserved)) == (spent, held)
            assert (None if status.limit is None else nano(status.limit)) == limit
            left = None if limit is None else max(0, limit - spent - held)
            assert (None if status.remaining is None else nano(status.remaining)) == left

    @invariant()
    def history_has_what_was_spent(self) -> None:
        for key in KEYS:
            days = {day for name, day, amount in self.spent if name == key and amount}
            written = {
                date_of(day): self._sum(self.spent, key, day, day + 1) for day in days if 0 <= self.today - day < 366
            }
            assert {day: nano(amount) for day, amount in self.ledger.history(key, 366).items() if amount} == written

    @invariant()
    def the_bound_on_overspend_holds(self) -> None:
        """In a period: at most the limit, and what calls cost beyond what was held for them."""
        if not self.fixed:
            return
        for key, (limit, reset) in self.limits.items():
            for first, after in {period(reset, day) for _, day, _ in self.spent} if limit is not None else ():
                excess = self._sum(self.excess, key, first, after)
                assert self._sum(self.spent, key, first, after) <= (limit or 0) + excess


class WithClockGoingBack(LedgerAgainstModel):
    """SQLite judges expiry by the clock alone, so a hold that had expired is held again; it never refuses less."""

    @rule(seconds=st.sampled_from([1, 61, 3601, 86400]))
    def go_back(self, seconds: int) -> None:
        self._expire()
        lapsed = [hold for hold in self.holds.values() if hold.open and hold.expired]
        self.clock.move(-seconds)
        self._expire()
        for hold in lapsed:
            if not hold.expired:  # its money was free for a while, as before a late renewal
                self.excess.extend((key, hold.day, hold.amount) for key in hold.keys)


def check(machine: type[LedgerAgainstModel], opened: Callable[[Clock], Ledger], examples: int) -> None:
    case = type(machine.__name__, (machine,), {"open_ledger": staticmethod(opened)})
    run_state_machine_as_test(
        case,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_in_memory() -> None:
    check(WithClockGoingBack, lambda clock: open_ledger("memory://", clock=clock), 60)


def test_sqlite() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{pathlib.Path(directory) / 'budget.db'}"
        check(WithClockGoingBack, lambda clock: open_ledger(url, clock=clock), 20)


def test_redis(redis_url: str) -> None:
    check(LedgerAgainstModel, lambda clock: open_ledger(redis_url, clock=clock), 25)
