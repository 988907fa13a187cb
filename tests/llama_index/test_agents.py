"""Guarded agents of every kind, and what is left as it was."""

import asyncio
import copy
import json
from typing import Any, ClassVar

import pytest
from llama_index.core.agent.workflow import (
    AgentOutput,
    AgentWorkflow,
    FunctionAgent,
    ReActAgent,
    ToolCall,
    ToolCallResult,
)
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.tools import FunctionTool, ToolSelection
from llama_index.core.workflow import Context, StopEvent, Workflow, step
from llama_index.core.workflow.events import StartEvent
from loopguard_llama_index import (
    LoopDetectedEvent,
    LoopGuardMixin,
    guard,
    guard_agent,
    session_of,
    unguard,
)
from loopguard_llama_index_kit import (
    DEFAULT_ACTIONS,
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

from loopguard_core import LoopGuard, Policy, PolicyError


def billing(
    guard: Any, script: Any = None, tool: Counted | None = None, **options: Any
) -> tuple[Any, Scripted, Counted]:
    llm = Scripted(script or deaf())
    tool = tool or Counted("Error: 504 Gateway Timeout")
    agent = FunctionAgent(tools=[tool.tool], llm=llm, **options)
    return guard_agent(agent, guard), llm, tool


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_looping_tool_runs_twice_and_the_run_ends(streaming: bool) -> None:
    guard = Watched()
    agent, llm, tool = billing(guard, streaming=streaming)
    ran = await go(agent)
    assert ran.error is None
    assert len(tool.ran) == 2
    assert llm.calls == 6
    assert guard.actions == DEFAULT_ACTIONS == ran.loops
    assert guard.reasons == ["doom_loop"]
    assert OWN in ran.text
    assert_well_formed(ran.history)


async def test_the_next_turn_works_on_the_same_context_and_memory() -> None:
    guard = Watched()
    deaf_until_thanked = lambda asked: ["you are welcome"] if asked.said == "thanks" else [call()]  # noqa: E731
    agent, _, tool = billing(guard, deaf_until_thanked)
    ctx, memory = Context(agent), ChatMemoryBuffer.from_defaults()
    first = await go(agent, ctx=ctx, memory=memory)
    second = await go(agent, "thanks", ctx=first.handler.ctx, memory=memory)
    assert (len(tool.ran), second.text) == (2, "you are welcome")
    assert guard.reasons == ["doom_loop", "complete"]
    assert_well_formed(second.history)


async def test_the_next_turn_starts_afresh() -> None:
    guard = Watched()
    agent, _, tool = billing(guard, lambda asked: [call()] if asked.rounds < 2 else ["done"])
    memory = ChatMemoryBuffer.from_defaults()
    for _ in range(4):
        assert (await go(agent, memory=memory)).text == "done"
    assert len(tool.ran) == 8
    assert set(guard.actions) == {(2, "observe")}


async def test_with_the_newer_memory_class_too() -> None:
    agent, _, tool = billing(Watched())
    ran = await go(agent, memory=Memory.from_defaults(session_id="s", token_limit=100_000))
    assert_well_formed(await ran.memory.aget_all())
    assert len(tool.ran) == 2


async def test_healthy_work_is_left_alone() -> None:
    guard = Watched()
    agent, llm, tool = billing(guard, different(20), Counted(lambda ran, key: f"result {key}"))
    ran = await go(agent)
    assert (ran.text, len(tool.ran), guard.loops, guard.reasons) == ("done", 20, [], ["complete"])
    assert not any(OWN in str(asked.messages) for asked in llm.asked)


async def test_each_verdict_is_in_the_stream_with_where_it_belongs() -> None:
    guard = Watched()
    agent, _, _ = billing(guard, name="biller")
    ran = await go(agent)
    events = [event for event in ran.events if isinstance(event, LoopDetectedEvent)]
    assert {event.agent_name for event in events} == {"biller"}
    assert {event.run_id for event in events} == {ran.handler.run_id} == {guard.last_end.framework_run_id}
    assert {event.session_id for event in events} == {guard.last_end.session_id}
    assert {event.tool_name for event in events} == {"lookup"}
    assert "K-1" not in json.dumps([event.model_dump() for event in events])


async def test_the_stream_tells_of_refused_calls_as_of_any_other() -> None:
    agent, _, _ = billing(Watched())
    ran = await go(agent)
    asked = [event for event in ran.events if isinstance(event, ToolCall)]
    answers = [event for event in ran.events if isinstance(event, ToolCallResult)]
    assert len(asked) == 5, "the round that ended the run started no call"
    assert [answer.tool_output.is_error for answer in answers] == [False, False, True, True, True, True]
    outputs = [event for event in ran.events if isinstance(event, AgentOutput)]
    assert str(outputs[-1]) == ran.text
    assert [type(event) for event in ran.events].count(StopEvent) == 1


async def test_the_final_output_lists_the_runs_calls_as_the_sdk_does() -> None:
    agent, _, _ = billing(Watched())
    results = (await go(agent)).output.tool_calls
    assert len(results) == 6
    assert not any(isinstance(result, ToolSelection) for result in results)


async def test_session_of_tells_of_the_run() -> None:
    agent, _, _ = billing(Watched())
    ran = await go(agent)
    session = session_of(ran.handler)
    assert session.verdict.detector == "repeated_call"
    assert session.ended.reason == "doom_loop"
    unguard(agent)
    plain = await go(agent, max_iterations=2)
    assert session_of(plain.handler) is None


# -- attaching ---------------------------------------------------------------------------------------------------------


async def test_guard_agent_returns_the_object_and_takes_every_form_of_a_guard(tmp_path: Any) -> None:
    path = tmp_path / "strict.toml"
    path.write_text('preset = "observe"\n', encoding="utf-8")
    for given in (LoopGuard(), Policy(), "default", str(path), None):
        agent = FunctionAgent(tools=[], llm=Scripted(deaf()))
        assert guard(agent, given) is agent
    with pytest.raises(PolicyError):
        guard_agent(FunctionAgent(tools=[], llm=Scripted(deaf())), "no-such-preset")


@pytest.mark.parametrize("given", [7, "gpt-5"])
def test_a_stronger_model_that_is_none_is_said_at_once(given: Any) -> None:
    with pytest.raises(TypeError, match=r"escalate_llm must be an LLM.*escalation\.models\.llama_index"):
        guard_agent(FunctionAgent(tools=[Counted().tool], llm=Scripted(deaf())), Watched(), given)


def test_what_is_no_agent_is_refused_with_the_way_out() -> None:
    class Own(Workflow):
        @step
        async def only(self, ev: StartEvent) -> StopEvent:
            return StopEvent()

    with pytest.raises(TypeError, match="guard_tool"):
        guard_agent(Own(), LoopGuard())
    with pytest.raises(ValueError, match="on_stop"):
        guard_agent(FunctionAgent(tools=[], llm=Scripted(deaf())), LoopGuard(), on_stop="sometimes")


async def test_guarding_again_replaces_the_guard() -> None:
    first, second = Watched(), Watched()
    agent, _, tool = billing(first)
    guard_agent(agent, second)
    await go(agent)
    assert (first.ends, second.reasons, len(tool.ran)) == ([], ["doom_loop"], 2)


async def test_unguard_leaves_the_agent_as_it_was() -> None:
    before = FunctionAgent(tools=[], llm=Scripted(deaf()))
    names = set(vars(before))
    agent, _, tool = billing(Watched())
    assert unguard(agent) is agent
    assert set(vars(agent)) == names
    ran = await go(agent, max_iterations=9)
    assert "Max iterations" in str(ran.error)
    assert len(tool.ran) == 8
    assert unguard(agent) is agent


async def test_a_guard_that_is_switched_off_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    guard = Watched()
    agent, _, tool = billing(guard, lambda asked: [call()] if asked.rounds < 9 else ["done"])
    ran = await go(agent)
    assert (ran.text, len(tool.ran), guard.ends, ran.loops) == ("done", 9, [], [])


async def test_a_copy_is_guarded_as_itself() -> None:
    guard = Watched()
    agent, llm, _ = billing(guard)
    other = Scripted(listening("from the copy"))
    shallow = agent.model_copy(update={"llm": other})
    assert (await go(shallow)).text == "from the copy"
    assert llm.calls == 0
    assert guard.reasons == ["complete"]
    deep = copy.deepcopy(agent)
    assert OWN in (await go(deep)).text
    assert guard.reasons == ["complete", "doom_loop"]
    assert (deep.llm.calls, llm.calls) == (6, 0)


async def test_a_users_own_class_and_steps_stay_in_use() -> None:
    seen: list[str] = []

    class Mine(FunctionAgent):
        async def take_step(self, ctx: Any, llm_input: Any, tools: Any, memory: Any) -> Any:
            seen.append("take_step")
            return await super().take_step(ctx, llm_input, tools, memory)

        @step
        async def call_tool(self, ctx: Context, ev: ToolCall) -> ToolCallResult:
            seen.append("call_tool")
            return await super().call_tool(ctx, ev)

        async def finalize(self, ctx: Any, output: Any, memory: Any) -> Any:
            seen.append("finalize")
            return await super().finalize(ctx, output, memory)

    tool = Counted()
    ran = await go(guard_agent(Mine(tools=[tool.tool], llm=Scripted(deaf())), Watched()))
    assert OWN in ran.text
    assert (seen.count("take_step"), seen.count("call_tool"), seen.count("finalize")) == (6, 2, 1)


async def test_the_mixin_guards_every_agent_of_a_class() -> None:
    guard = Watched()

    class Mine(LoopGuardMixin, FunctionAgent):
        loopguard: ClassVar[Any] = guard

    class MyWorkflow(LoopGuardMixin, AgentWorkflow):
        pass

    tool = Counted()
    await go(Mine(tools=[tool.tool], llm=Scripted(deaf())))
    assert (len(tool.ran), guard.reasons) == (2, ["doom_loop"])
    own = Watched()
    inner = FunctionAgent(tools=[tool.tool], llm=Scripted(deaf()))
    ran = await go(MyWorkflow(agents=[inner], guard=own, on_stop="answer"))
    assert (ran.text, own.reasons, guard.reasons) == ("enough", ["doom_loop"], ["doom_loop"])


# -- kinds of tools and rounds -----------------------------------------------------------------------------------------


async def test_tools_that_take_the_context_or_come_from_a_retriever_work() -> None:
    seen = []

    async def with_context(ctx: Context, key: str) -> str:
        """Look up."""
        seen.append(await ctx.store.get("num_iterations"))
        return "nothing"

    tool = FunctionTool.from_defaults(async_fn=with_context, name="lookup")

    class Retriever:
        async def aretrieve(self, query: str) -> list[Any]:
            return [tool]

    for options in ({"tools": [tool]}, {"tool_retriever": None}):
        llm = Scripted(deaf())
        agent = FunctionAgent(llm=llm, **options)
        if "tool_retriever" in options:
            object.__setattr__(agent, "tool_retriever", Retriever())
        seen.clear()
        ran = await go(guard_agent(agent, Watched()))
        assert len(seen) == 2
        assert OWN in ran.text


async def test_a_tool_that_raises_is_recorded_as_a_failure() -> None:
    guard = Watched()
    # A failure and a success with the same text are different outcomes.
    tool = Counted(lambda ran, key: "no invoice" if ran == 1 else RuntimeError("no invoice"))
    agent, _, _ = billing(guard, listening(), tool)
    ran = await go(agent)
    assert (len(tool.ran), guard.actions) == (4, [(2, "observe"), (2, "observe"), (3, "block")])
    assert ran.text == "I could not find it."


async def test_a_direct_answer_ends_the_run_and_a_refused_one_does_not() -> None:
    guard = Watched()
    tool = Counted("the answer", options={"return_direct": True})
    agent, _, _ = billing(guard, deaf(), tool)
    assert (await go(agent)).text == "the answer"
    assert guard.reasons == ["complete"]
    blocked = Watched({"ladder": {"observe": False, "block": 1, "stop": False}})
    agent, _, _ = billing(blocked, listening("without it"), Counted("x", options={"return_direct": True}))
    assert (await go(agent)).text == "without it"


async def test_identical_calls_of_a_round_count_once_also_under_one_id() -> None:
    guard = Watched()
    same = [call(call_id="c"), call(call_id="c"), call(call_id="c", key="K-2")]
    agent, _, tool = billing(guard, lambda asked: same if asked.tools else ["enough"])
    ran = await go(agent)
    assert len(tool.ran) == 6, "two rounds of three"
    assert guard.actions[0] == (2, "observe")
    assert guard.reasons == ["doom_loop"]
    assert ran.error is None


async def test_excess_calls_of_a_round_are_refused_in_order() -> None:
    guard = Watched({"limits": {"tool_calls": 2}})
    agent, llm, tool = billing(guard, lambda asked: [call(key=str(n)) for n in range(5)])
    ran = await go(agent)
    assert sorted(tool.ran) == ["0", "1"]
    assert (llm.calls, guard.reasons) == (1, ["max_tool_calls"])
    assert_well_formed(ran.history)


async def test_missing_usage_is_unknown() -> None:
    guard = Watched()
    llm = Scripted(listening(), usage=None)
    await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=llm), guard))
    assert guard.last_end.usage.total_tokens is None
    assert {event.usage.input_tokens for event in guard.model_calls} == {None}


