"""What the drivers for LangChain share: the real client, tools, and one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from langchain_core.tools import StructuredTool, ToolException
from langchain_openai import ChatOpenAI
from langgraph.types import interrupt

from loopguard_core.testing.conformance import Agent, Conversation, ToolSpec
from loopguard_core.testing.conformance._driver import PARAMETERS

Mode = Literal["invoke", "ainvoke", "stream", "astream"]

MODES: tuple[Mode, ...] = ("invoke", "ainvoke", "stream", "astream")


def chat(agent: Agent, model: str | None = None) -> ChatOpenAI:
    """The real client, on the scripted server; of the usual model, if no other is named."""
    return ChatOpenAI(
        model=model or agent.model,
        base_url=agent.base_url,
        api_key="none",
        max_retries=0,
        stream_usage=True,
        max_tokens=agent.max_tokens,
    )


def make_tool(spec: ToolSpec, build: Callable[[Agent], Callable[[], Conversation]]) -> StructuredTool:
    """A tool from its neutral description."""

    def run(**arguments: Any) -> Any:
        if spec.agent is not None:
            turn = build(spec.agent)().send(str(arguments.get("query")))
            if turn.error is not None:
                raise turn.error
            return turn.text
        if spec.approval:
            interrupt("approve?")
        try:
            return spec.body(arguments)
        except Exception as error:
            raise ToolException(str(error)) from error

    return StructuredTool.from_function(
        run,
        name=spec.name,
        description=spec.name,
        args_schema=dict(PARAMETERS),
        handle_tool_error=True,
        infer_schema=False,
    )


SHARED = frozenset(
    {
        *("usage", "unknown_tool", "tool_errors", "nested", "fan_out", "tool_names", "sees_answers", "reads_text"),
        *("asks_first", "model_errors", "max_tokens"),
    }
)
"""What every driver here can show."""


def cost_of(mode: Mode) -> frozenset[str]:
    """ChatOpenAI drops the cost while streaming."""
    return frozenset({"cost"} if mode in ("invoke", "ainvoke") else ())


class _Loop:
    """One event loop for all async runs: real clients keep connections that belong to theirs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()


_shared = _Loop()


def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run on the shared loop, in the caller's context."""
    return asyncio.run_coroutine_threadsafe(coroutine, _shared.loop).result(60)
