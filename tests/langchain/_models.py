"""Scripted chat models, counted tools and the helpers all middleware tests share.

Everything runs in this process: no network, no clock, no sleeping. A script is a function of the request, so one model
serves any number of runs at once.
"""

import asyncio
import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from loopguard_langchain import LoopGuardMiddleware
from pydantic import PrivateAttr

from loopguard_core import LoopGuard

OWN = "[loopguard]"

WAYS = (
    "invoke",
    "ainvoke",
    "stream-messages",
    "stream-updates",
    "stream-values",
    "astream-messages",
    "astream-updates",
    "astream-values",
)
"""Every way to run an agent, with the stream mode behind the dash."""

FOUR = ("invoke", "ainvoke", "stream-messages", "astream-updates")

BOTH = ("invoke", "ainvoke")

every_way = pytest.mark.parametrize("way", WAYS)
four_ways = pytest.mark.parametrize("way", FOUR)
both_ways = pytest.mark.parametrize("way", BOTH)


# -- what a model says -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """One model response.

    Attributes:
        text: Its text.
        calls: Name and arguments of each tool call.
        broken: Name and raw text of each call whose arguments are no JSON.
        tokens: Input and output tokens; None for a provider that reports none.
        cost: Dollars, where the provider reports them in its usage block.
        blocks: True to give the text as a list of content blocks.
    """

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    tokens: tuple[int, int] | None = (10, 5)
    cost: float | None = None
    blocks: bool = False

    def message(self, number: int, model: str) -> AIMessage:
        metadata: dict[str, Any] = {"model_name": model, "finish_reason": "tool_calls" if self.calls else "stop"}
        if self.cost is not None:
            metadata["token_usage"] = {"cost": self.cost}
        usage = None
        if self.tokens is not None:
            read, written = self.tokens
            usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return AIMessage(
            content=[{"type": "text", "text": self.text}] if self.blocks else self.text,
            tool_calls=[
                {"name": name, "args": dict(arguments), "id": f"call_{number}_{index}", "type": "tool_call"}
                for index, (name, arguments) in enumerate(self.calls)
            ],
            invalid_tool_calls=[
                {
                    "name": name,
                    "args": raw,
                    "id": f"broken_{number}_{index}",
                    "error": None,
                    "type": "invalid_tool_call",
                }
                for index, (name, raw) in enumerate(self.broken)
            ],
            usage_metadata=usage,
            response_metadata=metadata,
        )


Script = Callable[[list[BaseMessage], int], Say | BaseException]


def call(name: str = "lookup", **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A tool call."""
    return name, arguments


LOOKUP = call(key="K-7731-secret")
"""The call most loops here are made of. Its argument must never show up in a message of ours."""


def deaf(*calls: tuple[str, dict[str, Any]], text: str = "", **say: Any) -> Script:
    """Asks for the same calls for ever, whatever it is told."""
    said = Say(text, calls or (LOOKUP,), **say)
    return lambda _messages, _number: said


def listening(*calls: tuple[str, dict[str, Any]], answer: str = "I could not find it.") -> Script:
    """Asks for the same calls until something begins with loopguard's mark; then it answers."""
    said = Say("", calls or (LOOKUP,))

    def script(messages: list[BaseMessage], _number: int) -> Say:
        told = any(str(message.text).startswith(OWN) for message in since_user(messages))
        return Say(answer) if told else said

    return script


def sequence(*said: Say | BaseException, then: str = "done") -> Script:
    """Says these in order, one a model call; after them a closing text."""

    def script(_messages: list[BaseMessage], number: int) -> Say | BaseException:
        return said[number - 1] if number <= len(said) else Say(then)

    return script


def rounds(count: int, *calls: tuple[str, dict[str, Any]], then: str = "done", **say: Any) -> Script:
    """Asks for the same calls in `count` rounds of each turn, then answers."""
    said = Say("", calls or (LOOKUP,), **say)

    def script(messages: list[BaseMessage], _number: int) -> Say:
        asked = sum(isinstance(message, AIMessage) for message in since_user(messages))
        return said if asked < count else Say(then)

    return script


def different(count: int, name: str = "lookup", then: str = "done", **say: Any) -> Script:
    """Asks for something else in each of `count` rounds, then answers."""

    def script(messages: list[BaseMessage], _number: int) -> Say:
        asked = sum(isinstance(message, AIMessage) for message in since_user(messages))
        return Say("", (call(name, key=f"key-{asked}"),), **say) if asked < count else Say(then)

    return script


