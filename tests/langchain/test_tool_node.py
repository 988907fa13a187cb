"""`tool_call_wrapper`: a `ToolNode` that refuses calls and ends runs, alone or with a handler of the same guard."""

import asyncio
import gc
import importlib
import operator
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from loopguard_langchain import (
    LoopGuardCallbackHandler,
    _tool_runs,
    async_tool_call_wrapper,
    guard_tools,
    tool_call_wrapper,
)

from loopguard_core import LoopGuardStop

sys.path.insert(0, str(Path(__file__).parent))
scripted = importlib.import_module("scripted")

ASK, Counting, Scripted, Watched = scripted.ASK, scripted.Counting, scripted.Scripted, scripted.Watched
LADDER = ["observe 2", "block 3", "block 4", "block 5", "stop 6"]


def ladder(guard):
    return [f"{event.action.value} {event.streak}" for event in guard.loops]


def wrapped(guard, **options):
    return {
        "wrap_tool_call": tool_call_wrapper(guard, **options),
        "awrap_tool_call": async_tool_call_wrapper(guard, **options),
    }


def graph_of(guard, model, *tools, memory=True, **options):
    checkpointer = InMemorySaver() if memory else None
    return scripted.raw_graph(model, list(tools), checkpointer, **wrapped(guard, **options))


def thread(name="1", **more) -> Any:
    return {"configurable": {"thread_id": name}, **more}


def run(how, graph, given, config):
    return graph.invoke(given, config) if how == "invoke" else asyncio.run(graph.ainvoke(given, config))


def unanswered(messages):
    asked = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return set(asked) ^ {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}


@pytest.fixture
def guard():
    return Watched()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
