"""What the gateway has to know of a protocol; `_chat` and `_responses` know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loopguard_core import Channel, Stop, Usage
from loopguard_core.transcripts import AssistantMessage, Message

_NOTHING = AssistantMessage()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as far as the gateway looks into it.

    Attributes:
        body: The request.
        model: The model asked for.
        stream: Whether the answer is to be streamed.
        output_tokens: The most tokens that may come back; None where the request does not say.
        choices: How many answers are asked for.
        items: The conversation in the request.
        after: What the provider keeps of the conversation: the id of a response, or of a conversation.
    """

    body: Mapping[str, Any]
    model: str | None
    stream: bool
    output_tokens: int | None
    choices: int
    items: list[Any]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """One model response.

    Attributes:
        message: What it says, in the core's form.
        items: The same as it goes into a further request.
        id: Its id.
        model: The model that answered.
        usage: What it used, where reported.
        cut: Whether it came without its end.
    """

    message: AssistantMessage = _NOTHING
    items: tuple[Any, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a stream says.

    Attributes:
        texts: New text by channel.
        spoken: All of its text, of every answer and in whatever field, for what it costs where nobody reports that.
        report: Whether it only reports what was used.
        calls: Whether it belongs to a tool call.
        last: Whether the response is complete with it.
    """

    texts: Sequence[tuple[Channel, str]] = ()
    spoken: Sequence[str] = ()
    report: bool = False
    calls: bool = False
    last: bool = False


@dataclass(slots=True)
class Closing:
    """The end that the gateway writes.

    Attributes:
        text: What is said; empty where a stream is only cut.
        asked: The request.
        said: What the model said before, as far as the client has it; None if it has nothing.
        whole: Whether the text is the whole answer. Else the stream was cut.
        stop: Why the run was ended.
        usage: What is reported as used; None reports nothing used.
    """

    text: str
    asked: Asked
    said: Said | None = None
    whole: bool = True
    stop: Stop | None = None
    usage: Usage | None = field(default=None)


class Reader(Protocol):
    """Reads the events of one streamed response."""

    def read(self, data: dict[str, Any]) -> Piece:
        """Take one event in."""

    def said(self) -> Said:
        """What came so far."""

    def close(self, closing: Closing) -> bytes:
        """Events that end the stream well formed, after what came so far was or was not passed on."""

    def error(self, error: Mapping[str, Any]) -> bytes:
        """An event that says that the stream ends with an error."""


class Wire(Protocol):
    """One protocol."""

    @property
    def name(self) -> str:
        """The endpoint, for metrics."""

    @property
    def path(self) -> str:
        """Where it is at the provider."""

    @property
    def keeps(self) -> bool:
        """Whether a request may name what the provider keeps of the conversation."""

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Look into a request. Raises `Refused` where it asks for what the gateway cannot count."""

    def read(self, items: Sequence[Any]) -> Sequence[Message]:
        """A part of a conversation in the core's form. Raises `TranscriptError`."""

    def links(self, items: Sequence[Any]) -> list[tuple[int, bytes]]:
        """What a conversation is recognised by: for each item that counts, its place and a digest of it."""

    def said(self, body: Mapping[str, Any]) -> Said:
        """Read a whole answer. Raises `TranscriptError`."""

    def reader(self) -> Reader:
        """For one streamed answer."""

    def results(self, said: Said, outputs: Mapping[str, str]) -> list[Any] | None:
        """The response and the results of all its calls, for a further request; None where that cannot be written."""

    def continued(self, said: Said, text: str) -> list[Any]:
        """A response that was cut, with a closing text at its end, as it will stand in the next request."""

    def note(self, text: str) -> Any:
        """A user's message."""

    def rebuilt(self, asked: Asked, added: Sequence[Any], *, tools: bool) -> dict[str, Any]:
        """The request with items added at its end, and with or without its tools."""

    def reporting(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """A request that asks for a report of what its stream uses; None where it does so already."""

    def answer(self, closing: Closing) -> dict[str, Any]:
        """A whole answer of the gateway's."""