def since_user(messages: list[BaseMessage]) -> list[BaseMessage]:
    """What followed the last thing a user said."""
    spoken = [i for i, m in enumerate(messages) if isinstance(m, HumanMessage) and m.name != "loopguard"]
    return messages[spoken[-1] + 1 :] if spoken else messages


@dataclass(frozen=True)
class Request:
    """What a model was sent."""

    messages: list[BaseMessage]
    tools: list[str]
    options: dict[str, Any]

    @property
    def told(self) -> list[BaseMessage]:
        """Messages loopguard put in, refusals aside."""
        return [m for m in self.messages if isinstance(m, HumanMessage) and str(m.text).startswith(OWN)]


class ScriptedModel(BaseChatModel):
    """Answers from a script and keeps every request."""

    script: Any
    model_name: str = "scripted-1"
    max_tokens: int | None = None
    _numbers: Iterator[int] = PrivateAttr(default_factory=lambda: itertools.count(1))
    _requests: list[Request] = PrivateAttr(default_factory=list)

    @property
    def requests(self) -> list[Request]:
        return self._requests

    @property
    def calls(self) -> int:
        return len(self._requests)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools, *, tool_choice=None, **options):
        names = [t["name"] if isinstance(t, dict) else getattr(t, "name", str(t)) for t in tools]
        return self.bind(tools=names, tool_choice=tool_choice, **options)

    def _say(self, messages, options) -> AIMessage:
        number = next(self._numbers)
        tools = options.pop("tools", None) or []
        self._requests.append(Request(list(messages), list(tools), options))
        said = self.script(list(messages), number)
        if isinstance(said, BaseException):
            raise said
        return said.message(number, self.model_name)

    def _generate(self, messages, stop=None, run_manager=None, **options):
        return ChatResult(generations=[ChatGeneration(message=self._say(messages, options))])

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        await asyncio.sleep(0)  # let other runs in between
        return ChatResult(generations=[ChatGeneration(message=self._say(messages, options))])


class StreamingModel(ScriptedModel):
    """The same, in pieces: a word at a time, arguments in two halves, usage last."""

    def _pieces(self, messages, options):
        message = self._say(messages, options)
        for word in str(message.text).split(" "):
            yield AIMessageChunk(content=word + " ")
        asked = [(c["name"], _json(c["args"]), c["id"]) for c in message.tool_calls]
        asked += [(c["name"], c["args"], c["id"]) for c in message.invalid_tool_calls]
        for index, (name, text, call_id) in enumerate(asked):
            half = len(text) // 2
            for part, piece in ((name, text[:half]), (None, text[half:])):
                chunk = {"name": part, "args": piece, "id": call_id if part else None, "index": index}
                yield AIMessageChunk(content="", tool_call_chunks=[{**chunk, "type": "tool_call_chunk"}])
        yield AIMessageChunk(
            content="", usage_metadata=message.usage_metadata, response_metadata=message.response_metadata
        )

    def _stream(self, messages, stop=None, run_manager=None, **options):
        for piece in self._pieces(messages, options):
            chunk = ChatGenerationChunk(message=piece)
            if run_manager:
                run_manager.on_llm_new_token(str(piece.text), chunk=chunk)
            yield chunk

    async def _astream(self, messages, stop=None, run_manager=None, **options):
        for piece in self._pieces(messages, options):
            chunk = ChatGenerationChunk(message=piece)
            if run_manager:
                await run_manager.on_llm_new_token(str(piece.text), chunk=chunk)
            yield chunk


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


# -- tools, guards, agents -------------------------------------------------------------------------------------------


class Counted:
    """A tool that counts.

    Args:
        result: What it returns, or a function of how often it ran (from 1) and its arguments.
        name: The tool's name; its one argument is always `key`.
    """

    def __init__(self, result: Any = "nothing found", name: str = "lookup", **options: Any) -> None:
        self.ran: list[Any] = []
        self._result = result

        def body(key: str = "") -> Any:
            self.ran.append(key)
            return result(len(self.ran), key) if callable(result) else result

        self.tool = StructuredTool.from_function(body, name=name, description=f"The tool {name}.", **options)


@dataclass
class Watched:
    """A guard and everything its hooks were told."""

    guard: LoopGuard
    loops: list[Any] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    model_calls: list[Any] = field(default_factory=list)

    @property
    def actions(self) -> list[tuple[int, str]]:
        """Streak and action of each verdict, in order."""
        return [(event.streak, event.action.value) for event in self.loops]

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.ends]

    @property
    def live(self) -> int:
        return len(self.guard._live)


