"""What this adapter takes for granted in the SDK and no documentation promises: one test each, so that a release that
changes it fails by name. Nothing of ours runs here but the list of the SDK's own failure texts.
"""

import asyncio
import gc
import weakref
from contextvars import ContextVar

import pytest
from agents import (
    Agent,
    AgentHookContext,
    AgentsException,
    FunctionTool,
    Handoff,
    InputGuardrail,
    RunConfig,
    RunHooks,
    Runner,
    RunResult,
    RunState,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    function_tool,
    handoff,
    trace,
)
from agents.items import ToolApprovalItem
from agents.models._run_context import get_model_run_owner
from agents.tool_context import ToolContext
from agents.tracing.traces import NoOpTrace
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents import _words as words
from loopguard_openai_agents_kit import (
    Counted,
    Models,
    Scripted,
    acaught,
    assert_well_formed,
    call,
    drain,
    outputs,
    say,
    sequence,
)

both_ways = pytest.mark.parametrize("way", ["run", "run_streamed"])


class Probe(RunHooks):
    """Keeps the objects it is passed; refuses where it is told to."""

    def __init__(self, refuse_from=None, stop_at=None):
        self.events, self.refuse_from, self.stop_at, self.started = [], refuse_from, stop_at, 0

    def of(self, name):
        return [values for event, *values in self.events if event == name]

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        self.started += 1
        self.events.append(("llm_start", context, agent, input_items))
        if self.started == self.stop_at:
            raise AgentsException("stop")

    async def on_llm_end(self, context, agent, response):
        self.events.append(("llm_end", context, agent, response))
        if self.refuse_from is not None and self.started >= self.refuse_from:
            for item in response.output:
                if item.type == "function_call":
                    approval = ToolApprovalItem(agent=agent, raw_item=item, tool_name=item.name)
                    context.reject_tool(approval, rejection_message="refused")

    async def on_tool_start(self, context, agent, tool):
        self.events.append(("tool_start", context, agent, tool))

    async def on_tool_end(self, context, agent, tool, result):
        self.events.append(("tool_end", context, agent, tool, result))

    async def on_agent_end(self, context, agent, output):
        self.events.append(("agent_end", context, agent, output))


class Identities(Scripted):
    """Keeps the very lists it is sent, and the SDK's mark of the run it is called in."""

    def __init__(self, script, **options):
        super().__init__(script, **options)
        self.lists, self.owners, self.ended, self.variable = [], [], [], []

    def _answer(self, items, settings, tools, rest):
        self.lists.append(items)
        self.owners.append(get_model_run_owner())
        self.variable.append(VARIABLE.get())
        return super()._answer(items, settings, tools, rest)

    async def _cleanup_on_run_end(self, owner):
        self.ended.append(owner)


VARIABLE = ContextVar("canary", default=None)


async def once(way, agent, **options):
    if way == "run":
        return await acaught(Runner.run(agent, "Where is it?", **options))
    return await drain(Runner.run_streamed(agent, "Where is it?", **options))


def looping(rounds=2, model=Scripted, **options):
    return model(
        lambda asked: [call(), call("lookup", {"key": "K-2"})] if asked.number <= rounds else [say("done")], **options
    )


@both_ways
@pytest.mark.parametrize("filtered", [True, False])
def test_the_list_hooks_see_is_the_list_the_model_gets(way, filtered):
    config = RunConfig(call_model_input_filter=lambda data: data.model_data) if filtered else None
    probe, model = Probe(), looping(model=Identities)
    asyncio.run(once(way, Agent(name="A", model=model, tools=[Counted().tool]), hooks=probe, run_config=config))
    seen = [items for _, _, items in probe.of("llm_start")]
    assert len(seen) == 3
    assert all(ours is theirs for ours, theirs in zip(seen, model.lists, strict=True))


@both_ways
def test_on_llm_end_comes_before_any_tool_of_the_round(way):
    probe = Probe()
    asyncio.run(once(way, Agent(name="A", model=looping(1), tools=[Counted().tool]), hooks=probe))
    names = [name for name, *_ in probe.events]
    assert names[:2] == ["llm_start", "llm_end"]
    assert sorted(names[2:6]) == ["tool_end", "tool_end", "tool_start", "tool_start"]


