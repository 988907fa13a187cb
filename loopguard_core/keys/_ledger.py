"""`Ledger`: reserve before a model call, settle after it.

All the rules are here and in the store's steps; this file checks what comes in, turns dollars into nano-dollars and
back, and offers every call for event loops too.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TypeVar

from loopguard_core._closing import Closing
from loopguard_core._policy_errors import shown
from loopguard_core.keys._amounts import Amount, to_dollars, to_nano
from loopguard_core.keys._errors import KeyLimitExceeded, LedgerError, LedgerValueError, ReservationError
from loopguard_core.keys._names import check_name, check_names, shown_name
from loopguard_core.keys._periods import Reset, check_reset, date_of, resets_at
from loopguard_core.keys._status import KeyStatus, Reservation
from loopguard_core.keys._store import Account, Store
from loopguard_core.keys._threads import Threads

DEFAULT_TTL = 3600.0
"""Seconds a reservation is held: longer than any provider lets a stream run. What a crash left is back after that."""

MAX_TTL = 7 * 86400.0
MAX_DAYS = 366

T = TypeVar("T")

_log = logging.getLogger("loopguard")


class Ledger(Closing):
    """Spending limits on keys, shared by every thread, process and machine that opens the same store.

    Made by `open_ledger`. Every method may raise `LedgerError` (the store cannot be used) and `LedgerValueError` (an
    argument cannot). Usable from any thread and after a fork. The methods that begin with `a` are the same for event
    loops, which they never block.

    Args:
        store: Where it is kept.
        ttl: Seconds a reservation is held unless it is renewed.
    """

    def __init__(self, store: Store, *, ttl: float = DEFAULT_TTL) -> None:
        self._store = store
        self._ttl = _check_ttl(ttl)
        self._threads = Threads()

    def __repr__(self) -> str:
        return f"Ledger({self._store.address!r})"

    @property
    def address(self) -> str:
        """Where the ledger is kept, without a password."""
        return self._store.address

    # -- limits ------------------------------------------------------------------------------------------------

    def set_limit(self, key: str, amount: Amount | None, reset: Reset | None = None) -> None:
        """Set what a key may spend in a period, and when the period starts afresh. It holds for the next reservation.

        What was spent stays: with another reset the same days are added up over the new period.

        Args:
            key: Name of the key.
            amount: US dollars; 0 allows nothing, None lifts the limit.
            reset: `daily`, `weekly` (Monday), `monthly`, all in UTC; `none` or None never.
        """
        limit = None if amount is None else to_nano("limit", amount, round_up=False)
        self._store.set_limit(check_name(key), limit, check_reset(reset))

    def status(self, key: str) -> KeyStatus:
        """How a key stands now. A key never heard of has spent nothing and has no limit."""
        return _status(self._store.account(check_name(key)))

    def history(self, key: str, days: int = 31) -> dict[dt.date, Decimal]:
        """US dollars spent on each of the last days, by UTC date, oldest first; days without spending are left out.

        Args:
            key: Name of the key.
            days: How many, at most 366, today included.
        """
        if type(days) is not int or not 1 <= days <= MAX_DAYS:
            raise LedgerValueError(f"days = {shown(days)}: must be a whole number from 1 to {MAX_DAYS}")
        _, spent = self._store.history(check_name(key), days)
        return {date_of(day): to_dollars(amount) for day, amount in sorted(spent.items())}

    def names(self) -> list[str]:
        """Names of all keys that were given a limit or used, sorted."""
        return self._store.names()

    def delete(self, key: str) -> bool:
        """Forget a key: its limit, its spending, what is held on it. Calls that still run on it cannot be settled.

        Returns:
            False if there was no such key.
        """
        return self._store.delete(check_name(key))

    # -- money -------------------------------------------------------------------------------------------------

    def reserve(self, key: str | Sequence[str], amount: Amount, *, ttl: float | None = None) -> Reservation:
        """Hold money for a call that is about to start. It is in nobody else's remainder until settled or released.

        Args:
            key: Name of the key; or several, each of which then holds the whole amount: all of them, or none.
            amount: The most the call can cost, in US dollars; 0 if unknown, which any key with something left grants.
            ttl: Seconds until what was not settled goes back; None takes the ledger's.

        Returns:
            What to give to `settle` or `release`.

        Raises:
            KeyLimitExceeded: Spent and held together leave less than that on one of the keys, or nothing at all.
        """
        names, nano = check_names(key), to_nano("amount", amount)
        seconds = self._ttl if ttl is None else _check_ttl(ttl)
        hold = uuid.uuid4().hex
        answer = self._store.reserve(hold, names, nano, int(seconds * 1000))
        if isinstance(answer, Account):
            raise KeyLimitExceeded(answer.name, to_dollars(nano), _status(answer))
        return Reservation(hold, names, to_dollars(nano), _moment(answer.expires_ms), seconds)

    def renew(self, reservation: Reservation) -> Reservation:
        """Hold on for another `ttl`, while a stream runs. What has expired is held again, since its call still runs.

        Returns:
            The reservation with its new expiry; the old one may be used as well.

        Raises:
            ReservationError: It is not open.
        """
        held = self._store.renew(reservation.id, reservation.keys, int(reservation.ttl * 1000))
        if held is None:
            raise self._not_open(reservation, "renewed")
        return Reservation(
            reservation.id, reservation.keys, reservation.amount, _moment(held.expires_ms), reservation.ttl
        )

    def settle(self, reservation: Reservation, actual: Amount) -> None:
        """The call is over: count what it cost, in full, also above what was reserved, also after it expired.

        It counts on the day, and so in the period, in which it was reserved: that period's limit let it start.

        Args:
            reservation: What `reserve` gave.
            actual: What it cost, in US dollars.

        Raises:
            ReservationError: It was settled or released before, or all its keys were deleted.
        """
        if not self._store.settle(reservation.id, reservation.keys, to_nano("actual", actual)):
            raise self._not_open(reservation, "settled")

    def release(self, reservation: Reservation) -> None:
        """The call did not happen, or cost nothing: what it held goes back.

        Raises:
            ReservationError: It was settled or released before, or all its keys were deleted.
        """
        if not self._store.settle(reservation.id, reservation.keys, 0):
            raise self._not_open(reservation, "released")

    def spend(self, key: str | Sequence[str], amount: Amount) -> None:
        """Count spending that nothing was reserved for, such as a bill from elsewhere; above the limit too.

        Args:
            key: Name of the key; or several, each of which then spends the whole amount.
            amount: US dollars.
        """
        self._store.add(check_names(key), to_nano("amount", amount))

    def renew_soon(self, reservation: Reservation) -> None:
        """`renew` in a thread of the ledger's: for the middle of a stream, which must not wait for a store."""
        self._threads.start(lambda: self._renew_quietly(reservation))

    # -- for event loops ---------------------------------------------------------------------------------------

    async def aset_limit(self, key: str, amount: Amount | None, reset: Reset | None = None) -> None:
        """`set_limit` for event loops."""
        await self._threads.run(lambda: self.set_limit(key, amount, reset))

    async def astatus(self, key: str) -> KeyStatus:
        """`status` for event loops."""
        return await self._threads.run(lambda: self.status(key))

    async def areserve(self, key: str | Sequence[str], amount: Amount, *, ttl: float | None = None) -> Reservation:
        """`reserve` for event loops. Cancelled while it waits, it gives back what it may have got."""
        return await self._threads.acquire(lambda: self.reserve(key, amount, ttl=ttl), self._give_back)

    async def arenew(self, reservation: Reservation) -> Reservation:
        """`renew` for event loops."""
        return await self._threads.run(lambda: self.renew(reservation))

    async def asettle(self, reservation: Reservation, actual: Amount) -> None:
        """`settle` for event loops. Cancelled while it waits, it is carried out all the same."""
        await self._threads.run(lambda: self.settle(reservation, actual))

    async def arelease(self, reservation: Reservation) -> None:
        """`release` for event loops. Cancelled while it waits, it is carried out all the same."""
        await self._threads.run(lambda: self.release(reservation))

    async def aspend(self, key: str | Sequence[str], amount: Amount) -> None:
        """`spend` for event loops."""
        await self._threads.run(lambda: self.spend(key, amount))

    async def arun(self, work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Do `work`, which calls this ledger, in a thread of the ledger's.

        Args:
            work: It is carried out even if the waiting task is cancelled.
            undo: Called there with its result if that task was.
        """
        return await (self._threads.run(work) if undo is None else self._threads.acquire(work, undo))

    def soon(self, work: Callable[[], object]) -> None:
        """Do `work`, which calls this ledger and may not raise, in a thread of the ledger's; wait for nothing.

        `close` waits for it.
        """
        self._threads.start(work)

    # -- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close files, connections and threads. Using the ledger again opens new ones."""
        self._threads.close()
        self._store.close()

    def _renew_quietly(self, reservation: Reservation) -> None:
        try:
            self.renew(reservation)
        except ReservationError:
            pass  # the call ended in the meantime
        except LedgerError as error:
            _log.warning("A running call's reservation could not be renewed: %s", error)

    def _give_back(self, reservation: Reservation) -> None:
        try:
            self.release(reservation)
        except LedgerError as error:
            _log.warning("A cancelled call's reservation could not be released and is held until it expires: %s", error)

    def _not_open(self, reservation: Reservation, done: str) -> ReservationError:
        keys = ", ".join(shown_name(key) for key in reservation.keys)
        return ReservationError(
            f"a reservation on {keys} cannot be {done}: it was settled or released before, or the key was deleted;"
            " settle or release each reservation once"
        )


def _check_ttl(ttl: object) -> float:
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and math.isfinite(ttl) and 1 <= ttl <= MAX_TTL:
        return float(ttl)
    raise LedgerValueError(f"ttl = {shown(ttl)}: must be a number of seconds from 1 to {MAX_TTL:.0f}")


def _moment(milliseconds: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=milliseconds)


def _status(account: Account) -> KeyStatus:
    limit = account.limit
    left = None if limit is None else max(0, limit - account.spent - account.reserved)
    return KeyStatus(
        key=account.name,
        limit=None if limit is None else to_dollars(limit),
        spent=to_dollars(account.spent),
        reserved=to_dollars(account.reserved),
        remaining=None if left is None else to_dollars(left),
        reset=account.reset,
        resets_at=resets_at(account.reset, account.day),
        today=date_of(account.day),
    )
