"""What this adapter relies on in LlamaIndex, seam by seam: each of these failing names what a new release changed."""

import asyncio
import inspect
import types
from typing import Any, ClassVar

import pytest
from llama_index.core.agent.workflow import (
    AgentOutput,
    AgentWorkflow,
    BaseWorkflowAgent,
    CodeActAgent,
    FunctionAgent,
    ReActAgent,
    ToolCall,
    ToolCallResult,
)
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import Context, StopEvent
from llama_index_instrumentation.dispatcher import active_instrument_tags
from loopguard_llama_index import _seams as seams
from loopguard_llama_index import guard_agent
from loopguard_llama_index_kit import Counted, Scripted, call, deaf, go
from workflows.handler import WorkflowHandler
from workflows.runtime.types.results import WaitingForEvent

from loopguard_core import LoopGuard, LoopGuardError

TARGETS = (FunctionAgent, ReActAgent, CodeActAgent, AgentWorkflow)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_seams_have_the_names_and_arguments_that_are_hooked(kind: type) -> None:
    for name in seams.STEPS:
        method = getattr(kind, name)
        assert list(inspect.signature(method).parameters) == ["self", "ctx", "ev"]
        assert method._step_config is not None
    assert callable(kind.run)


@pytest.mark.parametrize("kind", [FunctionAgent, ReActAgent, CodeActAgent])
def test_what_is_called_on_agents_has_these_arguments(kind: type) -> None:
    parameters = {
        "take_step": ["self", "ctx", "llm_input", "tools", "memory"],
        "handle_tool_call_results": ["self", "ctx", "results", "memory"],
        "finalize": ["self", "ctx", "output", "memory"],
    }
    for name, expected in parameters.items():
        assert list(inspect.signature(getattr(kind, name)).parameters) == expected


def test_where_agents_keep_what_is_not_in_memory_yet() -> None:
    assert FunctionAgent(tools=[], llm=Scripted(deaf())).scratchpad_key == "scratchpad"
    assert ReActAgent(tools=[], llm=Scripted(deaf())).reasoning_key == "current_reasoning"
    assert CodeActAgent(lambda code: code, llm=Scripted(deaf())).scratchpad_key == "scratchpad"


async def test_steps_must_be_bound_methods() -> None:
    agent = FunctionAgent(tools=[Counted().tool], llm=Scripted(deaf()))
    object.__setattr__(agent, "call_tool", lambda ctx, ev: None)
    with pytest.raises(Exception, match="ToolCall"):
        await agent.run("go")
    other = FunctionAgent(tools=[], llm=Scripted(lambda asked: ["done"]))
    with pytest.raises(ValueError, match="call_tool"):
        other.call_tool = types.MethodType(FunctionAgent.call_tool, other)

    async def call_tool(self: Any, ctx: Any, ev: Any) -> Any:
        return await FunctionAgent.call_tool(self, ctx, ev)

    seams.bind(other, "call_tool", call_tool)
    assert str(await other.run("go")) == "done"
    assert other.call_tool._step_config is FunctionAgent.call_tool._step_config


async def test_a_plain_stop_event_from_the_parsing_step_ends_the_run() -> None:
    agent = FunctionAgent(tools=[], llm=Scripted(lambda asked: ["done"]))
    output = AgentOutput(response={"role": "assistant", "content": "mine"}, current_agent_name="x")

    async def parse_agent_output(self: Any, ctx: Any, ev: Any) -> Any:
        return StopEvent(result=output)

    seams.bind(agent, "parse_agent_output", parse_agent_output)
    assert (await agent.run("go")) is output


async def test_one_response_is_parsed_once_and_before_any_of_its_calls() -> None:
    order: list[str] = []
    agent = FunctionAgent(
        tools=[Counted().tool], llm=Scripted(lambda asked: [call(), call()] if not asked.rounds else ["done"])
    )

    async def parse_agent_output(self: Any, ctx: Any, ev: AgentOutput) -> Any:
        order.append(f"parse {len(ev.tool_calls)}")
        return await FunctionAgent.parse_agent_output(self, ctx, ev)

    async def call_tool(self: Any, ctx: Any, ev: ToolCall) -> ToolCallResult:
        order.append("call")
        return await FunctionAgent.call_tool(self, ctx, ev)

    seams.bind(agent, "parse_agent_output", parse_agent_output)
    seams.bind(agent, "call_tool", call_tool)
    await agent.run("go")
    assert order == ["parse 2", "call", "call", "parse 0"]


