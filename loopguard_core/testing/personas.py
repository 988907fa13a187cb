"""What a scripted model is told, what it answers, and three ready characters.

A persona is a pure function of the conversation it is sent, as a model is. It keeps nothing between calls, so that
any number of runs can share one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MARK = "[loopguard]"
"""How everything begins that loopguard itself puts before a model."""

_OK = 200
_ERRORS = range(400, 600)
_QUOTED = 200


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call a scripted model asks for.

    Attributes:
        name: The tool's name.
        arguments: The arguments; a string goes out as it is, so that malformed JSON can be played too.
        id: The call id; None takes one from the place in the conversation, `call_<number>_<index>`.
    """

    name: str
    arguments: Mapping[str, Any] | str
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        """The arguments as they go over the wire."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(dict(self.arguments))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a scripted model answers: a message, or an HTTP error.

    Attributes:
        text: The message's content; None where it has none.
        tool_calls: The tool calls it asks for.
        finish_reason: None derives it: `tool_calls` where there are any, else `stop`.
        reasoning: Sent as `reasoning_content`, before the text.
        status: The HTTP status. Anything but 200 makes the answer an error, and only `error` is sent.
        error: What goes under the error body's `error` key; None sends a plain one with the status as its code.

    Raises:
        ValueError: The status is neither 200 nor an error's, or a 200 carries an error.
    """

    text: str | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    reasoning: str | None = None
    status: int = _OK
    error: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.status != _OK and self.status not in _ERRORS:
            raise ValueError(f"Reply.status is {self.status!r}; it is 200, or 400 to 599 for an error")
        if self.status == _OK and self.error is not None:
            raise ValueError("Reply.error needs a status from 400 to 599; the status is 200")

    @property
    def finish(self) -> str:
        """The finish reason that is sent."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One Chat Completions request as a persona sees it.

    Attributes:
        messages: The history, as sent.
        tools: The names of the tools on offer.
        raw: The whole request body.
        number: Which model call of this conversation this is, from 1: the assistant messages in the history, plus one.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[str, ...]
    raw: Mapping[str, Any]
    number: int

    @classmethod
    def from_body(cls, body: object) -> ChatRequest:
        """Reads a parsed request body.

        Raises:
            ValueError: The body is not an object with a list of messages, or its tools are no list.
        """
        if not isinstance(body, dict):
            raise ValueError("the request body is not a JSON object")  # noqa: TRY004 - the value is a client's
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ValueError("`messages` is not a list of objects")
        tools = body.get("tools") or []
        if not isinstance(tools, list):
            raise ValueError("`tools` is not a list")  # noqa: TRY004
        functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
        return cls(
            messages=tuple(messages),
            tools=tuple(str(f["name"]) for f in functions if isinstance(f, dict) and "name" in f),
            raw=body,
            number=1 + sum(message.get("role") == "assistant" for message in messages),
        )

    @property
    def may_call(self) -> bool:
        """Whether a tool may be called: some are on offer, and `tool_choice` does not forbid it."""
        return bool(self.tools) and self.raw.get("tool_choice") != "none"

    def texts(self, role: str) -> list[str]:
        """The texts of the messages with this role, oldest first."""
        return [_text_of(message.get("content")) for message in self.messages if message.get("role") == role]


class Persona(Protocol):
    """Decides what the scripted model says. Called from many threads at once."""

    def __call__(self, request: ChatRequest, /) -> Reply:
        """Answers one model call."""
        ...


def never_listens(tool: str, arguments: Mapping[str, Any] | str) -> Persona:
    """A model that asks for the same call for ever, whatever it is told.

    Only when it may call no tool does it answer, with a short text made from the results it has seen.
    """
    return _unless(lambda request: not request.may_call, tool, arguments, _sum_up)


def gives_up_when_refused(
    tool: str,
    arguments: Mapping[str, Any] | str,
    answer: str = "I could not finish this: the tool keeps giving the same answer.",
) -> Persona:
    """A model that asks for the same call until a tool message carries a text from loopguard, and then answers.

    It also answers when it may call no tool. A refusal counts from anywhere in the history, behind an SDK's own
    prefix as well.
    """

    def refused(request: ChatRequest) -> bool:
        return not request.may_call or any(MARK in text for text in request.texts("tool"))

    return _unless(refused, tool, arguments, lambda _: answer)


def script(replies: Sequence[Reply]) -> Persona:
    """A model that gives these replies in order, and the last one from then on.

    An error reply leaves the history as it was, so a retry gets the same error.

    Raises:
        ValueError: There are no replies.
    """
    if not replies:
        raise ValueError("script() needs at least one Reply")
    fixed = tuple(replies)
    return lambda request: fixed[min(request.number, len(fixed)) - 1]


def _unless(
    done: Callable[[ChatRequest], bool],
    tool: str,
    arguments: Mapping[str, Any] | str,
    answer: Callable[[ChatRequest], str],
) -> Persona:
    call = Reply(tool_calls=(ScriptedCall(tool, arguments),))
    return lambda request: Reply(text=answer(request)) if done(request) else call


def _sum_up(request: ChatRequest) -> str:
    # What loopguard said is not something a tool found out.
    results = [text for text in request.texts("tool") if MARK not in text]
    if not results:
        return "I have no results to answer from."
    return f"I saw {len(results)} tool result(s). The last one says: {results[-1][:_QUOTED]}"


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "".join(part for part in parts if isinstance(part, str))
