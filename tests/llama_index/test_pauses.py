"""Runs that wait for a human: the same process, another one, and everything in between."""

import asyncio
import contextlib
import json
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent, ToolCall
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from loopguard_llama_index import guard_agent, session_of
from loopguard_llama_index_kit import DEFAULT_ACTIONS, OWN, Scripted, Watched, assert_well_formed, call, deaf


class Approved:
    """A tool that asks a human first."""

    def __init__(self, result: str = "no such invoice") -> None:
        self.result = result
        self.asked, self.ran = 0, 0

    @property
    def tool(self) -> FunctionTool:
        async def lookup(ctx: Context, key: str = "") -> str:
            """Look up."""
            self.asked += 1
            question = InputRequiredEvent(prefix=f"look up {key}?")
            answer = await ctx.wait_for_event(HumanResponseEvent, waiter_event=question, waiter_id=f"w{key}")
            self.ran += 1
            return f"{self.result}: {answer.response}"

        return FunctionTool.from_defaults(async_fn=lookup)


def make(guard: Any, tool: Approved, script: Any = None) -> Any:
    return guard_agent(FunctionAgent(tools=[tool.tool], llm=Scripted(script or deaf())), guard)


async def until_it_waits(events: Any) -> bool:
    async for event in events:
        if isinstance(event, InputRequiredEvent):
            return True
    return False


async def test_a_run_that_waits_and_goes_on_counts_nothing_twice() -> None:
    guard, tool = Watched(), Approved()
    handler = make(guard, tool).run("go", max_iterations=100)
    events, waits = handler.stream_events(), 0
    while await until_it_waits(events):
        waits += 1
        handler.ctx.send_event(HumanResponseEvent(response="yes"))
    assert OWN in str(await handler)
    assert (waits, tool.asked, tool.ran) == (2, 4, 2), "each call is started twice and runs once"
    assert guard.actions == DEFAULT_ACTIONS
    assert (guard.reasons, guard.last_end.turns, guard.last_end.tool_calls) == (["doom_loop"], 6, 2)


async def test_waiting_takes_no_time() -> None:
    now = [0.0]
    guard = Watched({"limits": {"seconds": 60}}, clock=lambda: now[0])
    tool = Approved()
    handler = make(guard, tool, lambda asked: [call()] if not asked.rounds else ["done"]).run("go")
    events = handler.stream_events()
    assert await until_it_waits(events)
    now[0] += 3600
    handler.ctx.send_event(HumanResponseEvent(response="yes"))
    assert not await until_it_waits(events)
    assert (str(await handler), guard.reasons) == ("done", ["complete"])
    assert guard.last_end.duration < 60


async def resumed(saved: Any, guard: Any, tool: Approved, memory: Any, script: Any = None) -> Any:
    agent = make(guard, tool, script)
    handler = agent.run(ctx=Context.from_dict(agent, json.loads(json.dumps(saved))))
    await handler.ctx.store.set("memory", memory)
    return handler


async def test_a_run_goes_on_in_another_process() -> None:
    tool, memory = Approved(), ChatMemoryBuffer.from_defaults()
    first = Watched()
    handler = make(first, tool).run("go", memory=memory, max_iterations=100)
    assert await until_it_waits(handler.stream_events())
    saved = handler.ctx.to_dict()
    await handler.cancel_run()
    with contextlib.suppress(Exception):
        await handler
    assert first.reasons == ["paused"]
    ends, actions = [], list(first.actions)
    for _ in range(9):  # a new guard each time, as in a new process
        guard = Watched()
        handler = await resumed(saved, guard, tool, memory)
        handler.ctx.send_event(HumanResponseEvent(response="yes"))
        waits = await until_it_waits(handler.stream_events())
        if waits:
            saved = handler.ctx.to_dict()
            await handler.cancel_run()
        with contextlib.suppress(Exception):
            await handler
        ends += guard.reasons
        actions += guard.actions
        if not waits:
            break
    assert ends == ["paused", "doom_loop"]
    assert actions == DEFAULT_ACTIONS
    assert tool.ran == 2
    assert guard.last_end.turns == 6
    assert guard.last_end.session_id == first.last_end.session_id
    assert_well_formed(memory.get_all())


