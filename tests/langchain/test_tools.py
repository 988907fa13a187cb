"""`guard_tools`: tools that are refused wherever they run, and stay the tools they were."""

import asyncio
import copy
import importlib
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent
from loopguard_langchain import LoopGuardCallbackHandler, LoopGuardMiddleware, guard_tools, loop_guard_callback

from loopguard_core import LoopGuardStop

sys.path.insert(0, str(Path(__file__).parent))
scripted = importlib.import_module("scripted")

ASK, Counting, Scripted, Watched = scripted.ASK, scripted.Counting, scripted.Scripted, scripted.Watched
LADDER = ["observe 2", "block 3", "block 4", "block 5", "stop 6"]


def ladder(guard):
    return [f"{event.action.value} {event.streak}" for event in guard.loops]


@pytest.fixture
def guard():
    return Watched()


@tool
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


class Own(BaseTool):
    """A class of somebody's own."""

    name: str = "own"
    description: str = "own"
    greeting: str = "hello"

    def _run(self, who: str) -> str:
        return f"{self.greeting} {who}"


class TestItIsStillTheTool:
    @pytest.mark.parametrize("original", [search, Own(greeting="hi")], ids=lambda original: original.name)
    def test_class_fields_and_schema(self, guard, original):
        (guarded,) = guard_tools([original], guard)
        assert isinstance(guarded, type(original))
        assert type(guarded).__name__ == type(original).__name__
        assert guarded.model_dump(exclude={"func", "args_schema"}) == original.model_dump(
            exclude={"func", "args_schema"}
        )
        assert guarded.args_schema is original.args_schema
        assert guarded.tool_call_schema.model_json_schema() == original.tool_call_schema.model_json_schema()
        assert getattr(guarded, "func", None) is getattr(original, "func", None)
        assert type(original) in (StructuredTool, Own), "the original is left alone"

    def test_it_runs(self, guard):
        first, second = guard_tools([search, Own()], guard)
        with loop_guard_callback(guard):
            assert first.invoke({"query": "a"}) == "found a"
            assert asyncio.run(first.ainvoke({"query": "a"})) == "found a"
            assert second.run({"who": "you"}) == "hello you"
            assert asyncio.run(second.arun({"who": "you"})) == "hello you"
        assert not guard.faults.counts

    def test_a_class_whose_run_takes_less_than_others(self, guard):
        class Less(Own):
            name: str = "less"

            def run(self, tool_input: Any, **kwargs: Any) -> Any:  # type: ignore[override]
                return f"<{super().run(tool_input, **kwargs)}>"

        (guarded,) = guard_tools([Less()], guard)
        with loop_guard_callback(guard):
            assert guarded.invoke({"who": "you"}) == "<hello you>"
            assert asyncio.run(guarded.ainvoke({"who": "you"})) == "hello you"

    @pytest.mark.parametrize("by_keyword", [True, False])
    def test_callbacks_given_to_run_itself_are_seen(self, guard, by_keyword):
        counted, model, handler = Counting(), Scripted(), LoopGuardCallbackHandler(guard)
        (guarded,) = guard_tools([counted.tool], guard)
        messages, config = list(ASK["messages"]), {"callbacks": [handler]}
        with pytest.raises(LoopGuardStop):  # noqa: PT012
            while True:
                response = model.invoke(messages, config)
                call = response.tool_calls[0]
                given = ({"callbacks": [handler]}, ()) if by_keyword else ({}, (None, None, None, [handler]))
                answer = guarded.run(call["args"], *given[1], tool_call_id=call["id"], **given[0])
                messages += [response, answer]
        assert (counted.count, ladder(guard)) == (2, LADDER)

    def test_functions_become_tools(self, guard):
        def lookup(key: str) -> str:
            """Look up."""
            return key

        (guarded,) = guard_tools([lookup], guard)
        assert (guarded.name, guarded.description) == ("lookup", "Look up.")

    def test_one_class_for_all_tools_of_a_kind(self, guard):
        first, second = guard_tools([search, Counting().tool], guard)
        assert type(first) is type(second)

    def test_copies_stay_guarded(self, guard):
        counted = Counting()
        (guarded,) = guard_tools([counted.tool], guard)
        for made in (copy.copy(guarded), copy.deepcopy(guarded), guarded.model_copy(update={"tags": ["x"]})):
            assert made._loopguard.guards == (guard,)
            assert made.invoke({"key": "k"}) == "nothing found"

    def test_guarded_again(self, guard):
        (guarded,) = guard_tools([search], guard)
        assert guard_tools([guarded], guard) == [guarded]
        (both,) = guard_tools([guarded], Watched())
        assert type(both) is type(guarded)
        assert len(both._loopguard.guards) == 2

    def test_injected_state_artifacts_and_return_direct(self, guard):
        @tool(response_format="content_and_artifact", return_direct=True)
        def peek(key: str, state: Annotated[dict, InjectedState]) -> tuple[str, int]:
            """Peek."""
            return key, len(state["messages"])

        guarded = guard_tools([peek], guard)
        assert guarded[0].return_direct
        assert "state" not in guarded[0].tool_call_schema.model_json_schema()["properties"]
        graph = scripted.raw_graph(Scripted(script=scripted.looping(1, "peek")), guarded)
        with loop_guard_callback(guard):
            answer = graph.invoke(ASK)["messages"][2]
        assert (answer.content, answer.artifact, answer.status) == ("k", 2, "success")


