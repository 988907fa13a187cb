"""The money of model calls: held before, counted after, whatever the ledger's store does meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

from loopguard_core import Policy
from loopguard_core.keys import (
    KeyLimitExceeded,
    Keyring,
    KeyStatus,
    Ledger,
    LedgerError,
    Reservation,
    ReservationError,
    open_keyring,
    open_ledger,
)
from loopguard_core.prices import warm, worst_case
from loopguard_gateway._charge import Charge
from loopguard_gateway._errors import Refused, key_limit, store_trouble, unpriced

T = TypeVar("T")

_MOST = Decimal(1_000_000)  # what a ledger takes at once
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_MAX_OWED = 100_000
_MAX_SEEN = 10_000

_log = logging.getLogger("loopguard")


@dataclass(frozen=True, slots=True)
class _Owed:
    reservation: Reservation | None
    keys: tuple[str, ...]
    cost: Decimal


class Till:
    """Holds and counts money for all requests of a gateway.

    Args:
        store: Address of the ledger.
        policy: Says what becomes of calls without a price, and of calls while the store cannot be used; its key, if it
            has one, counts every request of every client.
        ttl: Seconds money is held between two renewals.

    Raises:
        LedgerError: The library for the store is not installed.
        LedgerValueError: The address cannot be used.
    """

    def __init__(self, store: str, policy: Policy, ttl: float) -> None:
        self._ledger: Ledger = open_ledger(store, ttl=ttl)
        self._keyring: Keyring = open_keyring(store)
        self._shared = policy.key
        self._limit_is_due = policy.key is not None and policy.key.limit is not None
        self._allows = policy.key is not None and policy.key.on_store_error == "allow"
        rule = policy.limits.unpriced
        self._rate = rule if isinstance(rule, Decimal) else None
        self._denies = rule == "deny" or "unpriced" not in policy.limits.model_fields_set
        self._seen: OrderedDict[bytes, str] = OrderedDict()
        self._owed: deque[_Owed] = deque()
        self._paying: asyncio.Task[None] | None = None
        self._pays = threading.Lock()  # one thread pays what is owed, or it would be counted twice

    @property
    def address(self) -> str:
        """Where the ledger is, without a password."""
        return self._ledger.address

    async def open(self) -> None:
        """Load the price list."""
        if not await asyncio.to_thread(warm):
            _log.warning("There is no price list: pip install 'loopguard-core[prices]'")

    # -- keys --------------------------------------------------------------------------------------------------

    async def key_of(self, secret: str) -> str | None:
        """The name of the key a secret belongs to.

        Raises:
            Refused: The store cannot be used. Where calls may start all the same, keys that were seen before are known.
        """
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        try:
            name = await self._asked(lambda: self._keyring.verify(secret))
        except Refused:
            if self._allows and digest in self._seen:
                return self._seen[digest]
            raise
        self._seen.pop(digest, None)
        if name is not None and self._allows:
            self._seen[digest] = name
            while len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
        return name

    async def status(self, key: str) -> KeyStatus:
        """How a key stands. Raises `Refused` where the store cannot be used."""
        return await self._asked(lambda: self._ledger.status(key))

    async def ready(self) -> bool:
        """Whether the store can be used."""
        try:
            await self._ledger.arun(lambda: self._ledger.status("loopguard-ready"))
        except LedgerError as error:
            _log.warning("The ledger cannot be used: %s", error)
            return False
        return True

    async def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return await self._ledger.arun(ask)
        except LedgerError as error:
            _log.warning("The ledger cannot be used: %s", error)
            raise store_trouble() from None

    # -- one call ----------------------------------------------------------------------------------------------

    async def hold(self, key: str, model: str | None, input_tokens: int, output_tokens: int) -> Charge:
        """Hold the most a call can cost.

        Args:
            key: The client's key.
            model: The model asked for.
            input_tokens: The most that may be sent.
            output_tokens: The most that may come back.

        Raises:
            Refused: There is no room for it, its price is not known, or the store cannot be used.
        """
        keys = (key,) if self._shared is None or self._shared.name == key else (key, self._shared.name)
        most = worst_case(model, input_tokens, output_tokens, self._rate)

        def reserve() -> Reservation:
            if self._limit_is_due and self._shared is not None:
                self._ledger.set_limit(self._shared.name, self._shared.limit, self._shared.reset)
                self._limit_is_due = False
            if most is None and self._denies and any(self._ledger.status(name).limit is not None for name in keys):
                raise unpriced(model)
            return self._ledger.reserve(keys, min(most or Decimal(0), _MOST))

        reservation: Reservation | None = None
        try:
            reservation = await self._ledger.arun(reserve, self._give_back)
        except KeyLimitExceeded as error:
            raise key_limit(f"The spending limit is reached: {error}.") from None
        except LedgerError as error:
            _log.warning("The spending limit cannot be checked: %s", error)
            if not self._allows:
                raise store_trouble() from None
        return Charge(self, keys, model, input_tokens, reservation, self._rate)

    def _give_back(self, reservation: Reservation) -> None:
        try:
            self._ledger.release(reservation)
        except LedgerError as error:
            _log.warning("What a cancelled call held goes back only when it expires: %s", error)

    def renew(self, reservation: Reservation) -> None:
        """Hold on to it, without waiting."""
        self._ledger.renew_soon(reservation)

    # -- paying ------------------------------------------------------------------------------------------------

    async def pay(self, reservation: Reservation | None, keys: tuple[str, ...], cost: Decimal) -> None:
        """Count what a call cost. What the store cannot take now it is given later; carried out if cancelled."""
        if reservation is None and not cost:
            return
        owed = _Owed(reservation, keys, min(cost, _MOST))
        await self._ledger.arun(lambda: self._pay_or_owe(owed))
        if self._owed and (self._paying is None or self._paying.done()):
            self._paying = asyncio.create_task(self._pay_later())

    def _pay_or_owe(self, owed: _Owed) -> None:
        try:
            self._count(owed)
        except LedgerError as error:
            if not self._owed:
                _log.warning("What model calls cost cannot be counted, tried again soon: %s", error)
            if len(self._owed) < _MAX_OWED:
                self._owed.append(owed)
            else:
                _log.error("%s US dollars cannot be counted: too much is owed already", owed.cost)

    def _count(self, owed: _Owed) -> None:
        try:
            if owed.reservation is None:
                self._ledger.spend(owed.keys, owed.cost)
            elif owed.cost:
                self._ledger.settle(owed.reservation, owed.cost)
            else:
                self._ledger.release(owed.reservation)
        except ReservationError as error:  # recorded by an attempt that seemed to fail, or the key was deleted
            _log.warning("%s", error)

    def _pay_all(self) -> bool:
        with self._pays:
            while self._owed:
                try:
                    self._count(self._owed[0])
                except LedgerError:
                    return False
                self._owed.popleft()
            return True

    async def _pay_later(self) -> None:
        wait = _FIRST_WAIT
        while True:
            await asyncio.sleep(wait)
            if await self._ledger.arun(self._pay_all):
                return
            wait = min(wait * 2, _LONGEST_WAIT)

    async def close(self) -> None:
        """Try once more to count what is owed, and let go of the store."""
        if self._paying is not None:
            self._paying.cancel()
        if not await self._ledger.arun(self._pay_all):
            lost = sum((owed.cost for owed in self._owed), Decimal(0))
            _log.error("%s US dollars could not be counted, and the gateway ends", lost)
        await asyncio.to_thread(self._ledger.close)
        await asyncio.to_thread(self._keyring.close)
