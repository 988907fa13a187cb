"""`LoopGuardCallbackHandler` observes and stops: every way to attach it, to run a loop, and to end one."""

import asyncio
import functools
import importlib
import operator
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, GraphRecursionError, NodeCancelledError
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import create_react_agent
from langgraph.runtime import get_runtime
from loopguard_langchain import LoopGuardCallbackHandler
from loopguard_langchain import LoopGuardStop as LangChainStop
from pydantic import BaseModel

from loopguard_core import Action, Detector, Finding, LoopGuard, LoopGuardStop, hookimpl

sys.path.insert(0, str(Path(__file__).parent))
scripted = importlib.import_module("scripted")

ASK, Counting, Scripted, Streaming, Watched = (
    scripted.ASK,
    scripted.Counting,
    scripted.Scripted,
    scripted.Streaming,
    scripted.Watched,
)

GRAPH_WAYS = ["invoke", "ainvoke", "stream-updates", "stream-messages", "astream-updates", "astream-messages"]
HAND_WAYS = ["invoke", "ainvoke"]


def agent(model, tool, checkpointer=None):
    return create_agent(model, [tool], checkpointer=checkpointer)


def raw(model, tool, checkpointer=None):
    return scripted.raw_graph(model, [tool], checkpointer)


def prebuilt(model, tool, checkpointer=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_react_agent(model, [tool], checkpointer=checkpointer)


def wrapped(model, tool, checkpointer=None):
    """A hand-written loop in a `RunnableLambda`: nothing in it passes the config on."""

    def loop(_given):
        return scripted.hand_loop(model, tool)

    async def aloop(_given):
        return await scripted.ahand_loop(model, tool)

    return RunnableLambda(loop, aloop)


def functional(model, tool, checkpointer=None):
    """LangGraph's functional API: the model is called in the entrypoint, tools are tasks."""

    @task
    async def use(call):
        return await tool.ainvoke(call)

    @entrypoint(checkpointer=checkpointer)
    async def loop(given):
        messages = list(given["messages"])
        while True:
            response = await model.ainvoke(messages)
            messages.append(response)
            if not response.tool_calls:
                return messages
            messages += await asyncio.gather(*(use(call) for call in response.tool_calls))

    return loop


GRAPHS = {"create_agent": agent, "StateGraph": raw, "create_react_agent": prebuilt}
RUNNABLES = {**GRAPHS, "RunnableLambda": wrapped}


def guarded(policy: Any = "default", **options: Any) -> tuple[Any, LoopGuardCallbackHandler, dict[str, Any]]:
    guard = Watched(policy)
    handler = LoopGuardCallbackHandler(guard, **options)
    return guard, handler, {"callbacks": [handler]}


def assert_looped(guard, tool, ended: list[str] | None = None) -> None:
    """The figures of one identical call asked for again and again, where nothing can be refused."""
    assert [(e.streak, e.action, e.proposed) for e in guard.loops] == [
        (2, Action.OBSERVE, Action.OBSERVE),
        (3, Action.OBSERVE, Action.BLOCK),
        (4, Action.OBSERVE, Action.BLOCK),
        (5, Action.OBSERVE, Action.BLOCK),
        (6, Action.STOP, Action.STOP),
    ]
    assert tool.count == 5
    assert guard.reasons == (ended or ["doom_loop"])
    assert guard.last_end is guard.ends[-1]
    assert guard.last_end.verdict.streak == 6
    assert guard.last_end.turns == guard.last_end.model_calls == 6
    assert guard.last_end.tool_calls == 5


# -- the figures, whatever runs the loop -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", GRAPH_WAYS)
@pytest.mark.parametrize("model", [Scripted, Streaming])
@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_graph_is_stopped_before_the_sixth_round_runs(build, model, how):
    tool = Counting()
    guard, handler, config = guarded()
    with pytest.raises(LangChainStop) as stopped:
        scripted.run(build(model(), tool.tool), how, config=config)
    assert_looped(guard, tool)
    assert stopped.value.reason == "doom_loop"
    assert stopped.value.verdict == guard.last_end.verdict
    assert stopped.value.verdict.tool == "lookup"
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", HAND_WAYS)
@pytest.mark.parametrize("build", [wrapped, functional])
def test_loop_inside_one_runnable_is_stopped(build, how):
    tool = Counting()
    guard, handler, config = guarded()
    if build is functional and how == "invoke":
        pytest.skip("this loop is async")
    with pytest.raises(LangChainStop):
        scripted.run(build(Scripted(), tool.tool), how, config=config)
    assert_looped(guard, tool)
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("pass_on", [True, False], ids=["tools with config", "tools by hand"])
@pytest.mark.parametrize("model", [Scripted, Streaming])
def test_hand_written_loop_is_stopped(model, pass_on):
    tool = Counting()
    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        scripted.hand_loop(model(), tool.tool, config, pass_on=pass_on)
    assert_looped(guard, tool)
    handler.close()
    scripted.assert_nothing_left(handler)


def test_hand_written_async_loop_is_stopped():
    tool = Counting()
    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        asyncio.run(scripted.ahand_loop(Scripted(), tool.tool, config))
    assert_looped(guard, tool)
    handler.close()
    scripted.assert_nothing_left(handler)


def test_hand_written_loop_that_streams_is_stopped():
    tool = Counting()
    guard, _, config = guarded()
    messages = list(ASK["messages"])
    model = Streaming()

    def step():
        response = functools.reduce(operator.add, model.stream(messages, config))
        messages.extend([response, *(tool.tool.invoke(call) for call in response.tool_calls)])

    with pytest.raises(LangChainStop):
        scripted.for_ever(step)
    assert_looped(guard, tool)


def test_hand_written_loop_around_a_chain_is_stopped():
    """Each step is a run of its own, with a prompt before the model."""
    tool = Counting()
    guard, handler, config = guarded()
    chain = ChatPromptTemplate.from_messages([("system", "Help."), ("placeholder", "{messages}")]) | Scripted()
    messages = list(ASK["messages"])

    def step():
        response = chain.invoke({"messages": messages}, config)
        messages.extend([response, *(tool.tool.invoke(call) for call in response.tool_calls)])

    with pytest.raises(LangChainStop):
        scripted.for_ever(step)
    assert_looped(guard, tool)
    handler.close()
    scripted.assert_nothing_left(handler)


def test_hand_written_loop_that_rebuilds_its_messages_is_stopped():
    """As many do who keep the history as plain dictionaries."""
    tool = Counting()
    guard, _, config = guarded()
    model = Scripted()
    messages: list[Any] = [{"role": "user", "content": "Where is it?"}]

    def step():
        response = model.invoke(messages, config)
        messages.append({"role": "assistant", "content": "", "tool_calls": response.tool_calls})
        for call in response.tool_calls:
            answer = tool.tool.func(**call["args"])
            messages.append({"role": "tool", "content": answer, "tool_call_id": call["id"]})

    with pytest.raises(LangChainStop):
        scripted.for_ever(step)
    assert_looped(guard, tool)


@pytest.mark.parametrize("how", GRAPH_WAYS)
@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_handler_given_to_the_model_only(build, how):
    """It then sees model calls and nothing else: the messages alone say what belongs together."""
    tool = Counting()
    guard = Watched()
    handler = LoopGuardCallbackHandler(guard)
    with pytest.raises(LangChainStop):
        scripted.run(build(Scripted(callbacks=[handler]), tool.tool), how)
    assert_looped(guard, tool)
    handler.close()
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", RUNNABLES.values(), ids=RUNNABLES)
def test_healthy_run_is_left_alone(build, how):
    tool = Counting(lambda key: f"line {key}")
    guard, handler, config = guarded()
    scripted.run(build(Scripted(script=scripted.healthy(12)), tool.tool), how, config=config)
    assert tool.count == 12
    assert guard.loops == []
    assert guard.reasons == ["complete"]
    assert len(guard.calls) == 13
    assert guard.last_end.usage.total_tokens == 12 * 15
    scripted.assert_nothing_left(handler)


def test_healthy_hand_written_loop_ends_with_its_answer():
    tool = Counting()
    guard, handler, config = guarded()
    scripted.hand_loop(Scripted(script=scripted.healthy(4)), tool.tool, config)
    assert guard.reasons == ["complete"]
    assert guard.last_end.turns == 4
    scripted.assert_nothing_left(handler)


def test_changed_results_are_progress():
    """A poll that moves on may ask the same for as long as it does."""
    tool = Counting(lambda key: f"{tool.count} of 20 files done")
    guard, _, config = guarded()
    agent(Scripted(script=scripted.looping(20)), tool.tool).invoke(ASK, config)
    assert tool.count == 20
    assert guard.reasons == ["complete"]


def test_events_name_the_run():
    guard, _, config = guarded()
    graph = create_agent(Scripted(script=scripted.looping(2)), [Counting().tool], name="clerk")
    graph.invoke(ASK, {**config, "run_id": "00000000-0000-4000-8000-000000000007"})
    event = guard.last_end
    assert (event.adapter, event.agent, event.parent_id) == ("langchain", "clerk", None)
    assert event.framework_run_id == "00000000-0000-4000-8000-000000000007"
    assert guard.calls[0].model == "scripted-1"
    assert guard.calls[0].duration > 0


def test_sync_tools_in_an_async_run():
    """LangChain runs them in a thread under a sync manager, where an async handler would do nothing."""
    tool = Counting()
    guard, _, config = guarded()

    async def main():
        with pytest.raises(LangChainStop):
            await agent(Scripted(), tool.tool).ainvoke(ASK, config)
        await asyncio.gather(*(t for t in asyncio.all_tasks() if t is not asyncio.current_task()))

    asyncio.run(main())
    assert_looped(guard, tool)


# -- what counts as a round ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_parallel_calls_are_one_round(build):
    tool = Counting()
    guard, _, config = guarded()
    twice = scripted.request(("lookup", {"key": "a"}), ("lookup", {"key": "b"}), ("lookup", {"key": "a"}))

    def script(_messages):
        fresh = twice.model_copy(deep=True)
        fresh.id = None
        for index, call in enumerate(fresh.tool_calls):
            call["id"] = f"{id(fresh)}-{index}"
        return fresh

    with pytest.raises(LangChainStop):
        build(Scripted(script=script), tool.tool).invoke(ASK, config)
    assert sorted(tool.ran) == sorted(["a", "a", "b"] * 5)
    assert [event.streak for event in guard.loops] == [2, 2, 3, 3, 4, 4, 5, 5, 6, 6]  # one event an identity and round
    assert guard.last_end.turns == 6


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_unknown_tool(build):
    """It never starts, so only the history tells that it was answered."""
    tool = Counting()
    guard, _, config = guarded()
    with pytest.raises(LangChainStop):
        build(Scripted(script=scripted.looping(99, name="nope")), tool.tool).invoke(ASK, config)
    assert tool.count == 0
    assert guard.last_end.turns == 6
    assert guard.last_end.verdict.tool == "nope"


def test_invalid_arguments_that_are_no_json():
    def script(_messages):
        broken = {"name": "lookup", "args": '{"key": ', "id": "1", "error": "no JSON", "type": "invalid_tool_call"}
        return AIMessage("", invalid_tool_calls=[broken])

    guard, handler, config = guarded()
    model = Scripted(script=script)
    messages = list(ASK["messages"])

    def step():
        response = model.invoke(messages, config)
        messages.extend([response, ToolMessage("These arguments are no JSON.", tool_call_id="1", status="error")])

    with pytest.raises(LangChainStop):
        scripted.for_ever(step)
    assert len(model.seen) == 6
    assert guard.reasons == ["doom_loop"]
    handler.close()
    scripted.assert_nothing_left(handler)


class Invoice(BaseModel):
    """An answer."""

    amount: int


@pytest.mark.parametrize("on_stop", ["raise", "drain"])
def test_structured_output_that_never_validates(on_stop):
    """No tool starts in such a loop, so drain cannot take hold and the next model call ends it."""
    model = Scripted(script=scripted.looping(99, name="Invoice", amount="much"))
    guard, handler, config = guarded(on_stop=on_stop)
    graph = create_agent(model, [Counting().tool], response_format=ToolStrategy(Invoice))
    with pytest.raises(LangChainStop):
        graph.invoke(ASK, config)
    assert len(model.seen) == 6
    assert guard.reasons == ["doom_loop"]
    scripted.assert_nothing_left(handler)


def test_structured_output_that_validates():
    guard, _, config = guarded()
    model = Scripted(script=scripted.looping(1, name="Invoice", amount=3))
    out = create_agent(model, [Counting().tool], response_format=ToolStrategy(Invoice)).invoke(ASK, config)
    assert out["structured_response"] == Invoice(amount=3)
    assert guard.reasons == ["complete"]


def test_plugin_detectors_run_on_text_that_ends_a_run():
    class Says(Detector):
        name = "says"

        def end_message(self, finish_reason):
            return Finding(1, 0) if finish_reason == "babble" else None

    class Plugin:
        @hookimpl
        def detectors(self, policy):
            return [Says()]

    guard = Watched(plugins=[Plugin()])
    model = Scripted(script=lambda _: AIMessage("la la la", response_metadata={"finish_reason": "babble"}))
    agent(model, Counting().tool).invoke(ASK, {"callbacks": [LoopGuardCallbackHandler(guard)]})
    assert [event.detector for event in guard.loops] == ["says"]


# -- users -----------------------------------------------------------------------------------------------------------


def test_user_speaking_in_a_hand_written_loop_starts_streaks_afresh():
    tool = Counting()
    guard, _, config = guarded()
    messages = list(ASK["messages"])
    model = Scripted()

    def rounds(count):
        for _ in range(count):
            response = model.invoke(messages, config)
            messages.extend([response, *(tool.tool.invoke(call, config) for call in response.tool_calls)])

    rounds(4)
    messages.append(HumanMessage("Look again, please."))
    rounds(5)
    assert [event.streak for event in guard.loops] == [2, 3, 4, 2, 3, 4, 5]
    assert guard.ends == []
    with pytest.raises(LangChainStop):
        rounds(1)
    assert guard.last_end.turns == 10


def test_user_speaking_after_the_answer_is_a_new_run():
    tool = Counting()
    guard, handler, config = guarded()
    model = Scripted(script=scripted.looping(4))
    messages = scripted.hand_loop(model, tool.tool, config)
    scripted.hand_loop(model, tool.tool, config, [*messages, HumanMessage("And now?")])
    assert guard.reasons == ["complete", "complete"]
    assert [event.streak for event in guard.loops] == [2, 3, 4, 2, 3, 4]
    scripted.assert_nothing_left(handler)


def test_reminder_at_the_end_of_each_request_is_no_user():
    tool = Counting()
    guard, _, config = guarded()
    messages = list(ASK["messages"])

    def step():
        response = Scripted().invoke([*messages, HumanMessage("Answer briefly.")], config)
        messages.extend([response, *(tool.tool.invoke(call) for call in response.tool_calls)])

    with pytest.raises(LangChainStop):
        scripted.for_ever(step)
    assert_looped(guard, tool)


def test_words_a_graph_puts_after_tool_results_are_no_user():
    """As middleware does that reminds the model of its to-do list, and stores it."""
    tool = Counting()
    guard, _, config = guarded()

    class Chat(TypedDict):
        messages: Annotated[list, add_messages]

    model = Scripted()
    graph = StateGraph(Chat)
    graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node(
        "tools",
        lambda state: {
            "messages": [tool.tool.invoke(call) for call in state["messages"][-1].tool_calls]
            + [HumanMessage("Mind your to-do list.")]
        },
    )
    graph.add_edge(START, "agent")
    graph.add_edge("agent", "tools")
    graph.add_edge("tools", "agent")
    with pytest.raises(LangChainStop):
        graph.compile().invoke(ASK, config)
    assert_looped(guard, tool)


# -- drain -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", GRAPH_WAYS)
@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_drain_leaves_a_history_the_next_turn_can_use(build, how):
    tool = Counting()
    guard, handler, config = guarded(on_stop="drain")
    patience = iter(range(6))
    model = Scripted(script=lambda _: scripted.looping(99)([]) if next(patience, None) is not None else AIMessage("ok"))
    graph = build(model, tool.tool, InMemorySaver())
    config["configurable"] = {"thread_id": "1"}
    with pytest.raises(GraphDrained, match="6 rounds in a row"):
        scripted.run(graph, how, config=config)
    assert tool.count == 6  # one more than with raise
    assert len(model.seen) == 6
    assert guard.reasons == ["doom_loop"]
    history = graph.get_state(config).values["messages"]
    assert scripted.well_formed(history)
    assert isinstance(history[-1], ToolMessage)
    scripted.run(graph, how, config=config)
    assert graph.get_state(config).values["messages"][-1].content == "ok"
    assert guard.reasons == ["doom_loop", "complete"]
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", GRAPH_WAYS)
@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_raise_drops_the_round_it_stops(build, how):
    """The response never reaches the graph's state, so what is there is complete and the next turn can use it."""
    guard, handler, config = guarded()
    patience = iter(range(6))
    model = Scripted(script=lambda _: scripted.looping(99)([]) if next(patience, None) is not None else AIMessage("ok"))
    graph = build(model, Counting().tool, InMemorySaver())
    config["configurable"] = {"thread_id": "1"}
    with pytest.raises(LangChainStop):
        scripted.run(graph, how, config=config)
    history = graph.get_state(config).values["messages"]
    assert scripted.well_formed(history)
    assert [type(message) for message in history] == [HumanMessage, *[AIMessage, ToolMessage] * 5]
    scripted.run(graph, how, config=config)
    assert scripted.well_formed(model.seen[-1])
    assert graph.get_state(config).values["messages"][-1].content == "ok"
    assert guard.reasons == ["doom_loop", "complete"]
    scripted.assert_nothing_left(handler)


def test_drain_with_a_tool_nobody_has_ends_before_the_next_model_call():
    guard, handler, config = guarded(on_stop="drain")
    graph = agent(Scripted(script=scripted.looping(99, name="nope")), Counting().tool, InMemorySaver())
    config["configurable"] = {"thread_id": "1"}
    with pytest.raises(LangChainStop):
        graph.invoke(ASK, config)
    assert scripted.well_formed(graph.get_state(config).values["messages"])
    assert guard.reasons == ["doom_loop"]
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", HAND_WAYS)
def test_drain_raises_outside_a_graph(how):
    tool = Counting()
    guard, _, config = guarded(on_stop="drain")
    with pytest.raises(LangChainStop):
        scripted.run(wrapped(Scripted(), tool.tool), how, config=config)
    assert_looped(guard, tool)
    tool = Counting()
    guard, _, config = guarded(on_stop="drain")
    with pytest.raises(LangChainStop):
        scripted.hand_loop(Scripted(), tool.tool, config)
    assert_looped(guard, tool)


def test_drain_with_the_handler_on_the_model_only():
    """No tool event to take hold at: the round is finished and the next model call ends the run."""
    tool = Counting()
    guard = Watched()
    handler = LoopGuardCallbackHandler(guard, on_stop="drain")
    graph = agent(Scripted(callbacks=[handler]), tool.tool, InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    with pytest.raises(LangChainStop):
        graph.invoke(ASK, config)
    assert tool.count == 6
    assert scripted.well_formed(graph.get_state(config).values["messages"])
    assert guard.reasons == ["doom_loop"]


def test_on_stop_is_checked():
    with pytest.raises(ValueError, match="on_stop must be 'raise' or 'drain', not 'end'"):
        LoopGuardCallbackHandler(Watched(), on_stop="end")


# -- what would swallow a stop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_stop_is_not_swallowed(how):
    tool = Counting()
    guard, _, config = guarded()
    graph = scripted.raw_graph(Scripted(), [tool.tool], handle_tool_errors=True)
    with pytest.raises(LangChainStop):
        scripted.run(graph, how, config=config)
    assert_looped(guard, tool)
    tool = Counting()
    guard, _, config = guarded()
    retries = [
        ToolRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False),
        ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False),
    ]
    graph = create_agent(Scripted(), [tool.tool], middleware=retries)
    with pytest.raises(LangChainStop):
        scripted.run(graph, how, config=config)
    assert_looped(guard, tool)


