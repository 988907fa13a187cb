"""A scripted model, counted tools, a guard that keeps what it says, and every way to run an agent.

In this process: no network, no clock, no sleeping. `agents.testing` is not used, because the oldest release that is
supported has none. A script is a function of the request, so that one model serves many runs at once.
"""

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelProvider,
    ModelResponse,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
)
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, LoopGuardStop, run_streamed
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_reasoning_summary_text_delta_event import ResponseReasoningSummaryTextDeltaEvent
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from loopguard_core import LoopGuard

OWN = "[loopguard]"
DEFAULT_ACTIONS = [(2, "observe"), (3, "block"), (4, "block"), (5, "block"), (6, "stop")]

WAYS = ("run", "run_sync", "run_streamed")
every_way = pytest.mark.parametrize("way", WAYS)

_ids = itertools.count(1)

# -- what a model says -------------------------------------------------------------------------------------------------


def call(name: str = "lookup", arguments: dict[str, Any] | str | None = None, call_id: str | None = None):
    """A function call. Ids are new each time, as with real providers."""
    text = arguments if isinstance(arguments, str) else json.dumps({"key": "K-1"} if arguments is None else arguments)
    return ResponseFunctionToolCall(
        type="function_call", name=name, arguments=text, call_id=call_id or f"call_{next(_ids)}", id=f"fc_{next(_ids)}"
    )


def handoff_call(agent: str):
    """A call that hands over."""
    return call(f"transfer_to_{agent}", "{}")


def say(text: str):
    """A message."""
    content = [ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])]
    return ResponseOutputMessage(
        id=f"msg_{next(_ids)}", type="message", role="assistant", status="completed", content=content
    )


def think(text: str):
    """A piece of reasoning."""
    summary = [{"type": "summary_text", "text": text}]
    return ResponseReasoningItem(id=f"rs_{next(_ids)}", type="reasoning", summary=summary)


@dataclass
class Asked:
    """One request to a model.

    Attributes:
        input: A copy of the input items.
        number: Which request of this model it is, from 1.
        tools: Names of the tools on offer.
        settings: The model settings.
        rest: Everything else, by name.
    """

    input: list[Any]
    number: int
    tools: list[str]
    settings: Any
    rest: dict[str, Any]

    @property
    def told(self) -> list[str]:
        """What loopguard put before the model as a message."""
        texts = [item.get("content") for item in self.input if item.get("role") == "user"]
        return [text for text in texts if isinstance(text, str) and text.startswith(OWN)]

    @property
    def outputs(self) -> list[str]:
        """Results of calls, as the model sees them."""
        return [str(item["output"]) for item in self.input if item.get("type") == "function_call_output"]

    @property
    def rounds(self) -> int:
        """Calls made since the last thing a user said."""
        count = 0
        for item in reversed(self.input):
            if item.get("role") == "user" and not str(item.get("content")).startswith(OWN):
                break
            count += item.get("type") == "function_call"
        return count


Script = Callable[[Asked], Any]


def deaf(*calls: tuple[str, Any]) -> Script:
    """Asks for the same calls for ever."""
    wanted = calls or (("lookup", None),)
    return lambda asked: [call(name, arguments) for name, arguments in wanted] if asked.tools else [say("enough")]


def listening(*calls: tuple[str, Any], answer: str = "I could not find it.") -> Script:
    """Asks for the same calls until loopguard says something."""
    wanted = calls or (("lookup", None),)

    def script(asked: Asked):
        told = asked.told or any(OWN in output for output in asked.outputs)
        return [say(answer)] if told else [call(name, arguments) for name, arguments in wanted]

    return script


def sequence(*said: Any, then: str = "done") -> Script:
    """Says these in order, then a closing text."""

    def script(asked: Asked):
        found = said[asked.number - 1] if asked.number <= len(said) else [say(then)]
        return found() if callable(found) else found

    return script


def different(count: int, then: str = "done") -> Script:
    """Asks for something else each time, `count` times."""
    return lambda asked: [call("lookup", {"key": f"K-{asked.rounds}"})] if asked.rounds < count else [say(then)]


def tokens(read: int = 100, written: int = 20) -> Usage:
    """Usage of one request."""
    return Usage(
        requests=1,
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written,
        input_tokens_details=InputTokensDetails.model_construct(cached_tokens=64, cache_write_tokens=0),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=7),
    )


