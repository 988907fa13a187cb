"""Drivers for what attaches outside of agents: `guard_tool` in a workflow of one's own, and the event handler alone."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Event, StartEvent, StopEvent, Workflow, step
from llama_index_instrumentation import get_dispatcher
from loopguard_llama_index import LoopGuardEventHandler, LoopGuardStop, guard_tool
from loopguard_llama_index._surfaces import EVENT_HANDLER, TOOL
from loopguard_llama_index_clients import FunctionClient, shared
from loopguard_llama_index_drivers import body_of

from loopguard_core.testing.conformance import Agent, Conversation, ToolSpec, Turn


class Answered(Event):
    """The tools have run."""


class Wanted(Event):
    """The model asks for tools."""

    calls: list[Any]


class OwnLoop(Workflow):
    """An agent somebody wrote as a workflow: a step that asks, and a step that runs tools."""

    def __init__(self, llm: FunctionClient, tools: list[Any], streaming: bool) -> None:
        super().__init__(timeout=60)
        self.llm, self.tools, self.streaming = llm, tools, streaming
        self.messages: list[ChatMessage] = []

    @step
    async def think(self, ev: StartEvent | Answered) -> Wanted | StopEvent:
        if isinstance(ev, StartEvent):
            self.messages.append(ChatMessage(role="user", content=ev.query))
        response: Any = None
        if self.streaming:
            stream = await self.llm.astream_chat_with_tools(self.tools, chat_history=self.messages)
            response = [piece async for piece in stream][-1]
        else:
            response = await self.llm.achat_with_tools(self.tools, chat_history=self.messages)
        self.messages.append(response.message)
        calls = self.llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
        return Wanted(calls=calls) if calls else StopEvent(result=response.message.content)

    @step
    async def act(self, ev: Wanted) -> Answered:
        for call in ev.calls:
            tool = next(tool for tool in self.tools if tool.metadata.name == call.tool_name)
            try:
                content = str(await tool.acall(**call.tool_kwargs))
            except LoopGuardStop:
                raise
            except Exception as error:  # noqa: BLE001
                content = str(error)
            self.messages.append(
                ChatMessage(role="tool", content=content, additional_kwargs={"tool_call_id": call.tool_id})
            )
        return Answered()


class OneShot:
    """One turn of something that is run."""

    def __init__(self, start: Callable[[str], Any]) -> None:
        self._start = start

    def send(self, text: str) -> Turn:
        async def run() -> Turn:
            try:
                turn = Turn(text=str(await self._start(text)))
            except Exception as error:  # noqa: BLE001
                turn = Turn(error=error)
            for _ in range(20):  # instrumentation reports the end of a run a few steps after it
                await asyncio.sleep(0)
            return turn

        return shared.run(run())

    def approve(self) -> Turn:
        raise NotImplementedError

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        return None


class ToolDriver:
    """`guard_tool` in a workflow of one's own."""

    surface = TOOL
    features = frozenset(
        {"usage", "cost", "tool_errors", "nested", "raise", "fan_out", "tool_names", "sees_answers", "reads_text"}
        | {"model_errors"}
    )
    executes_stopped_round = False

    def __init__(self, mode: str, *, streaming: bool) -> None:
        self.mode, self._streaming = mode, streaming

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        tools = [self._tool(spec, agent) for spec in agent.tools]
        return lambda: OneShot(lambda text: self._loop(agent, tools).run(query=text))

    def _loop(self, agent: Agent, tools: list[Any]) -> OwnLoop:
        return OwnLoop(FunctionClient(base_url=agent.base_url, model=agent.model), tools, self._streaming)

    def _tool(self, spec: ToolSpec, outer: Agent) -> Any:
        async def nested(query: str | None = None) -> str:
            inner = spec.agent
            return str(await self._loop(inner, [self._tool(one, inner) for one in inner.tools]).run(query=query))

        if spec.agent is not None:
            tool = FunctionTool.from_defaults(async_fn=nested, name=spec.name, description=spec.name)
        else:
            tool = FunctionTool.from_defaults(fn=body_of(spec), name=spec.name, description=spec.name)
        return guard_tool(tool, outer.guard)


class HandlerDriver:
    """The event handler beside an agent that is not guarded."""

    surface = EVENT_HANDLER
    features = frozenset(
        {"usage", "history", "fan_out", "tool_names", "sees_answers", "reads_text", "asks_first", "model_errors"}
    )
    executes_stopped_round = False

    def __init__(self, mode: str, *, streaming: bool) -> None:
        self.mode, self._streaming = mode, streaming

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        root = get_dispatcher()
        others = [handler for handler in root.event_handlers if not isinstance(handler, LoopGuardEventHandler)]
        root.event_handlers = [*others, LoopGuardEventHandler(agent.guard)]
        llm = FunctionClient(base_url=agent.base_url, model=agent.model)
        tools = [
            FunctionTool.from_defaults(fn=body_of(spec), name=spec.name, description=spec.name) for spec in agent.tools
        ]
        built = FunctionAgent(tools=tools, llm=llm, streaming=self._streaming)
        return lambda: OneShot(lambda text: built.run(text, max_iterations=500))


WORKFLOW_DRIVERS: list[Any] = [
    ToolDriver("own workflow, streaming", streaming=True),
    ToolDriver("own workflow", streaming=False),
    HandlerDriver("FunctionAgent, streaming", streaming=True),
    HandlerDriver("FunctionAgent", streaming=False),
]