async def test_usage_and_the_models_name_are_reported() -> None:
    guard = Watched()
    agent, _, _ = billing(guard, listening())
    await go(agent)
    assert [event.model for event in guard.model_calls] == ["scripted-1"] * 4
    assert guard.last_end.usage.total_tokens == 480
    assert guard.last_end.adapter == "llama_index"


# -- workflows ---------------------------------------------------------------------------------------------------------


def ping_pong(guard: Any) -> tuple[Any, list[Scripted]]:
    def to(agent: str) -> Any:
        return lambda asked: [call("handoff", to_agent=agent, reason="yours")] if asked.tools else ["enough"]

    llms = [Scripted(to("b")), Scripted(to("a"))]
    agents = [
        FunctionAgent(name=name, description=name, tools=[], llm=llm)
        for name, llm in zip(("a", "b"), llms, strict=True)
    ]
    return guard_agent(AgentWorkflow(agents=agents, root_agent="a"), guard), llms


async def test_handing_over_is_steered_and_never_refused() -> None:
    guard = Watched({"detectors": {"repeated_call": {"ladder": {"steer": 2, "block": 2, "stop": 4}}}})

    def script(asked: Any) -> Any:
        return [call("handoff", to_agent="b", reason="yours")]

    llm = Scripted(script)
    a = FunctionAgent(name="a", description="a", tools=[], llm=llm)
    b = FunctionAgent(
        name="b", description="b", tools=[], llm=Scripted(lambda asked: [call("handoff", to_agent="a", reason="no")])
    )
    ran = await go(guard_agent(AgentWorkflow(agents=[a, b], root_agent="a"), guard), max_iterations=60)
    answers = [event for event in ran.events if isinstance(event, ToolCallResult) and event.tool_name == "handoff"]
    refused = [answer for answer in answers if answer.tool_output.is_error]
    assert ran.error is None or "Max iterations" in str(ran.error)
    assert "block" not in {event.action.value for event in guard.loops}
    assert len(refused) <= 1, "only where the whole run was ended"


