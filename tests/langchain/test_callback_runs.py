"""Which runs, agents and conversations `LoopGuardCallbackHandler` tells apart, and what it keeps of them."""

import asyncio
import importlib
import operator
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import LLMToolSelectorMiddleware, SummarizationMiddleware
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from loopguard_langchain import LoopGuardCallbackHandler, LoopGuardMiddleware
from loopguard_langchain import LoopGuardStop as LangChainStop
from pydantic import BaseModel

from loopguard_core import current_session

sys.path.insert(0, str(Path(__file__).parent))
scripted = importlib.import_module("scripted")

ASK, Counting, Scripted, Watched = scripted.ASK, scripted.Counting, scripted.Scripted, scripted.Watched

BOTH = pytest.mark.parametrize("how", ["invoke", "ainvoke"])


def guarded(policy: Any = "default", **options: Any) -> tuple[Any, LoopGuardCallbackHandler, dict[str, Any]]:
    guard = Watched(policy)
    handler = LoopGuardCallbackHandler(guard, **options)
    return guard, handler, {"callbacks": [handler]}


def streaks(guard, session_id: str | None = None) -> list[int]:
    return [event.streak for event in guard.loops if session_id in (None, event.session_id)]


def calling(name: str, rounds: int = 99, *, fresh: bool = False) -> Any:
    """A model that asks for one tool, with the same argument or a fresh one each round."""
    return Scripted(script=(scripted.healthy if fresh else scripted.looping)(rounds, name=name))


def delegating(run: Any, name: str = "delegate") -> StructuredTool:
    """A tool that runs `run`, sync or async as it is called itself."""

    def delegate(key: str) -> str:
        """Hand over."""
        return str(run.invoke({"messages": [("user", key)]})["messages"][-1].content)

    async def adelegate(key: str) -> str:
        """Hand over."""
        return str((await run.ainvoke({"messages": [("user", key)]}))["messages"][-1].content)

    return StructuredTool.from_function(delegate, adelegate, name=name)


# -- nested ----------------------------------------------------------------------------------------------------------


@BOTH
def test_agent_inside_a_tool_is_a_session_of_its_own(how):
    lookup = Counting()
    inner = create_agent(calling("lookup", 4), [lookup.tool], name="inner")
    outer = create_agent(calling("delegate", 3, fresh=True), [delegating(inner)], name="outer")
    guard, handler, config = guarded()
    scripted.run(outer, how, config=config)
    *inside, last = guard.ends
    assert (last.agent, last.parent_id, last.turns) == ("outer", None, 3)
    assert [(e.agent, e.parent_id, e.turns, e.reason) for e in inside] == [
        ("inner", last.session_id, 4, "complete")
    ] * 3
    assert streaks(guard) == [2, 3, 4] * 3  # each run of it for itself
    assert last.usage.total_tokens == (3 + 3 * 4) * 15  # the outer run pays for those inside
    assert len({event.session_id for event in guard.ends}) == 4
    scripted.assert_nothing_left(handler)


@BOTH
def test_stop_inside_ends_the_outer_run(how):
    lookup = Counting()
    inner = create_agent(calling("lookup"), [lookup.tool], name="inner")
    outer = create_agent(calling("delegate", fresh=True), [delegating(inner)], name="outer")
    guard, handler, config = guarded()
    with pytest.raises(LangChainStop) as stopped:
        scripted.run(outer, how, config=config)
    assert lookup.count == 5
    assert [(event.agent, event.reason) for event in guard.ends] == [("inner", "doom_loop"), ("outer", "doom_loop")]
    assert guard.ends[0].verdict.tool == guard.ends[1].verdict.tool == stopped.value.verdict.tool == "lookup"
    assert guard.ends[1].turns == 1
    scripted.assert_nothing_left(handler)


@BOTH
def test_stop_inside_that_a_tool_swallows_ends_the_outer_run_all_the_same(how):
    lookup = Counting()
    inner = create_agent(calling("lookup"), [lookup.tool], name="inner")

    def swallow(key: str) -> str:
        """Hand over."""
        try:
            return str(inner.invoke({"messages": [("user", key)]}))
        except Exception:  # noqa: BLE001
            return "that did not work"

    model = calling("swallow", fresh=True)
    outer = create_agent(model, [StructuredTool.from_function(swallow)], name="outer", checkpointer=InMemorySaver())
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    with pytest.raises(LangChainStop):
        scripted.run(outer, how, config=config)
    assert len(model.seen) == 1  # the round it happened in was finished, and no other begun
    assert scripted.well_formed(outer.get_state(config).values["messages"])
    assert [(event.agent, event.reason) for event in guard.ends] == [("inner", "doom_loop"), ("outer", "doom_loop")]
    scripted.assert_nothing_left(handler)


