"""Drivers for LangChain's surfaces."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, convert_to_openai_messages
from langchain_core.tools import StructuredTool, ToolException
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import Command, interrupt
from loopguard_langchain import LoopGuardCallbackHandler, LoopGuardMiddleware
from loopguard_langchain._surfaces import CALLBACK, MIDDLEWARE

from loopguard_core import Surface
from loopguard_core.testing.conformance import Agent, Conversation, ToolSpec, Turn
from loopguard_core.testing.conformance._driver import PARAMETERS

Mode = Literal["invoke", "ainvoke", "stream", "astream"]

MODES: tuple[Mode, ...] = ("invoke", "ainvoke", "stream", "astream")


def chat(base_url: str, model: str) -> ChatOpenAI:
    """The real client, on the scripted server."""
    return ChatOpenAI(model=model, base_url=base_url, api_key="none", max_retries=0, stream_usage=True)


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


class _Loop:
    """One event loop for all async runs: real clients keep connections that belong to theirs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()


_shared = _Loop()


def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run on the shared loop, in the caller's context."""
    return asyncio.run_coroutine_threadsafe(coroutine, _shared.loop).result(60)


class GraphConversation:
    """One checkpointed thread of a graph."""

    def __init__(self, graph: Any, thread: str, mode: Mode, config: Mapping[str, Any]) -> None:
        self._graph, self._mode = graph, mode
        self._config = {"configurable": {"thread_id": thread}, "recursion_limit": 500, **config}

    def send(self, text: str) -> Turn:
        return self._turn({"messages": [("user", text)]})

    def approve(self) -> Turn:
        return self._turn(Command(resume="yes"))

    def _turn(self, given: Any) -> Turn:
        try:
            self._run(given)
        except Exception as error:  # noqa: BLE001
            return Turn(error=error)
        state = self._graph.get_state(self._config)
        if any(task.interrupts for task in state.tasks):
            return Turn(waiting=True)
        last = state.values["messages"][-1]
        return Turn(text=last.text, notice=last.response_metadata.get("loopguard"))

    def _run(self, given: Any) -> None:
        if self._mode == "invoke":
            self._graph.invoke(given, self._config)
        elif self._mode == "ainvoke":
            on_loop(self._graph.ainvoke(given, self._config))
        elif self._mode == "stream":
            for _ in self._graph.stream(given, self._config, stream_mode=["messages", "updates"]):
                pass
        else:
            on_loop(self._astream(given))

    async def _astream(self, given: Any) -> None:
        async for _ in self._graph.astream(given, self._config, stream_mode=["messages", "updates"]):
            pass

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        messages = self._graph.get_state(self._config).values.get("messages", [])
        for message in messages:  # unparsable calls are no calls to LangChain
            if isinstance(message, AIMessage):
                message.invalid_tool_calls = []
        return list(convert_to_openai_messages(messages))


class _GraphDriver:
    executes_stopped_round = False

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._threads = itertools.count()

    def _open(self, graph: Any, **config: Any) -> Callable[[], Conversation]:
        return lambda: GraphConversation(graph, str(next(self._threads)), self.mode, config)


class MiddlewareDriver(_GraphDriver):
    """create_agent with LoopGuardMiddleware."""

    surface: Surface = MIDDLEWARE

    @property
    def features(self) -> frozenset[str]:
        cost = {"cost"} if self.mode in ("invoke", "ainvoke") else set()  # ChatOpenAI drops it while streaming
        shared = {"history", "usage", "unknown_tool", "tool_errors", "nested", "approval"}
        return frozenset({"on_stop", "raise", "notice", *shared, *cost})

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        middleware = LoopGuardMiddleware(
            agent.guard,
            exit_behavior={"end": "end", "raise": "error", None: None}[agent.on_stop],
            escalate_model=chat(agent.base_url, agent.strong_model) if agent.strong_model else None,
        )
        graph = create_agent(
            chat(agent.base_url, agent.model),
            [make_tool(spec, self.build) for spec in agent.tools],
            middleware=[middleware],
            checkpointer=InMemorySaver(),
        )
        return self._open(graph)


class CallbackDriver(_GraphDriver):
    """LoopGuardCallbackHandler on some graph."""

    surface: Surface = CALLBACK

    def __init__(self, mode: Mode, kind: str, on_stop: Literal["raise", "drain"] = "raise") -> None:
        super().__init__(mode)
        self._kind, self._on_stop = kind, on_stop
        self.mode = f"{kind}, {mode}, {on_stop}"
        self._how = mode
        self.executes_stopped_round = on_stop == "drain"

    def _open(self, graph: Any, **config: Any) -> Callable[[], Conversation]:
        return lambda: GraphConversation(graph, str(next(self._threads)), self._how, config)

    @property
    def features(self) -> frozenset[str]:
        stop = {"history"} if self._on_stop == "drain" else {"raise"}
        cost = {"cost"} if self._how in ("invoke", "ainvoke") else set()
        return frozenset({"usage", "unknown_tool", "tool_errors", "nested", *stop, *cost})

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return self._build(agent, outermost=True)

    def _build(self, agent: Agent, *, outermost: bool) -> Callable[[], Conversation]:
        model = chat(agent.base_url, agent.model)
        tools = [make_tool(spec, partial(self._build, outermost=False)) for spec in agent.tools]
        if not outermost:  # callbacks are inherited
            return self._open(_graph(self._kind, model, tools))
        handler = LoopGuardCallbackHandler(agent.guard, on_stop=self._on_stop)
        return self._open(_graph(self._kind, model, tools), callbacks=[handler])


def _graph(kind: str, model: ChatOpenAI, tools: Sequence[StructuredTool]) -> Any:
    if kind == "create_agent":
        return create_agent(model, tools, checkpointer=InMemorySaver())
    if kind == "create_react_agent":
        return create_react_agent(model, tools, checkpointer=InMemorySaver())
    bound = model.bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())