class Scripted(Model):
    """Answers from a script and keeps every request; streams in small pieces."""

    def __init__(self, script: Script, name: str = "scripted-1", usage: Usage | None = None, piece: int = 4) -> None:
        self.script, self.model, self.usage, self.piece = script, name, usage, piece
        self.asked: list[Asked] = []
        self.closed = 0

    @property
    def calls(self) -> int:
        return len(self.asked)

    def _answer(self, items, model_settings, tools, rest):
        copied = [{"role": "user", "content": items}] if isinstance(items, str) else json.loads(json.dumps(items))
        names = [tool.name for tool in tools]
        asked = Asked(copied, len(self.asked) + 1, names, model_settings, rest)
        self.asked.append(asked)
        said = self.script(asked)
        if isinstance(said, BaseException):
            raise said
        return said

    async def get_response(
        self,
        system_instructions,
        input,  # noqa: A002  # called by name
        model_settings,
        tools,
        output_schema,
        handoffs,
        tracing,
        **rest,
    ):
        rest |= {"handoffs": [handoff.tool_name for handoff in handoffs], "output_schema": output_schema}
        output = self._answer(input, model_settings, tools, rest)
        return ModelResponse(output=output, usage=self.usage or tokens(), response_id=f"resp_{len(self.asked)}")

    async def stream_response(
        self,
        system_instructions,
        input,  # noqa: A002  # called by name
        model_settings,
        tools,
        output_schema,
        handoffs,
        tracing,
        **rest,
    ):
        rest |= {"handoffs": [handoff.tool_name for handoff in handoffs], "output_schema": output_schema}
        output = self._answer(input, model_settings, tools, rest)
        number = itertools.count()
        usage = self.usage or tokens()
        try:
            yield ResponseCreatedEvent(
                type="response.created", sequence_number=next(number), response=self._response([], None)
            )
            for index, item in enumerate(output):
                for delta in self._deltas(item, index, number):
                    await asyncio.sleep(0)
                    yield delta
                yield ResponseOutputItemDoneEvent(
                    type="response.output_item.done", item=item, output_index=index, sequence_number=next(number)
                )
            yield ResponseCompletedEvent(
                type="response.completed", sequence_number=next(number), response=self._response(output, usage)
            )
        except GeneratorExit:
            self.closed += 1
            raise

    def _deltas(self, item, index, number):
        common = {"item_id": item.id, "output_index": index}
        if item.type == "message":
            for piece in self._pieces(item.content[0].text):
                yield ResponseTextDeltaEvent(
                    type="response.output_text.delta",
                    content_index=0,
                    logprobs=[],
                    delta=piece,
                    sequence_number=next(number),
                    **common,
                )
        elif item.type == "function_call":
            for piece in self._pieces(item.arguments):
                yield ResponseFunctionCallArgumentsDeltaEvent(
                    type="response.function_call_arguments.delta", delta=piece, sequence_number=next(number), **common
                )
        elif item.type == "reasoning":
            for piece in self._pieces(item.summary[0].text):
                yield ResponseReasoningSummaryTextDeltaEvent(
                    type="response.reasoning_summary_text.delta",
                    summary_index=0,
                    delta=piece,
                    sequence_number=next(number),
                    **common,
                )

    def _pieces(self, text):
        return [text[at : at + self.piece] for at in range(0, len(text), self.piece)]

    def _response(self, output, usage):
        reported = None
        if usage is not None:
            reported = ResponseUsage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                total_tokens=usage.total_tokens,
                input_tokens_details=usage.input_tokens_details,
                output_tokens_details=usage.output_tokens_details,
            )
        return Response(
            id=f"resp_{len(self.asked)}",
            created_at=0,
            model=self.model,
            object="response",
            output=output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=False,
            usage=reported,
        )


class Models(ModelProvider):
    """Finds scripted models by name."""

    def __init__(self, **models: Model) -> None:
        self.models = models
        self.closed = 0

    def get_model(self, model_name):
        return self.models[model_name]

    async def aclose(self):
        self.closed += 1


# -- tools -------------------------------------------------------------------------------------------------------------


@dataclass
class Counted:
    """A tool that counts how often it really ran.

    Attributes:
        answer: What it returns: a text, or a function of how often it ran and its arguments.
        name: Its name.
        ran: The arguments of every execution.
    """

    answer: Any = "nothing"
    name: str = "lookup"
    ran: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tool(self) -> FunctionTool:
        def body(key: str = "") -> str:
            self.ran.append(key)
            answer = self.answer(len(self.ran), key) if callable(self.answer) else self.answer
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return function_tool(body, name_override=self.name, description_override=self.name, **self.options)