@BOTH
def test_drain_inside_a_tool_ends_both(how):
    lookup = Counting()
    inner = create_agent(calling("lookup"), [lookup.tool], name="inner")
    outer = create_agent(calling("delegate", fresh=True), [delegating(inner)], name="outer")
    guard, handler, config = guarded(on_stop="drain")
    with pytest.raises(GraphDrained):
        scripted.run(outer, how, config=config)
    assert lookup.count == 6
    assert [(event.agent, event.reason) for event in guard.ends] == [("inner", "doom_loop"), ("outer", "doom_loop")]
    scripted.assert_nothing_left(handler)


@BOTH
def test_model_inside_a_tool_is_no_round_of_the_outer_run(how):
    side = Scripted(script=lambda _: AIMessage("a summary"))

    def summarise(key: str) -> str:
        """Summarise."""
        return side.invoke(f"Summarise {key}").content

    async def asummarise(key: str) -> str:
        """Summarise."""
        return (await side.ainvoke(f"Summarise {key}")).content

    using = StructuredTool.from_function(summarise, asummarise)
    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        scripted.run(create_agent(calling("summarise"), [using]), how, config=config)
    *inside, last = guard.ends
    assert len(side.seen) == 5
    assert last.turns == 6
    assert last.reason == "doom_loop"
    assert [(event.parent_id, event.turns, event.reason) for event in inside] == [(last.session_id, 0, "complete")] * 5
    scripted.assert_nothing_left(handler)


def test_hand_written_loop_inside_a_tool_is_a_session_of_its_own():
    lookup = Counting()

    @tool
    def research(key: str) -> str:
        """Research."""
        return scripted.hand_loop(calling("lookup", 4), lookup.tool)[-1].content

    guard, handler, config = guarded()
    create_agent(calling("research", 2, fresh=True), [research]).invoke(ASK, config)
    *inside, last = guard.ends
    assert [(event.parent_id, event.turns) for event in inside] == [(last.session_id, 4)] * 2
    assert streaks(guard) == [2, 3, 4] * 2
    scripted.assert_nothing_left(handler)


def test_agent_inside_a_tool_of_a_hand_written_loop():
    lookup = Counting()
    inner = create_agent(calling("lookup", 3), [lookup.tool], name="inner")
    guard, handler, config = guarded()
    scripted.hand_loop(calling("delegate", 2, fresh=True), delegating(inner), config)
    *inside, last = guard.ends
    assert [(event.agent, event.parent_id) for event in inside] == [("inner", last.session_id)] * 2
    assert last.turns == 2
    assert current_session() is None
    scripted.assert_nothing_left(handler)


def test_agent_inside_a_tool_of_an_async_hand_written_loop():
    inner = create_agent(calling("lookup", 3), [Counting().tool], name="inner")
    guard, handler, config = guarded()

    async def main():
        await scripted.ahand_loop(calling("delegate", 2, fresh=True), delegating(inner), config)
        assert current_session() is None  # nothing is left in the caller's context

    asyncio.run(main())
    *inside, last = guard.ends
    assert [(event.agent, event.parent_id) for event in inside] == [("inner", last.session_id)] * 2
    scripted.assert_nothing_left(handler)


class AskingRetriever(BaseRetriever):
    """Has a model rephrase the question, as `MultiQueryRetriever` does."""

    model: Any

    def _get_relevant_documents(self, query, *, run_manager):
        text = self.model.invoke(f"Rephrase {query}", {"callbacks": run_manager.get_child()}).content
        return [Document(page_content=text)]


@BOTH
def test_model_inside_a_retriever_belongs_to_the_run(how):
    rephrase = Scripted(script=lambda _: AIMessage("other words", usage_metadata=scripted.request().usage_metadata))
    retriever = AskingRetriever(model=rephrase)

    @tool
    def lookup(key: str) -> str:
        """Look it up."""
        return str(retriever.invoke(key)[0].page_content)

    guard, handler, config = guarded()
    scripted.run(create_agent(calling("lookup", 2), [lookup]), how, config=config)
    *inside, last = guard.ends
    assert [(event.parent_id, event.turns) for event in inside] == [(last.session_id, 0)] * 2
    assert last.usage.total_tokens == 4 * 15
    scripted.assert_nothing_left(handler)


