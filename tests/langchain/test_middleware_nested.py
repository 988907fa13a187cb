"""Agents inside the tools of agents, all under one guard."""

import asyncio
from decimal import Decimal

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from loopguard_langchain import LoopGuardMiddleware
from loopguard_langchain import LoopGuardStop as LangChainStop
from loopguard_langchain_models import (
    BOTH,
    OWN,
    Counted,
    Say,
    ScriptedModel,
    ask,
    assert_complete,
    assert_healthy,
    assert_stopped,
    both_ways,
    call,
    deaf,
    different,
    four_ways,
    guarded,
    rounds,
    run,
    sequence,
    thread,
    watched,
)

from loopguard_core import LoopGuardStop, current_session


def delegate(agent, name="delegate"):
    """A tool that asks another agent; it is run the way the outer agent is."""

    def body(key: str = "") -> str:
        return str(agent.invoke(ask(key))["messages"][-1].text)

    async def coroutine(key: str = "") -> str:
        return str((await agent.ainvoke(ask(key)))["messages"][-1].text)

    return StructuredTool.from_function(body, coroutine, name=name, description="Ask somebody else.")


def nested(seen, inner_script, outer_script, *, inner_tools=None, inner=None, **outer):
    """An agent with an agent in its one tool. Returns both models and the outer agent."""
    inner_model, outer_model = ScriptedModel(script=inner_script), ScriptedModel(script=outer_script)
    inside = guarded(
        inner_model, [Counted()] if inner_tools is None else inner_tools, seen, name="inner", **(inner or {})
    )
    return inner_model, outer_model, guarded(outer_model, [delegate(inside)], seen, name="outer", **outer)


def by_agent(seen):
    return {event.agent: event for event in seen.ends}


ASK_ONCE = rounds(1, call("delegate", key="find it"))


@four_ways
def test_a_healthy_agent_in_a_healthy_agent_completes(way):
    seen = watched()
    inner_model, outer_model, agent = nested(seen, different(3, then="found"), different(2, name="delegate"))
    result = run(agent, ask(), way)

    assert_healthy(result)
    assert (outer_model.calls, inner_model.calls) == (3, 8)
    assert [event.agent for event in seen.ends] == ["inner", "inner", "outer"]
    assert seen.reasons == ["complete"] * 3
    assert seen.live == 0


@both_ways
def test_an_inner_run_names_the_run_it_is_nested_in(way):
    seen = watched()
    _, _, agent = nested(seen, different(1), ASK_ONCE)
    run(agent, ask(), way)

    inner, outer = seen.ends
    assert outer.parent_id is None
    assert inner.parent_id == outer.session_id != inner.session_id
    assert {event.parent_id for event in seen.model_calls if event.agent == "inner"} == {outer.session_id}


@four_ways
def test_a_loop_inside_ends_the_outer_run_too(way):
    seen = watched()
    inner_model, outer_model, agent = nested(seen, deaf(), deaf(call("delegate", key="find it")))
    result = run(agent, ask(), way)

    stop = assert_stopped(result)
    assert (inner_model.calls, outer_model.calls) == (6, 1)
    assert stop["verdict"]["tool"] == "lookup"
    assert "nested" in stop["message"]
    assert [(event.agent, event.reason) for event in seen.ends] == [("inner", "doom_loop"), ("outer", "doom_loop")]
    assert len(seen.loops) == 5
    assert seen.live == 0


@both_ways
def test_a_thread_whose_inner_run_looped_can_be_gone_on_with(way):
    seen = watched()

    def outer_script(messages, _number):
        return Say("", (call("delegate", key="find it"),)) if len(messages) == 1 else Say("done")

    _, _, agent = nested(seen, deaf(), outer_script, checkpointer=InMemorySaver())
    assert_stopped(run(agent, ask(), way, thread()))
    assert_healthy(run(agent, ask("Never mind."), way, thread()))
    assert seen.reasons == ["doom_loop", "doom_loop", "complete"]


@both_ways
def test_an_outer_loop_over_healthy_inner_runs_is_ended(way):
    seen = watched()
    inner_model, outer_model, agent = nested(
        seen, different(1, then="the same answer"), deaf(call("delegate", key="find it"))
    )
    assert_stopped(run(agent, ask(), way))

    assert outer_model.calls == 6
    assert by_agent(seen)["outer"].reason == "doom_loop"
    assert {event.reason for event in seen.ends if event.agent == "inner"} == {"complete"}
    assert inner_model.calls >= 4