# -- guards ------------------------------------------------------------------------------------------------------------


class Watched(LoopGuard):
    """A guard that keeps every event."""

    def __init__(self, policy=None, **options) -> None:
        self.loops, self.ends, self.model_calls = [], [], []
        super().__init__(
            policy, on_loop=self.loops.append, on_end=self.ends.append, on_model_call=self.model_calls.append, **options
        )

    @property
    def actions(self) -> list[tuple[int, str]]:
        return [(event.streak, event.action.value) for event in self.loops]

    @property
    def reasons(self) -> list[str]:
        return [end.reason for end in self.ends]


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass(repr=False)
class Ran:
    """How a run went.

    Attributes:
        result: What the SDK returned.
        error: What it raised instead.
        events: What a stream gave.
    """

    result: Any = None
    error: Any = None
    events: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Ran(output={getattr(self.result, 'final_output', None)!r}, error={self.error!r})"

    @property
    def output(self) -> Any:
        return self.result.final_output

    @property
    def history(self) -> list[Any]:
        if self.error is not None:
            items = [item for item in self.error.run_data.new_items if item.type != "tool_approval_item"]
            return [item.to_input_item() for item in items]
        return self.result.to_input_list()

    @property
    def item_events(self) -> list[str]:
        return [event.name for event in self.events if event.type == "run_item_stream_event"]

    @property
    def deltas(self) -> str:
        raw = [event.data for event in self.events if event.type == "raw_response_event"]
        return "".join(data.delta for data in raw if data.type == "response.output_text.delta")


def go(way: str, agent: Agent, given: Any = "Where is it?", **options: Any) -> Ran:
    """One run under `GuardedRunner`, from code without an event loop."""
    if way == "run_sync":
        return caught(lambda: GuardedRunner.run_sync(agent, given, **options))
    return asyncio.run(ago(way, agent, given, **options))


async def ago(way: str, agent: Agent, given: Any = "Where is it?", **options: Any) -> Ran:
    """One run under `GuardedRunner`, from async code."""
    if way == "run":
        return await acaught(GuardedRunner.run(agent, given, **options))
    return await drain(run_streamed(agent, given, **options))


def hooked(way: str, agent: Agent, guard: Any, given: Any = "Where is it?", **options: Any) -> Ran:
    """One run of the SDK's own `Runner` with `LoopGuardHooks`."""
    options = {"hooks": LoopGuardHooks(guard), "max_turns": 100, **options}
    if way == "run_sync":
        return caught(lambda: Runner.run_sync(agent, given, **options))
    return asyncio.run(ahooked(way, agent, given, **options))


async def ahooked(way: str, agent: Agent, given: Any = "Where is it?", **options: Any) -> Ran:
    if way == "run":
        return await acaught(Runner.run(agent, given, **options))
    return await drain(Runner.run_streamed(agent, given, **options))


async def drain(result: Any) -> Ran:
    """Read a stream to its end."""
    ran = Ran(result)
    try:
        async for event in result.stream_events():
            ran.events.append(event)
    except Exception as error:  # noqa: BLE001
        ran.error = error
    return ran


def caught(run: Callable[[], Any]) -> Ran:
    try:
        return Ran(run())
    except Exception as error:  # noqa: BLE001
        return Ran(error=error)


async def acaught(run: Any) -> Ran:
    try:
        return Ran(await run)
    except Exception as error:  # noqa: BLE001
        return Ran(error=error)


# -- checks ------------------------------------------------------------------------------------------------------------


def assert_well_formed(items: list[Any]) -> None:
    """Every call has exactly one output, and no output lacks its call."""
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert sorted(calls) == sorted(outputs), f"calls {calls}, outputs {outputs}"


def assert_stop(ran: Ran, reason: str = "doom_loop") -> LoopGuardStop:
    """The run raised our stop, with a usable history."""
    assert isinstance(ran.error, LoopGuardStop), ran
    assert ran.error.reason == reason
    assert_well_formed(ran.history)
    return ran.error


def items_of(session: SQLiteSession) -> list[Any]:
    return asyncio.run(session.get_items())


def outputs(items: list[Any]) -> list[str]:
    return [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