def test_model_that_tries_again_is_stopped_again():
    """`with_retry` and `with_fallbacks` catch everything; no further model call starts all the same."""
    for wrap in (
        lambda model: model.with_retry(stop_after_attempt=3, wait_exponential_jitter=False),
        lambda model: model.with_fallbacks([model]),
    ):
        tool, model = Counting(), Scripted()
        guard, _, config = guarded()
        graph = StateGraph(TypedDict("Chat", {"messages": Annotated[list, add_messages]}))
        node = wrap(model)
        graph.add_node("agent", lambda state, node=node: {"messages": [node.invoke(state["messages"])]})
        graph.add_node(
            "tools",
            lambda state, tool=tool: {"messages": [tool.tool.invoke(c) for c in state["messages"][-1].tool_calls]},
        )
        graph.add_edge(START, "agent")
        graph.add_edge("agent", "tools")
        graph.add_edge("tools", "agent")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)
            with pytest.raises(LangChainStop):
                graph.compile().invoke(ASK, config)
        assert len(model.seen) == 6
        assert_looped(guard, tool)


def test_hand_written_loop_that_tries_again_is_stopped_again():
    tool, model = Counting(), Scripted()
    guard, handler, config = guarded()
    messages = list(ASK["messages"])
    with pytest.raises(LangChainStop):
        scripted.hand_loop(model, tool.tool, config, messages)
    for _ in range(3):
        with pytest.raises(LangChainStop):
            scripted.hand_loop(model, tool.tool, config, messages)
    assert len(model.seen) == 6
    assert_looped(guard, tool)
    with pytest.raises(LangChainStop):  # a user may ask for the same again: a new run
        scripted.hand_loop(model, tool.tool, config, [*messages, HumanMessage("Try again.")])
    assert tool.count == 10
    assert guard.reasons == ["doom_loop"] * 2
    handler.close()
    scripted.assert_nothing_left(handler)