@BOTH
def test_guarded_agent_of_another_kind_inside_a_tool_finds_its_outer_run(how):
    """One whose own middleware, or whose own SDK, asks for the session it is nested in."""
    inner = create_agent(
        calling("lookup"), [Counting().tool], middleware=[LoopGuardMiddleware(guard := Watched())], name="inner"
    )
    outer = create_agent(calling("delegate", fresh=True), [delegating(inner)], name="outer")
    with pytest.raises(LangChainStop):
        scripted.run(outer, how, config={"callbacks": [LoopGuardCallbackHandler(guard)]})
    inside, last = guard.ends
    assert (inside.agent, inside.parent_id, inside.reason) == ("inner", last.session_id, "doom_loop")
    assert (last.agent, last.reason, last.turns) == ("outer", "doom_loop", 1)
    assert not guard._live
    assert current_session() is None


@BOTH
def test_agents_that_are_nodes_of_a_graph(how):
    lookup = Counting()
    graph = StateGraph(MessagesState)
    for number in (1, 2):
        graph.add_node(f"a{number}", create_agent(calling("lookup", 4), [lookup.tool], name=f"a{number}"))
    graph.add_edge(START, "a1")
    graph.add_edge("a1", "ask")
    graph.add_node("ask", lambda _state: {"messages": [HumanMessage("And the other one?")]})
    graph.add_edge("ask", "a2")
    guard, handler, config = guarded()
    scripted.run(graph.compile(), how, config=config)
    assert [(event.agent, event.turns, event.parent_id) for event in guard.ends] == [("a1", 4, None), ("a2", 4, None)]
    assert streaks(guard) == [2, 3, 4] * 2
    scripted.assert_nothing_left(handler)


def test_handing_over_to_another_agent_of_the_graph_is_no_error():
    @tool(return_direct=True)
    def to_b(key: str) -> Command:
        """Hand over."""
        return Command(goto="b", graph=Command.PARENT)

    graph = StateGraph(MessagesState)
    graph.add_node("a", create_agent(calling("to_b"), [to_b], name="a"), destinations=("b",))
    graph.add_node("b", create_agent(calling("lookup", 2), [Counting().tool], name="b"))
    graph.add_edge(START, "a")
    guard, handler, config = guarded()
    graph.compile().invoke(ASK, config)
    assert [(event.agent, event.reason) for event in guard.ends] == [("a", "complete"), ("b", "complete")]
    scripted.assert_nothing_left(handler)


def test_limits_hold_for_a_run_and_those_inside_it():
    lookup = Counting(lambda key: key)
    inner = create_agent(calling("lookup", 3, fresh=True), [lookup.tool], name="inner")
    outer = create_agent(calling("delegate", 99, fresh=True), [delegating(inner)], name="outer")
    guard, handler, config = guarded({"limits": {"tokens": 170}})  # what is not reported is estimated
    with pytest.raises(LangChainStop) as stopped:
        outer.invoke(ASK, config)
    assert stopped.value.reason == "max_tokens"
    assert [event.reason for event in guard.ends] == ["complete", "max_tokens", "max_tokens"]
    assert guard.last_end.usage.total_tokens == 7 * 15 + 72
    scripted.assert_nothing_left(handler)


# -- several conversations in one run --------------------------------------------------------------------------------


class Grade(BaseModel):
    """A grade."""

    good: bool


class Grader(Scripted):
    """Grades everything good, as a tool call that no tool answers."""

    script: Any = lambda _: scripted.request(("Grade", {"good": True}))


@BOTH
@pytest.mark.parametrize("as_structured", [True, False], ids=["with_structured_output", "bind_tools"])
def test_grader_asked_once_a_document_is_no_loop(as_structured, how):
    """Twelve identical tool calls in one run, and none after seeing a result: the best known RAG tutorial."""
    grader = Grader().with_structured_output(Grade) if as_structured else Grader().bind_tools([Grade])

    class State(MessagesState):
        good: int

    def grade(state):
        return {"good": len([grader.invoke(f"Is document {n} good?") for n in range(12)])}

    async def agrade(state):
        return {"good": len([await grader.ainvoke(f"Is document {n} good?") for n in range(12)])}

    graph = StateGraph(State)
    graph.add_node("grade", RunnableLambda(grade, agrade))
    graph.add_node("agent", create_agent(calling("lookup", 3), [Counting().tool], name="agent"))
    graph.add_edge(START, "grade")
    graph.add_edge("grade", "agent")
    guard, handler, config = guarded()
    assert scripted.run(graph.compile(), how, config=config)["good"] == 12
    assert streaks(guard) == [2, 3]
    assert {event.reason for event in guard.ends} == {"complete"}
    scripted.assert_nothing_left(handler)


