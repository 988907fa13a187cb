"""What one agent run does with its keys: reserve before a model call, settle after it, whatever the store does.

A session does it, with what it knows of prices. A loop of your own has a session, too; what has none, such as a gateway
with calls on many keys at once, does the same on the `Ledger` itself.

What a call that is over cost is first *owed* and then paid to the store, in order and before anything more is reserved.
So nobody has to wait for the store at the end of a call, and money the store could not take is not forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Literal

from loopguard_core._dollars import dollars_text
from loopguard_core.keys._amounts import MAX_DOLLARS
from loopguard_core.keys._errors import KeyLimitExceeded, LedgerError, ReservationError
from loopguard_core.keys._ledger import Ledger
from loopguard_core.keys._names import check_names, shown_name
from loopguard_core.keys._status import Reservation

StoreError = Literal["deny", "allow"]

_MAX_OWED = 1_000
_RENEW_AFTER = 1 / 3
"""Of the ttl: two renewals may fail before the money goes back."""
_NEVER = float("inf")

_log = logging.getLogger("loopguard")


class Meter:
    """Counts the model calls of one run on its keys. One call runs at a time; methods may come from any thread.

    None of the methods raises; names that cannot be used are refused at once. Those that wait for the store say so.

    Args:
        ledger: Where the keys are.
        keys: Their names; a nested run has those of the run around it too.
        on_store_error: Whether model calls start while the store cannot be used.
        clock: A monotonic clock in seconds, for renewals.
        prepare: Called before anything is reserved; may raise `LedgerError`, as the store may.

    Raises:
        LedgerValueError: A key's name cannot be used.
    """

    def __init__(
        self,
        ledger: Ledger,
        keys: Sequence[str],
        *,
        on_store_error: StoreError = "deny",
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._keys = check_names(keys)
        self._shown = ", ".join(shown_name(key) for key in self._keys)
        self._on_store_error = on_store_error
        self._clock = clock
        self._prepare = prepare
        # `_store` is held while the store is waited for, `_state` never: it may be taken on an event loop.
        self._store = threading.RLock()
        self._state = threading.Lock()
        self._held: Reservation | None = None
        self._renew_at = _NEVER
        self._owed: deque[tuple[Reservation | None, Decimal]] = deque()
        self._failing = False
        self._unchecked = False

    # -- the steps ---------------------------------------------------------------------------------------------

    def hold(self, amount: Decimal) -> str | None:
        """Reserve for the call that is about to start. Waits for the store.

        Args:
            amount: The most it can cost, in US dollars; 0 if unknown.

        Returns:
            Why it must not start, in one sentence; None if it may. Asked again before the call ended, it may.
        """
        with self._store:
            if self._held is not None:
                return None
            try:
                if self._prepare is not None:
                    self._prepare()
                self._pay_what_is_owed()
                held = self._ledger.reserve(self._keys, min(amount, Decimal(MAX_DOLLARS)))
            except KeyLimitExceeded as error:
                return f"The spending limit is reached: {error}."
            except LedgerError as error:
                # What is said to the run may reach a user or a model, whom the store's address does not concern.
                if not self._unchecked:  # once for each time the store fails
                    self._unchecked = True
                    _log.warning("The spending limit on %s cannot be checked: %s", self._shown, error)
                if self._on_store_error == "allow":
                    return None
                return f"The spending limit on key {self._shown} cannot be checked, because its store cannot be used."
            self._unchecked = False
            with self._state:
                self._held = held
                self._renew_at = self._clock() + held.ttl * _RENEW_AFTER
            return None

    def running(self) -> None:
        """The call still runs: hold on to its reservation. Cheap enough for every piece of a stream; never waits."""
        if self._clock() < self._renew_at:
            return
        with self._state:
            held = self._held
            if held is None:
                return
            self._renew_at = self._clock() + held.ttl * _RENEW_AFTER
        self._ledger.renew_soon(held)

    def ended(self, cost: Decimal | None) -> None:
        """The call is over. Never waits: what it cost is owed until `pay`.

        Args:
            cost: US dollars, counted in full; None and 0 give back what was held.
        """
        cost = min(cost or Decimal(0), Decimal(MAX_DOLLARS))
        with self._state:
            held, self._held, self._renew_at = self._held, None, _NEVER
            if held is None and not cost:
                return
            if len(self._owed) >= _MAX_OWED:
                earlier, owed = self._owed.pop()
                held, cost = held or earlier, cost + owed  # of two holds, one goes back when it expires
            self._owed.append((held, cost))

    def failed(self) -> None:
        """The call failed, or did not start after all: what it held goes back. As `pay`."""
        self.ended(None)
        self.pay()

    def pay(self) -> None:
        """Count what is owed. Waits for the store, but on an event loop: there a thread of the ledger's does it."""
        if not self._owed:
            return
        try:
            asyncio.get_running_loop()
            self._ledger.soon(self._pay)
        except RuntimeError:  # no event loop; or the interpreter is ending, and with it all threads
            self._pay()

    async def apay(self) -> None:
        """`pay` for event loops. Cancelled, it is carried out all the same."""
        if self._owed:
            await self._ledger.arun(self._pay)

    def close(self) -> None:
        """The run is over: give back what a call still holds, and try once more to count what is owed. As `pay`."""
        self.ended(None)
        if not self._owed:
            return
        try:
            asyncio.get_running_loop()
            self._ledger.soon(self._pay_at_the_end)
        except RuntimeError:  # as in `pay`
            self._pay_at_the_end()

    # -- inside ------------------------------------------------------------------------------------------------

    def _pay(self) -> None:
        with self._store:
            try:
                self._pay_what_is_owed()
            except LedgerError as error:
                if not self._failing:  # once for each time the store fails
                    self._failing = True
                    _log.warning("%s, tried again at the next model call: %s", self._not_counted(), error)
            else:
                self._failing = False

    def _pay_at_the_end(self) -> None:
        with self._store:
            try:
                self._pay_what_is_owed()
            except LedgerError as error:
                _log.error("%s, and the run is over: %s", self._not_counted(), error)
                self._owed.clear()

    def _not_counted(self) -> str:
        lost = sum((cost for _, cost in list(self._owed)), Decimal(0))
        return f"{dollars_text(lost)} could not be counted on {self._shown}"

    def _pay_what_is_owed(self) -> None:
        """Under `_store`: the first stays owed until the store has it, and others are only added behind it."""
        while self._owed:
            held, cost = self._owed[0]
            if held is None:  # the call was let through while the store could not be used
                self._ledger.spend(self._keys, cost)
            else:
                self._settle(held, cost)
            self._owed.popleft()

    def _settle(self, held: Reservation, cost: Decimal) -> None:
        try:
            self._ledger.settle(held, cost)
        except ReservationError as error:
            # Either it was recorded by an attempt that seemed to fail, or the key was deleted.
            _log.warning("%s", error)