@both_ways
@pytest.mark.parametrize(
    ("limits", "reason"), [({"cost": 0.5}, "max_cost"), ({"tokens": 75}, "max_tokens")], ids=["cost", "tokens"]
)
def test_the_limits_of_the_outer_run_cover_the_inner_one(way, limits, reason):
    """One model call outside and four inside use the limit up."""
    seen = watched({"limits": limits})
    inner_model, outer_model, agent = nested(
        seen, different(99, cost=0.1), deaf(call("delegate", key="find it"), cost=0.1)
    )
    assert_stopped(run(agent, ask(), way), reason)

    assert (outer_model.calls, inner_model.calls) == (1, 4)
    ends = by_agent(seen)
    assert (ends["inner"].reason, ends["outer"].reason) == (reason, reason)
    assert (ends["inner"].usage.total_tokens, ends["outer"].usage.total_tokens) == (60, 75)
    assert (ends["inner"].usage.cost, ends["outer"].usage.cost) == (Decimal("0.4"), Decimal("0.5"))
    assert (ends["inner"].model_calls, ends["outer"].model_calls) == (4, 1)


@both_ways
def test_tool_calls_inside_count_outside(way):
    seen = watched({"limits": {"tool_calls": 4}})
    lookup = Counted()
    _, outer_model, agent = nested(seen, different(99), deaf(call("delegate", key="x")), inner_tools=[lookup])
    assert_stopped(run(agent, ask(), way), "max_tool_calls")
    assert len(lookup.ran) == 3  # the call that delegated is the fourth
    assert outer_model.calls == 1


@both_ways
def test_turns_are_counted_for_each_run_alone(way):
    seen = watched({"limits": {"turns": 3}})
    _, _, agent = nested(seen, different(2), different(2, name="delegate"))
    assert_healthy(run(agent, ask(), way))
    assert [event.turns for event in seen.ends] == [2, 2, 2]


@both_ways
def test_an_inner_run_that_reaches_its_own_turns_ends_the_outer_run(way):
    seen = watched({"limits": {"turns": 3}})
    inner_model, outer_model, agent = nested(seen, different(99), ASK_ONCE)
    assert_stopped(run(agent, ask(), way), "max_turns")
    assert (inner_model.calls, outer_model.calls) == (3, 1)


@both_ways
def test_two_agents_at_once_in_one_round_complete(way):
    seen = watched()
    inner_model, _, agent = nested(seen, different(2), rounds(1, call("delegate", key="a"), call("delegate", key="b")))
    assert_healthy(run(agent, ask(), way))

    outer = by_agent(seen)["outer"]
    inner = [event for event in seen.ends if event.agent == "inner"]
    assert [(event.parent_id, event.reason, event.turns) for event in inner] == [(outer.session_id, "complete", 2)] * 2
    assert len({event.session_id for event in inner}) == 2
    assert outer.usage.total_tokens == 15 * (2 + inner_model.calls)
    assert outer.tool_calls == 2 + 4
    assert seen.live == 0


@both_ways
def test_of_two_agents_at_once_the_one_that_loops_ends_the_outer_run(way):
    def inner_script(messages, number):
        asked = sum(isinstance(m, AIMessage) for m in messages)
        if messages[0].text == "loop":
            return Say("", (call(key="same"),))
        return Say("", (call(key=f"k{asked}"),)) if asked < 2 else Say("done")

    seen = watched()
    _, outer_model, agent = nested(seen, inner_script, deaf(call("delegate", key="loop"), call("delegate", key="fine")))
    assert_stopped(run(agent, ask(), way))

    assert outer_model.calls == 1
    assert seen.ends[-1].agent == "outer"
    assert seen.reasons.count("doom_loop") >= 2
    assert seen.live == 0