def watched(policy: Any = None, **options: Any) -> Watched:
    """A guard that keeps what its hooks were told."""
    loops: list[Any] = []
    ends: list[Any] = []
    model_calls: list[Any] = []
    guard = LoopGuard(policy, on_loop=loops.append, on_end=ends.append, on_model_call=model_calls.append, **options)
    return Watched(guard, loops, ends, model_calls)


def settle(seen: Watched) -> None:
    """Let go of runs that are over and wait for what their end sets off: some are only noticed when they are gone."""
    gc.collect()
    seen.guard.close()


def guarded(model: BaseChatModel, tools: Any, guard: Any, *, middleware: Any = None, **options: Any) -> Any:
    """An agent with our middleware, alone or first unless `middleware` says where."""
    names = ("exit_behavior", "escalate_model")
    ours = LoopGuardMiddleware(getattr(guard, "guard", guard), **{n: options.pop(n) for n in names if n in options})
    listed = [ours] if middleware is None else middleware(ours)
    unwrapped = [t.tool if isinstance(t, Counted) else t for t in tools]
    return create_agent(model, unwrapped, middleware=listed, **options)


def ask(text: str = "Find it.") -> dict[str, Any]:
    """What a user says."""
    return {"messages": [HumanMessage(text)]}


def thread(name: str = "1", **more: Any) -> dict[str, Any]:
    """The config of a checkpointed thread."""
    return {"configurable": {"thread_id": name, **more}}


def run(agent: Any, given: Any, way: str = "invoke", config: Any = None, **options: Any) -> dict[str, Any]:
    """Run an agent in one of `WAYS`; always its final output."""
    method = way.partition("-")[0]
    config = {"recursion_limit": 150, **(config or {})}  # whatever goes wrong, no test goes on for ever
    if method == "invoke":
        return agent.invoke(given, config, **options)
    if method == "ainvoke":
        return asyncio.run(agent.ainvoke(given, config, **options))
    return streamed(agent, given, way, config, **options)[1]


def streamed(agent: Any, given: Any, way: str, config: Any = None, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """What a consumer of the stream got, and the final output."""
    method, _, mode = way.partition("-")
    config = {"recursion_limit": 150, **(config or {})}
    modes = list(dict.fromkeys([mode, "values"]))
    if method == "stream":
        pairs = list(agent.stream(given, config, stream_mode=modes, **options))
    else:

        async def collect() -> list[Any]:
            return [pair async for pair in agent.astream(given, config, stream_mode=modes, **options)]

        pairs = asyncio.run(collect())
    final: dict[str, Any] = {}
    for kind, chunk in pairs:
        if kind == "values":
            final = {**final, **chunk}
    return [chunk for kind, chunk in pairs if kind == mode], final


# -- what holds for every history ------------------------------------------------------------------------------------


def assert_complete(messages: list[BaseMessage]) -> None:
    """Every tool call is answered exactly once, right behind the message that made it, and nothing else is."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in waiting, f"an answer nobody waits for: {message.tool_call_id}"
            waiting.remove(message.tool_call_id)
            continue
        assert not waiting, f"{type(message).__name__} before the answers to {waiting}"
        if isinstance(message, AIMessage):
            waiting = [c["id"] for c in [*message.tool_calls, *message.invalid_tool_calls]]
            assert len(set(waiting)) == len(waiting)
    assert not waiting, f"never answered: {waiting}"


def assert_stopped(result: dict[str, Any], reason: str = "doom_loop") -> dict[str, Any]:
    """The run was ended and says so, in its output and in its last message; the history is complete."""
    assert_complete(result["messages"])
    closing = result["messages"][-1]
    assert isinstance(closing, AIMessage)
    assert not closing.tool_calls
    assert closing.text
    stop = result["loopguard"]
    assert stop["reason"] == reason
    assert stop["message"].startswith(OWN)
    assert (stop["verdict"] is not None) == (reason == "doom_loop")
    assert closing.response_metadata["loopguard"] == stop
    return stop


def assert_healthy(result: dict[str, Any], text: str = "done") -> None:
    """The run went to its own end."""
    assert_complete(result["messages"])
    assert result["messages"][-1].text == text
    assert result.get("loopguard") is None
    assert "loopguard" not in result["messages"][-1].response_metadata


def answers(messages: list[BaseMessage]) -> list[ToolMessage]:
    """The tool messages."""
    return [m for m in messages if isinstance(m, ToolMessage)]


def refused(messages: list[BaseMessage]) -> list[ToolMessage]:
    """The calls loopguard turned away."""
    return [m for m in answers(messages) if str(m.text).startswith(OWN)]


def tool_of(function: Any, **options: Any) -> BaseTool:
    """A function as a tool."""
    return StructuredTool.from_function(function, **options)