def test_stop_names_itself_to_every_kind_of_caller():
    with pytest.raises(LoopGuardStop) as stopped:
        agent(Scripted(), Counting().tool).invoke(ASK, guarded()[2])
    assert isinstance(stopped.value, LangChainStop)
    assert "INV-2291" not in str(stopped.value)


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("on_stop", ["raise", "drain"])
@pytest.mark.parametrize("build", RUNNABLES.values(), ids=RUNNABLES)
def test_turns_run_exactly(build, on_stop, how):
    tool, model = Counting(), Scripted(script=scripted.healthy(99))
    guard, handler, config = guarded({"limits": {"turns": 7}}, on_stop=on_stop)
    saver = InMemorySaver()
    runnable = build(model, tool.tool, saver)
    config["configurable"] = {"thread_id": "1"}
    with pytest.raises(LangChainStop) as stopped:
        scripted.run(runnable, how, config=config)
    assert stopped.value.reason == "max_turns"
    assert stopped.value.verdict is None
    assert tool.count == len(model.seen) == 7
    assert guard.reasons == ["max_turns"]
    if build is not wrapped:
        history = runnable.get_state(config).values["messages"]
        assert scripted.well_formed(history)
        assert isinstance(history[-1], ToolMessage)
    scripted.assert_nothing_left(handler)