@both_ways
def test_a_loop_three_levels_down_ends_them_all(way):
    seen = watched()
    lowest = guarded(ScriptedModel(script=deaf()), [Counted()], seen, name="lowest")
    middle_model, top_model = ScriptedModel(script=ASK_ONCE), ScriptedModel(script=ASK_ONCE)
    middle = guarded(middle_model, [delegate(lowest)], seen, name="middle")
    top = guarded(top_model, [delegate(middle)], seen, name="top")
    assert_stopped(run(top, ask(), way))

    assert [(e.agent, e.reason) for e in seen.ends] == [(a, "doom_loop") for a in ("lowest", "middle", "top")]
    assert (middle_model.calls, top_model.calls) == (1, 1)
    assert seen.ends[0].parent_id == seen.ends[1].session_id
    assert seen.ends[1].parent_id == seen.ends[2].session_id


@both_ways
def test_an_inner_stop_that_raises_passes_the_tool_and_ends_the_outer_run(way):
    """`exit_behavior="error"` inside: the exception goes through every handler of the outer run."""
    seen = watched()
    _, _, agent = nested(seen, deaf(), ASK_ONCE, inner={"exit_behavior": "error"})
    with pytest.raises(LoopGuardStop) as raised:
        run(agent, ask(), way)

    assert isinstance(raised.value, LangChainStop)
    assert raised.value.verdict.tool == "lookup"
    assert [(e.agent, e.reason) for e in seen.ends] == [("inner", "doom_loop"), ("outer", "doom_loop")]
    assert seen.live == 0


@both_ways
def test_an_outer_stop_that_raises_raises_once_its_own_history_is_complete(way):
    seen = watched()
    _, _, agent = nested(seen, deaf(), ASK_ONCE, exit_behavior="error", checkpointer=InMemorySaver())
    with pytest.raises(LoopGuardStop):
        run(agent, ask(), way, thread())
    assert_stopped(agent.get_state(thread()).values)
    assert seen.reasons == ["doom_loop", "doom_loop"]


@both_ways
def test_an_error_inside_ends_both_runs_with_it(way):
    seen = watched()
    _, _, agent = nested(seen, sequence(ValueError("inside")), ASK_ONCE)
    with pytest.raises(ValueError, match="inside"):
        run(agent, ask(), way)
    assert [(e.agent, e.reason, e.error) for e in seen.ends] == [
        ("inner", "error", "ValueError"),
        ("outer", "error", "ValueError"),
    ]
    assert seen.live == 0


@both_ways
def test_the_session_of_the_tool_is_at_hand_inside_it_and_nowhere_else(way):
    seen, found = watched(), []

    def look(_n, _key):
        found.append(current_session())
        return "x"

    run(guarded(ScriptedModel(script=rounds(1)), [Counted(look)], seen), ask(), way)
    assert [session.id for session in found] == [seen.ends[0].session_id]
    assert current_session() is None


@both_ways
def test_a_human_inside_the_inner_run_pauses_both_and_both_go_on(way):
    seen, finished = watched(), []

    def body(n, _key):
        interrupt("go on?")
        finished.append(n)
        return f"row {n}"

    inner_model, outer_model, agent = nested(
        seen, different(1), ASK_ONCE, inner_tools=[Counted(body)], checkpointer=InMemorySaver()
    )
    assert "__interrupt__" in run(agent, ask(), way, thread())
    assert sorted((e.agent, e.reason) for e in seen.ends) == [("inner", "paused"), ("outer", "paused")]
    assert_healthy(run(agent, Command(resume="yes"), way, thread()))

    assert (inner_model.calls, outer_model.calls, len(finished)) == (2, 2, 1)
    assert sorted((e.agent, e.reason) for e in seen.ends[2:]) == [("inner", "complete"), ("outer", "complete")]
    inner, outer = seen.ends[2:]
    assert (inner.parent_id, inner.turns, outer.turns) == (outer.session_id, 1, 1)
    assert seen.live == 0


@both_ways
def test_an_inner_run_that_is_resumed_elsewhere_still_belongs_to_its_outer_run(way):
    saver = InMemorySaver()

    def process(body):
        seen = watched({"limits": {"tokens": 1000}})
        return seen, nested(seen, deaf(), ASK_ONCE, inner_tools=[Counted(body)], checkpointer=saver)

    _, (_, _, agent) = process(lambda _n, _key: interrupt("go on?"))
    assert "__interrupt__" in run(agent, ask(), way, thread())

    seen, (inner_model, outer_model, agent) = process(lambda n, _key: "nothing found")
    assert_stopped(run(agent, Command(resume="yes"), way, thread()))
    assert (inner_model.calls, outer_model.calls) == (5, 0)
    assert [(e.agent, e.reason) for e in seen.ends] == [("inner", "doom_loop"), ("outer", "doom_loop")]
    assert seen.ends[0].parent_id == seen.ends[1].session_id
    assert seen.live == 0