class Seen(BaseCallbackHandler):
    def __init__(self):
        self.tools = 0

    def on_tool_start(self, *args, **kwargs):
        self.tools += 1


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
class TestRefused:
    def test_in_a_hand_loop(self, guard, how):
        counted, seen, messages = Counting(), Seen(), list(ASK["messages"])
        (guarded,) = guard_tools([counted.tool], guard)
        config = {"callbacks": [seen]}
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard):  # noqa: PT012  # noqa: PT012  # either way of one loop
            if how == "invoke":
                scripted.hand_loop(Scripted(), guarded, config, messages)
            else:
                asyncio.run(scripted.ahand_loop(Scripted(), guarded, config, messages))
        assert (counted.count, seen.tools, ladder(guard), guard.reasons) == (2, 2, LADDER, ["doom_loop"])
        refused = [message for message in messages if isinstance(message, ToolMessage)][2:]
        assert [(message.status, message.name) for message in refused] == [("error", "lookup")] * 3
        assert all("[loopguard] This call was not executed" in message.content for message in refused)

    @pytest.mark.parametrize("kind", ["raw", "react", "agent"])
    @pytest.mark.parametrize("on_stop", ["raise", "drain"])
    def test_in_graphs(self, guard, how, kind, on_stop):
        counted = Counting()
        guarded, model, memory = guard_tools([counted.tool], guard), Scripted(), InMemorySaver()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = {
                "raw": lambda: scripted.raw_graph(model, guarded, memory),
                "react": lambda: create_react_agent(model, ToolNode(guarded), checkpointer=memory),
                "agent": lambda: create_agent(model, guarded, checkpointer=memory),
            }[kind]()
        handler = LoopGuardCallbackHandler(guard, on_stop=on_stop)
        config: Any = {"callbacks": [handler], "configurable": {"thread_id": "1"}}
        with pytest.raises(LoopGuardStop if on_stop == "raise" else GraphDrained):
            graph.invoke(ASK, config) if how == "invoke" else asyncio.run(graph.ainvoke(ASK, config))
        assert (counted.count, ladder(guard), guard.reasons) == (2, LADDER, ["doom_loop"])
        if on_stop == "drain":
            last, answer = graph.get_state(config).values["messages"][-2:]
            assert answer.tool_call_id == last.tool_calls[0]["id"]
            assert answer.content.startswith("[loopguard] The run was ended")

    def test_where_ids_are_not_passed_on(self, guard, how):
        """As in `AgentExecutor`: a chain whose tools are run with nothing but their arguments."""
        counted = Counting()
        (guarded,) = guard_tools([counted.tool], guard)

        def step(messages, response, answers):
            calls = response.tool_calls
            texts = [ToolMessage(text, tool_call_id=call["id"]) for call, text in zip(calls, answers, strict=True)]
            return [*messages, response, *texts]

        def loop(_):
            messages = list(ASK["messages"])
            while True:
                response = Scripted().invoke(messages)
                messages = step(messages, response, [guarded.invoke(call["args"]) for call in response.tool_calls])

        async def aloop(_):
            messages = list(ASK["messages"])
            while True:
                response = await Scripted().ainvoke(messages)
                answers = [await guarded.ainvoke(call["args"]) for call in response.tool_calls]
                messages = step(messages, response, answers)

        chain, config = RunnableLambda(loop, aloop), {"callbacks": [LoopGuardCallbackHandler(guard)]}
        with pytest.raises(LoopGuardStop):
            chain.invoke("", config) if how == "invoke" else asyncio.run(chain.ainvoke("", config))
        assert (counted.count, ladder(guard)) == (2, LADDER)

    def test_the_rest_of_the_round_runs(self, guard, how):
        same, other = Counting(), Counting(name="other")
        guarded = guard_tools([same.tool, other.tool], guard)

        def script(messages):
            number = scripted.since_user(messages)
            if number == 5:
                return AIMessage("done")
            return scripted.request(("lookup", {"key": "k"}), ("other", {"key": f"{number}"}))

        graph = scripted.raw_graph(Scripted(script=script), guarded)
        config = {"callbacks": [LoopGuardCallbackHandler(guard)]}
        graph.invoke(ASK, config) if how == "invoke" else asyncio.run(graph.ainvoke(ASK, config))
        assert (same.count, other.count, guard.reasons) == (2, 5, ["complete"])