def test_grader_by_hand_is_no_loop_either():
    guard, handler, config = guarded()
    for number in range(12):
        Grader().with_structured_output(Grade).invoke(f"Is document {number} good?", config)
    assert guard.loops == []
    assert guard.reasons == ["complete"] * 12
    scripted.assert_nothing_left(handler)


@BOTH
def test_grader_does_not_hide_the_loop_beside_it(how):
    """Both are called in the same node, one after the other."""
    lookup, model, grader = Counting(), Scripted(), Grader().bind_tools([Grade])

    def agent(state):
        grader.invoke("Is this good?")
        return {"messages": [model.invoke(state["messages"])]}

    async def aagent(state):
        await grader.ainvoke("Is this good?")
        return {"messages": [await model.ainvoke(state["messages"])]}

    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        scripted.run(scripted.graph_of(RunnableLambda(agent, aagent), [lookup.tool]), how, config=config)
    assert lookup.count == 5
    assert streaks(guard) == [2, 3, 4, 5, 6]
    assert set(guard.reasons) == {"doom_loop"}
    scripted.assert_nothing_left(handler)


@BOTH
def test_summary_made_by_hand_does_not_hide_the_loop(how):
    """The node has its own model call before the agent's, and that one knows nothing of the messages."""
    lookup, model = Counting(), Scripted()
    summary = Scripted(script=lambda _: AIMessage("It looked the invoice up."))

    def agent(state):
        summary.invoke("Summarise: ...")
        return {"messages": [model.invoke(state["messages"])]}

    async def aagent(state):
        await summary.ainvoke("Summarise: ...")
        return {"messages": [await model.ainvoke(state["messages"])]}

    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        scripted.run(scripted.graph_of(RunnableLambda(agent, aagent), [lookup.tool]), how, config=config)
    assert lookup.count == 5
    assert streaks(guard) == [2, 3, 4, 5, 6]
    assert [(event.reason, event.turns, event.model_calls) for event in guard.ends] == [("doom_loop", 6, 12)]
    scripted.assert_nothing_left(handler)


@BOTH
def test_model_that_picks_tools_is_no_round(how):
    """It is asked before every call of the agent's model, and picks the same each time."""
    pick = Scripted(
        script=lambda _: scripted.request(("ToolSelectionResponse", {"tools": ["lookup"]})),
    )
    lookup = Counting(lambda key: key)
    graph = create_agent(
        calling("lookup", 9, fresh=True),
        [lookup.tool, Counting(name="other").tool],
        middleware=[LLMToolSelectorMiddleware(model=pick)],
    )
    guard, handler, config = guarded()
    scripted.run(graph, how, config=config)
    assert len(pick.seen) == 10
    assert guard.loops == []
    assert [(event.reason, event.turns, event.model_calls) for event in guard.ends] == [("complete", 9, 20)]
    scripted.assert_nothing_left(handler)


@BOTH
@pytest.mark.parametrize("keep", [2, 1])
def test_summaries_do_not_hide_a_loop(keep, how):
    """With `keep=1` not even the last round survives: where the request comes from has to do."""
    summary = Scripted(script=lambda _: AIMessage("It looked the invoice up."))
    lookup = Counting()
    graph = create_agent(
        Scripted(),
        [lookup.tool],
        middleware=[SummarizationMiddleware(model=summary, trigger=("messages", 4), keep=("messages", keep))],
    )
    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        scripted.run(graph, how, config=config)
    assert len(summary.seen) >= 2
    assert lookup.count == 5
    assert streaks(guard) == [2, 3, 4, 5, 6]
    assert [(event.reason, event.turns) for event in guard.ends] == [("doom_loop", 6)]
    scripted.assert_nothing_left(handler)


def scratchpad_graph(model: Any, lookup: Any, lines: Any) -> Any:
    """An agent that writes what happened into its prompt, and never shows the model its own messages."""

    class State(TypedDict):
        lines: Annotated[list, operator.add]
        asked: AIMessage

    graph = StateGraph(State)
    graph.add_node("agent", lambda state: {"asked": model.invoke("\n".join(["So far:", *state.get("lines", [])]))})
    graph.add_node(
        "tools",
        lambda state: {"lines": [lookup.tool.invoke(call).content for call in state["asked"].tool_calls][:lines]},
    )
    graph.add_edge(START, "agent")
    graph.add_edge("agent", "tools")
    graph.add_edge("tools", "agent")
    return graph.compile()


def test_loop_with_a_written_scratchpad_is_stopped():
    lookup = Counting()
    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        scratchpad_graph(Scripted(), lookup, 1).invoke({"lines": []}, config)
    assert lookup.count == 5
    assert guard.last_end.turns == 6
    scripted.assert_nothing_left(handler)


