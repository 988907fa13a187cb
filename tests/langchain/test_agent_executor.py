"""langchain-classic's AgentExecutor: a handler observes and stops, guarded tools refuse."""

from __future__ import annotations

import pytest
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from loopguard_langchain import LoopGuardCallbackHandler, LoopGuardStop, guard_tools

from loopguard_core import LoopGuard
from loopguard_core.testing import Recorder, ScriptedServer, gives_up_when_refused, never_listens

classic = pytest.importorskip("langchain_classic.agents")

PROMPT = ChatPromptTemplate.from_messages([("human", "{input}"), MessagesPlaceholder("agent_scratchpad")])


class Lookup:
    """A tool that always times out."""

    def __init__(self) -> None:
        self.ran = 0
        self.tool = StructuredTool.from_function(self.fetch, name="fetch", description="Fetch.")

    def fetch(self, query: str) -> str:
        self.ran += 1
        return "Error: timeout"


def execute(server, guard, lookup, *, guarded):
    tools = guard_tools([lookup.tool], guard) if guarded else [lookup.tool]
    model = ChatOpenAI(model="scripted-1", base_url=server.base_url, api_key="none", stream_usage=True)
    agent = classic.create_tool_calling_agent(model, tools, PROMPT)
    executor = classic.AgentExecutor(agent=agent, tools=tools, max_iterations=30)
    return executor.invoke({"input": "go"}, {"callbacks": [LoopGuardCallbackHandler(guard)]})


def test_the_handler_stops_a_loop():
    recorder, lookup = Recorder(), Lookup()
    with ScriptedServer(never_listens("fetch", {"query": "x"})) as server, pytest.raises(LoopGuardStop):
        execute(server, LoopGuard(plugins=[recorder]), lookup, guarded=False)
    assert lookup.ran == 5
    assert recorder.ladder() == ["observe 2", "observe 3", "observe 4", "observe 5", "stop 6"]
    assert [end.reason for end in recorder.ends] == ["doom_loop"]


def test_guarded_tools_are_refused():
    recorder, lookup = Recorder(), Lookup()
    with ScriptedServer(never_listens("fetch", {"query": "x"})) as server, pytest.raises(LoopGuardStop):
        execute(server, LoopGuard(plugins=[recorder]), lookup, guarded=True)
    assert lookup.ran == 2
    assert recorder.ladder() == ["observe 2", "block 3", "block 4", "block 5", "stop 6"]


def test_a_listening_model_answers_after_the_refusal():
    recorder, lookup = Recorder(), Lookup()
    with ScriptedServer(gives_up_when_refused("fetch", {"query": "x"}, "done")) as server:
        result = execute(server, LoopGuard(plugins=[recorder]), lookup, guarded=True)
    assert result["output"] == "done"
    assert lookup.ran == 2
    assert [end.reason for end in recorder.ends] == ["complete"]