async def test_an_agents_own_hooks_are_not_asked_inside_a_workflow_but_take_step_is() -> None:
    asked: list[str] = []
    agent = FunctionAgent(tools=[Counted().tool], llm=Scripted(lambda a: [call()] if not a.rounds else ["done"]))
    for name in ("take_step", *seams.STEPS):

        async def hook(self: Any, *args: Any, name: str = name) -> Any:
            asked.append(name)
            return await getattr(FunctionAgent, name)(self, *args)

        seams.bind(agent, name, hook)
    await AgentWorkflow(agents=[agent]).run("go")
    assert asked == ["take_step", "take_step"]


async def test_every_step_and_tool_can_read_the_runs_id() -> None:
    seen: list[Any] = []

    def lookup(key: str) -> str:
        """Look up, in a thread."""
        seen.append(active_instrument_tags.get().get(seams.RUN_ID))
        return key

    agent = FunctionAgent(tools=[lookup], llm=Scripted(lambda a: [call()] if not a.rounds else ["done"]))
    handler = agent.run("go")
    await handler
    assert seen == [handler.run_id]


async def test_a_done_callback_comes_before_whoever_awaits() -> None:
    order: list[str] = []
    handler = FunctionAgent(tools=[], llm=Scripted(lambda asked: ["done"])).run("go")
    seams.when_done(handler, lambda error: order.append(f"told {error}"))
    await handler
    order.append("awaited")
    assert order == ["told None", "awaited"]
    assert isinstance(handler, WorkflowHandler)


async def test_the_stores_keys_of_a_run() -> None:
    agent = FunctionAgent(tools=[Counted().tool], llm=Scripted(lambda a: [call()] if not a.rounds else ["done"]))
    memory = ChatMemoryBuffer.from_defaults()
    handler = agent.run("go", memory=memory)
    await handler
    assert await handler.ctx.store.get("memory") is memory
    assert await handler.ctx.store.get("current_tool_calls") == []
    assert await handler.ctx.store.get("scratchpad") == []


async def test_the_sdks_own_limit_still_says_so() -> None:
    ran = await go(FunctionAgent(tools=[Counted().tool], llm=Scripted(deaf())), max_iterations=2)
    assert seams.says_turn_limit(str(ran.error))


async def test_waiting_for_a_human_is_an_exception_that_must_pass() -> None:
    from llama_index.core.agent.workflow import base_agent

    assert base_agent._get_waiting_for_event_exception() is WaitingForEvent
    assert issubclass(WaitingForEvent, Exception)


async def test_only_a_cancelled_task_closes_the_models_stream() -> None:
    llm = Scripted(lambda asked: ["a " * 4000])
    agent = FunctionAgent(tools=[], llm=llm)

    class Tap:
        def __init__(self, ctx: Any) -> None:
            self.ctx = ctx

        def __getattr__(self, name: str) -> Any:
            return getattr(self.ctx, name)

        def write_event_to_stream(self, event: Any) -> None:
            if llm.sent == 50:
                task.cancel()

    from llama_index.core.agent.workflow.agent_context import SimpleAgentContext

    task = asyncio.create_task(
        FunctionAgent.take_step(agent, Tap(SimpleAgentContext()), [], [], ChatMemoryBuffer.from_defaults())
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (llm.closed, llm.sent) == (1, 50)


def test_a_version_without_the_seams_is_refused() -> None:
    class Changed(FunctionAgent):
        parse_agent_output: ClassVar[Any] = None

    class Unmarked(FunctionAgent):
        async def call_tool(self, ctx: Context, ev: ToolCall) -> ToolCallResult:
            raise NotImplementedError

    for kind, named in ((Changed, "parse_agent_output"), (Unmarked, "call_tool as a step")):
        agent = FunctionAgent(tools=[], llm=Scripted(deaf()))
        object.__setattr__(agent, "__class__", kind)
        with pytest.raises(LoopGuardError, match=f"{named}.*pip install 'llama-index-core"):
            guard_agent(agent, LoopGuard())


def test_every_kind_of_agent_is_one_of_those_that_are_known() -> None:
    known = {FunctionAgent, ReActAgent, CodeActAgent}
    found = {kind for kind in BaseWorkflowAgent.__subclasses__() if kind.__module__.startswith("llama_index.core")}
    assert found == known