def test_changing_results_behind_a_written_scratchpad_are_progress():
    lookup = Counting(lambda key: f"{lookup.count} of 20 files done")
    guard, _, config = guarded()
    patience = iter(range(12))
    model = Scripted(
        script=lambda _: scripted.looping(99)([]) if next(patience, None) is not None else scripted.request()
    )
    with pytest.raises(Exception, match="recursion"):
        scratchpad_graph(model, lookup, 1).invoke({"lines": []}, {**config, "recursion_limit": 30})
    assert lookup.count == 12
    assert guard.reasons == ["max_turns"]


def worker_graph(model: Any, lookup: Any) -> Any:
    """Eight workers at once, each a small loop inside one node of the same graph."""

    class State(TypedDict):
        done: Annotated[list, operator.add]

    def work(given):
        messages = scripted.hand_loop(model, lookup.tool, messages=[HumanMessage(f"Task {given['task']}")])
        return {"done": [messages[-1].content]}

    async def awork(given):
        messages = await scripted.ahand_loop(model, lookup.tool, messages=[HumanMessage(f"Task {given['task']}")])
        return {"done": [messages[-1].content]}

    graph = StateGraph(State)
    graph.add_node("work", RunnableLambda(work, awork))
    graph.add_conditional_edges(START, lambda _: [Send("work", {"task": n}) for n in range(8)], ["work"])
    return graph.compile()


@BOTH
def test_fan_out_of_workers_that_ask_for_the_same_is_no_loop(how):
    lookup = Counting()
    guard, handler, config = guarded()
    out = scripted.run(worker_graph(calling("lookup", 1), lookup), how, {"done": []}, config)
    assert out["done"] == ["done"] * 8
    assert lookup.count == 8
    assert guard.loops == []
    assert set(guard.reasons) == {"complete"}
    scripted.assert_nothing_left(handler)


@BOTH
def test_worker_that_loops_in_a_fan_out_is_stopped(how):
    lookup = Counting(lambda key: f"line {key}")

    def script(messages: list[BaseMessage]) -> AIMessage:
        if messages[0].content == "Task 5":
            return scripted.request(("lookup", {"key": "stuck"}))
        return scripted.healthy(3)(messages)

    guard, handler, config = guarded()
    with pytest.raises(LangChainStop):
        scripted.run(worker_graph(Scripted(script=script), lookup), how, {"done": []}, config)
    assert lookup.ran.count("stuck") == 5
    assert guard.last_end.reason == "doom_loop"
    assert guard.last_end.verdict.streak == 6
    assert [event.streak for event in guard.loops] == [2, 3, 4, 5, 6]
    scripted.assert_nothing_left(handler)


def test_agents_side_by_side_in_a_chain():
    lookup = Counting()
    agents = {
        name: create_agent(calling("lookup", 4), [lookup.tool], name=name) for name in ("left", "right", "middle")
    }
    guard, handler, config = guarded()
    RunnableParallel(agents).invoke(ASK, config)
    assert sorted(event.agent for event in guard.ends) == ["left", "middle", "right"]
    for event in guard.ends:
        assert streaks(guard, event.session_id) == [2, 3, 4]
    scripted.assert_nothing_left(handler)


def test_agent_called_once_a_document_in_a_chain():
    lookup = Counting()
    agent = create_agent(calling("lookup", 1), [lookup.tool])
    guard, handler, config = guarded()
    RunnableLambda(lambda _: [agent.invoke(ASK) for _ in range(10)]).invoke(0, config)
    assert lookup.count == 10
    assert guard.loops == []
    assert guard.reasons == ["complete"] * 10
    scripted.assert_nothing_left(handler)


def test_chain_that_runs_its_own_tools_ends_with_itself():
    """One model call and its tools, and no second call: not a step of anything."""
    lookup = Counting()
    chain = Scripted() | RunnableLambda(lambda response: [lookup.tool.invoke(call) for call in response.tool_calls])
    guard, handler, config = guarded()
    for _ in range(8):
        chain.invoke(ASK["messages"], config)
    assert guard.reasons == ["complete"] * 8
    assert guard.loops == []
    scripted.assert_nothing_left(handler)


