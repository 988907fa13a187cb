"""The four hooks. Each finds its run, and calls the method of the object's own class: overrides of users stay in use.

A round is judged in `parse_agent_output`, before any of its calls starts: `call_tool` runs them at the same time, and
once more for a call that waited for a human.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from llama_index.core.agent.workflow import (
    AgentOutput,
    AgentWorkflow,
    BaseWorkflowAgent,
    ToolCall,
    ToolCallResult,
)
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemory
from llama_index.core.workflow import Context, StopEvent, WorkflowRuntimeError
from workflows.handler import WorkflowHandler

from loopguard_core import current_session, inside
from loopguard_llama_index import _registry as registry
from loopguard_llama_index import _seams as seams
from loopguard_llama_index import _translate as translate
from loopguard_llama_index._closing import answer_calls, finish, last_words
from loopguard_llama_index._run import Attached, Run
from loopguard_llama_index._stop import LoopGuardStop
from loopguard_llama_index._turn import Turn

SETTINGS = "_loopguard"
"""Where a guarded object keeps what it is guarded with."""


def install(target: AgentWorkflow | BaseWorkflowAgent, attached: Attached) -> None:
    """Hook into an agent or a workflow."""
    object.__setattr__(target, SETTINGS, attached)
    for name, hook in (("run", run), ("parse_agent_output", parse_agent_output), ("call_tool", call_tool)):
        seams.bind(target, name, hook)
    for agent in _agents(target):
        _install_on_agent(agent)
    if isinstance(target, BaseWorkflowAgent):
        seams.bind(target, "model_copy", model_copy)


def uninstall(target: AgentWorkflow | BaseWorkflowAgent) -> None:
    """Leave an agent or a workflow as it was."""
    seams.unbind(target, SETTINGS, "run", "parse_agent_output", "call_tool", "model_copy")
    for agent in _agents(target):
        if not hasattr(agent, SETTINGS):  # else it is guarded for itself as well
            seams.unbind(agent, "take_step")


def _install_on_agent(agent: BaseWorkflowAgent) -> None:
    if not seams.bound(agent, "take_step"):
        seams.bind(agent, "take_step", take_step)


def _agents(target: AgentWorkflow | BaseWorkflowAgent) -> list[BaseWorkflowAgent]:
    return list(target.agents.values()) if isinstance(target, AgentWorkflow) else [target]


def _agent(target: Any, name: str) -> BaseWorkflowAgent:
    return target.agents[name] if isinstance(target, AgentWorkflow) else target


# -- the hooks ---------------------------------------------------------------------------------------------------------


def run(self: Any, *args: Any, **kwargs: Any) -> WorkflowHandler:
    """`run`: a session for each."""
    original: Callable[..., WorkflowHandler] = type(self).run
    attached: Attached = vars(self)[SETTINGS]
    if not attached.guard.enabled:
        return original(self, *args, **kwargs)
    new = None
    with attached.guard.faults.contained("llama_index run"):
        for agent in _agents(self):  # also those that joined the workflow since
            _install_on_agent(agent)
        ctx = kwargs.get("ctx") or next((given for given in args if isinstance(given, Context)), None)
        name = self.root_agent if isinstance(self, AgentWorkflow) else self.name
        new = Run(attached, name, parent=current_session(), resumes=ctx is not None and ctx.is_running)
    if new is None:
        return original(self, *args, **kwargs)
    with registry.starting(new):
        handler = original(self, *args, **kwargs)
    with attached.guard.faults.contained("llama_index run"):
        registry.started(new, handler)
    return handler


async def take_step(self: Any, ctx: Any, llm_input: list[ChatMessage], tools: Any, memory: BaseMemory) -> AgentOutput:
    """`take_step`: one model call."""
    original: Callable[..., Awaitable[AgentOutput]] = type(self).take_step
    found = await registry.current(ctx)
    if found is None:
        return await original(self, ctx, llm_input, tools, memory)
    return await Turn(found, self, original, ctx, llm_input, tools, memory).output()


async def parse_agent_output(self: Any, ctx: Any, ev: AgentOutput) -> Any:
    """`parse_agent_output`: one response, and the round it asks for."""
    original = type(self).parse_agent_output
    found = await registry.current(ctx)
    if found is None:
        return await original(self, ctx, ev)
    with found.guard.faults.contained("llama_index parse_agent_output"):
        stopped = await _judged(self, found, ctx, ev)
        if stopped is not None:
            return stopped
    return await _passed_on(self, found, ctx, ev, original)


async def call_tool(self: Any, ctx: Any, ev: ToolCall) -> ToolCallResult:
    """`call_tool`: one call, or what takes its place."""
    original: Callable[..., Awaitable[ToolCallResult]] = type(self).call_tool
    found = await registry.current(ctx)
    if found is None:
        return await original(self, ctx, ev)
    call_id, refused = ev.tool_id, None
    with found.guard.faults.contained("llama_index call_tool"):
        call_id, refused = found.start(ev)
        if refused is not None:
            result = translate.refusal(ev.tool_id, ev.tool_name, ev.tool_kwargs, refused)
            for event in (ToolCall(**ev.model_dump()), result):
                ctx.write_event_to_stream(event)
            return result
    try:
        with inside(found.session):
            result = await original(self, ctx, ev)
    except seams.WaitingForEvent:
        with found.guard.faults.contained("llama_index a pause"):
            found.waits(call_id)
            await found.save(ctx, for_sure=True)
        raise
    with found.guard.faults.contained("llama_index recording a result"):
        found.returned(call_id, result)
        if found.waiting or found.resumes:
            await found.save(ctx, for_sure=True)
    return result


def model_copy(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`model_copy`: a copy would carry hooks that still act on the original."""
    copy = type(self).model_copy(self, *args, **kwargs)
    attached: Attached = vars(copy)[SETTINGS]
    uninstall(copy)
    install(copy, attached)
    return copy


