"""The names of `loopguard_llama_index`. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

from typing import assert_type

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.llms import LLM
from llama_index.core.tools import AsyncBaseTool
from loopguard_llama_index import (
    LoopDetectedEvent,
    LoopGuardEventHandler,
    LoopGuardMixin,
    LoopGuardStop,
    guard,
    guard_agent,
    guard_tool,
    session_of,
    unguard,
)

import loopguard_core
from loopguard_core import LoopGuard, Session, Verdict


def look(at: int) -> str:
    """Look."""
    return str(at)


class MyAgent(LoopGuardMixin, FunctionAgent):
    """Guarded from the start."""


async def guarded(llm: LLM, watch: LoopGuard) -> Verdict | None:
    agent = guard_agent(FunctionAgent(tools=[look], llm=llm), watch, escalate_llm=llm, on_stop="end")
    assert_type(agent, FunctionAgent)
    workflow = guard(AgentWorkflow.from_tools_or_functions([look], llm=llm), watch)
    assert_type(workflow, AgentWorkflow)
    handler = agent.run(user_msg="hello")
    try:
        async for event in handler.stream_events():
            if isinstance(event, LoopDetectedEvent):
                assert_type(event.streak, int)
                assert_type(event.tool_name, str | None)
        await handler
    except LoopGuardStop as stop:
        general: loopguard_core.LoopGuardStop = stop
        return general.verdict
    assert_type(session_of(handler), Session | None)
    assert_type(unguard(agent), FunctionAgent)
    MyAgent(tools=[guard_tool(look, watch)], llm=llm, guard=watch)
    return None


def own(watch: LoopGuard) -> None:
    LoopGuardEventHandler(watch)
    LoopGuardEventHandler("patient")
    assert_type(guard_tool(look, watch), AsyncBaseTool)