def test_questions_beside_the_loop_are_bounded(monkeypatch):
    lookup, grader, model = Counting(), Grader().bind_tools([Grade]), Scripted(script=scripted.looping(6))

    def agent(state):
        response = model.invoke(state["messages"])
        for number in range(400):
            grader.invoke(f"Is document {number} good?")
        assert len(handler._tree.get(owner).scope.conversations) <= 256
        return {"messages": [response]}

    owner = uuid.uuid4()
    guard, handler, config = guarded({"ladder": {"stop": 6}})
    with pytest.raises(LangChainStop):
        scripted.graph_of(agent, [lookup.tool]).invoke(ASK, {**config, "run_id": owner})
    assert lookup.count == 5
    assert guard.reasons == ["doom_loop"]
    scripted.assert_nothing_left(handler)


def test_samples_from_one_point_are_not_rounds_in_a_row():
    """Best of eight: the same request at once, answered alike."""
    guard, handler, config = guarded()
    messages = scripted.hand_loop(calling("lookup", 2), Counting().tool, config)[:3]

    async def main():
        model = Scripted()
        await asyncio.gather(*(model.ainvoke(messages, config) for _ in range(8)))

    asyncio.run(main())
    assert streaks(guard) == [2]
    assert guard.reasons == ["complete"]
    handler.close()
    scripted.assert_nothing_left(handler)


def test_batch_is_many_runs():
    lookup = Counting()
    agent = create_agent(calling("lookup", 4), [lookup.tool])
    guard, handler, config = guarded()
    agent.batch([ASK] * 5, config)
    assert guard.reasons == ["complete"] * 5
    for event in guard.ends:
        assert streaks(guard, event.session_id) == [2, 3, 4]
    scripted.assert_nothing_left(handler)


# -- many at once ----------------------------------------------------------------------------------------------------


def script_for_many(messages: list[BaseMessage]) -> AIMessage:
    """Odd conversations loop, even ones are healthy."""
    number = int(messages[0].content.split()[-1])
    if number % 2:
        return scripted.request(("lookup", {"key": f"stuck {number}"}))
    return scripted.healthy(8)(messages)


def assert_half_stopped(guard, handler, lookup, results) -> None:
    stopped = [result for result in results if isinstance(result, LangChainStop)]
    assert len(stopped) == 10
    assert {stop.reason for stop in stopped} == {"doom_loop"}
    assert sorted(guard.reasons) == ["complete"] * 10 + ["doom_loop"] * 10
    assert {event.turns for event in guard.ends if event.reason == "complete"} == {8}
    for number in range(1, 20, 2):
        assert lookup.ran.count(f"stuck {number}") == 5
    for event in guard.ends:
        assert streaks(guard, event.session_id) == ([] if event.reason == "complete" else [2, 3, 4, 5, 6])
    handler.close()
    scripted.assert_nothing_left(handler)


MANY = [[HumanMessage(f"Question {number}")] for number in range(20)]


@pytest.mark.parametrize("kind", ["create_agent", "StateGraph", "by hand"])
def test_twenty_tasks_on_one_handler(kind):
    lookup = Counting(lambda key: "nothing" if key.startswith("stuck") else f"line {key}")
    model = Scripted(script=script_for_many)
    guard, handler, config = guarded()
    if kind == "by hand":
        runs = [scripted.ahand_loop(model, lookup.tool, config, list(messages)) for messages in MANY]
    else:
        build = create_agent if kind == "create_agent" else scripted.raw_graph
        graph = build(model, [lookup.tool])
        runs = [graph.ainvoke({"messages": messages}, config) for messages in MANY]

    async def main():
        return await asyncio.gather(*runs, return_exceptions=True)

    assert_half_stopped(guard, handler, lookup, asyncio.run(main()))


@pytest.mark.parametrize("kind", ["create_agent", "StateGraph", "by hand"])
def test_twenty_runs_in_threads_on_one_handler(kind):
    lookup = Counting(lambda key: "nothing" if key.startswith("stuck") else f"line {key}")
    model = Scripted(script=script_for_many)
    guard, handler, config = guarded()
    build = create_agent if kind == "create_agent" else scripted.raw_graph
    graph = None if kind == "by hand" else build(model, [lookup.tool])

    def one(messages):
        try:
            if graph is None:
                return scripted.hand_loop(model, lookup.tool, config, list(messages))
            return graph.invoke({"messages": messages}, config)
        except LangChainStop as stop:
            return stop

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(one, MANY))
    assert_half_stopped(guard, handler, lookup, results)


def test_hand_written_loops_taking_turns_in_one_thread():
    """Nothing but the messages tells them apart."""
    lookup = Counting()
    guard, handler, config = guarded()
    model = Scripted(script=scripted.looping(4))
    histories = [list(ASK["messages"]) for _ in range(6)]
    for _ in range(5):
        for messages in histories:
            response = model.invoke(messages, config)
            messages += [response, *(lookup.tool.invoke(call, config) for call in response.tool_calls)]
    assert guard.reasons == ["complete"] * 6
    for event in guard.ends:
        assert streaks(guard, event.session_id) == [2, 3, 4]
    scripted.assert_nothing_left(handler)