async def test_a_workflow_of_agents_is_guarded_whole() -> None:
    guard = Watched()
    tool = Counted()
    worker = FunctionAgent(name="worker", description="w", tools=[tool.tool], llm=Scripted(deaf()))
    hand = Scripted(lambda asked: [call("handoff", to_agent="worker", reason="work")])
    first = FunctionAgent(name="first", description="f", tools=[], llm=hand)
    workflow = guard_agent(AgentWorkflow(agents=[first, worker], root_agent="first"), guard)
    ran = await go(workflow)
    assert (len(tool.ran), guard.reasons, guard.last_end.turns) == (2, ["doom_loop"], 7)
    assert OWN in ran.text
    assert_well_formed(ran.history)
    assert ran.output.current_agent_name == "worker"


async def test_an_agent_that_joins_the_workflow_later_is_guarded_too() -> None:
    guard = Watched({"ladder": {"steer": 2, "block": False, "stop": 9}})
    llm = Scripted(lambda asked: ["told"] if asked.told else [call()])
    workflow = guard_agent(AgentWorkflow(agents=[FunctionAgent(tools=[Counted().tool], llm=Scripted(deaf()))]), guard)
    workflow.agents["Agent"] = FunctionAgent(tools=[Counted().tool], llm=llm)
    assert (await go(workflow)).text == "told"


