"""Reads Anthropic messages: content in blocks, calls as `tool_use`, results as `tool_result` in a user's message.

A file is an object with `messages` (and maybe `id`, `model` and `system`), a bare list, or JSONL with one message a
line. Responses of the API may stand where a message stands, and session logs that wrap each message
(`{"type": "assistant", "message": {...}}`) are opened.

- All `tool_use` blocks of one response are one round. Assistant messages that share an `id` are pieces of one response,
  also where results were logged in between.
- A user's message gives its results first. Whatever else it holds is a user speaking, except words of loopguard's own.
- `is_error: true` is a failure. `false` is what many write by default, so the output is judged.
- `server_tool_use` and `mcp_tool_use` run at the provider, within one model call: they are no round.
- Of a session log, what belongs to a nested agent (`isSidechain`) is passed over: it is a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopguard_core._outcome import OWN_WORDS
from loopguard_core._types import ToolCall, Usage
from loopguard_core.transcripts._envelope import glimpse, opened, read_each
from loopguard_core.transcripts._model import (
    Document,
    Message,
    SystemMessage,
    ToolResult,
    Transcript,
    TranscriptError,
    UserMessage,
)
from loopguard_core.transcripts._pieces import Pieces
from loopguard_core.transcripts._values import (
    count,
    identifier,
    joined,
    kind,
    part_text,
    reasoning_text,
    rows,
    text_or_none,
    tool_output,
)

NAME = "Anthropic messages"

_THINKING = frozenset({"thinking", "redacted_thinking"})
_AT_PROVIDER = frozenset({"server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result"})
_BLOCKS = _THINKING | _AT_PROVIDER | {"tool_use", "tool_result"}
_ELSEWHERE = ("tool_calls", "function_call")  # where OpenAI's chat form has its calls
_CONTENT = (str, list, type(None))


def recognizes(document: Document) -> bool:
    """Whether this looks like Anthropic messages, readable or not.

    They have blocks or fields of their own, and neither OpenAI's role for results nor its place for calls. A
    conversation of nothing but text is the same in both forms.
    """
    value = document.value
    own = isinstance(value, dict) and isinstance(value.get("messages"), list) and "system" in value
    for message in map(_unwrapped, glimpse(document)):
        if message.get("role") in ("tool", "function") or any(message.get(key) for key in _ELSEWHERE):
            return False
        own = own or _is_own(message)
    return own


def _is_own(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ("user", "assistant") and (
        "stop_reason" in message or any(kind(part) in _BLOCKS for part in rows(message.get("content")))
    )


def read(document: Document) -> Transcript:
    """Turn a parsed file into a transcript.

    Raises:
        TranscriptError: It holds several conversations, or something that is no message.
    """
    fields, messages = opened(document)
    reader = _MessageReader(text_or_none(fields.get("model")))
    system = joined(fields.get("system"))
    first = (SystemMessage(system),) if system else ()
    read_parts = read_each(messages, reader.read)
    return Transcript(
        identifier(fields.get("id")),
        (*first, *(part.message() if isinstance(part, _Response) else part for part in read_parts)),
    )


@dataclass(slots=True, eq=False)
class _Response(Pieces):
    """A response, of which further pieces may come."""

    id: str | None
    number: int
    answered: set[str] = field(default_factory=set)
    passed: int = 0  # calls that no result without an id can answer any more

    def take(self, message: Mapping[str, Any]) -> None:
        """Add a piece."""
        content = message.get("content")
        self.content.append(_spoken(content))
        for block in rows(content):
            if kind(block) in _THINKING:
                self.reasoning.append(reasoning_text(block))
            elif kind(block) == "tool_use":
                name = block.get("name")
                call_id = identifier(block.get("id")) or f"call-{self.number}.{len(self.calls) + 1}"
                self.calls.append(ToolCall(call_id, name if isinstance(name, str) else "", block.get("input")))
        self.finish_reason = text_or_none(message.get("stop_reason")) or self.finish_reason
        self.usage = _usage(message.get("usage")) or self.usage
        self.model = text_or_none(message.get("model")) or self.model

    def answered_by(self, call_id: str | None) -> str:
        """The call a result answers: the one it names, else the next without an answer; empty if there is none."""
        while call_id is None and self.passed < len(self.calls):
            waiting = self.calls[self.passed].id
            self.passed += 1
            if waiting not in self.answered:
                call_id = waiting
        if call_id is not None:
            self.answered.add(call_id)
        return call_id or ""


class _MessageReader:
    """Reads messages in order, and puts the pieces of one response together.

    Args:
        model: The model of messages that name none.
    """

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._response = _Response(None, 0, model=model)

    def read(self, entry: Any) -> Iterator[Message | _Response]:
        """Nothing for a further piece of the last response, and for what is no part of the conversation.

        Raises:
            TranscriptError: It is no message.
        """
        if not isinstance(entry, dict):
            raise TranscriptError("is not a message: it is no object")
        message = _unwrapped(entry)
        wrapped = message is not entry
        if entry.get("isSidechain") is True or not (wrapped or "role" in entry or kind(entry) is None):
            return  # a nested agent's, or a line of a log that is no message
        role, content = message.get("role", kind(entry) if wrapped else None), message.get("content")
        if not isinstance(role, str):
            raise TranscriptError("is not an Anthropic message: it has no `role`")
        if not isinstance(content, _CONTENT):
            raise TranscriptError("has content that is neither text nor a list of blocks")
        if role == "assistant":
            yield from self._assistant(message)
        elif role == "user":
            yield from self._user(content)
        elif role in ("system", "developer"):
            yield SystemMessage(joined(content))

    def _assistant(self, message: Mapping[str, Any]) -> Iterator[_Response]:
        response = identifier(message.get("id"))
        if response is None or response != self._response.id:
            self._response = _Response(response, self._response.number + 1, model=self._model)
            yield self._response
        self._response.take(message)

    def _user(self, content: Any) -> Iterator[Message]:
        said = []
        for block in content if isinstance(content, list) else [content or ""]:
            if isinstance(block, dict) and kind(block) == "tool_result":
                yield self._result(block)
            else:
                said.append(block)
        for own in (True, False):
            blocks = [block for block in said if (part_text(block) or "").lstrip().startswith(OWN_WORDS) is own]
            if blocks:
                yield UserMessage(joined(blocks))

    def _result(self, block: Mapping[str, Any]) -> ToolResult:
        call_id = self._response.answered_by(identifier(block.get("tool_use_id")))
        failed = True if block.get("is_error") is True else None
        return ToolResult(call_id, tool_output(block.get("content")), failed)


def _unwrapped(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    within = entry.get("message")
    return within if isinstance(within, dict) and "role" not in entry else entry


def _spoken(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part_text(block) or "" for block in content or () if kind(block) in ("text", None))


def _usage(recorded: Any) -> Usage | None:
    if not isinstance(recorded, dict):
        return None
    sent, read, written = (
        count(recorded.get(key)) for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    # This provider leaves out of `input_tokens` what went through the cache.
    return Usage(
        input_tokens=None if sent is None else sent + (read or 0) + (written or 0),
        output_tokens=count(recorded.get("output_tokens")),
        cached_tokens=read,
    )