@both_ways
def test_a_call_rejected_in_on_llm_end_does_not_run_and_is_answered(way):
    lookup, probe = Counted(), Probe(refuse_from=2)
    ran = asyncio.run(once(way, Agent(name="A", model=looping(3), tools=[lookup.tool]), hooks=probe))
    assert len(lookup.ran) == 2
    assert outputs(ran.history) == ["nothing"] * 2 + ["refused"] * 4
    assert_well_formed(ran.history)


@both_ways
def test_one_context_object_stands_for_a_run(way):
    probe = Probe()
    ran = asyncio.run(once(way, Agent(name="A", model=looping(), tools=[Counted().tool]), hooks=probe))
    contexts = [values[0] for values in [*probe.of("llm_start"), *probe.of("llm_end")]]
    assert all(context is ran.result.context_wrapper for context in contexts)
    weakref.WeakKeyDictionary()[ran.result.context_wrapper] = 1


@both_ways
def test_a_context_dies_with_its_run(way):
    probe = Probe()
    ran = asyncio.run(once(way, Agent(name="A", model=looping(), tools=[Counted().tool]), hooks=probe))
    alive = weakref.ref(ran.result.context_wrapper)
    del ran
    probe.events.clear()
    gc.collect()
    assert alive() is None


@both_ways
def test_one_usage_object_is_shared_by_a_whole_tree_of_runs(way):
    probe, inner_probe = Probe(), Probe()
    inner = Agent(name="Inner", model=looping(1), tools=[Counted().tool])
    tool = inner.as_tool("research", "research", hooks=inner_probe)
    outer = Agent(name="Outer", model=Scripted(sequence([call("research", {"input": "x"})])), tools=[tool])
    ran = asyncio.run(once(way, outer, hooks=probe))
    usage = ran.result.context_wrapper.usage
    everywhere = [values[0].usage for _, *values in [*probe.events, *inner_probe.events]]
    assert len(everywhere) > 10
    assert all(found is usage for found in everywhere)
    weakref.ref(usage)


@both_ways
def test_the_context_of_a_run_inside_a_tool_names_the_call(way):
    inner_probe = Probe()
    inner = Agent(name="Inner", model=looping(1), tools=[Counted().tool])
    asked = call("research", {"input": "x"})
    tool = inner.as_tool("research", "research", hooks=inner_probe)
    outer = Agent(name="Outer", model=Scripted(sequence([asked])), tools=[tool])
    asyncio.run(once(way, outer))
    [first, *_] = inner_probe.of("llm_start")
    assert isinstance(first[0], ToolContext)
    assert first[0].tool_call_id == asked.call_id


@both_ways
def test_a_tool_guardrail_gets_the_very_item_of_the_response(way):
    seen = []

    def look(data):
        seen.append(data.context.tool_call)
        return ToolGuardrailFunctionOutput.allow()

    lookup = Counted(options={"tool_input_guardrails": [ToolInputGuardrail(guardrail_function=look)]})
    item = call()
    asyncio.run(once(way, Agent(name="A", model=Scripted(sequence([item])), tools=[lookup.tool])))
    assert len(seen) == 1
    assert seen[0] is item


@both_ways
def test_model_calls_carry_a_mark_of_their_run_and_its_end_is_told(way):
    model = looping(model=Identities)
    agent = Agent(name="A", model=model, tools=[Counted().tool])

    async def main():
        await once(way, agent)
        await once(way, agent)

    asyncio.run(main())
    assert None not in model.owners
    assert len({id(owner) for owner in model.owners[:3]}) == 1
    assert model.owners[0] is not model.owners[-1]
    assert model.ended == [model.owners[0], model.owners[-1]]
    weakref.WeakKeyDictionary()[model.owners[0]] = 1


