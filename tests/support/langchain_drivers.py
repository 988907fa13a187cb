"""Drivers for LangChain's surfaces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, convert_to_openai_messages
from langchain_core.tools import BaseTool
from langchain_hand_loop import HandLoopDriver
from langchain_openai import ChatOpenAI
from langchain_parts import MODES, SHARED, Mode, chat, cost_of, make_tool, on_loop
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import Command
from loopguard_langchain import (
    LoopGuardCallbackHandler,
    LoopGuardMiddleware,
    async_tool_call_wrapper,
    guard_tools,
    tool_call_wrapper,
)
from loopguard_langchain._surfaces import CALLBACK, GUARDED_TOOLS, MIDDLEWARE, TOOL_CALL_WRAPPER

from loopguard_core import LoopGuard, Surface
from loopguard_core.testing.conformance import Agent, Conversation, Driver, Turn


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


class UnseenEnds(GraphConversation):
    """A thread on a surface that sees no healthy run end: after the last turn the test says that it did."""

    def __init__(self, guard: LoopGuard, graph: Any, thread: str, mode: Mode, *, complete: bool) -> None:
        super().__init__(graph, thread, mode, {})
        self._guard, self._thread, self._complete = guard, thread, complete

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        for session in reversed(list(self._guard._live.values())):
            outermost = session
            while outermost.parent is not None:
                outermost = outermost.parent
            if outermost.origin.framework_run_id == self._thread:
                session.end()
        return super().history() if self._complete else None


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
        return SHARED | {"history", "approval", "on_stop", "raise", "notice", "text"} | cost_of(self.mode)

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        middleware = LoopGuardMiddleware(
            agent.guard,
            exit_behavior={"end": "end", "raise": "error", None: None}[agent.on_stop],
            escalate_model=chat(agent, agent.strong_model) if agent.strong_model else None,
        )
        graph = create_agent(
            chat(agent),
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
        return SHARED | {"history" if self._on_stop == "drain" else "raise"} | cost_of(self._how)

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return self._build(agent, outermost=True)

    def _build(self, agent: Agent, *, outermost: bool) -> Callable[[], Conversation]:
        model = chat(agent)
        tools = [make_tool(spec, partial(self._build, outermost=False)) for spec in agent.tools]
        if not outermost:  # callbacks are inherited
            return self._open(_graph(self._kind, model, tools))
        handler = LoopGuardCallbackHandler(agent.guard, on_stop=self._on_stop)
        return self._open(_graph(self._kind, model, tools), callbacks=[handler])


class ToolNodeDriver(_GraphDriver):
    """A `ToolNode` with `tool_call_wrapper`, in a graph of the tutorials or in `create_react_agent`.

    Args:
        mode: How the graph is run.
        kind: Which graph.
        handler: The `on_stop` of a handler of the same guard; None for no handler.
        on_stop: The wrapper's.
    """

    def __init__(
        self,
        mode: Mode,
        kind: str,
        handler: Literal["raise", "drain"] | None = None,
        on_stop: Literal["raise", "drain"] = "drain",
    ) -> None:
        super().__init__(mode)
        self._kind, self._how, self._handler, self._on_stop = kind, mode, handler, on_stop
        self.surface: Surface = TOOL_CALL_WRAPPER
        how = f"alone {on_stop}" if handler is None else f"handler {handler}"
        self.mode = f"{kind}, {mode}, {how}"

    def _open(self, graph: Any, **config: Any) -> Callable[[], Conversation]:
        return lambda: GraphConversation(graph, str(next(self._threads)), self._how, config)

    @property
    def features(self) -> frozenset[str]:
        stop = "history" if (self._handler or self._on_stop) == "drain" else "raise"
        unseen = {"sees_answers", "reads_text", "asks_first", "model_errors", "max_tokens"}
        shown = SHARED | {"approval", stop} | cost_of(self._how)
        return shown - unseen if self._handler is None else shown

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return self._build(agent, outermost=True)

    def _build(self, agent: Agent, *, outermost: bool) -> Callable[[], Conversation]:
        tools = [make_tool(spec, partial(self._build, outermost=False)) for spec in agent.tools]
        node = ToolNode(
            tools,
            wrap_tool_call=tool_call_wrapper(agent.guard, on_stop=self._on_stop),
            awrap_tool_call=async_tool_call_wrapper(agent.guard, on_stop=self._on_stop),
        )
        graph = _graph(self._kind, chat(agent), tools, node)
        if not outermost:
            return self._open(graph)
        if self._handler is None:
            complete = self._on_stop == "drain"
            return lambda: UnseenEnds(agent.guard, graph, str(next(self._threads)), self._how, complete=complete)
        return self._open(graph, callbacks=[LoopGuardCallbackHandler(agent.guard, on_stop=self._handler)])


class GuardedToolsDriver(_GraphDriver):
    """An unmodified graph with `guard_tools` and a handler."""

    surface: Surface = GUARDED_TOOLS

    def __init__(self, mode: Mode, kind: str, on_stop: Literal["raise", "drain"]) -> None:
        super().__init__(mode)
        self._kind, self._how, self._on_stop = kind, mode, on_stop
        self.mode = f"{kind}, {mode}, {on_stop}"

    def _open(self, graph: Any, **config: Any) -> Callable[[], Conversation]:
        return lambda: GraphConversation(graph, str(next(self._threads)), self._how, config)

    @property
    def features(self) -> frozenset[str]:
        stop = "history" if self._on_stop == "drain" else "raise"
        return SHARED | {"approval", stop} | cost_of(self._how)

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return self._build(agent, outermost=True)

    def _build(self, agent: Agent, *, outermost: bool) -> Callable[[], Conversation]:
        made = [make_tool(spec, partial(self._build, outermost=False)) for spec in agent.tools]
        graph = _graph(self._kind, chat(agent), guard_tools(made, agent.guard))
        if not outermost:
            return self._open(graph)
        return self._open(graph, callbacks=[LoopGuardCallbackHandler(agent.guard, on_stop=self._on_stop)])


def _graph(kind: str, model: ChatOpenAI, tools: Sequence[BaseTool], node: ToolNode | None = None) -> Any:
    node = ToolNode(tools) if node is None else node
    if kind == "create_agent":
        return create_agent(model, tools, checkpointer=InMemorySaver())
    if kind == "create_react_agent":
        return create_react_agent(model, node, checkpointer=InMemorySaver())
    bound = model.bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", node)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())


DRIVERS: list[Driver] = [
    *(MiddlewareDriver(mode) for mode in MODES),
    CallbackDriver("invoke", "create_agent"),
    CallbackDriver("astream", "create_agent", "drain"),
    CallbackDriver("ainvoke", "graph", "drain"),
    CallbackDriver("stream", "create_react_agent"),
    HandLoopDriver("invoke"),
    HandLoopDriver("ainvoke"),
    GuardedToolsDriver("invoke", "graph", "raise"),
    GuardedToolsDriver("ainvoke", "create_react_agent", "drain"),
    GuardedToolsDriver("stream", "create_agent", "drain"),
    ToolNodeDriver("invoke", "graph", handler="drain"),
    ToolNodeDriver("ainvoke", "graph", handler="drain"),
    ToolNodeDriver("astream", "create_react_agent", handler="drain"),
    ToolNodeDriver("stream", "create_react_agent", handler="raise"),
    ToolNodeDriver("invoke", "graph"),
    ToolNodeDriver("ainvoke", "graph"),
    ToolNodeDriver("stream", "create_react_agent"),
    ToolNodeDriver("ainvoke", "create_react_agent"),
    ToolNodeDriver("invoke", "graph", on_stop="raise"),
]
