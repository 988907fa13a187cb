"""The driver for a hand-written loop over LangChain's models and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage, convert_to_openai_messages
from langchain_core.tools import BaseTool
from langchain_parts import SHARED, chat, make_tool, on_loop
from loopguard_langchain import guard_tools, loop_guard_callback
from loopguard_langchain._surfaces import GUARDED_TOOLS

from loopguard_core import Surface
from loopguard_core.testing.conformance import Agent, Conversation, Turn


class HandLoop:
    """A loop everybody writes first: ask, run what is asked for, append, ask again."""

    def __init__(self, agent: Agent, mode: Literal["invoke", "ainvoke"], *, outermost: bool) -> None:
        made = [make_tool(spec, lambda inner: lambda: HandLoop(inner, mode, outermost=False)) for spec in agent.tools]
        self._tools: dict[str, BaseTool] = {tool.name: tool for tool in guard_tools(made, agent.guard)}
        self._model = chat(agent).bind_tools(list(self._tools.values()))
        self._guard, self._mode, self._outermost = agent.guard, mode, outermost
        self._messages: list[BaseMessage] = []

    def send(self, text: str) -> Turn:
        self._messages.append(HumanMessage(text))
        try:
            if self._mode == "invoke":
                return Turn(text=self._watched())
            return Turn(text=on_loop(self._awatched()))
        except Exception as error:  # noqa: BLE001
            return Turn(error=error)

    def _watched(self) -> str:
        if not self._outermost:  # the outer block is in force inside of its tools too
            return self._run()
        with loop_guard_callback(self._guard):
            return self._run()

    async def _awatched(self) -> str:
        with loop_guard_callback(self._guard):
            return await self._arun()

    def _run(self) -> str:
        while True:
            response = self._model.invoke(self._messages)
            self._messages.append(response)
            if not response.tool_calls:
                return response.text
            for call in response.tool_calls:
                tool = self._tools.get(call["name"])
                self._messages.append(tool.invoke(call) if tool else _unknown(call))

    async def _arun(self) -> str:
        while True:
            response = await self._model.ainvoke(self._messages)
            self._messages.append(response)
            if not response.tool_calls:
                return response.text
            known = [(self._tools.get(call["name"]), call) for call in response.tool_calls]
            running = [tool.ainvoke(call) for tool, call in known if tool]
            self._messages += [_unknown(call) for tool, call in known if not tool]
            self._messages += await asyncio.gather(*running)

    def approve(self) -> Turn:
        raise NotImplementedError

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        return list(convert_to_openai_messages(self._messages))


class HandLoopDriver:
    """A hand-written loop in a `loop_guard_callback` block, with `guard_tools`."""

    surface: Surface = GUARDED_TOOLS
    executes_stopped_round = False

    def __init__(self, mode: Literal["invoke", "ainvoke"]) -> None:
        self._how: Literal["invoke", "ainvoke"] = mode
        self.mode = f"hand loop, {mode}"

    @property
    def features(self) -> frozenset[str]:
        # A stop raises where the model is asked, before its response is kept: the history is complete all the same.
        return SHARED | {"cost", "history", "raise"}

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return lambda: HandLoop(agent, self._how, outermost=True)


def _unknown(call: Any) -> ToolMessage:
    return ToolMessage(f"Error: {call['name']} is not a tool", tool_call_id=call["id"], status="error")