async def test_in_the_same_process_the_session_is_the_same() -> None:
    guard, tool, memory = Watched(), Approved(), ChatMemoryBuffer.from_defaults()
    handler = make(guard, tool).run("go", memory=memory)
    assert await until_it_waits(handler.stream_events())
    session = session_of(handler)
    second = await resumed(handler.ctx.to_dict(), guard, tool, memory)
    second.ctx.send_event(HumanResponseEvent(response="yes"))
    assert await until_it_waits(second.stream_events())
    assert session_of(second) is session
    await handler.cancel_run()  # the first one has nothing to say any more
    assert guard.reasons == []
    await second.cancel_run()
    assert guard.reasons == ["paused"]


async def test_what_is_saved_is_small_plain_json_without_arguments() -> None:
    guard, tool = Watched(), Approved()
    handler = make(guard, tool, lambda asked: [call(key="SECRET-1"), call(key="SECRET-2")]).run("go")
    assert await until_it_waits(handler.stream_events())
    saved = await handler.ctx.store.get("loopguard")
    text = json.dumps(saved)
    assert "SECRET" not in text
    assert len(text) < 32_000
    assert set(saved) == {"session", "state", "refused"}
    await handler.cancel_run()


async def test_a_refused_call_beside_one_that_waits_stays_refused_after_a_resume() -> None:
    policy = {"tools": {"lookup": {"ladder": {"observe": False, "block": False, "stop": False}}}}
    guard, tool, memory, ran = Watched(policy), Approved(), ChatMemoryBuffer.from_defaults(), []

    async def other(key: str) -> str:
        """Another tool."""
        ran.append(key)
        return "the same"

    def script(asked: Any) -> Any:
        return ["done"] if asked.rounds == 3 else [call("other", key="a"), call(key=str(asked.rounds))]

    def build(guard: Any) -> Any:
        tools = [tool.tool, FunctionTool.from_defaults(async_fn=other)]
        return guard_agent(FunctionAgent(tools=tools, llm=Scripted(script)), guard)

    handler = build(guard).run("go", memory=memory)
    for _ in range(3):
        assert await until_it_waits(handler.stream_events())
        saved = json.loads(json.dumps(handler.ctx.to_dict()))
        await handler.cancel_run()
        guard = Watched(policy)
        agent = build(guard)
        handler = agent.run(ctx=Context.from_dict(agent, saved))
        await handler.ctx.store.set("memory", memory)
        handler.ctx.send_event(HumanResponseEvent(response="yes"))
    assert str(await handler) == "done"
    assert len(ran) == 2, "the third request was refused, before the pause and after it"
    assert tool.ran == 3


async def test_a_run_that_is_resumed_from_a_damaged_state_goes_on() -> None:
    for damage in ({"session": 3, "state": "what", "refused": 4}, "nonsense", None):
        guard, tool, memory = Watched(), Approved(), ChatMemoryBuffer.from_defaults()
        script = lambda asked: [call()] if not asked.rounds else ["done"]  # noqa: E731
        handler = make(guard, tool, script).run("go", memory=memory)
        assert await until_it_waits(handler.stream_events())
        await handler.ctx.store.set("loopguard", damage)
        saved = handler.ctx.to_dict()
        await handler.cancel_run()
        other = Watched()
        second = await resumed(saved, other, tool, memory, script)
        second.ctx.send_event(HumanResponseEvent(response="yes"))
        assert str(await second) == "done"
        assert other.reasons == ["complete"]


async def test_a_cancelled_run_that_does_not_wait_is_cancelled() -> None:
    guard, started = Watched(), asyncio.Event()

    async def lookup(key: str) -> str:
        """Look up."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent = guard_agent(FunctionAgent(tools=[lookup], llm=Scripted(deaf())), guard)
    handler = agent.run("go")
    await started.wait()
    await handler.cancel_run()
    assert guard.reasons == ["cancelled"]


async def test_the_stream_shows_a_waiting_call_as_the_sdk_does() -> None:
    guard, tool = Watched(), Approved()
    handler = make(guard, tool, lambda asked: [call()] if not asked.rounds else ["done"]).run("go")
    shown = 0
    async for event in handler.stream_events():
        shown += isinstance(event, ToolCall)
        if isinstance(event, InputRequiredEvent):
            handler.ctx.send_event(HumanResponseEvent(response="yes"))
    assert shown == 2