def test_turns_of_a_hand_written_loop_run_exactly():
    tool, model = Counting(), Scripted(script=scripted.healthy(99))
    guard, handler, config = guarded({"limits": {"turns": 4}})
    for _ in range(2):  # trying again helps nothing
        with pytest.raises(LangChainStop):
            scripted.hand_loop(model, tool.tool, config, messages := list(ASK["messages"]))
        assert tool.count == len(model.seen) == 4 * (len(guard.ends))
        with pytest.raises(LangChainStop):
            scripted.hand_loop(model, tool.tool, config, messages)
    assert guard.reasons == ["max_turns", "max_turns"]
    handler.close()
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize(
    ("limits", "reason", "rounds"),
    [({"tokens": 40}, "max_tokens", 3), ({"cost": "0.05"}, "max_cost", 5)],
)
def test_spending_limits_stop_before_the_next_model_call(limits, reason, rounds):
    def script(messages):
        return scripted.request(("lookup", {"key": str(len(messages))}), token_usage={"cost": 0.01})

    tool, model = Counting(), Scripted(script=script)
    guard, _, config = guarded({"limits": limits})
    with pytest.raises(LangChainStop) as stopped:
        agent(model, tool.tool).invoke(ASK, config)
    assert stopped.value.reason == reason
    assert tool.count == len(model.seen) == rounds
    assert guard.reasons == [reason]


