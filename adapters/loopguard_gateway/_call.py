"""One model call: sent, passed on while it is read, counted, judged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx

from loopguard_core import Usage
from loopguard_core.transcripts import TranscriptError
from loopguard_gateway._charge import Charge
from loopguard_gateway._coding import decoded
from loopguard_gateway._errors import ProviderError, Refused, upstream_trouble
from loopguard_gateway._passed import cleaned, returned, whole
from loopguard_gateway._streaming import Relay
from loopguard_gateway._tokens import reported, sent_tokens
from loopguard_gateway._turned import Kept, Turned
from loopguard_gateway._watch import PASS, Judged
from loopguard_gateway._wire import Said

if TYPE_CHECKING:
    from loopguard_gateway._exchange import Exchange

_FAILED = 300  # a redirection is no answer either, and costs nothing
_NO_ANSWER = 504


class Call:
    """One model call of an exchange.

    Args:
        exchange: The request it belongs to.
        charge: What it holds.
        raw: What is sent.
        watched: Whether the response is judged.
        may_refuse: Whether its calls may be answered on the model's behalf.
        hides_report: Whether a report of what was used is kept back, because the client did not ask for one.
    """

    def __init__(
        self,
        exchange: Exchange,
        charge: Charge,
        raw: bytes,
        *,
        watched: bool,
        may_refuse: bool,
        hides_report: bool = False,
    ) -> None:
        self.hides_report = hides_report
        self._exchange = exchange
        self._charge = charge
        self._raw = raw
        self._watched = watched
        self._may_refuse = may_refuse
        # What becomes of a whole answer that nobody waits for is not known: it may be written, and paid, to its end.
        self._heard = 0 if exchange.asked.stream else exchange.output_tokens
        self._answered = False

    async def run(self) -> Turned | str:
        """Make it.

        Returns:
            What it counts as, where the client has its answer; else what was turned back.
        """
        exchange, charge = self._exchange, self._charge
        deadline = asyncio.get_running_loop().time() + exchange.gateway.settings.call_timeout
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout_at(deadline):
                    answer = exchange.gateway.upstream.answer(exchange.target, self._raw, stream=exchange.asked.stream)
                    response = await stack.enter_async_context(answer)
                return await self._read(response, deadline)
        except TimeoutError:
            raise upstream_trouble(_NO_ANSWER, "did not answer in time") from None
        except Refused as refused:
            # A provider that was asked and did not answer has read the request, and may have gone on to answer it.
            if refused.status != _NO_ANSWER and not self._answered:
                await charge.release()
            if self._watched:
                exchange.watch.failed(refused)
            raise
        finally:
            if charge.open:  # broken off: what was sent and what came is counted
                self._count(await charge.settle(None, None, self._heard))

    async def _read(self, response: httpx.Response, deadline: float) -> Turned | str:
        exchange = self._exchange
        if response.status_code >= _FAILED:
            return await self._failed(response, deadline)
        self._answered = True
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            holds = self._may_refuse and exchange.watch.holds
            return await Relay(self, exchange, response, deadline, holds=holds).run()
        async with asyncio.timeout_at(deadline):
            body = await whole(response, exchange.gateway.settings, exchange.share)
        said = self._said(response, body)
        usage = await self.settle(said)
        judged = self.judge(said, usage, streamed=False)
        headers, body = cleaned(exchange.gateway, response, body)
        kept = Kept(said, headers, body, response.status_code)
        turned = self.turned(judged, kept)
        if turned is not None:
            return turned
        self.pass_on(said)
        await exchange.client.answer(response.status_code, [*kept.headers, *exchange.marks], body)
        return "ok"

    async def _failed(self, response: httpx.Response, deadline: float) -> Turned | str:
        """The provider answered with an error, which costs nothing and is the client's to see."""
        exchange = self._exchange
        async with asyncio.timeout_at(deadline):
            body = await whole(response, exchange.gateway.settings, exchange.share)
        await self._charge.release()
        if not self._watched:
            return Turned(failed=True)
        if exchange.refusals:  # the client gets what was kept back, and its next request meets the error itself
            exchange.watch.failed()
            return Turned(failed=True)
        text = decoded(body, response.headers.get("content-encoding", ""), exchange.gateway.settings.max_answer)
        exchange.watch.failed(ProviderError(response.status_code, text))
        await returned(exchange.gateway, exchange.client, response, body, exchange.marks)
        return "upstream_error"

    def _said(self, response: httpx.Response, body: bytes) -> Said:
        text = decoded(body, response.headers.get("content-encoding", ""), self._exchange.gateway.settings.max_answer)
        self._heard = sent_tokens(len(body if text is None else text), None)
        try:
            value = json.loads(text or b"")
            if isinstance(value, Mapping):
                return self._exchange.wire.said(value)
        except (ValueError, RecursionError, TranscriptError):
            pass
        return Said(cut=True)  # garbage goes on as it is, and is counted by its size

    # -- for streams too ---------------------------------------------------------------------------------------

    def heard(self, tokens: int) -> None:
        """So much of it came, by estimate."""
        self._heard = tokens

    async def settle(self, said: Said) -> Usage:
        """The response is complete, or was cut: count what it cost."""
        usage = await self._charge.settle(said.usage if reported(said.usage) else None, said.model, self._heard)
        self._count(usage)
        return usage

    def _count(self, usage: Usage) -> None:
        self._exchange.gateway.counted(usage)

    def judge(self, said: Said, usage: Usage, *, streamed: bool) -> Judged:
        """What becomes of the response."""
        return self._exchange.watch.judge(said, usage, streamed=streamed) if self._watched else PASS

    def turned(self, judged: Judged, kept: Kept) -> Turned | None:
        """The response is turned back, if it is to be and can be."""
        if judged.kind == "stop":
            return Turned(kept, kept.said, stop=judged.stop)
        if judged.kind == "refuse" and judged.outputs is not None:
            items = self._exchange.wire.results(kept.said, judged.outputs)
            if items is not None and self._may_refuse:
                return Turned(kept, kept.said, items, judged.outputs)
            if items is not None and self._exchange.refusals:  # it was told often enough
                return Turned(kept, kept.said, stop=judged.stop)
        return None

    def pass_on(self, said: Said) -> None:
        """The client gets the response."""
        self._exchange.watch.answered(said.items, said.id)
