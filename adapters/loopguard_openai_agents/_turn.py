"""One model call through `LoopGuardModel`: who answers it, what of it is read, and when it is cut short."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable

from agents import Model, ModelResponse
from agents.items import TResponseStreamEvent
from openai.types.responses import ResponseCompletedEvent

from loopguard_core import Channel, Directive, Stop, Usage, Verdict, estimate_tokens
from loopguard_openai_agents import _events as events
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents import _words as words
from loopguard_openai_agents._request import ModelRequest
from loopguard_openai_agents._run import Run, to_cut
from loopguard_openai_agents._stop import LoopGuardStop


class Turn:
    """One model call of a run that has hooks of ours, which count and judge.

    Args:
        run: The run.
        request: What the SDK asked for.
        usual: The model that takes it.
        strong: Gives the stronger model, given the run and its name.
    """

    def __init__(self, run: Run, request: ModelRequest, usual: Model, strong: Callable[[Run, str], Model]) -> None:
        self.run = run
        self.session = run.session
        self.request = request
        self.usual = usual
        self._strong = strong
        self._cuts_left = run.guard.policy.text.retries
        self._received: list[str] = []
        self._said: list[str] = []
        self._cut_by: Verdict | None = None
        # Once: it is entered for every piece.
        self._reading = run.guard.faults.contained("openai_agents reading a stream")

    async def respond(self) -> ModelResponse:
        """The response, of whichever model gives it in the end."""
        while True:
            directive = await self._directive()
            if directive.stop is not None:
                return await self._closing(directive.stop)
            model, request = self._directed(directive)
            try:
                response = await request.respond(model)
            except BaseException as error:  # noqa: BLE001  # `_failed` raises it unless the usual model may still try
                self._failed(directive, error)
                continue
            if self._read_whole(response):
                await self._cut(model, self.run.usage(response))
                continue
            return await self._settled(response)

    async def stream(self) -> AsyncIterator[TResponseStreamEvent]:
        """The events of the response. Of one that was cut short, those that came before."""
        while True:
            directive = await self._directive()
            if directive.stop is not None:
                shown = self.run.written
                for event in events.of_response(await self._closing(directive.stop), shown):
                    yield event
                return
            model, request = self._directed(directive)
            cut = False
            try:
                async with _closed_after(request.stream(model)) as upstream:
                    async for event in upstream:
                        cut = self._read(event)
                        if cut:
                            break
                        if isinstance(event, ResponseCompletedEvent):
                            for passed in await self._completed(event):
                                yield passed
                        else:
                            yield event
            except BaseException as error:  # noqa: BLE001  # `_failed` raises it unless the usual model may still try
                self._failed(directive, error)
                continue
            if not cut:
                return
            await self._cut(model, self._estimated())

    # -- before ----------------------------------------------------------------------------------------------------

    async def _directive(self) -> Directive:
        """What to do about the next attempt; under hooks the first answer is the one they got."""
        self._received, self._said, self._cut_by = [], [], None
        sent = most = None
        if self.session.money is not None:
            with self.run.guard.faults.contained("openai_agents estimating tokens"):
                sent, most = self.request.tokens, self.request.settings.max_tokens
        return await self.session.abefore_model_call(translate.model_name(self.usual), sent, most)

    def _directed(self, directive: Directive) -> tuple[Model, ModelRequest]:
        request = self.request
        with self.run.guard.faults.contained("openai_agents steering"):
            request = request.told(directive.steer) if directive.steer else request
        self.run.answered_by = translate.model_name(self.usual)
        if directive.model is None:
            return self.usual, request
        with self.run.guard.faults.contained("openai_agents escalation"):
            strong = self._strong(self.run, directive.model)
            self.run.answered_by = translate.model_name(strong) or directive.model
            return strong, request.for_model(strong, self.usual)
        return self.usual, request

    def _failed(self, directive: Directive, error: BaseException) -> None:
        """A call failed. If the stronger model was to take it, the usual one still may; else the error stands."""
        if isinstance(error, LoopGuardStop):
            raise error
        self.session.model_call_failed(error)
        if directive.model is None or not isinstance(error, Exception):
            raise error

    # -- text ------------------------------------------------------------------------------------------------------

    def _read(self, event: TResponseStreamEvent) -> bool:
        """Let the session read a piece of text; True if the stream is to be cut."""
        channel: Channel | None = events.CHANNELS.get(event.type)
        if channel is None:
            return False
        self.run.read = True
        with self._reading:
            return self._cuts(str(getattr(event, "delta", "")), channel)
        return False

    def _read_whole(self, response: ModelResponse) -> bool:
        """The same for a response that came in one piece."""
        cut = False
        with self.run.guard.faults.contained("openai_agents reading a response"):
            for channel, text in translate.texts_of(response.output):
                cut = self._cuts(text, channel) or cut
        self.run.read = True
        return cut

    def _cuts(self, text: str, channel: Channel) -> bool:
        self._received.append(text)
        if channel == "content":
            self._said.append(text)
        verdict = self.session.feed_text(text, channel)
        if not to_cut(verdict) or (self._cuts_left <= 0 and self.session.stop is None):
            return False
        self._cut_by = self._cut_by or verdict
        return True

    async def _cut(self, model: Model, usage: Usage) -> None:
        """The message ends here; it was a model call all the same. The next attempt is shown what this one said."""
        self._cuts_left -= 1
        said, by = "".join(self._said), self._cut_by
        if by is not None and by.channel == "content":
            said = said[: by.char]
        self.session.end_message()
        await self.session.aafter_model_call(translate.model_name(model), usage, self.run.seconds)
        with self.run.guard.faults.contained("openai_agents cutting a response"):
            if said:
                self.request = dataclasses.replace(self.request, input=[*self.request.items, words.written(said)])
        before = self.run.written
        self.run.begin_call()
        self.run.written = said or before

    def _estimated(self) -> Usage:
        """Tokens of a call whose end, and so its usage, never came."""
        with self.run.guard.faults.contained("openai_agents estimating tokens"):
            wrote = estimate_tokens("".join(self._received))
            return Usage(input_tokens=self.request.tokens, output_tokens=wrote, estimated=True)
        return Usage()

    # -- after -----------------------------------------------------------------------------------------------------

    async def _closing(self, stop: Stop) -> ModelResponse:
        raise LoopGuardStop(stop)

    async def _settled(self, response: ModelResponse) -> ModelResponse:
        return response

    async def _completed(self, event: ResponseCompletedEvent) -> list[TResponseStreamEvent]:
        return [event]


@contextlib.asynccontextmanager
async def _closed_after(
    stream: AsyncIterator[TResponseStreamEvent],
) -> AsyncIterator[AsyncIterator[TResponseStreamEvent]]:
    """Close the provider's stream at once, not when it is collected as garbage."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
