"""One model call through `LoopGuardModel`: who answers it, what of it is read, and when it is cut short.

`Turn` works under hooks of ours, which count and judge. `LoneTurn` has only the model: it does that itself, and ends
a run by putting a closing message in the place of the response that goes too far.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import FunctionTool, Model, ModelResponse
from agents import Usage as SdkUsage
from agents.items import TResponseStreamEvent
from openai.types.responses import ResponseCompletedEvent

from loopguard_core import Channel, Directive, Stop, Usage
from loopguard_openai_agents import _events as events
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents._contained import contained
from loopguard_openai_agents._request import ModelRequest
from loopguard_openai_agents._run import Run
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import LoopGuardStop, OnStop

GUARDRAIL_MARK = "__loopguard__"
"""Set on the functions of our tool guardrails, so that a model wrapper sees which tools can refuse a call."""


class Turn:
    """One model call of a run that has hooks of ours.

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
                await self._cut(model, translate.usage_of(response))
                continue
            return await self._settled(response)

    async def stream(self) -> AsyncIterator[TResponseStreamEvent]:
        """The events of the response. Of one that was cut short, those that came before."""
        while True:
            directive = await self._directive()
            if directive.stop is not None:
                for event in events.of_response(await self._closing(directive.stop)):
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
            await self._cut(model, Usage())

    # -- before ----------------------------------------------------------------------------------------------------

    async def _directive(self) -> Directive:
        """What to do about the next attempt; under hooks the first answer is the one they got."""
        return await self.session.abefore_model_call(translate.model_name(self.usual))

    def _directed(self, directive: Directive) -> tuple[Model, ModelRequest]:
        request = self.request.told(directive.steer) if directive.steer else self.request
        self.run.answered_by = translate.model_name(self.usual)
        if directive.model is None:
            return self.usual, request
        with contained(self.run.guard, "escalation"):
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
        return self._cuts(str(getattr(event, "delta", "")), channel)

    def _read_whole(self, response: ModelResponse) -> bool:
        """The same for a response that came in one piece."""
        cut = False
        with contained(self.run.guard, "reading a response"):
            for channel, text in translate.texts_of(response.output):
                cut = self._cuts(text, channel) or cut
        self.run.read = True
        return cut

    def _cuts(self, text: str, channel: Channel) -> bool:
        verdict = self.session.feed_text(text, channel)
        if verdict is None or not verdict.abort:
            return False
        return self._cuts_left > 0 or self.session.stop is not None

    async def _cut(self, model: Model, usage: Usage) -> None:
        """The message ends here; it was a model call all the same."""
        self._cuts_left -= 1
        self.run.read = False
        self.session.end_message()
        await self.session.aafter_model_call(translate.model_name(model), usage, self.run.seconds)
        self.run.begin_call()

    # -- after -----------------------------------------------------------------------------------------------------

    async def _closing(self, stop: Stop) -> ModelResponse:
        raise LoopGuardStop(stop)

    async def _settled(self, response: ModelResponse) -> ModelResponse:
        return response

    async def _completed(self, event: ResponseCompletedEvent) -> list[TResponseStreamEvent]:
        return [event]


class LoneTurn(Turn):
    """One model call of a run without hooks of ours.

    Args:
        run: The run.
        request: What the SDK asked for.
        usual: The model that takes it.
        strong: Gives the stronger model, given the run and its name.
        on_stop: How a stop ends the run.
    """

    def __init__(
        self, run: Run, request: ModelRequest, usual: Model, strong: Callable[[Run, str], Model], on_stop: OnStop
    ) -> None:
        super().__init__(run, request, usual, strong)
        self._on_stop = on_stop
        with contained(run.guard, "recording results"):
            registry.forget_round(run)
            run.record_results(request.items)
        run.begin_call()

    async def _settled(self, response: ModelResponse) -> ModelResponse:
        """Count and judge; a response that ends the run is replaced."""
        with contained(self.run.guard, "judging a response"):
            await self._count(response)
            for request, decision in self.run.judge(self._requests(response)):
                if decision.blocked and request.call.refusable:
                    self.run.round.refused[request.call.id] = decision.message or ""
            registry.note_round(self.run)
            self.run.finished = not self.run.round.requests
        stop = self.session.stop
        if stop is not None and self.run.round.requests:
            return await self._closing(stop, response)
        return response

    async def _completed(self, event: ResponseCompletedEvent) -> list[TResponseStreamEvent]:
        response = events.response_of(event)
        settled = await self._settled(response)
        if settled is response:
            return [event]
        text = "".join(text for channel, text in translate.texts_of(settled.output) if channel == "content")
        return [events.text_delta(text), events.replaced(event, settled.output)]

    async def _count(self, response: ModelResponse) -> None:
        self.run.end_message(response)
        await self.session.aafter_model_call(self.run.answered_by, translate.usage_of(response), self.run.seconds)

    def _requests(self, response: ModelResponse) -> list[translate.Request]:
        """The calls; only tools with a guardrail of ours can refuse one."""
        handoffs = {handoff.tool_name for handoff in self.request.handoffs}
        open_ = {getattr(tool, "qualified_name", tool.name) for tool in self.request.tools if not guarded(tool)}
        return translate.requests_of(response.output, handoffs | open_)

    async def _closing(self, stop: Stop, last: ModelResponse | None = None) -> ModelResponse:
        """What ends the run in the place of a response with calls, which then never were made."""
        schema = self.request.output_schema
        structured = schema is not None and not schema.is_plain_text()
        if self._on_stop == "answer":
            text = self.session.final_answer()
            if text is not None:
                with contained(self.run.guard, "the last answer"):
                    response = await self.request.without_tools().told([text]).respond(self.usual)
                    await self._count(response)
                    self.run.finished = True
                    return response
        if self._on_stop == "raise" or structured:
            raise LoopGuardStop(stop)
        self.run.finished = True
        return ModelResponse(
            output=[translate.message(stop.message)],
            usage=SdkUsage() if last is None else last.usage,
            response_id=None if last is None else last.response_id,
        )


def guarded(tool: Any) -> bool:
    """Whether a tool has a guardrail of ours."""
    guardrails = tool.tool_input_guardrails if isinstance(tool, FunctionTool) else None
    return any(hasattr(guardrail.guardrail_function, GUARDRAIL_MARK) for guardrail in guardrails or ())


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