def test_call_over_the_limit_does_not_run():
    """It cannot be refused alone here, so the run ends."""
    tool = Counting()
    guard, _, config = guarded({"limits": {"tool_calls": 3}})
    with pytest.raises(LangChainStop) as stopped:
        agent(Scripted(script=scripted.healthy(99)), tool.tool).invoke(ASK, config)
    assert stopped.value.reason == "max_tool_calls"
    assert tool.count == 3
    assert guard.reasons == ["max_tool_calls"]


def test_stop_when_hook_ends_the_run():
    class Plugin:
        @hookimpl
        def stop_when(self, session):
            return "enough" if session.turns == 2 else None

    guard = Watched(plugins=[Plugin()])
    tool = Counting()
    with pytest.raises(LangChainStop):
        agent(Scripted(), tool.tool).invoke(ASK, {"callbacks": [LoopGuardCallbackHandler(guard)]})
    assert tool.count == 2
    assert guard.reasons == ["custom"]


# -- other ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", RUNNABLES.values(), ids=RUNNABLES)
def test_tool_that_raises_ends_the_run_with_error(build, how):
    def boom(key):
        raise RuntimeError("no disk")

    guard, handler, config = guarded()
    with pytest.raises(RuntimeError, match="no disk"):
        scripted.run(build(Scripted(), Counting(boom).tool), how, config=config)
    assert guard.reasons == ["error"]
    assert guard.last_end.error == "RuntimeError"
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream-messages", "astream-messages"])
@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_model_that_raises_ends_the_run_with_error(build, how):
    def script(messages):
        if scripted.since_user(messages) == 2:
            raise ConnectionError("gone")
        return scripted.request(("lookup", {"key": "k"}))

    guard, handler, config = guarded()
    with pytest.raises(ConnectionError):
        scripted.run(build(Streaming(script=script), Counting().tool), how, config=config)
    assert guard.reasons == ["error"]
    assert guard.last_end.model_calls == 2
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_model_call_tried_again_by_a_middleware_counts_once(how):
    tool = Counting()
    guard, handler, config = guarded()
    failing = {0, 2, 4}

    def script(messages):
        number = scripted.since_user(messages)
        if number in failing:
            failing.discard(number)
            raise ConnectionError("gone")
        return scripted.request(("lookup", {"key": "k"}))

    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    graph = create_agent(Scripted(script=script), [tool.tool], middleware=[retry])
    with pytest.raises(LangChainStop):
        scripted.run(graph, how, config=config)
    assert failing == set()
    assert_looped(guard, tool)
    scripted.assert_nothing_left(handler)