def test_abandoned_hand_written_loops_are_bounded(monkeypatch):
    """One that is cancelled in the middle of a model call is not even reported by LangChain."""
    from loopguard_langchain import _sessions

    monkeypatch.setattr(_sessions, "MAX_LOOSE", 5)
    guard, handler, config = guarded()
    for _ in range(8):
        Scripted().invoke(ASK["messages"], config)

    class Hanging(Scripted):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            await asyncio.Event().wait()

    async def main():
        running = [asyncio.create_task(Hanging().ainvoke(ASK["messages"], config)) for _ in range(8)]
        await asyncio.sleep(0)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(main())
    assert len(handler._sessions) == len(guard._live) == 5
    assert len(handler._tree) <= 5
    assert guard.reasons == ["cancelled"] * 11
    handler.close()
    assert len(guard.ends) == 16
    assert not guard._live


def test_runs_of_a_chain_without_a_model_leave_nothing():
    guard, handler, config = guarded()
    RunnableParallel(a=RunnableLambda(lambda x: x), b=RunnableLambda(lambda x: x)).invoke(1, config)
    Counting().tool.invoke({"key": "k"}, config)
    assert guard.ends == []
    scripted.assert_nothing_left(handler)


# -- interrupts ------------------------------------------------------------------------------------------------------


def asking_agent(model: Any, ran: list[str], **options: Any) -> Any:
    """An agent whose tool asks a human each time."""

    @tool
    def lookup(key: str) -> str:
        """Look it up."""
        answer = interrupt("May I?")
        ran.append(key)
        return f"{answer}, but nothing found"

    return create_agent(model, [lookup], checkpointer=InMemorySaver(), **options)


@BOTH
@pytest.mark.parametrize("new_handler", [False, True], ids=["one handler", "a new one each time"])
def test_streak_goes_on_after_a_human_answered(new_handler, how):
    ran: list[str] = []
    graph = asking_agent(Scripted(), ran)
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    given: Any = ASK
    for _ in range(5):
        if new_handler:
            config["callbacks"] = [handler := LoopGuardCallbackHandler(guard)]
        scripted.run(graph, how, given, config)
        given = Command(resume="yes")
        assert guard.last_end.reason == "paused"
        assert len(handler._tree) == 0
    with pytest.raises(LangChainStop):
        scripted.run(graph, how, given, config)
    assert guard.reasons == ["paused"] * 5 + ["doom_loop"]
    assert streaks(guard) == [2, 3, 4, 5, 6]
    assert len({event.session_id for event in guard.ends}) == 1
    assert len(ran) == 5
    scripted.assert_nothing_left(handler)


@BOTH
@pytest.mark.parametrize("new_handler", [False, True], ids=["one handler", "a new one each time"])
def test_stopped_run_that_is_resumed_ends_before_its_next_model_call(new_handler, how):
    """`drain` lets a round finish, and a human is asked about it first."""
    ran: list[str] = []
    model = Scripted()
    graph = asking_agent(model, ran)
    guard = guarded()[0]
    handler = LoopGuardCallbackHandler(guard, on_stop="drain")
    given: Any = ASK
    for _ in range(6):
        config = {"callbacks": [handler], "configurable": {"thread_id": "1"}}
        scripted.run(graph, how, given, config)
        given = Command(resume="yes")
        if new_handler:
            handler = LoopGuardCallbackHandler(guard, on_stop="drain")
    with pytest.raises(GraphDrained):
        scripted.run(graph, how, given, {"callbacks": [handler], "configurable": {"thread_id": "1"}})
    assert (len(ran), len(model.seen), streaks(guard)) == (6, 6, [2, 3, 4, 5, 6])
    assert guard.last_end.reason == "doom_loop"
    scripted.assert_nothing_left(handler)


@BOTH
def test_run_that_completes_after_a_pause_ends_once(how):
    ran: list[str] = []
    graph = asking_agent(calling("lookup", 1), ran)
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    scripted.run(graph, how, ASK, config)
    assert guard.last_end.turns == 1
    scripted.run(graph, how, Command(resume="yes"), config)
    assert guard.reasons == ["paused", "complete"]
    assert guard.last_end.turns == 1
    scripted.assert_nothing_left(handler)


