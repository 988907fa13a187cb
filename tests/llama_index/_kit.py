"""A scripted model, counted tools, a guard that keeps what it says, and ways to run an agent.

In this process: no network, no clock, no sleeping. A script is a function of the request, so that one model serves many
runs at once.
"""

import asyncio
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import ThinkingBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse, LLMMetadata, TextBlock
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from loopguard_llama_index import LoopDetectedEvent
from pydantic import PrivateAttr

from loopguard_core import Detector, Finding, Ladder, LoopGuard, hookimpl

OWN = "[loopguard]"
DEFAULT_ACTIONS = [(2, "observe"), (3, "block"), (4, "block"), (5, "block"), (6, "stop")]
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}

_ids = itertools.count(1)

# -- what a model says -------------------------------------------------------------------------------------------------


def call(name: str = "lookup", call_id: str | None = None, **arguments: Any) -> ToolCallBlock:
    """A function call. Ids are new each time, as with real providers."""
    given = arguments or {"key": "K-1"}
    return ToolCallBlock(tool_call_id=call_id or f"call_{next(_ids)}", tool_name=name, tool_kwargs=given)


@dataclass
class Think:
    """A piece of reasoning."""

    text: str


@dataclass
class Asked:
    """One request to a model.

    Attributes:
        messages: What it reads.
        number: Which request of this model it is, from 1.
        tools: Names of the tools on offer.
    """

    messages: list[ChatMessage]
    number: int
    tools: list[str]

    @property
    def told(self) -> list[str]:
        """What loopguard put before the model as a message."""
        texts = [message.content or "" for message in self.messages if message.role.value == "user"]
        return [text.removeprefix("Observation: ") for text in texts if OWN in text[:40]]

    @property
    def outputs(self) -> list[str]:
        """Results of calls, as the model sees them."""
        return [message.content or "" for message in self.messages if message.role.value == "tool"]

    @property
    def rounds(self) -> int:
        """Calls made since the last thing a user said."""
        count = 0
        for message in reversed(self.messages):
            if message.role.value == "user" and not (message.content or "").startswith(OWN):
                break
            count += any(isinstance(block, ToolCallBlock) for block in message.blocks)
        return count

    @property
    def said(self) -> str:
        """What the user said last."""
        texts = [message.content or "" for message in self.messages if message.role.value == "user"]
        return next((text for text in reversed(texts) if OWN not in text), "")


Script = Callable[[Asked], Any]


def deaf(*calls: tuple[str, dict[str, Any]]) -> Script:
    """Asks for the same calls for ever, while there are tools."""
    wanted = calls or (("lookup", {"key": "K-1"}),)
    return lambda asked: [call(name, **given) for name, given in wanted] if asked.tools else ["enough"]


def listening(answer: str = "I could not find it.") -> Script:
    """Asks for the same call until loopguard says something."""

    def script(asked: Asked) -> Any:
        heard = asked.told or any(OWN in output for output in asked.outputs)
        return [answer] if heard else [call()]

    return script


def sequence(*said: Any, then: str = "done") -> Script:
    """Says these in order, by the calls made so far, then a closing text."""
    return lambda asked: said[asked.number - 1] if asked.number <= len(said) else [then]


def different(count: int, then: str = "done") -> Script:
    """Asks for something else each time, `count` times."""
    return lambda asked: [call(key=f"K-{asked.rounds}")] if asked.rounds < count else [then]