# -- a response --------------------------------------------------------------------------------------------------------


async def _judged(self: Any, found: Run, ctx: Any, ev: AgentOutput) -> StopEvent | None:
    """Judge the round a response asks for; what ends the run, if it is to end here."""
    agent, session = _agent(self, ev.current_agent_name), found.session
    if found.closing and session.stop is not None:
        return await finish(found, agent, ctx, ev.response, session.stop)
    calls = translate.calls_of(ev)
    if calls:
        handoffs = isinstance(self, AgentWorkflow) and len(self.agents) > 1
        for verdict in found.judge(calls, handoffs=handoffs):
            found.tell(ctx, verdict, agent.name)
    if session.stop is not None and (calls or ev.retry_messages):
        results = await answer_calls(found, agent, ctx) if calls else []
        message = await last_words(found, agent, ctx, session.stop)
        ctx.write_event_to_stream(
            AgentOutput(response=message.model_copy(), tool_calls=[], current_agent_name=agent.name)
        )
        return await finish(found, agent, ctx, message, session.stop, results)
    if calls:
        await found.save(ctx)
    return None


async def _passed_on(self: Any, found: Run, ctx: Any, ev: AgentOutput, original: Any) -> Any:
    """LlamaIndex's own step, and how the run ends if it does."""
    going_on = bool(ev.tool_calls or ev.retry_messages)
    try:
        result = await original(self, ctx, ev)
    except WorkflowRuntimeError as error:
        found.turn_limit = going_on and seams.says_turn_limit(str(error))
        raise
    if isinstance(result, StopEvent):
        with found.guard.faults.contained("llama_index the end of a run"):
            if going_on:  # LlamaIndex's limit, with one more model call that goes through none of our hooks
                found.turn_limit = True
                usage = found.usage(getattr(result.result, "raw", None))
                llm = _agent(self, ev.current_agent_name).llm
                await found.session.aafter_model_call(translate.model_name(llm), usage)
        await registry.closed(found)
        stop = found.session.stop
        if stop is not None and found.attached.how == "raise":
            raise LoopGuardStop(stop)
    return result
