"""One model call of a guarded run: what goes before it, who takes it, and when it is cut short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, AgentStream, BaseWorkflowAgent
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemory
from llama_index.core.tools import AsyncBaseTool

from loopguard_core import Action, Channel, Directive, Stop, Usage, Verdict, estimate_tokens
from loopguard_llama_index import _translate as translate
from loopguard_llama_index._closing import last_words
from loopguard_llama_index._run import Run
from loopguard_llama_index._scratchpad import Scratchpad

TakeStep = Callable[..., Any]
"""`take_step` of an agent's class."""


class Tap:
    """A context that passes everything on, and shows what the model writes.

    Args:
        ctx: The run's context.
        read: Reads a piece; True if the stream is to be cut.
    """

    def __init__(self, ctx: Any, read: Callable[[AgentStream], bool]) -> None:
        self._ctx = ctx
        self._read = read
        self.task: asyncio.Task[AgentOutput] | None = None
        self.cut = False
        self.written = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def write_event_to_stream(self, event: Any) -> None:
        """Pass an event on, unless the stream was cut before it."""
        if self.cut:
            return
        self._ctx.write_event_to_stream(event)
        if isinstance(event, AgentStream) and self._read(event):
            self.cut, self.written = True, event.response
            if self.task is not None:
                self.task.cancel()  # only this closes the provider's stream; see docs/llama-index.md


