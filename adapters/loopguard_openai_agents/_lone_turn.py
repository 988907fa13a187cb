"""One model call of a run that has only `LoopGuardModel`: it counts and judges itself.

It ends a run by putting a closing message in the place of the response that goes too far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from agents import FunctionTool, Model, ModelResponse
from agents import Usage as SdkUsage
from agents.items import TResponseStreamEvent
from openai.types.responses import ResponseCompletedEvent

from loopguard_core import Stop
from loopguard_openai_agents import _events as events
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents import _words as words
from loopguard_openai_agents._request import ModelRequest
from loopguard_openai_agents._run import Run
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import LoopGuardStop, OnStop
from loopguard_openai_agents._turn import Turn

GUARDRAIL_MARK = "__loopguard__"
"""Set on the functions of our tool guardrails, so that a model wrapper sees which tools can refuse a call."""


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
        with run.guard.faults.contained("openai_agents recording results"):
            registry.forget_round(run)
            run.record_results(request.items)
        run.begin_call()

    async def _settled(self, response: ModelResponse) -> ModelResponse:
        """Count and judge; a response that ends the run is replaced."""
        with self.run.guard.faults.contained("openai_agents judging a response"):
            await self._count(response)
            over = False
            for request, decision in self.run.judge(self._requests(response)):
                if decision.blocked and request.call.refusable:
                    self.run.round.refused[request.call.id] = decision.message or ""
                over = over or (decision.blocked and not request.call.refusable)
            if over and self.session.stop is None:  # a limit leaves no room for a call that nothing can refuse
                await self.session.abefore_model_call(translate.model_name(self.usual))
            registry.note_round(self.run)
            self.run.asks = self._may_ask()
            self.run.finished = not self.run.round.requests
        stop = self.session.stop
        if stop is not None and self.run.round.requests:
            return await self._closing(stop, response)
        return response

    async def _completed(self, event: ResponseCompletedEvent) -> list[TResponseStreamEvent]:
        response = None
        with self.run.guard.faults.contained("openai_agents judging a response"):
            response = events.response_of(event)
        settled = response if response is None else await self._settled(response)
        if settled is None or settled is response:
            return [event]
        end = events.replaced(event, settled.output)
        with self.run.guard.faults.contained("openai_agents the closing message"):
            return [events.text_delta(translate.said(settled.output)), end]
        return [end]

    async def _count(self, response: ModelResponse) -> None:
        self.run.end_message(response)
        await self.session.aafter_model_call(self.run.answered_by, self.run.usage(response), self.run.seconds)

    def _requests(self, response: ModelResponse) -> list[translate.Request]:
        """The calls; only tools with a guardrail of ours can refuse one."""
        handoffs = {handoff.tool_name for handoff in self.request.handoffs}
        open_ = {translate.tool_name(tool) for tool in self.request.tools if not guarded(tool)}
        requests = translate.requests_of(response.output, handoffs)
        for request in requests:
            request.call.refusable = request.call.refusable and request.call.name not in open_
        with self.run.guard.faults.contained("openai_agents MCP annotations"):
            translate.annotate(requests, translate.hints_of_tools(self.request.tools))
        return requests

    def _may_ask(self) -> bool:
        """Whether a human may be asked about a call of this round."""
        asking = {translate.tool_name(tool) for tool in self.request.tools if getattr(tool, "needs_approval", False)}
        undecided = [self.run.round.requests[call_id] for call_id in self.run.round.undecided]
        return any(request.call.name in asking or translate.is_approval(request.item) for request in undecided)

    async def _closing(self, stop: Stop, last: ModelResponse | None = None) -> ModelResponse:
        """What ends the run in the place of a response with calls, which then never were made."""
        schema = self.request.output_schema
        structured = schema is not None and not schema.is_plain_text()
        written = self.run.written
        usage = SdkUsage()
        if last is not None:
            with self.run.guard.faults.contained("openai_agents reading usage"):
                usage.add(last.usage)
        self.run.finished = True
        if self._on_stop == "answer":
            with self.run.guard.faults.contained("openai_agents the last answer"):
                answer = await self._answer(usage)
                if answer is not None:
                    said = [words.message(written)] if written else []
                    return dataclasses.replace(answer, output=[*said, *answer.output], usage=usage)
        if self._on_stop == "raise" or structured:
            self.run.finished = False
            raise LoopGuardStop(stop)
        return ModelResponse(
            output=[words.message(words.closing_text(written, stop.message))],
            usage=usage,
            response_id=None if last is None else last.response_id,
        )

    async def _answer(self, usage: SdkUsage) -> ModelResponse | None:
        """One last answer, whose usage is added to what is given; None if there is none worth having."""
        text = self.session.final_answer()
        if text is None:
            return None
        response = await self.request.without_tools().told([text]).respond(self.usual)
        usage.add(response.usage)
        await self._count(response)
        return None if self.run.repeats or not translate.said(response.output) else response


def guarded(tool: Any) -> bool:
    """Whether a tool has a guardrail of ours."""
    guardrails = tool.tool_input_guardrails if isinstance(tool, FunctionTool) else None
    return any(hasattr(guardrail.guardrail_function, GUARDRAIL_MARK) for guardrail in guardrails or ())
