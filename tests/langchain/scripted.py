"""A scripted chat model, a counting tool, a guard that keeps what it says, and every way to run an agent loop.

In this process, without network, clock or sleep. Models answer from the request alone, so that one serves many runs.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from loopguard_langchain import LoopGuardCallbackHandler
from pydantic import PrivateAttr

from loopguard_core import LoopGuard

ASK = {"messages": [HumanMessage("Where is invoice INV-2291?")]}


def since_user(messages: list[BaseMessage]) -> int:
    """Responses since a user spoke last."""
    count = 0
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        count += isinstance(message, AIMessage)
    return count


def request(*calls: tuple[str, dict[str, Any]], text: str = "", **fields: Any) -> AIMessage:
    """A response that asks for tools. Ids are new in each, as with real providers."""
    return AIMessage(
        text,
        tool_calls=[{"name": name, "args": args, "id": f"call_{uuid.uuid4().hex}"} for name, args in calls],
        usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        response_metadata={"model_name": "scripted-1", **fields},
    )


class Scripted(BaseChatModel):
    """Calls `script` with the messages; what it returns is the response, what it raises the error.

    The default script asks for `lookup(key="k")` for ever.
    """

    script: Callable[[list[BaseMessage]], AIMessage] = lambda _: request(("lookup", {"key": "k"}))
    model_name: str = "scripted-1"
    _seen: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    @property
    def seen(self) -> list[list[BaseMessage]]:
        """Every request, in order."""
        return self._seen

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools, *, tool_choice=None, **kwargs):
        return self.bind(tools=[str(tool) for tool in tools], **kwargs)

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self.script(messages))])

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        await asyncio.sleep(0)
        return self._generate(messages)


class Streaming(Scripted):
    """The same in pieces: text, then each call with its arguments in two."""

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        message = self._generate(messages).generations[0].message
        for piece in str(message.content).split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
        for index, call in enumerate(message.tool_calls):
            start = {"name": call["name"], "args": '{"key": ', "id": call["id"], "index": index}
            rest = {"name": None, "args": f'"{call["args"]["key"]}"}}', "id": None, "index": index}
            for part in (start, rest):
                yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))
        last = {"usage_metadata": message.usage_metadata, "response_metadata": message.response_metadata}
        yield ChatGenerationChunk(message=AIMessageChunk(content="", **last))


def looping(rounds: int, name: str = "lookup", then: str = "done", **args: Any) -> Callable[..., AIMessage]:
    """Asks for the same call in so many rounds of each turn, then answers."""
    wanted = (name, args or {"key": "k"})
    return lambda messages: request(wanted) if since_user(messages) < rounds else AIMessage(then)


def healthy(rounds: int, name: str = "lookup") -> Callable[..., AIMessage]:
    """Asks for something else in each round, then answers."""

    def script(messages: list[BaseMessage]) -> AIMessage:
        number = since_user(messages)
        return request((name, {"key": f"{number}"})) if number < rounds else AIMessage("done")

    return script


class Counting:
    """A tool that counts its calls; what it returns, or a function of the argument that does."""

    def __init__(self, result: Any = "nothing found", name: str = "lookup") -> None:
        self.ran: list[str] = []
        self._result = result

        def body(key: str) -> Any:
            self.ran.append(key)
            return self._result(key) if callable(self._result) else self._result

        self.tool: BaseTool = StructuredTool.from_function(body, name=name, description=name)

    @property
    def count(self) -> int:
        return len(self.ran)


class Watched(LoopGuard):
    """A guard that keeps what its hooks were told."""

    def __init__(self, policy: Any = "default", **options: Any) -> None:
        self.loops: list[Any] = []
        self.ends: list[Any] = []
        self.calls: list[Any] = []
        super().__init__(
            policy, on_loop=self.loops.append, on_end=self.ends.append, on_model_call=self.calls.append, **options
        )

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.ends]


def assert_nothing_left(handler: LoopGuardCallbackHandler, faults: frozenset[str] = frozenset()) -> None:
    """No run, conversation or session outlives what it belongs to, and nothing went wrong but what is said."""
    assert len(handler._tree) == 0
    assert len(handler._sessions) == 0
    assert not handler.guard._live
    assert set(handler.guard.faults.counts) == faults


def well_formed(messages: list[BaseMessage]) -> bool:
    """Whether every call has its answer right behind the message that asked for it."""
    open_ids: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            open_ids.discard(message.tool_call_id)
        elif open_ids:
            return False
        if isinstance(message, AIMessage):
            open_ids = {call["id"] for call in message.tool_calls}
    return not open_ids


def for_ever(step: Callable[[], object]) -> None:
    """Until something raises."""
    while True:
        step()


# -- every way to run a loop ---------------------------------------------------------------------------------------


def hand_loop(model: Any, tool: BaseTool, config: Any = None, messages: Any = None, *, pass_on: bool = True) -> Any:
    """The loop everybody writes first. Returns all messages."""
    messages = list(ASK["messages"]) if messages is None else messages
    bound = model.bind_tools([tool])
    while True:
        response = bound.invoke(messages, config)
        messages.append(response)
        if not response.tool_calls:
            return messages
        for call in response.tool_calls:
            answer = tool.invoke(call, config) if pass_on else tool.func(**call["args"])
            messages.append(answer if pass_on else ToolMessage(answer, tool_call_id=call["id"]))


async def ahand_loop(model: Any, tool: BaseTool, config: Any = None, messages: Any = None) -> Any:
    """The same with `await`."""
    messages = list(ASK["messages"]) if messages is None else messages
    bound = model.bind_tools([tool])
    while True:
        response = await bound.ainvoke(messages, config)
        messages.append(response)
        if not response.tool_calls:
            return messages
        for call in response.tool_calls:
            messages.append(await tool.ainvoke(call, config))


def graph_of(agent: Any, tools: list[BaseTool], checkpointer: Any = None, **options: Any) -> Any:
    """The graph of LangGraph's tutorials around an agent node."""
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(checkpointer=checkpointer)


def raw_graph(model: Any, tools: list[BaseTool], checkpointer: Any = None, **options: Any) -> Any:
    """The same, calling a model."""
    bound = model.bind_tools(tools)

    def agent(state):
        return {"messages": [bound.invoke(state["messages"])]}

    async def aagent(state):
        return {"messages": [await bound.ainvoke(state["messages"])]}

    return graph_of(RunnableLambda(agent, aagent), tools, checkpointer, **options)


def run(runnable: Any, how: str, given: Any = ASK, config: Any = None) -> Any:
    """Run to the end: `invoke` or `stream`, `a` before it for async, after a dash the stream mode."""
    method, _, mode = how.partition("-")
    options = {"stream_mode": mode} if mode else {}
    if method == "invoke":
        return runnable.invoke(given, config)
    if method == "ainvoke":
        return asyncio.run(runnable.ainvoke(given, config))
    if method == "stream":
        return list(runnable.stream(given, config, **options))

    async def collect():
        return [part async for part in runnable.astream(given, config, **options)]

    return asyncio.run(collect())