async def test_react_puts_the_whole_story_into_memory() -> None:
    guard = Watched()
    tool = Counted()
    text = 'Thought: t\nAction: lookup\nAction Input: {"key": "K-1"}'
    agent = ReActAgent(tools=[tool.tool], llm=Scripted(lambda asked: [text], calls_functions=False))
    ran = await go(guard_agent(agent, guard))
    assert (len(tool.ran), guard.reasons) == (2, ["doom_loop"])
    assert OWN in ran.text
    last = ran.history[-1]
    assert last.role.value == "assistant"
    assert last.content.count("Observation:") == 6
    assert ran.text in last.content


async def test_react_failures_to_parse_count_as_model_calls() -> None:
    guard = Watched({"preset": "openrouter", "limits": {"tokens": 500}})  # no detector of texts
    agent = ReActAgent(
        tools=[Counted().tool], llm=Scripted(lambda asked: ["Thought: hm\nAction: "], calls_functions=False)
    )
    ran = await go(guard_agent(agent, guard))
    assert guard.last_end.model_calls == 5
    assert guard.reasons == ["max_tokens"]
    assert OWN in ran.text
    assert ran.history[-1].role.value == "assistant"


# -- many at once ------------------------------------------------------------------------------------------------------


async def test_fifty_runs_at_once_on_one_guard_and_one_agent() -> None:
    guard = Watched()
    script = lambda asked: [call()] if "loop" in asked.said else (["fine"] if asked.rounds else [call(key=asked.said)])  # noqa: E731
    agent, _, tool = billing(guard, script)
    rans = await asyncio.gather(*(go(agent, f"loop {n}" if n % 2 else f"work {n}") for n in range(50)))
    assert sorted(guard.reasons) == ["complete"] * 25 + ["doom_loop"] * 25
    assert tool.ran.count("K-1") == 50
    assert len(tool.ran) == 75
    for number, ran in enumerate(rans):
        assert (OWN in ran.text) == bool(number % 2)
        assert ran.loops == (DEFAULT_ACTIONS if number % 2 else [])
        assert_well_formed(ran.history)


async def test_nothing_is_left_behind() -> None:
    from loopguard_llama_index import _registry

    before = set(_registry._runs)  # a test that breaks the registry leaves its own
    agent, _, _ = billing(Watched())
    await go(agent)
    await go(agent, max_iterations=3)
    assert set(_registry._runs) == before