class TestWithoutIds:
    """A hand-written loop that calls tools with their arguments only."""

    def test_the_only_loop_under_way_is_meant(self, guard):
        counted = Counting()
        (guarded,) = guard_tools([counted.tool], guard)
        messages = list(ASK["messages"])
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard):  # noqa: PT012
            while True:
                response = Scripted().invoke(messages)
                answer = guarded.invoke(response.tool_calls[0]["args"])
                messages += [response, ToolMessage(answer, tool_call_id=response.tool_calls[0]["id"])]
        assert (counted.count, ladder(guard)) == (2, LADDER)

    def test_of_several_none_is(self, guard):
        counted = Counting()
        (guarded,) = guard_tools([counted.tool], guard)
        with loop_guard_callback(guard):
            messages = list(ASK["messages"])
            for _ in range(3):
                response = Scripted().invoke(messages)
                messages += [response, ToolMessage("no", tool_call_id=response.tool_calls[0]["id"])]
            Scripted().invoke([HumanMessage("another loop")])
            assert guarded.invoke({"key": "k"}) == "nothing found"


class TestWhatIsNotGuarded:
    def test_its_calls_fall_to_observe(self, guard):
        loose, counted = Counting(), Counting(name="other")
        guarded = guard_tools([counted.tool], guard)
        with pytest.raises(LoopGuardStop):
            scripted.raw_graph(Scripted(), [loose.tool, *guarded]).invoke(
                ASK, {"callbacks": [LoopGuardCallbackHandler(guard)]}
            )
        assert loose.count == 5
        assert ladder(guard) == ["observe 2", "observe 3", "observe 4", "observe 5", "stop 6"]

    def test_a_limit_on_its_calls_ends_the_run(self):
        guard, loose = Watched({"limits": {"tool_calls": 2}}), Counting()
        guarded = guard_tools([Counting(name="other").tool], guard)
        with pytest.raises(LoopGuardStop):
            scripted.raw_graph(Scripted(script=scripted.healthy(9)), [loose.tool, *guarded]).invoke(
                ASK, {"callbacks": [LoopGuardCallbackHandler(guard)]}
            )
        assert (loose.count, guard.reasons) == (2, ["max_tool_calls"])