def test_run_that_ends_after_a_pause_without_another_model_call():
    @tool(return_direct=True)
    def lookup(key: str) -> str:
        """Look it up."""
        return str(interrupt("May I?"))

    graph = create_agent(Scripted(), [lookup], checkpointer=InMemorySaver())
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    graph.invoke(ASK, config)
    graph.invoke(Command(resume="yes"), config)
    assert guard.reasons == ["paused", "complete"]
    scripted.assert_nothing_left(handler)


@BOTH
@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
def test_breakpoints_are_pauses(where, how):
    lookup = Counting()
    graph = create_agent(Scripted(), [lookup.tool], checkpointer=InMemorySaver(), **{where: ["tools"]})
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    scripted.run(graph, how, ASK, config)
    with pytest.raises(LangChainStop):
        scripted.for_ever(lambda: scripted.run(graph, how, None, config))
    assert guard.reasons == ["paused"] * 5 + ["doom_loop"]
    assert lookup.count == 5
    scripted.assert_nothing_left(handler)


def test_user_who_says_something_new_gives_the_interrupted_run_up():
    ran: list[str] = []
    graph = asking_agent(Scripted(), ran)
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    graph.invoke(ASK, config)
    graph.invoke(Command(resume="yes"), config)
    graph.invoke({"messages": [HumanMessage("Never mind. The other one?")]}, config)
    first, second, given_up, third = guard.ends
    assert [e.reason for e in guard.ends] == ["paused", "paused", "cancelled", "paused"]
    assert first.session_id == second.session_id == given_up.session_id != third.session_id
    assert streaks(guard, third.session_id) == []
    with pytest.raises(LangChainStop):
        scripted.for_ever(lambda: graph.invoke(Command(resume="yes"), config))
    assert streaks(guard, third.session_id) == [2, 3, 4, 5, 6]
    scripted.assert_nothing_left(handler)


def test_threads_wait_independently():
    ran: list[str] = []
    graph = asking_agent(calling("lookup", 3), ran)
    guard, handler, config = guarded()
    threads = [{**config, "configurable": {"thread_id": str(n)}} for n in range(4)]
    for thread in threads:
        graph.invoke(ASK, thread)
    for _ in range(3):
        for thread in threads:
            graph.invoke(Command(resume="yes"), thread)
    assert sorted(guard.reasons) == ["complete"] * 4 + ["paused"] * 12
    for session_id in {event.session_id for event in guard.ends}:
        assert streaks(guard, session_id) == [2, 3]
    scripted.assert_nothing_left(handler)


@BOTH
def test_interrupt_of_an_agent_inside_a_tool(how):
    ran: list[str] = []

    @tool
    def lookup(key: str) -> str:
        """Look it up."""
        answer = interrupt("May I?")
        ran.append(key)
        return str(answer)

    inner = create_agent(calling("lookup", 3), [lookup], name="inner")
    outer = create_agent(calling("delegate", 1), [delegating(inner)], name="outer", checkpointer=InMemorySaver())
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    given: Any = ASK
    for _ in range(4):
        scripted.run(outer, how, given, config)
        given = Command(resume="yes")
    assert [(e.agent, e.reason) for e in guard.ends] == [
        *[("inner", "paused"), ("outer", "paused")] * 3,
        ("inner", "complete"),
        ("outer", "complete"),
    ]
    inside = guard.ends[-2]
    assert inside.turns == 3
    assert inside.parent_id == guard.last_end.session_id
    assert streaks(guard, inside.session_id) == [2, 3]
    assert len({event.session_id for event in guard.ends}) == 2
    scripted.assert_nothing_left(handler)


def test_error_beside_an_interrupt_is_an_error():
    @tool
    def ask(key: str) -> str:
        """Ask."""
        return str(interrupt("May I?"))

    @tool
    def boom(key: str) -> str:
        """Break."""
        raise RuntimeError("no disk")

    model = Scripted(script=lambda _: scripted.request(("ask", {"key": "k"}), ("boom", {"key": "k"})))
    graph = create_agent(model, [ask, boom], checkpointer=InMemorySaver())
    guard, handler, config = guarded()
    config["configurable"] = {"thread_id": "1"}
    with pytest.raises(RuntimeError):
        graph.invoke(ASK, config)
    assert guard.reasons == ["error"]
    scripted.assert_nothing_left(handler)


def test_paused_guard_can_be_collected():
    """What waits for a human names its session, and so keeps no guard alive."""
    import gc
    import weakref

    guard, handler, config = guarded()
    graph = asking_agent(Scripted(), [])
    graph.invoke(ASK, {**config, "configurable": {"thread_id": "1"}})
    alive = weakref.ref(guard)
    del guard, handler, config
    gc.collect()
    assert alive() is None