def test_graph_that_somebody_else_drains_is_cancelled():
    def shut_down(key):
        get_runtime().control.request_drain("shutdown")

    guard, handler, config = guarded()
    with pytest.raises(GraphDrained):
        agent(Scripted(), Counting(shut_down).tool).invoke(ASK, config)
    assert guard.reasons == ["cancelled"]
    scripted.assert_nothing_left(handler)


def test_model_call_tried_again_by_hand_goes_on_counting():
    tool = Counting()
    guard, handler, config = guarded()
    failing = {3}

    def script(messages):
        number = scripted.since_user(messages)
        if number in failing:
            failing.discard(number)
            raise ConnectionError("gone")
        return scripted.request(("lookup", {"key": "k"}))

    model, messages = Scripted(script=script), list(ASK["messages"])
    with pytest.raises(ConnectionError):
        scripted.hand_loop(model, tool.tool, config, messages)
    assert guard.reasons == ["error"]  # nobody can tell whether it is over
    with pytest.raises(LangChainStop):
        scripted.hand_loop(model, tool.tool, config, messages)
    assert_looped(guard, tool, ["error", "doom_loop"])
    assert guard.ends[0].session_id == guard.ends[1].session_id
    handler.close()
    scripted.assert_nothing_left(handler)


def test_hand_written_loop_in_a_with_block():
    def script(messages):
        if scripted.since_user(messages) == 2:
            raise ConnectionError("gone")
        return scripted.request(("lookup", {"key": "k"}))

    guard = Watched()
    with pytest.raises(ConnectionError), LoopGuardCallbackHandler(guard) as handler:
        scripted.hand_loop(Scripted(script=script), Counting().tool, {"callbacks": [handler]})
    assert guard.reasons == ["error"]
    assert guard.last_end.error == "ConnectionError"
    scripted.assert_nothing_left(handler)


