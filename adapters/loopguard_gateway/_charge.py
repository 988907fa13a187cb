"""The money of one model call, from before it starts until it is counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from loopguard_core import Usage
from loopguard_core.keys import Reservation
from loopguard_core.prices import price

if TYPE_CHECKING:
    from loopguard_gateway._till import Till

_RENEW_AFTER = 1 / 3


class Charge:
    """The money of one model call. Held on to until it is settled or released, once."""

    def __init__(
        self,
        till: Till,
        keys: tuple[str, ...],
        model: str | None,
        input_tokens: int,
        reservation: Reservation | None,
        rate: Decimal | None,
    ) -> None:
        self._till = till
        self._keys = keys
        self._model = model
        self._input_tokens = input_tokens
        self._reservation = reservation
        self._rate = rate
        self._open = True
        self._timer: asyncio.TimerHandle | None = None
        self._renew()

    def _renew(self) -> None:
        held = self._reservation
        if held is not None:
            if self._timer is not None:
                self._till.renew(held)
            self._timer = asyncio.get_running_loop().call_later(held.ttl * _RENEW_AFTER, self._renew)

    async def settle(self, usage: Usage | None, model: str | None, heard: int) -> Usage:
        """The call is over: count what it cost. Only the first of settle and release does anything.

        Args:
            usage: What the provider reported; None makes an estimate of what was sent and heard.
            model: The model that answered.
            heard: Tokens that came, by estimate.

        Returns:
            What is counted, with its cost where that is known.
        """
        if usage is None:
            usage = Usage(input_tokens=self._input_tokens, output_tokens=heard, estimated=True)
        cost = price(model, usage)
        if cost is None:
            cost = price(self._model, usage, self._rate)
        if cost is not None:
            usage = replace(usage, cost=cost)
        if self._close():
            await self._till.pay(self._reservation, self._keys, cost or Decimal(0))
        return usage

    async def release(self) -> None:
        """The call cost nothing: what it held goes back."""
        if self._close():
            await self._till.pay(self._reservation, self._keys, Decimal(0))

    @property
    def open(self) -> bool:
        """Whether it is neither settled nor released."""
        return self._open

    def _close(self) -> bool:
        was, self._open = self._open, False
        if self._timer is not None:
            self._timer.cancel()
        return was
