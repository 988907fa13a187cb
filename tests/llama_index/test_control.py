"""Steering, escalation, and the ways a run is ended."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, WorkflowRuntimeError
from loopguard_llama_index import LoopGuardStop, guard_agent, session_of
from loopguard_llama_index_kit import (
    OWN,
    Counted,
    Scripted,
    Watched,
    assert_well_formed,
    call,
    deaf,
    different,
    go,
    listening,
)

from loopguard_core import LoopGuardStop as CoreStop
from loopguard_core import hookimpl

STEERS = {"ladder": {"steer": 2, "block": False, "stop": 9}}
ESCALATES = {"ladder": {"escalate": 2, "block": False, "stop": 9}}


def kinds(llm: Scripted, tool: FunctionTool) -> dict[str, Any]:
    return {
        "function": FunctionAgent(tools=[tool], llm=llm),
        "whole": FunctionAgent(tools=[tool], llm=llm, streaming=False),
        "workflow": AgentWorkflow(agents=[FunctionAgent(tools=[tool], llm=llm)]),
    }


KINDS = ("function", "whole", "workflow")


# -- steering ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_steering_is_the_last_thing_the_model_reads_and_nobody_keeps_it(kind: str) -> None:
    llm, tool = Scripted(listening("I give up")), Counted()
    ran = await go(guard_agent(kinds(llm, tool.tool)[kind], Watched(STEERS)))
    assert (ran.text, len(tool.ran)) == ("I give up", 2)
    last = llm.asked[-1].messages[-1]
    assert (last.role.value, last.content[:11]) == ("user", OWN)
    assert [len(asked.told) for asked in llm.asked] == [0, 0, 1]
    assert_well_formed(ran.history)


async def test_steering_reaches_react_and_code_agents_too() -> None:
    step = 'Thought: t\nAction: lookup\nAction Input: {"key": "K-1"}'
    react = Scripted(lambda asked: ["Thought: I know.\nAnswer: told"] if asked.told else [step], calls_functions=False)
    ran = await go(guard_agent(ReActAgent(tools=[Counted().tool], llm=react), Watched(STEERS)))
    assert ran.text == "told"
    assert OWN not in ran.history[-1].content

    async def execute(code: str) -> str:
        return "None"

    code = Scripted(lambda asked: ["told"] if asked.told else ["<execute>\nlook()\n</execute>"])
    ran = await go(guard_agent(CodeActAgent(execute, llm=code), Watched(STEERS)))
    assert ran.text == "told"
    assert not any(OWN in (message.content or "") for message in ran.history)


async def test_a_model_call_that_fails_is_not_counted_and_leaves_no_steering_behind() -> None:
    guard = Watched(STEERS)
    llm = Scripted(lambda asked: RuntimeError("provider down") if asked.told else [call()])
    agent = guard_agent(FunctionAgent(tools=[Counted().tool], llm=llm), guard)
    ran = await go(agent)
    assert "provider down" in str(ran.error)
    assert (guard.reasons, guard.last_end.model_calls, guard.last_end.error) == (["error"], 2, "RuntimeError")
    assert OWN not in str(await ran.handler.ctx.store.get("scratchpad"))


# -- a stronger model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_the_stronger_model_takes_one_call(kind: str) -> None:
    guard, tool = Watched(ESCALATES), Counted()
    usual = Scripted(lambda asked: [call()] if asked.rounds < 4 else ["done"])
    strong = Scripted(deaf(), model="strong-1")
    target = kinds(usual, tool.tool)[kind]
    ran = await go(guard_agent(target, guard, strong))
    assert ran.text == "done"
    assert [event.model for event in guard.model_calls] == ["scripted-1"] * 2 + ["strong-1"] + ["scripted-1"] * 2
    agent = target.agents["Agent"] if kind == "workflow" else target
    assert agent.llm is usual


async def test_a_stronger_model_that_fails_leaves_the_call_to_the_usual_one() -> None:
    guard = Watched(ESCALATES)
    strong = Scripted(lambda asked: RuntimeError("no such model"), model="strong-1")
    usual = Scripted(lambda asked: [call()] if asked.rounds < 4 else ["done"])
    ran = await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=usual), guard, strong))
    assert (ran.text, strong.calls, ran.error) == ("done", 1, None)
    not_calling = Scripted(deaf(), calls_functions=False)
    ran = await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=usual), guard, not_calling))
    assert (ran.text, ran.error) == ("done", None)


async def test_the_policy_names_the_stronger_model() -> None:
    guard = Watched({**ESCALATES, "escalation": {"models": {"llama_index": "strong-2"}}})
    usual = Scripted(lambda asked: [call()] if asked.rounds < 3 else ["done"])
    await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=usual), guard))
    assert [event.model for event in guard.model_calls] == ["scripted-1", "scripted-1", "strong-2", "scripted-1"]
    assert usual.model == "scripted-1"


async def test_without_a_stronger_model_it_is_steered() -> None:
    llm = Scripted(listening("told"))
    assert (await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=llm), Watched(ESCALATES)))).text == "told"


# -- how a run is ended ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_answer_asks_once_more_without_tools(kind: str) -> None:
    guard, tool = Watched({"on_stop": {"how": "answer"}}), Counted("the invoice is paid")
    llm = Scripted(deaf(), model="scripted-1")
    ran = await go(guard_agent(kinds(llm, tool.tool)[kind], guard))
    assert (ran.text, len(tool.ran), llm.calls) == ("enough", 2, 7)
    last = llm.asked[-1]
    assert last.tools == []
    assert last.messages[-1].content.startswith(OWN)
    assert last.outputs[0] == "the invoice is paid", "it sees what was gathered"
    assert (guard.reasons, guard.last_end.model_calls) == (["doom_loop"], 7)
    assert guard.last_end.usage.total_tokens == 7 * 120
    assert_well_formed(ran.history)


async def test_an_answer_that_fails_becomes_the_closing_message() -> None:
    guard = Watched()
    llm = Scripted(lambda asked: [call()] if asked.tools else RuntimeError("provider down"))
    ran = await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=llm), guard, on_stop="answer"))
    assert OWN in ran.text
    assert guard.faults.counts["llama_index the last answer"] == 1
    assert_well_formed(ran.history)


async def test_a_react_agent_answers_too() -> None:
    step = 'Thought: t\nAction: lookup\nAction Input: {"key": "K-1"}'
    asked_for = lambda asked: asked.messages[-1].content.startswith(OWN)  # noqa: E731
    llm = Scripted(
        lambda asked: ["Thought: well\nAnswer: it is paid"] if asked_for(asked) else [step], calls_functions=False
    )
    agent = guard_agent(ReActAgent(tools=[Counted().tool], llm=llm), Watched(), on_stop="answer")
    ran = await go(agent)
    assert ran.text == "it is paid"
    assert ran.history[-1].content.endswith("Answer: it is paid")


STEP = 'Thought: t\nAction: lookup\nAction Input: {"key": "K-1"}'


@pytest.mark.parametrize("streaming", [True, False])
async def test_another_call_is_no_answer_of_a_react_agent(streaming: bool) -> None:
    llm = Scripted(lambda asked: [STEP], calls_functions=False)
    agent = guard_agent(ReActAgent(tools=[Counted().tool], llm=llm, streaming=streaming), Watched(), on_stop="answer")
    ran = await go(agent)
    assert (llm.calls, ran.text[:11]) == (7, OWN)


@pytest.mark.parametrize(("said", "text"), [("<execute>\nlookup()\n</execute>", OWN), ("Half of it.", "Half of it.")])
async def test_more_code_is_no_answer_of_a_code_agent(said: str, text: str) -> None:
    async def execute(code: str) -> str:
        return "nothing"

    loops = lambda asked: [said if asked.number > 6 else "I try.\n<execute>\nlookup()\n</execute>"]  # noqa: E731
    llm = Scripted(loops, calls_functions=False)
    ran = await go(guard_agent(CodeActAgent(execute, llm=llm), Watched(), on_stop="answer"))
    assert (llm.calls, ran.text[:11]) == (7, text)


async def test_code_that_polls_is_left_alone_where_the_policy_says_so() -> None:
    """No name tells what code does."""
    for policy, steered in (({}, True), ({"tools": {"execute": {"traits": ["polls"]}}}, False)):
        guard, ran = Watched(policy), []

        async def execute(code: str, ran: list[str] = ran) -> str:
            ran.append(code)
            return f"STDOUT: running, step {len(ran)}"

        code = "I look.\n<execute>\nprint(status())\n</execute>"
        llm = Scripted(lambda asked, code=code: [code if asked.number < 16 else "done"], calls_functions=False)
        await go(guard_agent(CodeActAgent(execute, llm=llm), guard))
        assert (len(ran), guard.reasons) == (15, ["complete"])
        assert any(action == "steer" for _, action in guard.actions) == steered


@pytest.mark.parametrize("kind", KINDS)
async def test_raise_raises_with_everything_in_memory(kind: str) -> None:
    guard, tool = Watched({"on_stop": {"how": "raise"}}), Counted()
    target = guard_agent(kinds(Scripted(deaf()), tool.tool)[kind], guard)
    ran = await go(target)
    assert isinstance(ran.error, LoopGuardStop)
    assert isinstance(ran.error, CoreStop)
    assert isinstance(ran.error, WorkflowRuntimeError)
    assert (ran.error.reason, ran.error.verdict.streak) == ("doom_loop", 6)
    assert (guard.reasons, guard.last_end.error) == (["doom_loop"], None)
    assert_well_formed(ran.history)


async def test_after_a_raise_the_context_can_be_used() -> None:
    guard = Watched()
    llm = Scripted(lambda asked: ["hello"] if asked.said == "hi" else [call()])
    agent = guard_agent(FunctionAgent(tools=[Counted().tool], llm=llm), guard, on_stop="raise")
    memory = ChatMemoryBuffer.from_defaults()
    first = await go(agent, ctx=Context(agent), memory=memory)
    assert isinstance(first.error, LoopGuardStop)
    second = await go(agent, "hi", ctx=first.handler.ctx, memory=memory)
    assert second.text == "hello"
    assert_well_formed(second.history)


async def test_a_limit_stops_before_the_model_call_that_would_exceed_it() -> None:
    guard = Watched({"limits": {"turns": 3}})
    llm, tool = Scripted(different(9)), Counted(lambda ran, key: f"result {ran}")
    ran = await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=llm), guard))
    assert (llm.calls, len(tool.ran), guard.reasons) == (3, 3, ["max_turns"])
    assert guard.last_end.verdict is None
    assert_well_formed(ran.history)
    streamed = [event.delta for event in ran.events if isinstance(event, AgentStream)]
    assert streamed[-1] == ran.text


async def test_a_hook_may_end_the_run() -> None:
    class Stops:
        @hookimpl
        def stop_when(self, session: Any) -> str | None:
            return "that will do" if session.turns == 2 else None

    guard = Watched(plugins=[Stops()])
    tool = Counted(lambda ran, key: f"result {ran}")
    ran = await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=Scripted(different(9))), guard))
    assert (len(tool.ran), guard.reasons) == (2, ["custom"])
    assert "that will do" in ran.text


async def test_async_hooks_are_waited_for() -> None:
    ends: list[str] = []

    class Slow:
        @hookimpl
        async def session_end(self, event: Any) -> None:
            await asyncio.sleep(0)
            ends.append(event.reason)

    guard = Watched(plugins=[Slow()])
    await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=Scripted(deaf())), guard))
    await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=Scripted(listening())), guard))
    assert ends == ["doom_loop", "complete"]


# -- other ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["force", "generate"])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_sdks_own_limit_ends_the_session_with_max_turns(kind: str, method: str) -> None:
    guard = Watched()
    tool, llm = Counted(lambda ran, key: f"result {ran}"), Scripted(lambda asked: [call(key=str(asked.number))])
    target = guard_agent(kinds(llm, tool.tool)[kind], guard)
    ran = await go(target, max_iterations=4, early_stopping_method=method)
    assert (ran.error is None) == (method == "generate")
    assert guard.reasons == ["max_turns"]
    assert guard.last_end.model_calls == (5 if method == "generate" else 4)


class Held:
    """A tool that waits until it is let go, or for ever."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    @property
    def tool(self) -> FunctionTool:
        async def lookup(key: str = "") -> str:
            """Look up."""
            self.started.set()
            await asyncio.Event().wait()
            return "never"

        return FunctionTool.from_defaults(async_fn=lookup)