@both_ways
def test_an_agent_inside_a_tool_takes_its_model_from_the_outer_runs_provider(way):
    provider = Models(inner=looping(1), outer=Scripted(sequence([call("research", {"input": "x"})])))
    inner = Agent(name="Inner", model="inner", tools=[Counted().tool])
    outer = Agent(name="Outer", model="outer", tools=[inner.as_tool("research", "research")])
    ran = asyncio.run(once(way, outer, run_config=RunConfig(model_provider=provider)))
    assert ran.output == "done"
    assert provider.models["inner"].calls == 2


@both_ways
def test_a_variable_set_around_a_run_is_seen_by_its_tools_and_models(way):
    seen = []

    def body(key: str = "") -> str:
        seen.append(VARIABLE.get())
        return "nothing"

    model = looping(1, model=Identities)
    agent = Agent(name="A", model=model, tools=[function_tool(body, name_override="lookup")])

    async def main():
        VARIABLE.set("outer")
        await once(way, agent)

    asyncio.run(main())
    assert set(seen) | set(model.variable) == {"outer"}


@both_ways
def test_raising_before_a_model_call_keeps_history_and_memory_whole(way):
    session, lookup = SQLiteSession("s"), Counted()

    async def main():
        agent = Agent(name="A", model=looping(9), tools=[lookup.tool])
        return await once(way, agent, hooks=Probe(stop_at=3), session=session), await session.get_items()

    ran, stored = asyncio.run(main())
    data = ran.error.run_data
    assert [item.type for item in data.new_items].count("tool_call_output_item") == 4
    assert len(data.raw_responses) == 2
    assert_well_formed(stored)
    assert len(outputs(stored)) == 4
    assert data.context_wrapper.usage.requests == 2


def test_what_is_added_to_the_list_reaches_the_model_and_is_kept_nowhere():
    class Adds(RunHooks):
        async def on_llm_start(self, context, agent, system_prompt, input_items):
            input_items.append({"role": "user", "content": "psst"})

    session = SQLiteSession("s")
    model = looping(1)

    async def main():
        agent = Agent(name="A", model=model, tools=[Counted().tool])
        return await once("run", agent, hooks=Adds(), session=session), await session.get_items()

    ran, stored = asyncio.run(main())
    assert [asked.input[-1]["content"] for asked in model.asked] == ["psst", "psst"]
    assert [str(asked.input).count("psst") for asked in model.asked] == [1, 1]
    assert "psst" not in str(stored) + str(ran.history)


def test_a_stream_has_a_task_whose_end_is_the_runs_end():
    async def main():
        result = Runner.run_streamed(Agent(name="A", model=looping(), tools=[Counted().tool]), "x")
        await asyncio.wait({result.run_loop_task})
        return result

    result = asyncio.run(main())
    assert result.final_output == "done"
    assert result.run_loop_task.exception() is None


def test_results_let_themselves_be_added_to():
    async def main():
        agent = Agent(name="A", model=looping(), tools=[Counted().tool])
        streamed = Runner.run_streamed(agent, "x")
        streamed.stream_events, streamed.to_state = streamed.stream_events, streamed.to_state
        ran = await drain(streamed)
        streamed.new_items, streamed.final_output = [*streamed.new_items], "other"
        return agent, ran.result

    agent, result = asyncio.run(main())
    assert result.final_output == "other"
    built = RunResult(
        input="x",
        new_items=[*result.new_items, words.message_item(agent, "closed")],
        raw_responses=result.raw_responses,
        final_output="closed",
        input_guardrail_results=[],
        output_guardrail_results=[],
        tool_input_guardrail_results=[],
        tool_output_guardrail_results=[],
        context_wrapper=result.context_wrapper,
        _last_agent=agent,
    )
    assert built.last_agent is agent
    assert built.to_input_list()[-1]["content"][0]["text"] == "closed"
    assert AgentHookContext(context=None, usage=result.context_wrapper.usage).usage is result.context_wrapper.usage


