"""What one agent run does with its keys: reserve before a model call, settle after it, whatever the store does.

A session asks it; all that is about models, prices and failing stores is here, so that the ledger knows only money.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Literal

from loopguard_core._prices import price, worst_case
from loopguard_core._types import Usage
from loopguard_core.keys._amounts import MAX_DOLLARS
from loopguard_core.keys._errors import KeyLimitExceeded, LedgerError, ReservationError
from loopguard_core.keys._ledger import Ledger
from loopguard_core.keys._names import check_names, shown_name
from loopguard_core.keys._status import Reservation

Unpriced = Literal["warn", "deny"] | Decimal
"""What becomes of model calls whose cost nobody knows: said once and counted as nothing; none after the first; or each
counted as this many US dollars."""

_MAX_OWED = 1_000
_RENEW_AFTER = 1 / 3
"""Of the ttl: two renewals may fail before the money goes back."""

_log = logging.getLogger("loopguard")


class Meter:
    """Counts the model calls of one run on its keys. One call runs at a time; methods may come from any thread.

    The methods without `a` wait for the store. None of them raises; names that cannot be used are refused at once.

    Args:
        ledger: Where the keys are.
        keys: Their names; a nested run has those of the run around it too.
        on_store_error: Whether model calls start while the store cannot be used.
        unpriced: What becomes of calls whose cost nobody knows.
        clock: A monotonic clock in seconds, for renewals.

    Attributes:
        unknown: Calls whose cost nobody knew.

    Raises:
        LedgerValueError: A key's name cannot be used.
    """

    def __init__(
        self,
        ledger: Ledger,
        keys: Sequence[str],
        *,
        on_store_error: Literal["deny", "allow"] = "deny",
        unpriced: Unpriced = "warn",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._keys = check_names(keys)
        self._shown = [shown_name(key) for key in self._keys]
        self._on_store_error = on_store_error
        self._unpriced = unpriced
        self._clock = clock
        self._lock = threading.RLock()
        self._held: Reservation | None = None
        self._renew_at = float("inf")
        self._owed: list[tuple[Reservation | None, Decimal]] = []
        self._dearest = Decimal(0)
        self.unknown = 0

    # -- around a model call -----------------------------------------------------------------------------------

    def before(
        self, model: str | None = None, input_tokens: int | None = None, max_output_tokens: int | None = None
    ) -> str | None:
        """Reserve for the call that is about to start.

        Returns:
            Why it must not start, in one sentence; None if it may. Asked again before the call ended, it may.
        """
        with self._lock:
            if self._held is not None:
                return None
            if self._unpriced == "deny" and self.unknown:
                return "The cost of a model call of this run is not known, and the policy denies such calls."
            amount = self._estimate(model, input_tokens, max_output_tokens)
            try:
                self._pay_what_is_owed()
                self._held = self._ledger.reserve(self._keys, amount)
            except KeyLimitExceeded as error:
                return f"The spending limit is reached: {error}."
            except LedgerError as error:
                _log.warning("The spending limit cannot be checked: %s", error)
                if self._on_store_error == "deny":
                    return f"The spending limit cannot be checked: {error}."
            else:
                self._renew_at = self._clock() + self._held.ttl * _RENEW_AFTER
            return None

    async def abefore(
        self, model: str | None = None, input_tokens: int | None = None, max_output_tokens: int | None = None
    ) -> str | None:
        """`before` for event loops. Cancelled while it waits, it gives back what it may have got."""
        return await self._ledger.arun(
            lambda: self.before(model, input_tokens, max_output_tokens), lambda _: self.failed()
        )

    def running(self) -> None:
        """The call still runs: hold on to its reservation. Cheap enough for every piece of a stream; never waits."""
        if self._clock() < self._renew_at:
            return
        with self._lock:
            if self._held is not None:
                self._renew_at = self._clock() + self._held.ttl * _RENEW_AFTER
                self._ledger.renew_soon(self._held)

    def after(self, model: str | None, usage: Usage) -> Decimal | None:
        """The call succeeded: count what it cost, in full.

        Returns:
            US dollars; None where nobody knows.
        """
        cost = self.cost(model, usage)
        with self._lock:
            held, self._held, self._renew_at = self._held, None, float("inf")
            if cost is None:
                self._say_unknown(model)
            else:
                self._dearest = max(self._dearest, cost)
            if held is not None or cost:
                self._pay(held, cost or Decimal(0))
        return cost

    async def aafter(self, model: str | None, usage: Usage) -> Decimal | None:
        """`after` for event loops. Cancelled, it is carried out all the same."""
        return await self._ledger.arun(lambda: self.after(model, usage))

    def failed(self) -> None:
        """The call failed, or the run ended in the middle of it: what it held goes back."""
        with self._lock:
            held, self._held, self._renew_at = self._held, None, float("inf")
            if held is not None:
                self._pay(held, Decimal(0))

    def close(self) -> None:
        """The run is over: give back what a call still holds, and try once more to count what is owed."""
        with self._lock:
            self.failed()
            try:
                self._pay_what_is_owed()
            except LedgerError:
                lost = sum((cost for _, cost in self._owed), Decimal(0))
                _log.error("$%s of a finished run could not be counted on %s", lost, ", ".join(self._shown))
                self._owed.clear()

    async def afailed(self) -> None:
        """`failed` for event loops. Cancelled, it is carried out all the same."""
        await self._ledger.arun(self.failed)

    async def aclose(self) -> None:
        """`close` for event loops. Cancelled, it is carried out all the same."""
        await self._ledger.arun(self.close)

    def cost(self, model: str | None, usage: Usage) -> Decimal | None:
        """What a call cost, by the provider, the price list, or the policy."""
        cost = price(model, usage)
        if cost is None and isinstance(self._unpriced, Decimal):
            cost = self._unpriced
        return None if cost is None else min(cost, Decimal(MAX_DOLLARS))

    # -- inside ------------------------------------------------------------------------------------------------

    def _estimate(self, model: str | None, input_tokens: int | None, max_output_tokens: int | None) -> Decimal:
        """The most the call can cost; where that is not known, what the dearest call of this run did."""
        most = worst_case(model, input_tokens, max_output_tokens)
        if most is None:
            most = self._dearest or (self._unpriced if isinstance(self._unpriced, Decimal) else Decimal(0))
        return min(most, Decimal(MAX_DOLLARS))

    def _pay(self, held: Reservation | None, cost: Decimal) -> None:
        try:
            self._pay_what_is_owed()
            self._record(held, cost)
        except LedgerError as error:
            if len(self._owed) < _MAX_OWED:
                self._owed.append((held, cost))
            _log.warning("$%s could not be counted and is tried again at the next model call: %s", cost, error)

    def _pay_what_is_owed(self) -> None:
        """Count what the store could not take before. Money spent is not forgotten while the run lives."""
        while self._owed:
            self._record(*self._owed[0])
            del self._owed[0]

    def _record(self, held: Reservation | None, cost: Decimal) -> None:
        if held is None:  # the call was let through while the store could not be used
            self._ledger.spend(self._keys, cost)
            return
        try:
            self._ledger.settle(held, cost)
        except ReservationError as error:
            # Either it was recorded by an attempt that seemed to fail, or the key was deleted.
            _log.warning("%s", error)

    def _say_unknown(self, model: str | None) -> None:
        self.unknown += 1
        if self.unknown == 1:
            _log.warning(
                "The cost of a model call (%.64r) is not known, so it does not count on the key; with the extra"
                " `prices` most models have a price, and unpriced = 0.01 in the policy gives the others one",
                model,
            )
