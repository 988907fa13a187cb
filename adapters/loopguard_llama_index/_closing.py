"""How a run that was stopped ends: every call answered, a last message, and all of it in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import (
    AgentOutput,
    AgentStream,
    BaseWorkflowAgent,
    CodeActAgent,
    ReActAgent,
    ToolCallResult,
)
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.memory import BaseMemory
from llama_index.core.workflow import StopEvent

from loopguard_core import Stop
from loopguard_llama_index import _registry as registry
from loopguard_llama_index import _translate as translate
from loopguard_llama_index._run import Run
from loopguard_llama_index._scratchpad import Scratchpad
from loopguard_llama_index._stop import LoopGuardStop

_MEMORY = "memory"
_TOOL_CALLS = "current_tool_calls"
"""Where LlamaIndex keeps a run's memory, and the results of its calls for its final output."""


async def last_words(run: Run, agent: BaseWorkflowAgent, ctx: Any, stop: Stop, written: str = "") -> ChatMessage:
    """What a stopped run ends with: the model's answer from what was gathered, or a message of ours.

    Args:
        run: The run.
        agent: The agent whose turn it is.
        ctx: The run's context.
        stop: Why it ends.
        written: What the model had written when its stream was cut.
    """
    text = None
    if run.attached.how == "answer":
        with run.guard.faults.contained("llama_index the last answer"):
            text = await _answer(run, agent, ctx, written)
    if not text:
        text = f"{written}\n\n{stop.message}" if written else stop.message
        with run.guard.faults.contained("llama_index the closing message"):
            new = text[len(written) :]
            ctx.write_event_to_stream(AgentStream(delta=new, response=text, current_agent_name=agent.name))
    return ChatMessage(role=MessageRole.ASSISTANT, content=text)


async def answer_calls(run: Run, agent: BaseWorkflowAgent, ctx: Any) -> list[ToolCallResult]:
    """Answer every call of a round in which nothing runs."""
    refusals = list(run.round.refusals())
    for refusal in refusals:
        ctx.write_event_to_stream(refusal)
    if refusals:
        await agent.handle_tool_call_results(ctx, refusals, await ctx.store.get(_MEMORY))
    return refusals


async def finish(
    run: Run,
    agent: BaseWorkflowAgent,
    ctx: Any,
    message: ChatMessage,
    stop: Stop,
    results: Sequence[ToolCallResult] = (),
) -> StopEvent:
    """Put everything into memory, and end the run.

    Raises:
        LoopGuardStop: The run is to raise.
    """
    await Scratchpad(agent, ctx).conclude(message.content or "")
    output = AgentOutput(response=message, tool_calls=[], current_agent_name=agent.name)
    output = await agent.finalize(ctx, output, await ctx.store.get(_MEMORY))
    # What LlamaIndex adds itself to the final output of a run.
    made: list[Any] = [*await ctx.store.get(_TOOL_CALLS, default=[]), *results]
    output.tool_calls.extend(made)
    await ctx.store.set(_TOOL_CALLS, [])
    await registry.closed(run)
    if run.attached.how == "raise":
        raise LoopGuardStop(stop)
    return StopEvent(result=output)


# -- one last answer ---------------------------------------------------------------------------------------------------


async def _answer(run: Run, agent: BaseWorkflowAgent, ctx: Any, written: str) -> str | None:
    """Let the model answer once more, without tools."""
    text = run.session.final_answer()
    if text is None:
        return None
    pad = Scratchpad(agent, ctx)
    await pad.keep(written)
    messages = await _conversation(agent, ctx, pad, text)
    started = time.perf_counter()
    response = await _ask(agent, ctx, messages)
    for channel, piece in translate.texts_of(response.message):
        run.session.feed_text(piece, channel)
    run.session.feed_text("")  # where there is none, that is known too
    run.session.end_message(translate.finish_reason(response.raw))
    await run.session.aafter_model_call(
        translate.model_name(agent.llm), run.usage(response.raw), time.perf_counter() - started
    )
    return _said(agent, response.message.content or "") or None


def _said(agent: BaseWorkflowAgent, text: str) -> str:
    """What a last answer says to the user; nothing where these agents would read another call in it."""
    if isinstance(agent, ReActAgent):
        _, marker, answer = text.rpartition("Answer:")
        return answer.strip() if marker or "Action:" not in text else ""
    if isinstance(agent, CodeActAgent):
        return text.partition("<execute>")[0].strip()
    return text


async def _conversation(agent: BaseWorkflowAgent, ctx: Any, pad: Scratchpad, text: str) -> list[ChatMessage]:
    memory: BaseMemory = await ctx.store.get(_MEMORY)
    history = await memory.aget()
    entries = await pad.entries()
    note = ChatMessage(role=MessageRole.USER, content=text)
    if isinstance(agent, ReActAgent):
        return [*agent.formatter.format([], chat_history=history, current_reasoning=entries), note]
    system = [ChatMessage(role=MessageRole.SYSTEM, content=agent.system_prompt)] if agent.system_prompt else []
    return [*system, *history, *entries, note]


async def _ask(agent: BaseWorkflowAgent, ctx: Any, messages: list[ChatMessage]) -> ChatResponse:
    if not agent.streaming:
        return await agent.llm.achat(messages)
    last: ChatResponse | None = None
    async for last in await agent.llm.astream_chat(messages):
        ctx.write_event_to_stream(
            AgentStream(delta=last.delta or "", response=last.message.content or "", current_agent_name=agent.name)
        )
    if last is None:
        raise ValueError("the model's stream was empty")
    return last
