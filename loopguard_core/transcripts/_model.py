"""The neutral form of a recorded conversation: what every reader produces and the player plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loopguard_core._errors import LoopGuardError
from loopguard_core._types import ToolCall, Usage


class TranscriptError(LoopGuardError, ValueError):
    """A recording that cannot be read. The text says where and why, and never quotes the conversation.

    Attributes:
        reason: Why.
        line: The line of the file, from 1, where known.
        file: The file as it was named; None while only its content is known.
    """

    def __init__(self, reason: str, *, line: int | None = None, file: str | None = None) -> None:
        self.reason = reason
        self.line = line
        self.file = file
        if file is None:
            place = "" if line is None else f"line {line}: "
        else:
            place = f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(place + reason)


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions, the first ones or some in between.

    Attributes:
        content: The text.
    """

    content: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a user said.

    Attributes:
        content: The text; pictures and files are left out.
    """

    content: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One model response.

    Attributes:
        content: The text.
        reasoning: The reasoning, where it was recorded.
        calls: The tool calls, in order. Arguments are as recorded, so text that may be no JSON.
        finish_reason: The provider's, where it was recorded.
        usage: What the model call used, where it was recorded.
        model: The model that answered, where it was recorded.
        agent: The agent that speaks, where several do.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    agent: str | None = None

    @property
    def finish(self) -> str:
        """Why it ended, also where nobody says so: whether calls follow is known all the same."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one tool call returned.

    Attributes:
        call_id: Id of the call; empty where the recording does not say and no call waits for an answer.
        output: The text, or parts that are no text as they were recorded.
        is_error: Whether it failed; None where the recording does not say.
    """

    call_id: str
    output: Any
    is_error: bool | None = None


Message = SystemMessage | UserMessage | AssistantMessage | ToolResult


@dataclass(frozen=True, slots=True)
class Transcript:
    """A recorded conversation.

    Attributes:
        id: Its id, where the recording has one.
        messages: Everything that was said, in order.
    """

    id: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file, before anybody has looked what kind of recording it is.

    Attributes:
        value: The JSON value; of a JSONL file, the list of its lines' values.
        lines: Of a JSONL file, the line each of those values stands on; None for JSON.
    """

    value: Any
    lines: tuple[int, ...] | None = None

    def members(self) -> Iterator[tuple[int | None, Any]]:
        """The members of a list, each with its line where known; a value that is no list is its only member."""
        members = self.value if isinstance(self.value, list) else [self.value]
        return ((self.lines[index] if self.lines else None, member) for index, member in enumerate(members))
