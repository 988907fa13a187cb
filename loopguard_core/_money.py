"""What one run does about money: what its model calls cost, and holding and counting that on caps and keys.

A session has a `Money` only where a cap on cost or tokens, or a key, is set here or in a run around it. All of it but
`ask`, `pay` and `close` is called under the session's lock and never waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from loopguard_core import _prices
from loopguard_core._bounded import count
from loopguard_core._budget import Budget
from loopguard_core._estimate import text_bytes, tokens_of_bytes
from loopguard_core._limits import Breach, dollars_of
from loopguard_core._outcome import OWN_WORDS
from loopguard_core._types import Stop, Usage

if TYPE_CHECKING:
    from loopguard_core.keys._meter import Meter
    from loopguard_core.keys._source import Claim


class Money:
    """The money of one run.

    Args:
        budget: The run's.
        claims: The keys it spends on, those of the runs around it first.
        meters: One for each store they are in.
        rate: US dollars a million tokens for models without a price; None where there is none.

    Attributes:
        claims: As given; nested runs have them too.
        rate: As given.
        prices: Whether costs are to be known, and not tokens alone.
        meters: As given.
        granted: Whether the model call that was asked about may run, and has not ended.
        unreported: Whether a round showed that it succeeded, and nobody said what it used.
    """

    def __init__(self, budget: Budget, claims: Sequence[Claim], meters: Sequence[Meter], rate: Decimal | None) -> None:
        self.claims = claims
        self.rate = rate
        self.prices = budget.priced
        self.meters = meters
        self.granted = False
        self.unreported = False
        self._budget = budget
        self._amount = Decimal(0)
        self._sent: int | None = None
        self._bytes = 0
        self._dearest = Decimal(0)
        self._most_tokens = 0

    # -- before a model call -----------------------------------------------------------------------------------

    def room(self, model: str | None, input_tokens: int | None, max_output_tokens: int | None) -> Breach | None:
        """Hold the most the next call can use on the caps that reserve.

        Where the worst case is not known, the most that a call of this run has used stands for it.
        """
        input_tokens, max_output_tokens = _number(input_tokens), _number(max_output_tokens)
        self._sent, self._bytes = input_tokens, 0
        cost = _prices.worst_case(model, input_tokens, max_output_tokens, self.rate) if self.prices else None
        self._amount = self._dearest if cost is None else cost
        if not self._budget.reserves:
            return None
        unknown = input_tokens is None or max_output_tokens is None
        tokens = self._most_tokens if unknown else (input_tokens or 0) + (max_output_tokens or 0)
        return self._budget.hold(self._amount, tokens)

    def ask(self) -> str | None:
        """Reserve on all keys, or on none. Waits for the store.

        Returns:
            Why the call must not start, in one sentence.
        """
        for place, meter in enumerate(self.meters):
            reason = meter.hold(self._amount)
            if reason is not None:
                for earlier in self.meters[:place]:
                    earlier.failed()
                return reason
        return None

    async def aask(self) -> str | None:
        """`ask` for event loops. Cancelled while it waits, it gives back what it may have got."""
        return await self.claims[0].source.ledger.arun(self.ask, lambda _: self._give_back())

    def _give_back(self) -> None:
        for meter in self.meters:
            meter.failed()

    # -- while it runs -----------------------------------------------------------------------------------------

    def hears(self, text: object) -> None:
        """A piece of the response: for the estimate, and to hold on to what is reserved."""
        if isinstance(text, str):
            self._bytes += text_bytes(text)
        for meter in self.meters:
            meter.running()

    @property
    def heard(self) -> bool:
        """Whether any of the response came."""
        return self._bytes > 0

    # -- after it ----------------------------------------------------------------------------------------------

    def ended(self, model: str | None, usage: Usage) -> Usage:
        """The call is over: its usage, with an estimate where nothing was reported, and with its cost.

        It is owed to the keys from now on; `pay` counts it there.
        """
        self._budget.release()
        if self._bytes and usage.input_tokens is None and usage.output_tokens is None and usage.total_tokens is None:
            received = tokens_of_bytes(self._bytes)
            usage = dataclasses.replace(usage, input_tokens=self._sent, output_tokens=received, estimated=True)
        if self.prices and usage.cost is None:
            cost = _prices.price(model, usage, self.rate)
            if cost is not None:
                usage = dataclasses.replace(usage, cost=cost)
        if usage.cost is not None:
            self._dearest = max(self._dearest, usage.cost)
        self._most_tokens = max(self._most_tokens, usage.total_tokens or 0)
        for meter in self.meters:
            meter.ended(usage.cost)
        self._over()
        return usage

    def failed(self) -> None:
        """The call did not happen: what it held goes back, on the keys with the next `pay`."""
        self._budget.release()
        for meter in self.meters:
            meter.ended(None)
        self._over()

    def _over(self) -> None:
        self.granted = self.unreported = False
        self._sent, self._bytes, self._amount = None, 0, Decimal(0)

    @property
    def loading(self) -> bool:
        """Whether `room` and `ended` may have to wait for the price list."""
        return self.prices and not _prices.loaded()

    # -- paying ------------------------------------------------------------------------------------------------

    def pay(self) -> None:
        """Count on the keys what is owed. Waits for the store; on an event loop a thread does it."""
        for meter in self.meters:
            meter.pay()

    async def apay(self) -> None:
        """`pay` for event loops; waits until it is done. Cancelled, it is carried out all the same."""
        for meter in self.meters:
            await meter.apay()

    def close(self) -> None:
        """The run is over, or waits for somebody: no call runs any more. As `pay`."""
        for meter in self.meters:
            meter.close()

    # -- save and resume ---------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """As plain JSON, empty at first. Not what is held: who holds it gives it back, or it expires."""
        if self._sent is None and not self._bytes and not self._dearest and not self._most_tokens:
            return {}
        return {
            "sent": self._sent,
            "bytes": self._bytes,
            "dearest": str(self._dearest),
            "most_tokens": self._most_tokens,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        sent = None if state["sent"] is None else count(state["sent"])
        heard, dearest, tokens = count(state["bytes"]), dollars_of(state["dearest"]), count(state["most_tokens"])
        self._sent, self._bytes, self._dearest, self._most_tokens = sent, heard, dearest, tokens


def _number(tokens: object) -> int | None:
    return tokens if type(tokens) is int and tokens >= 0 else None


def key_stop(reason: str) -> Stop:
    """The end of a run because a key has no money left, or cannot be asked."""
    return Stop("key_limit", None, f"{OWN_WORDS} The run was ended. {reason}")


def provider_stop() -> Stop:
    """The end of a run because the provider, or a gateway, says that a key has no money left."""
    return key_stop("The provider refused a model call, because a spending limit on its side is reached.")