def test_first_model_call_that_fails_is_a_run_that_failed():
    def script(_messages):
        raise ConnectionError("gone")

    guard, handler, config = guarded()
    with pytest.raises(ConnectionError):
        scripted.hand_loop(Scripted(script=script), Counting().tool, config)
    assert guard.reasons == ["error"]
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("build", [*GRAPHS.values(), wrapped], ids=RUNNABLES)
def test_cancelled_run(build):
    entered = asyncio.Event()

    async def forever(key: str) -> str:
        """Wait."""
        entered.set()
        await asyncio.Event().wait()
        return key

    guard, handler, config = guarded()

    async def main():
        tool = StructuredTool.from_function(coroutine=forever, name="lookup")
        running = asyncio.create_task(build(Scripted(), tool).ainvoke(ASK, config))
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert guard.reasons == ["cancelled"]
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_tool_that_is_cancelled_cancels_the_run(how):
    def cancelled(key: str) -> str:
        raise asyncio.CancelledError

    guard, handler, config = guarded()
    with pytest.raises((NodeCancelledError, asyncio.CancelledError)):
        scripted.run(raw(Scripted(), Counting(cancelled).tool), how, ASK, config)
    assert guard.reasons == ["cancelled"]
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", ["stream-updates", "astream-updates"])
def test_stream_nobody_reads_to_the_end(how):
    guard, handler, config = guarded()
    graph = agent(Scripted(script=scripted.healthy(9)), Counting().tool)
    if how == "stream-updates":
        parts = graph.stream(ASK, config, stream_mode="updates")
        next(parts)
        parts.close()
    else:

        async def main():
            parts = graph.astream(ASK, config, stream_mode="updates")
            await anext(parts)
            await parts.aclose()

        asyncio.run(main())
    assert guard.reasons == ["cancelled"]
    scripted.assert_nothing_left(handler)


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream-updates"])
def test_the_graphs_own_limit_is_max_turns(how):
    guard, handler, config = guarded()
    graph = agent(Scripted(script=scripted.healthy(99)), Counting().tool)
    with pytest.raises(GraphRecursionError):
        scripted.run(graph, how, config={**config, "recursion_limit": 6})
    assert guard.reasons == ["max_turns"]
    scripted.assert_nothing_left(handler)


