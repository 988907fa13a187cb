"""The names of `loopguard_langchain`. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

from typing import assert_type

from langchain.agents import create_agent
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from loopguard_langchain import (
    LoopGuardCallbackHandler,
    LoopGuardMiddleware,
    LoopGuardStop,
    async_tool_call_wrapper,
    guard_tools,
    loop_guard_callback,
    tool_call_wrapper,
)

import loopguard_core
from loopguard_core import LoopGuard, Policy, Verdict


def look(at: int) -> str:
    """Look."""
    return str(at)


def middleware(guard: LoopGuard) -> None:
    create_agent("openai:gpt-6", tools=[look], middleware=[LoopGuardMiddleware(guard)])
    create_agent(
        "openai:gpt-6",
        tools=guard_tools([look], guard),
        middleware=[LoopGuardMiddleware("openrouter", exit_behavior="error", escalate_model="openai:gpt-6")],
    )
    assert_type(LoopGuardMiddleware(Policy()).guard, LoopGuard)


def anywhere(guard: LoopGuard, chain: Runnable[str, str]) -> Verdict | None:
    assert_type(guard_tools([look], guard), list[BaseTool])
    handler = LoopGuardCallbackHandler(guard, on_stop="drain")
    chain.invoke("hello", config={"callbacks": [handler]})
    ToolNode([look], wrap_tool_call=tool_call_wrapper(guard), awrap_tool_call=async_tool_call_wrapper(guard))
    try:
        with loop_guard_callback(guard) as watching:
            assert_type(watching, LoopGuardCallbackHandler)
    except LoopGuardStop as stop:
        general: loopguard_core.LoopGuardStop = stop
        return general.verdict
    return None