async def test_a_cancelled_run_is_cancelled() -> None:
    guard, held = Watched(), Held()
    agent = guard_agent(FunctionAgent(tools=[held.tool], llm=Scripted(deaf())), guard)
    handler = agent.run("go")
    await held.started.wait()
    await handler.cancel_run()
    assert guard.reasons == ["cancelled"]
    with contextlib.suppress(Exception):
        await handler


async def test_a_run_that_is_cancelled_while_the_model_speaks_is_cancelled() -> None:
    guard, speaking = Watched(), asyncio.Event()
    llm = Scripted(lambda asked: [speaking.set() or "a " * 100_000])
    agent = guard_agent(FunctionAgent(tools=[], llm=llm), guard)
    handler = agent.run("go")
    await speaking.wait()
    await handler.cancel_run()
    assert (guard.reasons, guard.last_end.model_calls) == (["cancelled"], 0)
    assert llm.closed == 1
    assert llm.sent < 25_000
    with contextlib.suppress(Exception):
        await handler


async def test_a_timeout_is_an_error() -> None:
    guard, held = Watched(), Held()
    agent = guard_agent(FunctionAgent(tools=[held.tool], llm=Scripted(deaf()), timeout=0.05), guard)
    ran = await go(agent)
    assert type(ran.error).__name__ == "WorkflowTimeoutError"
    assert (guard.reasons, guard.last_end.error) == (["error"], "WorkflowTimeoutError")