class Scripted(FunctionCallingLLM):
    """Answers from a script and keeps every request; streams in small pieces."""

    model: str = "scripted-1"
    usage: dict[str, Any] | None = USAGE
    piece: int = 8
    suspends: bool = True
    calls_functions: bool = True
    max_tokens: int | None = None
    _script: Script = PrivateAttr()
    _asked: list[Asked] = PrivateAttr(default_factory=list)
    _sent: int = PrivateAttr(default=0)
    _closed: int = PrivateAttr(default=0)

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(**options)
        self._script = script

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=self.calls_functions, model_name=self.model)

    @property
    def asked(self) -> list[Asked]:
        return self._asked

    @property
    def calls(self) -> int:
        return len(self._asked)

    @property
    def sent(self) -> int:
        """Chunks that were streamed."""
        return self._sent

    @property
    def closed(self) -> int:
        """Streams that came to an end, or were closed."""
        return self._closed

    def _answer(self, messages: Any, tools: Any) -> list[Any]:
        names = [tool["function"]["name"] for tool in tools or ()]
        asked = Asked([message.model_copy(deep=True) for message in messages], len(self._asked) + 1, names)
        self._asked.append(asked)
        said = self._script(asked)
        if isinstance(said, BaseException):
            raise said
        return said

    def _raw(self) -> dict[str, Any]:
        return {"model": self.model, **({} if self.usage is None else {"usage": dict(self.usage)})}

    @llm_chat_callback()
    async def achat(self, messages: Any, tools: Any = None, **_: Any) -> ChatResponse:
        said = self._answer(messages, tools)
        text = "".join(part for part in said if isinstance(part, str))
        thoughts = "".join(part.text for part in said if isinstance(part, Think))
        blocks: list[Any] = [ThinkingBlock(content=thoughts)] if thoughts else []
        blocks += [TextBlock(text=text)] if text else []
        blocks += [part for part in said if isinstance(part, ToolCallBlock)]
        return ChatResponse(message=ChatMessage(role="assistant", blocks=blocks), raw=self._raw())

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, tools: Any = None, **_: Any) -> Any:
        said = self._answer(messages, tools)

        async def stream() -> Any:
            text, calls = "", []
            try:
                for part in said:
                    if isinstance(part, ToolCallBlock):
                        calls.append(part)
                        yield self._chunk(text, calls, "", None)
                        continue
                    whole = part if isinstance(part, str) else part.text
                    for at in range(0, len(whole), self.piece):
                        if self.suspends:
                            await asyncio.sleep(0)
                        delta = whole[at : at + self.piece]
                        if isinstance(part, str):
                            text += delta
                            yield self._chunk(text, calls, delta, None)
                        else:
                            yield self._chunk(text, calls, "", delta)
                yield self._chunk(text, calls, "", None, self._raw())
            finally:
                self._closed += 1

        return stream()

    def _chunk(self, text: str, calls: list[Any], delta: str, thought: str | None, raw: Any = None) -> ChatResponse:
        self._sent += 1
        blocks: list[Any] = ([TextBlock(text=text)] if text else []) + list(calls)
        extra = {} if thought is None else {"thinking_delta": thought}
        message = ChatMessage(role="assistant", blocks=blocks)
        return ChatResponse(message=message, delta=delta, raw=raw or {"model": self.model}, additional_kwargs=extra)

    def _prepare_chat_with_tools(
        self, tools: Any, user_msg: Any = None, chat_history: Any = None, **_: Any
    ) -> dict[str, Any]:
        return {
            "messages": list(chat_history or []),
            "tools": [tool.metadata.to_openai_tool() for tool in tools],
        }

    def get_tool_calls_from_response(self, response: Any, error_on_no_tool_call: bool = True, **_: Any) -> Any:
        return [
            ToolSelection(tool_id=block.tool_call_id, tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]

    def chat(self, messages: Any, **_: Any) -> Any:
        raise NotImplementedError

    stream_chat = complete = stream_complete = acomplete = astream_complete = chat


# -- tools -------------------------------------------------------------------------------------------------------------


@dataclass
class Counted:
    """A tool that counts how often it really ran.

    Attributes:
        answer: What it returns: a text, or a function of how often it ran and its argument.
        name: Its name.
        ran: The argument of every execution.
    """

    answer: Any = "nothing"
    name: str = "lookup"
    ran: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tool(self) -> FunctionTool:
        async def body(key: str = "") -> str:
            self.ran.append(key)
            answer = self.answer(len(self.ran), key) if callable(self.answer) else self.answer
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return FunctionTool.from_defaults(async_fn=body, name=self.name, description=self.name, **self.options)


# -- guards ------------------------------------------------------------------------------------------------------------


class Watched(LoopGuard):
    """A guard that keeps every event."""

    def __init__(self, policy: Any = None, **options: Any) -> None:
        self.loops, self.ends, self.model_calls = [], [], []
        super().__init__(
            {} if policy is None else policy,
            on_loop=self.loops.append,
            on_end=self.ends.append,
            on_model_call=self.model_calls.append,
            **options,
        )

    @property
    def actions(self) -> list[tuple[int, str]]:
        return [(event.streak, event.action.value) for event in self.loops]

    @property
    def reasons(self) -> list[str]:
        return [end.reason for end in self.ends]


REPEATED = "again and " * 60


class Stammer(Detector):
    """Fires on a message that says `again` three times: the first one is steered, the second one stopped."""

    name = "stammer"
    ladder = Ladder(steer=1, stop=2)
    channel = "content"

    def __init__(self) -> None:
        self.text, self.fired, self.open = "", 0, True

    def feed_text(self, delta: str, channel: str) -> Finding | None:
        if channel != self.channel or not self.open:
            return None
        self.text += delta
        if self.text.count("again") < 3:
            return None
        self.fired, self.open = self.fired + 1, False
        end = [match.end() for match in re.finditer("again", self.text)][2]
        return Finding(self.fired, self.fired, char=end, abort=True)

    def end_message(self, finish_reason: str | None) -> None:
        self.text, self.open = "", True


class ThinkingStammer(Stammer):
    """The same for reasoning."""

    channel = "reasoning"


class Stammers:
    """The plugin that adds one."""

    def __init__(self, kind: type[Stammer] = Stammer) -> None:
        self.kind = kind

    @hookimpl
    def detectors(self, policy: Any) -> list[Detector]:
        return [self.kind()]


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass(repr=False)
class Ran:
    """How a run went.

    Attributes:
        output: What the SDK returned.
        error: What it raised instead.
        events: What its stream gave.
        memory: Its memory.
        handler: Its handler.
    """

    output: Any = None
    error: Any = None
    events: list[Any] = field(default_factory=list)
    memory: Any = None
    handler: Any = None

    def __repr__(self) -> str:
        return f"Ran(text={self.text!r}, error={self.error!r})"

    @property
    def text(self) -> str | None:
        return None if self.output is None else str(self.output)

    @property
    def loops(self) -> list[tuple[int, str]]:
        """The verdicts in the run's own event stream."""
        return [(event.streak, event.action) for event in self.events if isinstance(event, LoopDetectedEvent)]

    @property
    def history(self) -> list[ChatMessage]:
        return self.memory.get_all()


async def go(agent: Any, text: str = "Where is it?", *, memory: Any = None, **options: Any) -> Ran:
    """One run, to its end."""
    memory = ChatMemoryBuffer.from_defaults(token_limit=10_000_000) if memory is None else memory
    options = {"max_iterations": 100, **options}
    handler = agent.run(text, memory=memory, **options)
    ran = Ran(memory=memory, handler=handler)
    try:
        async for event in handler.stream_events():
            ran.events.append(event)
        ran.output = await handler
    except Exception as error:  # noqa: BLE001
        ran.error = error
    return ran


# -- checks ------------------------------------------------------------------------------------------------------------


def calls_in(message: ChatMessage) -> list[str]:
    return [block.tool_call_id for block in message.blocks if isinstance(block, ToolCallBlock)]


def assert_well_formed(history: list[ChatMessage]) -> None:
    """Every call is answered right after its message, once, and nothing of ours is in the user's mouth."""
    waiting: list[str] = []
    for message in history:
        if message.role.value == "tool":
            waiting.remove(message.additional_kwargs["tool_call_id"])
            continue
        assert not waiting, f"not answered: {waiting}"
        waiting = calls_in(message)
        if message.role.value == "user":
            assert OWN not in (message.content or ""), "steering stays out of memory"
    assert not waiting, f"not answered: {waiting}"
    assert history[-1].role.value == "assistant"