def test_a_streamed_run_past_its_turn_limit_shows_it():
    async def main():
        agent = Agent(name="A", model=looping(9), tools=[Counted().tool])
        result = Runner.run_streamed(agent, "x", max_turns=2)
        await asyncio.wait({result.run_loop_task})
        return result

    result = asyncio.run(main())
    assert result.run_loop_task.exception() is None
    assert (result.current_turn, result.max_turns) == (3, 2)


def test_a_streams_broken_guardrail_is_in_a_task_of_its_own():
    def broken(context, agent, given):
        raise ZeroDivisionError

    async def main():
        agent = Agent(name="A", model=looping(), tools=[Counted().tool])
        agent.input_guardrails = [InputGuardrail(guardrail_function=broken)]
        ran = await drain(Runner.run_streamed(agent, "x"))
        return ran.error, ran.result._input_guardrails_task.exception()

    raised, kept = asyncio.run(main())
    assert isinstance(raised, ZeroDivisionError)
    assert raised is kept


@both_ways
def test_a_tools_context_holds_the_very_item_of_the_response(way):
    probe, item = Probe(), call()
    asyncio.run(once(way, Agent(name="A", model=Scripted(sequence([item])), tools=[Counted().tool]), hooks=probe))
    [[started, _, _]], [[ended, _, _, _]] = probe.of("tool_start"), probe.of("tool_end")
    assert started.tool_call is item
    assert ended.tool_call is item
    [[_, _, response], _] = probe.of("llm_end")
    assert response.output[0] is item


def test_a_state_keeps_the_ids_of_the_calls_that_wait():
    lookup = Counted(options={"needs_approval": True})
    asked = call()

    async def main():
        agent = Agent(name="A", model=Scripted(sequence([asked])), tools=[lookup.tool])
        ran = await once("run", agent)
        state = ran.result.to_state()
        read = await RunState.from_string(agent, state.to_string())
        return [[item.raw_item.call_id for item in found.get_interruptions()] for found in (state, read)]

    assert asyncio.run(main()) == [[asked.call_id], [asked.call_id]]


@pytest.mark.parametrize("kind", ["failure", "arguments", "unknown", "refused", "slow"])
def test_the_sdks_own_words_for_a_failure(kind):
    async def slow(context, arguments):
        await asyncio.Event().wait()

    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = {
        "failure": Counted(ValueError("x")).tool,
        "arguments": Counted().tool,
        "unknown": Counted(name="other").tool,
        "refused": Counted(options={"needs_approval": True}).tool,
        "slow": FunctionTool("lookup", "d", schema, slow, timeout_seconds=0.001),
    }
    asked = call("lookup", '{"key": ' if kind == "arguments" else "{}" if kind == "slow" else None)

    async def main():
        agent = Agent(name="A", model=Scripted(sequence([asked])), tools=[tools[kind]])
        config = RunConfig(tool_not_found_behavior="return_error_to_model")
        ran = await once("run", agent, run_config=config)
        if kind == "refused":
            state = ran.result.to_state()
            state.reject(state.get_interruptions()[0])
            ran = await acaught(Runner.run(agent, state, run_config=config))
        return ran

    [text] = outputs(asyncio.run(main()).history)
    assert translate.failed(text) is True


def test_a_tool_error_formatter_is_told_the_error_where_the_text_hides_it():
    seen = []
    agent = Agent(name="A", model=Scripted(sequence([call()])), tools=[Counted(ValueError("disk 7")).tool])
    config = RunConfig(tool_error_formatter=lambda args: seen.append(getattr(args, "error", None)))
    ran = asyncio.run(once("run", agent, run_config=config))
    [text] = outputs(ran.history)
    assert "disk 7" in text or "disk 7" in str(seen[0])


def test_a_handoff_made_by_hand_knows_its_agent():
    other = Agent(name="B")
    assert handoff(other)._agent_ref() is other


def test_the_name_of_a_handoff_call():
    assert Handoff.default_tool_name(Agent(name="Billing Agent")) == "transfer_to_billing_agent"


def test_no_trace_of_a_test_leaves_this_process():
    """The environment says so, for the whole suite; nothing is switched off in the SDK for good."""
    with trace("a run") as opened:
        assert isinstance(opened, NoOpTrace)