async def test_an_error_is_an_error_and_comes_through_as_it_is() -> None:
    guard = Watched()
    agent = guard_agent(FunctionAgent(tools=[], llm=Scripted(lambda asked: KeyError("x"))), guard)
    ran = await go(agent)
    assert isinstance(ran.error, KeyError)
    assert (guard.reasons, guard.last_end.error) == (["error"], "KeyError")


# -- agents inside tools -----------------------------------------------------------------------------------------------


def nested(guard: Any, inner_script: Any, outer_script: Any, other: Any = None) -> tuple[Any, Counted, Scripted]:
    tool = Counted()
    inner = guard_agent(FunctionAgent(name="inner", tools=[tool.tool], llm=Scripted(inner_script)), other or guard)

    async def ask(key: str) -> str:
        """Ask the other agent."""
        return str(await inner.run(key, max_iterations=100))

    llm = Scripted(outer_script)
    ask_tool = FunctionTool.from_defaults(async_fn=ask)
    return guard_agent(FunctionAgent(name="outer", tools=[ask_tool], llm=llm), guard), tool, llm


@pytest.mark.parametrize("other", [False, True])
async def test_a_stop_inside_ends_the_run_outside(other: bool) -> None:
    guard = Watched()
    inner_guard = Watched() if other else guard
    agent, tool, llm = nested(guard, deaf(), lambda asked: [call("ask", key="x")], inner_guard)
    ran = await go(agent)
    assert (len(tool.ran), llm.calls) == (2, 1)
    ends = {end.agent: end for end in [*guard.ends, *inner_guard.ends]}
    assert {end.reason for end in ends.values()} == {"doom_loop"}
    assert ends["inner"].parent_id == ends["outer"].session_id
    assert OWN in ran.text
    assert_well_formed(ran.history)