class TestAlone:
    def test_a_loop_is_refused_and_ended_with_a_complete_history(self, guard, how):
        counted = Counting()
        graph = graph_of(guard, Scripted(), counted.tool)
        with pytest.raises(GraphDrained, match="was requested with the same arguments"):
            run(how, graph, ASK, thread())
        assert (counted.count, ladder(guard), guard.reasons) == (2, LADDER, ["doom_loop"])
        messages = graph.get_state(thread()).values["messages"]
        assert not unanswered(messages)
        assert (guard.ends[0].turns, guard.ends[0].usage.total_tokens) == (6, 6 * 15)

    def test_the_thread_can_be_used_for_the_next_turn(self, guard, how):
        counted = Counting()
        graph = graph_of(guard, Scripted(), counted.tool)
        for number in range(2):
            with pytest.raises(GraphDrained):
                run(how, graph, {"messages": [HumanMessage(f"turn {number}")]}, thread())
        assert (counted.count, ladder(guard), guard.reasons) == (4, LADDER * 2, ["doom_loop"] * 2)

    def test_a_run_that_was_ended_stays_ended(self, guard, how):
        counted = Counting()
        graph = graph_of(guard, Scripted(), counted.tool)
        for given in (ASK, None, None):
            with pytest.raises(GraphDrained):
                run(how, graph, given, thread())
        assert (counted.count, guard.reasons) == (2, ["doom_loop"])

    def test_raise(self, guard, how):
        counted = Counting()
        graph = graph_of(guard, Scripted(), counted.tool, on_stop="raise")
        with pytest.raises(LoopGuardStop) as caught:
            run(how, graph, ASK, thread())
        assert caught.value.verdict is not None
        assert (counted.count, ladder(guard), guard.reasons) == (2, LADDER, ["doom_loop"])

    def test_parallel_calls_are_one_round(self, guard, how):
        counted = Counting()
        calls = [("lookup", {"key": key}) for key in "abc"]
        graph = graph_of(guard, Scripted(script=lambda _: scripted.request(*calls)), counted.tool)
        with pytest.raises(GraphDrained):
            run(how, graph, ASK, thread())
        assert counted.count == 6
        assert len(guard.loops) == 5 * 3
        assert guard.ends[0].turns == 6
        assert not unanswered(graph.get_state(thread()).values["messages"])

    @pytest.mark.parametrize(
        ("limits", "ran", "asked"), [({"turns": 4}, 4, 4), ({"tokens": 50}, 4, 4), ({"tool_calls": 3}, 3, 4)]
    )
    @pytest.mark.parametrize("on_stop", ["drain", "raise"])
    def test_a_limit_ends_the_run_before_the_next_model_call(self, how, limits, ran, asked, on_stop):
        guard, counted = Watched({"limits": limits}), Counting()
        model = Scripted(script=scripted.healthy(20))
        graph = graph_of(guard, model, counted.tool, on_stop=on_stop)
        with pytest.raises(GraphDrained if on_stop == "drain" else LoopGuardStop):
            run(how, graph, ASK, thread())
        assert (counted.count, len(model.seen)) == (ran, asked)
        assert guard.reasons == [f"max_{next(iter(limits))}"]

    def test_without_a_thread_each_invocation_is_a_run(self, guard, how):
        counted = Counting()
        graph = graph_of(guard, Scripted(script=scripted.looping(2)), counted.tool, memory=False)
        for _ in range(5):
            run(how, graph, ASK, {})
        assert (counted.count, guard.reasons) == (10, [])
        assert len({event.session_id for event in guard.loops}) == 5
        assert ladder(guard) == ["observe 2"] * 5

    def test_with_a_thread_a_user_who_says_something_begins_a_run(self, guard, how):
        counted = Counting()
        graph = graph_of(guard, Scripted(script=scripted.looping(2)), counted.tool)
        for _ in range(4):
            run(how, graph, {"messages": [HumanMessage("again")]}, thread())
        assert counted.count == 8
        assert guard.reasons == ["complete"] * 3, "the end of the last one is not seen"

    def test_a_thread_without_a_memory_is_no_run(self, guard, how):
        """The same question, asked anew with the same thread id: its history does not hold the last round."""
        counted = Counting()
        graph = graph_of(guard, Scripted(script=scripted.looping(2)), counted.tool, memory=False)
        for _ in range(4):
            run(how, graph, {"messages": [HumanMessage("again", id="same")]}, thread())
        assert (counted.count, ladder(guard)) == (8, ["observe 2"] * 4)

    def test_an_interrupted_run_goes_on(self, guard, how):
        def body(key: str) -> str:
            interrupt("approve?")
            return "nothing found"

        tool = StructuredTool.from_function(body, name="lookup", description="lookup")
        graph = graph_of(guard, Scripted(), tool)
        run(how, graph, ASK, thread())
        run(how, graph, Command(resume="yes"), thread())
        with pytest.raises(GraphDrained):
            run(how, graph, Command(resume="yes"), thread())
        assert (ladder(guard), guard.reasons) == (LADDER, ["paused", "paused", "doom_loop"])
        assert [end.turns for end in guard.ends] == [1, 2, 6]
        assert len({end.session_id for end in guard.ends}) == 1

    def test_an_agent_in_a_tool_has_a_session_of_its_own(self, guard, how):
        counted = Counting()
        inner = graph_of(guard, Scripted(), counted.tool, memory=False)

        def ask(key: str) -> str:
            return inner.invoke(ASK)["messages"][-1].text

        async def aask(key: str) -> str:
            return (await inner.ainvoke(ASK))["messages"][-1].text

        tool = StructuredTool.from_function(ask, aask, name="ask", description="ask")
        outer = Scripted(script=lambda _: scripted.request(("ask", {"key": "k"})))
        graph = graph_of(guard, outer, tool)
        with pytest.raises(GraphDrained):
            run(how, graph, ASK, thread())
        assert (counted.count, guard.reasons, len(outer.seen)) == (2, ["doom_loop"] * 2, 1)
        first, second = guard.ends
        assert first.parent_id == second.session_id
        messages = graph.get_state(thread()).values["messages"]
        assert not unanswered(messages)
        assert "A nested run was ended" in messages[-1].content

    def test_an_unknown_tool(self, guard, how):
        graph = graph_of(guard, Scripted(script=scripted.looping(9, "no_such_tool")), Counting().tool)
        with pytest.raises(GraphDrained):
            run(how, graph, ASK, thread())
        assert (ladder(guard), guard.reasons) == (LADDER, ["doom_loop"])

    def test_switched_off(self, how):
        guard, counted = Watched({"enabled": False}), Counting()
        run(how, graph_of(guard, Scripted(script=scripted.looping(9)), counted.tool), ASK, thread())
        assert counted.count == 9