class Turn:
    """One model call.

    Args:
        run: The run.
        agent: The agent whose turn it is.
        original: `take_step` of its class.
        ctx: The run's context.
        llm_input: What the model reads before the agent's scratchpad.
        tools: The tools on offer.
        memory: The run's memory.
    """

    def __init__(
        self,
        run: Run,
        agent: BaseWorkflowAgent,
        original: TakeStep,
        ctx: Any,
        llm_input: list[ChatMessage],
        tools: Sequence[AsyncBaseTool],
        memory: BaseMemory,
    ) -> None:
        self.run = run
        self.session = run.session
        self.agent = agent
        self.ctx = ctx
        self.pad = Scratchpad(agent, ctx)
        self._original = original
        self._rest = (tools, memory)
        self._llm_input = llm_input
        self._cuts_left = run.guard.policy.text.retries
        self._heard = False
        self._received: list[str] = []
        self._cut_by: Verdict | None = None
        # Once: it is entered for every piece.
        self._reading = run.guard.faults.contained("llama_index reading a stream")

    async def output(self) -> AgentOutput:
        """What the agent's step gives in the end."""
        written = ""
        while True:
            directive = await self._directive()
            if directive.stop is not None:
                return await self._closing(directive.stop, written)
            before = await self._prepared(written)
            llm_input = await self._told(directive.steer)
            agent = self._who(directive)
            started = time.perf_counter()
            try:
                output, text = await self._attempt(agent, llm_input)
            except BaseException as error:
                self.session.model_call_failed(error)
                if isinstance(error, Exception):
                    await self._restored(before)
                    if directive.model is not None:  # the usual model may still try
                        continue
                raise
            name, seconds = translate.model_name(agent.llm), time.perf_counter() - started
            if output is not None and not self._heard and self._cuts_whole(output):
                text = output.response.content or ""
                written, usage = self._kept(text), self.run.usage(output.raw)
            elif output is None:
                written, usage = self._kept(text), self._estimated(llm_input, before)
            else:
                self._read_end(output)
                await self.session.aafter_model_call(name, self.run.usage(output.raw), seconds)
                if directive.steer:
                    with self.run.guard.faults.contained("llama_index steering"):
                        await self.pad.untell(directive.steer)
                return output
            await self._cut(before, name, usage, seconds)

    # -- before ----------------------------------------------------------------------------------------------------

    async def _directive(self) -> Directive:
        if self.session.money is None:  # nothing is held against what the call may use
            return await self.session.abefore_model_call()
        llm, sent, most = self.agent.llm, None, None
        with self.run.guard.faults.contained("llama_index estimating tokens"):
            sent, most = self._sent(self._llm_input, await self.pad.entries()), translate.max_tokens(llm)
        return await self.session.abefore_model_call(translate.model_name(llm), sent, most)

    async def _prepared(self, written: str) -> list[Any] | None:
        """The scratchpad as it is to be after a failed call; what a cut stream had written stays in it."""
        with self.run.guard.faults.contained("llama_index the scratchpad"):
            await self.pad.keep(written)
            return await self.pad.entries()
        return None

    async def _restored(self, before: list[Any] | None) -> None:
        with self.run.guard.faults.contained("llama_index the scratchpad"):
            if before is not None:
                await self.pad.restore(before)

    async def _told(self, texts: Sequence[str]) -> list[ChatMessage]:
        """What the model reads, with what it is to be told at the end of it."""
        if texts:
            with self.run.guard.faults.contained("llama_index steering"):
                if not await self.pad.tell(texts):
                    notes = [ChatMessage(role=MessageRole.USER, content=text) for text in texts]
                    return [*self._llm_input, *notes]
        return self._llm_input

    def _who(self, directive: Directive) -> BaseWorkflowAgent:
        """The agent, or a copy of it with the stronger model: nothing that concurrent runs share is changed."""
        if directive.model is not None:
            with self.run.guard.faults.contained("llama_index escalation"):
                strong = self.run.attached.stronger(self.agent, directive.model)
                return type(self.agent).model_copy(self.agent, update={"llm": strong})
        return self.agent

    # -- the call --------------------------------------------------------------------------------------------------

    async def _attempt(self, agent: BaseWorkflowAgent, llm_input: list[ChatMessage]) -> tuple[AgentOutput | None, str]:
        """One try: the output, or None and what was written if it was cut short."""
        self._heard, self._cut_by, self._received = False, None, []
        tap = Tap(self.ctx, self._read)
        step = self._original(agent, tap, llm_input, *self._rest)
        if not agent.streaming:
            return await step, ""
        tap.task = asyncio.create_task(step)
        try:
            output = await tap.task
        except asyncio.CancelledError:
            us = asyncio.current_task()
            if not tap.cut or (us is not None and us.cancelling()):  # somebody ended the whole run
                raise
            return None, tap.written
        except Exception:
            if not tap.cut:  # else a client's own way to say that it was cancelled
                raise
            return None, tap.written
        # A stream that never waits for anything ends before the cut takes effect.
        return (None, tap.written) if tap.cut else (output, "")

    # -- text ------------------------------------------------------------------------------------------------------

    def _read(self, event: AgentStream) -> bool:
        if not event.delta and not event.thinking_delta:  # a piece of a call
            return False
        cut, self._heard = False, True
        with self._reading:
            if event.thinking_delta:
                cut = self._cuts(event.thinking_delta, "reasoning")
            if event.delta:
                cut = self._cuts(event.delta, "content") or cut
        return cut

    def _cuts_whole(self, output: AgentOutput) -> bool:
        """The same for a response that came in one piece."""
        cut = False
        with self.run.guard.faults.contained("llama_index reading a response"):
            for channel, text in translate.texts_of(output.response):
                cut = self._cuts(text, channel) or cut
            if not self._received:
                self.session.feed_text("")  # that there is none is known too
        return cut

    def _read_end(self, output: AgentOutput) -> None:
        """The response is complete; the arguments of its calls are no part of the stream."""
        reason = None
        with self.run.guard.faults.contained("llama_index reading a response"):
            reason = translate.finish_reason(output.raw)
            for arguments in translate.arguments_in(output.response):
                self._said(self.session.feed_text(arguments, "arguments"))
        self._said(self.session.end_message(reason))

    def _cuts(self, text: str, channel: Channel) -> bool:
        self._received.append(text)
        verdict = self.session.feed_text(text, channel)
        if verdict is None:
            return False
        self._said(verdict)
        if not verdict.abort or verdict.action is Action.OBSERVE:
            return False
        self._cut_by = self._cut_by or verdict
        return self._cuts_left > 0 or self.session.stop is not None

    def _said(self, verdict: Verdict | None) -> None:
        if verdict is not None:
            self.run.tell(self.ctx, verdict, self.agent.name)

    def _estimated(self, llm_input: Sequence[ChatMessage], scratchpad: Sequence[Any] | None) -> Usage:
        """Tokens of a call whose end, and so its usage, never came."""
        with self.run.guard.faults.contained("llama_index estimating tokens"):
            read = self._sent(llm_input, scratchpad or ())
            wrote = estimate_tokens("".join(self._received))
            return Usage(input_tokens=read, output_tokens=wrote, estimated=True)
        return Usage()

    def _sent(self, llm_input: Sequence[ChatMessage], scratchpad: Sequence[Any]) -> int:
        """About how many tokens a request has; see `estimate_tokens`."""
        return translate.sent_tokens(llm_input, scratchpad) + translate.tool_sizes.of(self._rest[0])

    def _kept(self, text: str) -> str:
        """What is kept of a message that was cut: up to where the detector fired."""
        by = self._cut_by
        return text[: by.char] if by is not None and by.channel == "content" and by.char is not None else text

    async def _cut(self, before: list[Any] | None, name: str | None, usage: Usage, seconds: float) -> None:
        """The message ends here; it was a model call all the same."""
        self._cuts_left -= 1
        await self._restored(before)
        with self.run.guard.faults.contained("llama_index cutting a stream"):
            self.session.end_message()
            await self.session.aafter_model_call(name, usage, seconds)

    # -- a stop ----------------------------------------------------------------------------------------------------

    async def _closing(self, stop: Stop, written: str) -> AgentOutput:
        """What stands in the place of a model call that is not to start; the next step ends the run with it."""
        self.run.closing = True
        message = await last_words(self.run, self.agent, self.ctx, stop, written)
        return AgentOutput(response=message, tool_calls=[], current_agent_name=self.agent.name)
