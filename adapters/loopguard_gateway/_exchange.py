"""One request, answered: by the provider, after refusals on the model's behalf, or by the gateway itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loopguard_core import Stop
from loopguard_gateway import _errors
from loopguard_gateway._call import Call
from loopguard_gateway._client import EVENTS, JSON, Client
from loopguard_gateway._errors import Refused, bad_request
from loopguard_gateway._gateway import Gateway
from loopguard_gateway._room import Share
from loopguard_gateway._tokens import sent_tokens
from loopguard_gateway._turned import Kept, Turned
from loopguard_gateway._upstream import Headers, Target
from loopguard_gateway._watch import Watch
from loopguard_gateway._wire import Asked, Closing, Said, Wire


@dataclass(slots=True)
class Exchange:
    """One request.

    Attributes:
        gateway: The gateway.
        client: Who sent it.
        share: What it takes in memory.
        wire: Its protocol.
        asked: What it asks.
        watch: Its detection.
        target: Where it goes.
        key: Name of the client's key.
        raw: Its body, as it was received.
        refusals: How often it was answered on the model's behalf.
    """

    gateway: Gateway
    client: Client
    share: Share
    wire: Wire
    asked: Asked
    watch: Watch
    target: Target
    key: str
    raw: bytes
    refusals: int = 0

    async def run(self) -> str:
        """Answer it.

        Returns:
            What it counts as in the metrics.

        Raises:
            Refused: The client is told why there is no answer.
        """
        added: list[Any] = []
        kept: Kept | None = None
        while True:
            directive = self.watch.before(self.input_tokens(self.raw, self.asked.body), self.output_tokens)
            if directive.stop is not None:
                return await self.stopped(directive.stop, None, kept)
            added += [self.wire.note(text) for text in directive.steer]
            try:
                turned = await self.call(added, last=self.refusals >= self.gateway.settings.max_refusals)
            except Refused:
                if kept is None:
                    raise
                return await self.hand_over(kept)  # better the call that was to be refused than no answer
            if isinstance(turned, str):
                return turned
            if turned.failed and kept is not None:
                return await self.hand_over(kept)
            if turned.stop is not None:
                return await self.stopped(turned.stop, turned.said, turned.kept)
            kept = turned.kept
            self.refusals += 1
            self.gateway.metrics.refusals.inc()
            self.watch.refused(turned.outputs)
            added += turned.items

    # -- model calls -------------------------------------------------------------------------------------------

    async def call(self, added: Sequence[Any], *, last: bool = False, tools: bool = True) -> Turned | str:
        """One model call.

        Args:
            added: What goes after the conversation that the client sent.
            last: Whether no calls may be refused any more.
            tools: Whether tools are offered.
        """
        raw, body = self.raw, self.asked.body
        if added or not tools:
            body = self.wire.rebuilt(self.asked, added, tools=tools)
        reporting = self.wire.reporting(body) if self.gateway.settings.ask_usage else None
        body = reporting or body
        if body is not self.asked.body:
            raw = _written(body)
            self.share.take(len(raw))
        charge = await self.gateway.till.hold(
            self.key, self.asked.model, self.input_tokens(raw, body), self.output_tokens
        )
        # Of several answers to choose from, one cannot be refused alone.
        may_refuse = tools and not last and self.asked.choices == 1
        hides = reporting is not None
        return await Call(self, charge, raw, watched=tools, may_refuse=may_refuse, hides_report=hides).run()

    def input_tokens(self, raw: bytes, body: Any) -> int:
        """The most tokens that are sent."""
        return sent_tokens(len(raw), body) + self.watch.context

    @property
    def output_tokens(self) -> int:
        """The most tokens that may come back."""
        most = self.asked.output_tokens
        return self.asked.choices * (self.gateway.settings.max_output_tokens if most is None else most)

    # -- answers -----------------------------------------------------------------------------------------------

    @property
    def marks(self) -> Headers:
        """What loopguard has to say, for programs."""
        marks: dict[str, str] = {}
        if self.watch.session_id is not None:
            marks["x-loopguard-session-id"] = self.watch.session_id
        if self.watch.verdicts:
            verdict = self.watch.verdicts[-1]
            marks["x-loopguard-verdict"] = f"{verdict.detector}; action={verdict.action.value}; streak={verdict.streak}"
        if self.refusals:
            marks["x-loopguard-refusals"] = str(self.refusals)
        return [(name.encode(), value.encode("ascii", "replace")) for name, value in marks.items()]

    async def hand_over(self, kept: Kept) -> str:
        """Give the client a response that was kept back."""
        self.watch.answered(kept.said.items, kept.said.id)
        if kept.status is not None:
            await self.client.answer(kept.status, [*kept.headers, *self.marks], kept.body)
        else:
            await self.client.start(200, [*kept.headers, *self.marks])
            await self.client.finish(kept.body)
        return "ok"

    async def stopped(self, stop: Stop, said: Said | None, kept: Kept | None) -> str:
        """End the run as the policy says.

        Args:
            stop: Why.
            said: The response in which it was found; it does not reach the client.
            kept: What was kept back of it.
        """
        how = self.gateway.on_stop
        if how == "answer":
            text = self.watch.final_answer()
            if text is not None:
                self.watch.end(stop.reason)
                answered = await self.last_answer(text)
                if answered is not None:
                    return answered
        self.watch.end(stop.reason)
        if how == "raise":
            raise _errors.stopped(stop)
        usage = None if said is None else said.usage
        await self.close(Closing(stop.message, self.asked, stop=stop, usage=usage))
        return "stopped"

    async def last_answer(self, text: str) -> str | None:
        """One more model call, without tools; None if it did not come to be."""
        try:
            outcome = await self.call([self.wire.note(text)], tools=False)
        except Refused:
            return None
        return "stopped" if isinstance(outcome, str) else None

    async def close(self, closing: Closing) -> None:
        """Send a closing message as the whole answer."""
        reason = closing.stop.reason if closing.stop is not None else ""
        marks = [*self.marks, (b"x-loopguard-stop", reason.encode())]
        answer = self.wire.answer(closing)
        said = self.wire.said(answer)
        self.watch.answered(said.items)
        if not self.asked.stream:
            await self.client.answer(200, [(b"content-type", JSON), *marks], json.dumps(answer).encode())
            return
        await self.client.start(200, [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), *marks])
        await self.client.finish(self.wire.reader().close(closing))


def _written(body: Any) -> bytes:
    """A request that was changed, as it is sent.

    Raises:
        Refused: It is nested more deeply than can be written.
    """
    try:
        try:
            return json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a character, which JSON can only hold escaped
            return json.dumps(body).encode()
    except RecursionError:
        raise bad_request("the request's body is nested too deeply") from None