# -- never the cause of a failed run ---------------------------------------------------------------------------------


def test_fault_of_ours_does_not_end_the_run(caplog):
    tool = Counting()
    guard, handler, config = guarded()

    def broken(*_args):
        raise KeyError("a bug")

    handler._sessions.conversation = broken
    agent(Scripted(script=scripted.looping(3)), tool.tool).invoke(ASK, config)
    assert tool.count == 3
    assert guard.faults.counts == {"LoopGuardCallbackHandler.on_chat_model_start": 4}
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("how", ["policy", "environment"])
def test_kill_switch(how, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    tool, model = Counting(), Scripted(script=scripted.looping(9))
    guard, handler, config = guarded("default" if how == "environment" else {"enabled": False})
    agent(model, tool.tool).invoke(ASK, config)
    scripted.hand_loop(model, tool.tool, config)
    assert tool.count == 18
    assert guard.loops == guard.ends == guard.calls == []
    assert guard.last_end is None
    scripted.assert_nothing_left(handler)


def test_shadow_mode_only_reports():
    tool = Counting()
    guard, _, config = guarded("observe")
    agent(Scripted(script=scripted.looping(9)), tool.tool).invoke(ASK, config)
    assert tool.count == 9
    assert {event.action for event in guard.loops} == {Action.OBSERVE}
    assert guard.reasons == ["complete"]


def test_rungs_it_cannot_perform_are_said_once(caplog):
    guard = Watched()
    LoopGuardCallbackHandler(guard)
    LoopGuardCallbackHandler(guard)
    assert caplog.text.count("LoopGuardCallbackHandler cannot block: such verdicts observe instead") == 1


def test_guard_may_be_named():
    assert isinstance(LoopGuardCallbackHandler("openrouter").guard, LoopGuard)


def test_other_handlers_see_the_stop():
    """Listed before ours, they get the event; the run's error reaches them all."""
    seen: list[str] = []

    class Tracer(BaseCallbackHandler):
        def on_llm_end(self, response, **kwargs):
            seen.append("llm_end")

        def on_chain_error(self, error, **kwargs):
            seen.append(type(error).__name__)

    _, handler, _ = guarded()
    with pytest.raises(LangChainStop):
        agent(Scripted(), Counting().tool).invoke(ASK, {"callbacks": [Tracer(), handler]})
    assert seen == ["llm_end"] * 6 + ["LoopGuardStop"] * 2


# -- with langchain-core alone ---------------------------------------------------------------------------------------

CORE_ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("langchain", "langgraph"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, TESTS)
import loopguard_langchain
import scripted
from loopguard_langchain import LoopGuardCallbackHandler, LoopGuardStop, guard_tools, loop_guard_callback

tool, guard = scripted.Counting(), scripted.Watched()
for on_stop in ("raise", "drain"):
    handler = LoopGuardCallbackHandler(guard, on_stop=on_stop)
    try:
        scripted.hand_loop(scripted.Scripted(), tool.tool, {"callbacks": [handler]})
    except LoopGuardStop as stop:
        print(stop.reason, tool.count, guard.reasons)
tool, guard = scripted.Counting(), scripted.Watched()
(guarded,) = guard_tools([tool.tool], guard)
try:
    with loop_guard_callback(guard):
        scripted.hand_loop(scripted.Scripted(), guarded)
except LoopGuardStop as stop:
    print(stop.reason, tool.count, guard.reasons)
for name in ("LoopGuardMiddleware", "tool_call_wrapper", "async_tool_call_wrapper"):
    try:
        getattr(loopguard_langchain, name)
    except ImportError as error:
        print(error)
assert not {"langchain", "langgraph"} & set(sys.modules)
"""


def test_langchain_core_is_enough():
    code = f"TESTS = {str(Path(__file__).parent)!r}\n{CORE_ALONE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, guarded, *refused = done.stdout.splitlines()
    assert first == "doom_loop 5 ['doom_loop']"
    assert second == "doom_loop 10 ['doom_loop', 'doom_loop']"
    assert guarded == "doom_loop 2 ['doom_loop']"
    assert len(refused) == 3
    assert all("pip install 'loopguard-core[langchain]'" in line for line in refused)