class TestState:
    class Items(TypedDict):
        items: Annotated[list[Any], operator.add]

    def test_messages_under_another_name_and_without_ids(self, guard):
        counted = Counting()
        graph = StateGraph(self.Items)
        graph.add_node("agent", lambda state: {"items": [Scripted().invoke(state["items"])]})
        graph.add_node("tools", ToolNode([counted.tool], messages_key="items", **wrapped(guard)))
        graph.add_edge(START, "agent")
        graph.add_edge("agent", "tools")
        graph.add_edge("tools", "agent")
        with pytest.raises(GraphDrained):
            graph.compile().invoke({"items": [HumanMessage("go")]})
        assert (counted.count, ladder(guard)) == (2, LADDER)

    def test_a_call_that_is_in_no_message_runs_and_the_log_says_so_once(self, guard, caplog):
        counted = Counting()
        call = {"name": "lookup", "args": {"key": "k"}, "id": "1", "type": "tool_call"}
        graph = StateGraph(dict)
        node = ToolNode([counted.tool], **wrapped(guard))
        graph.add_node("tools", lambda state, config: {"done": node.invoke([call], config)})
        graph.add_edge(START, "tools")
        for _ in range(4):
            graph.compile().invoke({"messages": []})
        assert counted.count == 4
        assert caplog.text.count("could not be found") == 1


class TestTogether:
    @pytest.mark.parametrize("how", ["invoke", "ainvoke"])
    @pytest.mark.parametrize("on_stop", ["drain", "raise"])
    def test_a_handler_of_the_same_guard_judges(self, guard, how, on_stop):
        counted = Counting()
        graph = graph_of(guard, Scripted(), counted.tool)
        config = thread(callbacks=[LoopGuardCallbackHandler(guard, on_stop=on_stop)])
        with pytest.raises(GraphDrained if on_stop == "drain" else LoopGuardStop):
            run(how, graph, ASK, config)
        assert (counted.count, ladder(guard), guard.reasons) == (2, LADDER, ["doom_loop"])
        assert len(guard.calls) == 6

    def test_the_handler_sees_healthy_runs_end(self, guard):
        graph = graph_of(guard, Scripted(script=scripted.healthy(3)), Counting().tool)
        graph.invoke(ASK, thread(callbacks=[LoopGuardCallbackHandler(guard)]))
        assert guard.reasons == ["complete"]

    def test_a_handler_of_another_guard_does_not(self, guard):
        counted, other = Counting(), Watched({"ladder": {"stop": False}})
        graph = graph_of(guard, Scripted(), counted.tool)
        with pytest.raises(GraphDrained):
            graph.invoke(ASK, thread(callbacks=[LoopGuardCallbackHandler(other)]))
        assert (counted.count, ladder(guard)) == (2, LADDER)

    def test_guarded_tools_in_it_neither_count_nor_complain(self, guard):
        counted = Counting()
        graph = graph_of(guard, Scripted(), *guard_tools([counted.tool], guard))
        with pytest.raises(GraphDrained):
            graph.invoke(ASK, thread())
        assert (counted.count, ladder(guard)) == (2, LADDER)
        assert not guard.faults.counts


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
class TestEnds:
    """What a wrapper alone sees of the end of a run."""

    @pytest.mark.parametrize(
        ("error", "reason"), [(ValueError, "error"), (KeyboardInterrupt, "cancelled"), (SystemExit, "error")]
    )
    def test_an_exception_of_a_tool_ends_the_session(self, guard, how, error, reason):
        def fail(key: str) -> str:
            raise error

        graph = graph_of(guard, Scripted(), Counting(fail).tool)
        with pytest.raises(error):
            run(how, graph, ASK, thread())
        assert guard.reasons == [reason]

    def test_a_failure_the_model_is_told_of_ends_nothing(self, guard, how):
        def fail(key: str) -> str:
            raise ValueError("no such invoice")

        counted = Counting(fail)
        graph = scripted.raw_graph(Scripted(), [counted.tool], handle_tool_errors=True, **wrapped(guard))
        with pytest.raises(GraphDrained):
            run(how, graph, ASK, None)
        assert (counted.count, guard.reasons) == (2, ["doom_loop"])