@both_ways
def test_an_inner_agent_without_the_guard_is_left_alone(way):
    seen, lookup = watched(), Counted()
    inside = create_agent(ScriptedModel(script=rounds(9)), [lookup.tool])
    agent = guarded(ScriptedModel(script=ASK_ONCE), [delegate(inside)], seen)
    assert_healthy(run(agent, ask(), way))
    assert len(lookup.ran) == 9
    assert (seen.ends[0].model_calls, seen.ends[0].turns) == (2, 1)


async def test_an_agent_started_beside_a_run_is_not_nested_in_it():
    seen = watched()
    one = guarded(ScriptedModel(script=different(3)), [Counted()], seen)
    other = guarded(ScriptedModel(script=different(3)), [Counted()], seen)
    await asyncio.gather(one.ainvoke(ask()), other.ainvoke(ask()))
    assert [event.parent_id for event in seen.ends] == [None, None]


@pytest.mark.parametrize("way", BOTH)
def test_an_inner_agent_in_a_stream_is_nested_too(way):
    """The tool reads its agent as a stream, and passes on the last message."""
    seen = watched()
    inside = guarded(ScriptedModel(script=different(2, then="found")), [Counted()], seen, name="inner")

    def body(key: str = "") -> str:
        return list(inside.stream(ask(key), stream_mode="values"))[-1]["messages"][-1].text

    async def coroutine(key: str = "") -> str:
        chunks = [chunk async for chunk in inside.astream(ask(key), stream_mode="values")]
        return chunks[-1]["messages"][-1].text

    tool = StructuredTool.from_function(body, coroutine, name="delegate", description="Ask somebody else.")
    result = run(guarded(ScriptedModel(script=ASK_ONCE), [tool], seen, name="outer"), ask(), way)
    assert_healthy(result)
    assert_complete(result["messages"])
    inner, outer = seen.ends
    assert (inner.parent_id, inner.reason, outer.reason) == (outer.session_id, "complete", "complete")


def test_a_sync_tool_of_an_async_run_finds_its_outer_run():
    """LangChain runs such a tool in a thread; the context goes along."""
    seen = watched()
    inside = guarded(ScriptedModel(script=deaf()), [Counted()], seen, name="inner")
    tool = StructuredTool.from_function(
        lambda key="": str(inside.invoke(ask(key))["messages"][-1].text), name="delegate", description="Ask."
    )
    assert_stopped(run(guarded(ScriptedModel(script=ASK_ONCE), [tool], seen, name="outer"), ask(), "ainvoke"))
    inner, outer = seen.ends
    assert (inner.parent_id, outer.reason) == (outer.session_id, "doom_loop")


@both_ways
def test_one_middleware_may_serve_both_levels(way):
    seen = watched()
    ours = LoopGuardMiddleware(seen.guard)
    inside = create_agent(ScriptedModel(script=deaf()), [Counted().tool], middleware=[ours], name="inner")
    outer = create_agent(ScriptedModel(script=ASK_ONCE), [delegate(inside)], middleware=[ours], name="outer")
    assert_stopped(run(outer, ask(), way))
    assert [(e.agent, e.reason) for e in seen.ends] == [("inner", "doom_loop"), ("outer", "doom_loop")]
    assert seen.live == 0


@both_ways
def test_both_levels_may_answer_a_last_time(way):
    def script(first, last):
        def says(messages, _number):
            told = isinstance(messages[-1], HumanMessage) and str(messages[-1].text).startswith(OWN)
            return Say(last) if told else Say("", (first,))

        return says

    seen = watched({"on_stop": {"how": "answer"}})
    inner_model, outer_model, agent = nested(
        seen,
        script(call(key="same"), "Inside I found nothing."),
        script(call("delegate", key="x"), "Nothing was found."),
    )
    result = run(agent, ask(), way)
    assert_stopped(result)
    assert result["messages"][-1].text == "Nothing was found."
    assert "Inside I found nothing." in [m.text for m in outer_model.requests[-1].messages]
    assert (inner_model.calls, outer_model.calls) == (7, 2)
