"""`guard_tool` and `LoopGuardEventHandler`: what attaches outside of agents."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import CodeActAgent, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import BaseTool, FunctionTool, ToolMetadata, ToolOutput
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from llama_index_instrumentation import get_dispatcher
from loopguard_llama_index import LoopDetectedEvent, LoopGuardEventHandler, LoopGuardStop, guard_agent, guard_tool
from loopguard_llama_index.handler import watcher_of
from loopguard_llama_index_kit import (
    DEFAULT_ACTIONS,
    OWN,
    Counted,
    Scripted,
    Stammers,
    Watched,
    call,
    deaf,
    different,
    go,
    listening,
)
from loopguard_llama_index_workflow_drivers import OwnLoop


def own(llm: Scripted, *tools: Any) -> OwnLoop:
    return OwnLoop(llm, list(tools), True)


@pytest.fixture
def watching() -> Iterator[Any]:
    """Adds handlers to the root dispatcher, and takes them away."""
    root = get_dispatcher()
    before = root.event_handlers

    def add(guard: Any) -> LoopGuardEventHandler:
        handler = LoopGuardEventHandler(guard)
        root.event_handlers = [*root.event_handlers, handler]
        return handler

    yield add
    root.event_handlers = before


# -- guard_tool --------------------------------------------------------------------------------------------------------


async def test_a_tool_in_a_workflow_of_ones_own_runs_twice_and_the_run_ends() -> None:
    guard, tool, llm = Watched(), Counted(), Scripted(deaf())
    handler = own(llm, guard_tool(tool.tool, guard)).run(query="go")
    loops = [
        (event.streak, event.action) async for event in handler.stream_events() if isinstance(event, LoopDetectedEvent)
    ]
    with pytest.raises(LoopGuardStop) as caught:
        await handler
    assert caught.value.verdict.streak == 6
    assert (len(tool.ran), llm.calls) == (2, 6)
    assert guard.actions == DEFAULT_ACTIONS == loops
    assert (guard.reasons, guard.last_end.model_calls) == (["doom_loop"], 6)


async def test_a_refusal_is_a_tool_output_that_says_why() -> None:
    guard, tool, llm = Watched(), Counted(), Scripted(listening("I give up"))
    assert await own(llm, guard_tool(tool.tool, guard)).run(query="go") == "I give up"
    assert OWN in llm.asked[-1].outputs[-1]
    assert (len(tool.ran), guard.reasons) == (2, ["complete"])


async def test_the_copy_is_of_the_tools_kind_and_the_tool_stays_as_it_was() -> None:
    guard, counted = Watched(), Counted()
    tool = counted.tool
    guarded = guard_tool(tool, guard)
    assert isinstance(guarded, FunctionTool)
    assert guarded.metadata.name == "lookup"
    assert set(vars(guarded)) - set(vars(tool)) == {"call", "acall"}
    with pytest.raises(Exception, match="Max iterations"):
        await FunctionAgent(tools=[tool], llm=Scripted(deaf())).run("go", max_iterations=6)
    assert len(counted.ran) == 5

    def plain(key: str) -> str:
        """Look up."""
        return key

    assert (await guard_tool(plain, guard).acall(key="x")).content == "x"
    assert guard_tool(plain, guard).call(key="x").content == "x"
    assert guard_tool(plain, guard)(key="x").content == "x"


async def test_in_a_guarded_agent_it_adds_nothing() -> None:
    guard, tool = Watched(), Counted()
    agent = guard_agent(FunctionAgent(tools=[guard_tool(tool.tool, guard)], llm=Scripted(deaf())), guard)
    await go(agent)
    assert (len(tool.ran), guard.actions, guard.reasons) == (2, DEFAULT_ACTIONS, ["doom_loop"])


async def test_in_an_agent_that_is_not_guarded_calls_are_refused() -> None:
    guard, tool = Watched(), Counted()
    ran = await go(FunctionAgent(tools=[guard_tool(tool.tool, guard)], llm=Scripted(listening())))
    assert (ran.text, len(tool.ran)) == ("I could not find it.", 2)


async def test_tools_that_take_the_context_and_code_agents_take_it() -> None:
    guard, seen = Watched(), []

    async def lookup(ctx: Context, key: str) -> str:
        """Look up."""
        seen.append(key)
        return "nothing"

    tool = guard_tool(FunctionTool.from_defaults(async_fn=lookup), guard)
    ran = await go(FunctionAgent(tools=[tool], llm=Scripted(listening())))
    assert (ran.text, len(seen)) == ("I could not find it.", 2)

    async def execute(code: str) -> str:
        return "x"

    CodeActAgent(execute, tools=[guard_tool(Counted().tool, guard)], llm=Scripted(deaf()))


async def test_a_tool_of_the_older_kind_is_guarded_once() -> None:
    class Old(BaseTool):
        ran = 0

        @property
        def metadata(self) -> ToolMetadata:
            return ToolMetadata(name="old", description="old")

        def __call__(self, input: Any) -> ToolOutput:  # noqa: A002  # the SDK's name
            type(self).ran += 1
            return ToolOutput(content="nothing", tool_name="old", raw_input={}, raw_output=None)

    guard = Watched()
    tool = guard_tool(Old(), guard)
    llm = Scripted(lambda asked: ["done"] if any(OWN in out for out in asked.outputs) else [call("old", input="x")])
    assert await own(llm, tool).run(query="go") == "done"
    assert (Old.ran, guard.actions) == (2, [(2, "observe"), (3, "block")])


async def test_calls_no_model_asked_for_are_rounds_of_their_own() -> None:
    guard, counted = Watched(), Counted()
    tool = guard_tool(counted.tool, guard)

    class Loop(Workflow):
        @step
        async def only(self, ev: StartEvent) -> StopEvent:
            said = [(await tool.acall(key="x")).content for _ in range(5)]
            return StopEvent(result=said)

    said = await Loop().run()
    assert len(counted.ran) == 2
    assert [OWN in text for text in said] == [False, False, True, True, True]
    assert guard.reasons == ["complete"]
    assert guard.last_end.turns == 5


async def test_outside_of_a_run_the_tool_just_runs() -> None:
    guard, counted = Watched(), Counted()
    tool = guard_tool(counted.tool, guard)
    for _ in range(9):
        await tool.acall(key="x")
    assert len(counted.ran) == 9
    assert guard.faults.counts == {"guard_tool": 9}


async def test_a_failing_tool_raises_what_it_raised() -> None:
    guard, counted = Watched(), Counted(lambda ran, key: KeyError("no such key"))
    llm = Scripted(listening("I give up"))
    assert await own(llm, guard_tool(counted.tool, guard)).run(query="go") == "I give up"
    assert (len(counted.ran), llm.asked[1].outputs) == (2, ["'no such key'"])


async def test_runs_without_guarded_tools_are_no_business_of_theirs() -> None:
    guard = Watched()
    guard_tool(Counted().tool, guard)
    plain = FunctionAgent(
        tools=[Counted().tool], llm=Scripted(lambda asked: [call()] if asked.rounds < 9 else ["done"])
    )
    assert (await go(plain)).text == "done"
    assert (guard.loops, guard.ends, guard.model_calls) == ([], [], [])


async def test_a_workflow_inside_a_guarded_tool_is_nested() -> None:
    guard, counted = Watched(), Counted()
    inner = guard_tool(counted.tool, guard)

    async def ask(key: str) -> str:
        """Ask."""
        return str(await own(Scripted(deaf()), inner).run(query=key))

    llm = Scripted(lambda asked: [call("ask", key="x")])
    with pytest.raises(LoopGuardStop):
        await own(llm, guard_tool(ask, guard)).run(query="go")
    assert (len(counted.ran), llm.calls, guard.reasons) == (2, 1, ["doom_loop"] * 2)
    assert guard.ends[0].parent_id == guard.ends[1].session_id


async def test_many_at_once_do_not_mix() -> None:
    guard, counted = Watched(), Counted()
    tool = guard_tool(counted.tool, guard)
    runs = [own(Scripted(deaf() if n % 2 else different(4)), tool).run(query="go") for n in range(20)]
    ends = await asyncio.gather(*runs, return_exceptions=True)
    assert [isinstance(end, LoopGuardStop) for end in ends] == [bool(n % 2) for n in range(20)]
    assert sorted(guard.reasons) == ["complete"] * 10 + ["doom_loop"] * 10
    assert len(counted.ran) == 10 * 2 + 10 * 4


def test_a_guard_that_is_gone_listens_no_more() -> None:
    guard = Watched()
    watcher = watcher_of(guard)

    def listeners() -> int:
        handlers = get_dispatcher().event_handlers
        return sum(getattr(handler, "watcher", None) is watcher for handler in handlers)

    tool = guard_tool(Counted().tool, guard)
    guard_tool(Counted(name="other").tool, guard)
    assert listeners() == 1
    ref = weakref.ref(guard)
    del guard, tool
    gc.collect()
    assert (ref(), listeners()) == (None, 0)


# -- the event handler -------------------------------------------------------------------------------------------------


async def test_the_handler_sees_everything_and_changes_nothing(watching: Any) -> None:
    guard, tool = Watched(), Counted()
    watching(guard)
    agent = FunctionAgent(tools=[tool.tool], llm=Scripted(lambda asked: [call()] if asked.rounds < 8 else ["done"]))
    ran = await go(agent)
    assert (ran.text, len(tool.ran)) == ("done", 8)
    assert guard.actions == [(2, "observe"), (3, "observe"), (4, "observe"), (5, "observe"), (6, "stop")] + [
        (streak, "stop") for streak in (7, 8)
    ]
    assert [streak for streak, _ in ran.loops] == [2, 3, 4, 5, 6, 7, 8]
    assert (guard.reasons, guard.last_end.model_calls) == (["doom_loop"], 9)
    assert guard.last_end.usage.total_tokens == 9 * 120
    assert guard.last_end.framework_run_id == ran.handler.run_id


async def test_the_handler_leaves_to_guard_agent_what_it_guards(watching: Any) -> None:
    guard, other = Watched(), Watched()
    watching(guard)
    watching(other)
    agent = guard_agent(FunctionAgent(tools=[Counted().tool], llm=Scripted(deaf())), guard)
    await go(agent)
    assert (guard.actions, guard.reasons) == (DEFAULT_ACTIONS, ["doom_loop"])
    assert other.reasons == ["doom_loop"], "another guard's handler watches it as well"
    assert len(other.model_calls) == 6


async def test_an_event_that_comes_twice_counts_once(watching: Any) -> None:
    guard, tool = Watched(), Counted()
    watching(guard)
    watching(guard)
    ran = await go(FunctionAgent(tools=[guard_tool(tool.tool, guard)], llm=Scripted(listening())))
    assert ran.text == "I could not find it."
    assert len(guard.model_calls) == 4


async def test_the_handler_reads_text(watching: Any) -> None:
    guard = Watched(plugins=[Stammers()])
    watching(guard)
    await go(FunctionAgent(tools=[], llm=Scripted(lambda asked: ["again " * 9])))
    await go(FunctionAgent(tools=[], llm=Scripted(lambda asked: ["again " * 9]), streaming=False))
    assert [event.detector for event in guard.loops] == ["stammer", "stammer"]


async def test_the_handler_knows_how_a_run_ended(watching: Any) -> None:
    guard = Watched()
    watching(guard)
    numbered = Scripted(lambda asked: [call(key=str(asked.number))])
    tool = Counted(lambda ran, key: f"result {ran}")
    await go(FunctionAgent(tools=[tool.tool], llm=numbered), max_iterations=3)
    await go(FunctionAgent(tools=[], llm=Scripted(lambda asked: ["done"])))

    class Fails(Workflow):
        @step
        async def only(self, ev: StartEvent) -> StopEvent:
            await Scripted(lambda asked: ["x"]).achat([ChatMessage(role="user", content="x")])
            raise RuntimeError("bad")

    class Waits(Workflow):
        @step
        async def only(self, ev: StartEvent) -> StopEvent:
            await Scripted(lambda asked: ["x"]).achat([ChatMessage(role="user", content="x")])
            started.set()
            await asyncio.Event().wait()
            return StopEvent()

    started = asyncio.Event()
    with pytest.raises(RuntimeError, match="bad"):
        await Fails().run()
    handler = Waits().run()
    await started.wait()
    await handler.cancel_run()
    assert guard.reasons == ["max_turns", "complete", "error", "cancelled"]


async def test_a_broken_hook_or_event_breaks_no_run(watching: Any) -> None:
    guard = Watched()
    handler = watching(guard)
    handler._watcher._run = lambda run_id: 1 / 0
    assert (await go(FunctionAgent(tools=[], llm=Scripted(lambda asked: ["done"])))).text == "done"
    assert guard.faults.counts["llama_index LoopGuardEventHandler"] > 0