class TestHandler:
    def test_without_one_the_tool_runs_and_the_log_says_so_once(self, guard, caplog):
        counted = Counting()
        (guarded,) = guard_tools([counted.tool], guard)
        scripted.hand_loop(Scripted(script=scripted.looping(9)), guarded)
        assert counted.count == 9
        assert [record for record in caplog.records if "no LoopGuardCallbackHandler" in record.getMessage()][1:] == []
        assert "no LoopGuardCallbackHandler" in caplog.text

    def test_one_of_another_guard_is_none(self, guard):
        counted = Counting()
        (guarded,) = guard_tools([counted.tool], guard)
        with pytest.raises(LoopGuardStop), loop_guard_callback(Watched()):
            scripted.hand_loop(Scripted(), guarded)
        assert (counted.count, guard.loops) == (5, [])

    def test_made_before_the_tools(self, guard):
        counted, handler = Counting(), LoopGuardCallbackHandler(guard)
        with pytest.raises(LoopGuardStop):
            scripted.hand_loop(Scripted(), guard_tools([counted.tool], guard)[0], {"callbacks": [handler]})
        assert counted.count == 2

    @pytest.mark.parametrize("handler", [True, False])
    def test_a_middleware_comes_first(self, guard, handler):
        counted = Counting()
        guarded = guard_tools([counted.tool], guard)
        agent = create_agent(Scripted(), guarded, middleware=[LoopGuardMiddleware(guard)])
        agent.invoke(ASK, {"callbacks": [LoopGuardCallbackHandler(guard)]} if handler else {})
        assert (counted.count, ladder(guard), guard.reasons) == (2, LADDER, ["doom_loop"])
        assert not guard.faults.counts

    def test_switched_off(self):
        guard, counted = Watched({"enabled": False}), Counting()
        (guarded,) = guard_tools([counted.tool], guard)
        scripted.hand_loop(Scripted(script=scripted.looping(9)), guarded)
        assert counted.count == 9
        assert not guard.faults.counts

    def test_a_fault_of_ours_lets_the_tool_run(self, guard, monkeypatch):
        counted = Counting()
        (guarded,) = guard_tools([counted.tool], guard)
        monkeypatch.setattr("loopguard_langchain.tools.Watchers", lambda *_: 1 / 0)
        assert guarded.invoke({"key": "k"}) == "nothing found"
        assert guard.faults.counts


class TestAgentInATool:
    @pytest.mark.parametrize("on_stop", ["raise", "drain"])
    def test_its_stop_is_the_answer_to_the_call_it_was_made_in(self, guard, on_stop):
        """The history of the outer run stays complete, and its next model call does not start."""
        counted = Counting()
        inner = scripted.raw_graph(Scripted(), guard_tools([counted.tool], guard))

        @tool
        def ask(key: str) -> str:
            """Ask another agent."""
            return inner.invoke(ASK)["messages"][-1].text

        outer = Scripted(script=lambda _: scripted.request(("ask", {"key": "k"})))
        graph = scripted.raw_graph(outer, guard_tools([ask], guard), InMemorySaver())
        handler = LoopGuardCallbackHandler(guard, on_stop=on_stop)
        config: Any = {"callbacks": [handler], "configurable": {"thread_id": "1"}}
        with pytest.raises((LoopGuardStop, GraphDrained)):
            graph.invoke(ASK, config)
        assert (counted.count, guard.reasons, len(outer.seen)) == (2, ["doom_loop"] * 2, 1)
        last, answer = graph.get_state(config).values["messages"][-2:]
        assert answer.tool_call_id == last.tool_calls[0]["id"]
        assert "A nested run was ended" in answer.content


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (3, "tools = 3: must be a list of tools or functions"),
        (search, "tools = StructuredTool"),
        ("search", "tools = 'search': must be a list"),
        (lambda: 1, "tools = <function"),
        (None, "tools = None: must be a list"),
        ([search, 7], r"tools\[1\] = 7: must be a tool, or a function"),
        ([{"type": "web_search"}], r"tools\[0\] = .* runs at the provider and cannot be guarded; leave it out"),
    ],
)
def test_what_is_no_list_of_tools_is_named(tools, said):
    with pytest.raises(TypeError, match=said):
        guard_tools(tools, "default")