async def test_an_agent_inside_a_sync_tool_is_nested_too() -> None:
    guard = Watched()
    inner = guard_agent(FunctionAgent(name="inner", tools=[Counted().tool], llm=Scripted(deaf())), guard)

    def ask(key: str) -> str:
        """Ask the other agent, from a thread with a loop of its own."""
        assert threading.current_thread() is not threading.main_thread()

        async def run() -> str:
            return str(await inner.run(key, max_iterations=100))

        return asyncio.run(run())

    llm = Scripted(lambda asked: [call("ask", key="x")])
    ran = await go(guard_agent(FunctionAgent(name="outer", tools=[ask], llm=llm), guard))
    assert llm.calls == 1
    assert [end.agent for end in guard.ends] == ["inner", "outer"]
    assert guard.ends[0].parent_id == guard.ends[1].session_id
    assert OWN in ran.text


async def test_healthy_nested_runs_count_outside() -> None:
    guard = Watched()
    script = lambda asked: [call("ask", key=f"q{asked.rounds}")] if asked.rounds < 3 else ["done"]  # noqa: E731
    agent, tool, _ = nested(guard, lambda asked: [call(key=asked.said)] if not asked.rounds else ["ok"], script)
    ran = await go(agent)
    assert (ran.text, len(tool.ran), guard.loops) == ("done", 3, [])
    assert guard.reasons == ["complete"] * 4
    assert guard.last_end.usage.total_tokens == 120 * (3 * 2 + 4)
    assert session_of(ran.handler).usage.total_tokens == 1200


async def test_what_starts_a_run_beside_a_tool_is_not_inside_it() -> None:
    guard = Watched()
    agent, _, _ = nested(guard, listening(), lambda asked: ["done"])
    await go(agent)
    assert guard.last_end.parent_id is None