class TestRuns:
    def test_threads_do_not_mix(self, guard):
        counted = Counting()
        graph = graph_of(guard, Scripted(), counted.tool)

        async def one(name):
            with pytest.raises(GraphDrained):
                await graph.ainvoke(ASK, thread(name))

        async def all_of_them():
            await asyncio.gather(*(one(str(number)) for number in range(10)))

        asyncio.run(all_of_them())
        assert (counted.count, guard.reasons) == (20, ["doom_loop"] * 10)

    @pytest.mark.parametrize("how", ["invoke", "ainvoke"])
    def test_graphs_with_memories_of_their_own_may_be_given_one_thread_id(self, guard, how):
        """As where the id is a user's and several agents work for them, at the same time."""
        looping, healthy = Counting(), Counting(name="fetch")
        bad = graph_of(guard, Scripted(), looping.tool)
        good = graph_of(guard, Scripted(script=scripted.healthy(12, "fetch")), healthy.tool)
        graphs, config = [bad, good], thread(recursion_limit=60)

        def invoke(graph):
            together.wait(10)
            return graph.invoke(ASK, config)

        async def at_once():
            return await asyncio.gather(*(graph.ainvoke(ASK, config) for graph in graphs), return_exceptions=True)

        if how == "invoke":
            together = threading.Barrier(2)
            with ThreadPoolExecutor(2) as pool:
                futures = [pool.submit(invoke, graph) for graph in graphs]
            stopped, done = futures[0].exception(), futures[1].result()
        else:
            stopped, done = asyncio.run(at_once())
        assert isinstance(stopped, GraphDrained)
        assert done["messages"][-1].content == "done"
        assert (looping.count, healthy.count, ladder(guard), guard.reasons) == (2, 12, LADDER, ["doom_loop"])

    def test_the_turns_of_graphs_with_one_thread_id_are_runs_of_their_own(self, guard):
        looping, healthy = Counting(), Counting(name="fetch")
        first = graph_of(guard, Scripted(script=scripted.looping(2)), looping.tool)
        second = graph_of(guard, Scripted(script=scripted.healthy(3, "fetch")), healthy.tool)
        for number in range(3):
            for graph in (first, second):
                graph.invoke({"messages": [HumanMessage(f"turn {number}")]}, thread())
        assert (looping.count, healthy.count, ladder(guard)) == (6, 9, ["observe 2"] * 3)
        assert [(end.reason, end.turns) for end in guard.ends] == [("complete", 2), ("complete", 3)] * 2

    def test_of_a_thread_only_so_many_are_kept(self, guard, monkeypatch):
        monkeypatch.setattr(_tool_runs, "MAX_AT_ONCE", 2)
        graph = graph_of(guard, Scripted(script=scripted.looping(1)), Counting().tool, memory=False)
        for _ in range(10):
            graph.invoke(ASK, thread())
        assert len(_tool_runs.tool_runs(guard)) == len(guard._live) == 2
        assert guard.reasons == ["complete"] * 8

    def test_one_goes_on_after_the_other_way_to_run_it(self, guard):
        def body(key: str) -> str:
            interrupt("approve?")
            return "nothing found"

        tool = StructuredTool.from_function(body, name="lookup", description="lookup")
        graph = graph_of(guard, Scripted(), tool)
        run("invoke", graph, ASK, thread())
        run("ainvoke", graph, Command(resume="yes"), thread())
        with pytest.raises(GraphDrained):
            run("invoke", graph, Command(resume="yes"), thread())
        assert ladder(guard) == LADDER

    def test_only_so_many_are_kept(self, guard, monkeypatch):
        monkeypatch.setattr(_tool_runs, "MAX_RUNS", 3)
        graph = graph_of(guard, Scripted(script=scripted.looping(1)), Counting().tool, memory=False)
        for _ in range(10):
            graph.invoke(ASK)
        assert len(_tool_runs.tool_runs(guard)) == 3
        assert len(guard._live) == 3

    def test_they_keep_no_guard_alive(self):
        guard = Watched()
        graph = graph_of(guard, Scripted(script=scripted.looping(2)), Counting().tool)
        graph.invoke(ASK, thread())
        gone = weakref.ref(guard)
        del guard, graph
        gc.collect()
        assert gone() is None

    def test_a_fault_of_ours_lets_the_tool_run(self, guard, monkeypatch):
        counted = Counting()
        monkeypatch.setattr(_tool_runs, "_round", lambda *_: 1 / 0)
        graph_of(guard, Scripted(script=scripted.looping(9)), counted.tool).invoke(ASK, thread())
        assert counted.count == 9
        assert guard.faults.counts

    def test_what_on_stop_must_be(self, guard):
        with pytest.raises(ValueError, match="on_stop"):
            tool_call_wrapper(guard, on_stop="end")
