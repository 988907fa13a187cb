"""An event stream, passed on as it comes.

Whole events are passed on, byte for byte. Where calls were repeated before in the same conversation, what comes before
the first visible word, and the calls, are held until the response is complete: only then can a call still be refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx

from loopguard_core import Verdict
from loopguard_core.transcripts import TranscriptError
from loopguard_gateway._contained import contained
from loopguard_gateway._errors import Refused, stopped, too_long, upstream_trouble
from loopguard_gateway._sse import DONE, Event, Events
from loopguard_gateway._tokens import Heard
from loopguard_gateway._turned import Kept, Turned
from loopguard_gateway._upstream import pieces, trouble
from loopguard_gateway._wire import Closing, Piece, Said

if TYPE_CHECKING:
    from loopguard_gateway._call import Call
    from loopguard_gateway._exchange import Exchange

_APART = "\n\n"
_NOTHING = Piece()


class Relay:
    """Passes one stream on.

    Args:
        call: The model call.
        exchange: The request.
        response: The provider's answer.
        deadline: When the loop's clock says that it took too long.
        holds: Whether calls are held until they were judged.
    """

    def __init__(
        self, call: Call, exchange: Exchange, response: httpx.Response, deadline: float, *, holds: bool
    ) -> None:
        self._call = call
        self._exchange = exchange
        self._response = response
        self._deadline = deadline
        self._reader = exchange.wire.reader()
        self._heard = Heard()
        self._holds = holds
        self._calling = False
        self._held = bytearray()
        self._out = bytearray()
        self._complete = False
        self._size = 0

    async def run(self) -> Turned | str:
        """Pass it on to its end."""
        events = Events()
        try:
            async with asyncio.timeout_at(self._deadline):
                async for raw in pieces(self._response):
                    self._size += len(raw)
                    if self._size > self._exchange.gateway.settings.max_answer:
                        return await self._broken(too_long(self._exchange.gateway.settings.max_answer))
                    for event in events.feed(raw):
                        turned = await self._take(event)
                        if turned is not None:
                            return turned
                    await self._flush()
        except httpx.HTTPError as error:
            if not self._complete:
                return await self._broken(trouble(error))
        except TimeoutError:
            return await self._broken(upstream_trouble(504, "did not answer in time"))
        rest = events.rest()
        if not self._complete:
            self._heard.garbage(len(rest))
            self._call.heard(self._heard.tokens)
            turned = await self._finish()
            if turned is not None:
                return turned
        self._out += self._exchange.gateway.upstream.hidden(rest)
        await self._flush()
        await self._end()
        return "ok"

    async def _take(self, event: Event) -> Turned | str | None:
        piece = self._read(event)
        cut = self._listen(piece)
        if (event.data == DONE or piece.last) and not self._complete:
            # Before its last event is passed on, and after all others: whoever has all of it finds it counted.
            await self._flush()
            turned = await self._finish()
            if turned is not None:
                return turned
        self._keep(event, piece)
        return None if cut is None else await self._cut(cut)

    def _read(self, event: Event) -> Piece:
        if self._complete:
            return _NOTHING
        data = event.json()
        if data is not None:
            with contained(self._exchange.gateway.guard, "reading a stream"):  # a provider may send anything
                return self._reader.read(data)
        elif event.data != DONE and not event.raw.startswith(b":"):
            self._heard.garbage(len(event.raw))
        return _NOTHING

    def _said(self) -> Said:
        try:
            return self._reader.said()
        except TranscriptError:
            return Said(cut=True)

    def _listen(self, piece: Piece) -> Verdict | None:
        cut: Verdict | None = None
        for text in piece.spoken:
            self._heard.add(text)
        for channel, text in piece.texts:
            cut = cut or self._exchange.watch.hear(channel, text)
        self._call.heard(self._heard.tokens)
        return cut

    def _keep(self, event: Event, piece: Piece) -> None:
        """Hold an event, or let it go on."""
        if piece.report and self._call.hides_report:
            return
        raw = self._exchange.gateway.upstream.hidden(event.raw)
        if not self._holds:
            self._out += raw
            return
        self._calling = self._calling or piece.calls
        self._held += raw
        if not self._calling and any(channel == "content" for channel, _ in piece.texts):
            self._let_go()

    def _let_go(self) -> None:
        self._out += self._held
        self._held.clear()

    async def _flush(self) -> None:
        if not self._out:
            return
        await self._begin()
        out = bytes(self._out)
        self._out.clear()
        await self._exchange.client.write(out)

    async def _begin(self) -> None:
        if not self._exchange.client.started:
            headers = self._exchange.gateway.upstream.returned(self._response)
            await self._exchange.client.start(self._response.status_code, [*headers, *self._exchange.marks])

    async def _end(self) -> None:
        await self._begin()
        await self._exchange.client.finish()

    # -- how it ends -------------------------------------------------------------------------------------------

    async def _finish(self) -> Turned | str | None:
        """The response is complete: count it, judge it, and let go what was held, or turn it back."""
        self._complete = True
        said = self._said()
        usage = await self._call.settle(said)
        judged = self._call.judge(said, usage, streamed=True)
        unseen = self._holds and not self._exchange.client.started and not self._out
        if unseen and judged.kind != "pass":
            turned = self._call.turned(judged, self._kept(said))
            if turned is not None:
                return turned
        elif judged.kind == "stop" and judged.stop is not None:
            if self._holds:  # some text was passed on, and the calls were not
                text = f"{_APART}{judged.stop.message}"
                self._held.clear()
                return await self._close(Closing(text, self._exchange.asked, said, stop=judged.stop, usage=usage))
            self._exchange.watch.end()  # the calls are with the client already: the next request meets the stop
        self._holds = False
        self._let_go()
        self._call.pass_on(said)
        return None

    def _kept(self, said: Said) -> Kept:
        return Kept(said, self._exchange.gateway.upstream.returned(self._response), bytes(self._held))

    async def _cut(self, verdict: Verdict) -> str:
        """The text goes round in circles: end the stream here, well formed."""
        exchange = self._exchange
        await self._response.aclose()
        exchange.gateway.metrics.cuts.inc()
        said = replace(self._said(), cut=True)
        usage = await self._call.settle(said)
        judged = self._call.judge(said, usage, streamed=True)
        if not self._calling:
            self._let_go()
        stop = judged.stop
        text = "" if stop is None else f"{_APART}{stop.message}"
        await self._close(Closing(text, exchange.asked, said, whole=stop is not None, stop=stop, usage=usage))
        return "cut"

    async def _close(self, closing: Closing) -> str:
        """Write the end of a stream that the client has the beginning of."""
        exchange = self._exchange
        if closing.stop is not None:
            exchange.watch.end()
        error = exchange.gateway.on_stop == "raise" and closing.stop is not None
        said = closing.said
        if said is not None:
            exchange.watch.answered(exchange.wire.continued(said, closing.text), said.id)
        if error and closing.stop is not None:
            self._out += self._reader.error(stopped(closing.stop).error())
        else:
            self._out += self._reader.close(closing)
        await self._flush()
        await self._end()
        return "stopped"

    async def _broken(self, refused: Refused) -> str:
        """The provider broke off: say so, in place of an end that looks like a whole answer."""
        if not self._exchange.client.started and not self._out and not self._held:
            raise refused
        if not self._complete:
            self._exchange.watch.failed(refused)
        self._let_go()
        self._out += self._reader.error(refused.error())
        await self._flush()
        await self._end()
        return "upstream_error"
