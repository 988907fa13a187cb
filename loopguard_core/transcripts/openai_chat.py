"""Reads OpenAI chat-completions messages, the form most recorders write.

A file is an object with `messages` (and maybe `id` and `model`), a bare list of messages, or JSONL with one message a
line. One file is one conversation: where it holds several, which one a verdict is about could not be said.

What recorders do differently is taken as it comes:

- Text is a string, null or a list of parts. A result with parts that are no text (a screenshot) keeps all of them,
  because a new picture is a new result.
- Arguments stay as they are, so text that may be no JSON.
- A call without an id gets one from its place: `call-3.1` is the first call of the third assistant message. A result
  without an id answers the next unanswered call, of the same tool where the result names one.
- The old `function_call` and the role `function` count as a call and its result; `developer` is `system`; other roles
  are passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from loopguard_core._types import ToolCall, Usage
from loopguard_core.transcripts._model import (
    AssistantMessage,
    Document,
    Message,
    SystemMessage,
    ToolResult,
    Transcript,
    TranscriptError,
    UserMessage,
)

NAME = "OpenAI chat messages"

_MAX_COUNT = 10**15  # no model call has more tokens; a hostile integer may have thousands of digits
# Other providers' ways to put calls into the content. To pass over them would be to find nothing, and not say so.
_FOREIGN_PARTS = frozenset({"tool_use", "tool_result", "tool-call", "tool-result", "function_call", "functionCall"})


def recognizes(document: Document) -> bool:
    """Whether this looks like OpenAI chat messages, readable or not."""
    return any(
        isinstance(member, dict) and ("messages" in member or "role" in member) for _, member in document.members()
    )


def read(document: Document) -> Transcript:
    """Turn a parsed file into a transcript.

    Raises:
        TranscriptError: It holds several conversations, or something that is no message.
    """
    conversations = [
        (line, member) for line, member in document.members() if isinstance(member, dict) and "messages" in member
    ]
    if not conversations:
        return _conversation(None, None, document)
    if len(conversations) > 1:
        each = ", one a line" if document.lines else ""
        raise TranscriptError(f"holds {len(conversations)} conversations{each}; put each into a file of its own")
    line, found = conversations[0]
    if isinstance(document.value, list) and len(document.value) > 1:
        raise TranscriptError("holds a conversation and other things beside it", line=line)
    if not isinstance(found["messages"], list):
        raise TranscriptError("`messages` is not a list", line=line)
    return _conversation(_identifier(found.get("id")), _text_or_none(found.get("model")), Document(found["messages"]))


def _conversation(transcript_id: str | None, model: str | None, messages: Document) -> Transcript:
    reader = _MessageReader(model)
    read: list[Message] = []
    for number, (line, message) in enumerate(messages.members(), 1):
        try:
            read.extend(reader.read(message))
        except TranscriptError as error:
            subject = "this" if line else f"message {number}"
            raise TranscriptError(f"{subject} {error.reason}", line=line) from None
    return Transcript(transcript_id, tuple(read))


class _MessageReader:
    """Reads messages in order; remembers which calls of the last round wait for an answer.

    Args:
        model: The model of messages that name none.
    """

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._responses = 0
        self._unanswered = _Unanswered(())

    def read(self, message: Any) -> Iterator[Message]:
        """Nothing for a role that is not known.

        Raises:
            TranscriptError: It is no message.
        """
        if not isinstance(message, dict):
            raise TranscriptError("is not a message: it is no object")
        role = message.get("role")
        if not isinstance(role, str):
            raise TranscriptError("is not a chat message: it has no `role`")
        content = message.get("content")
        if isinstance(content, list) and any(_kind(part) in _FOREIGN_PARTS for part in content):
            raise TranscriptError(
                "holds a tool call or result as a part of its content, which is not the OpenAI chat form"
            )
        if role == "assistant":
            yield self._assistant(message)
        elif role in ("tool", "function"):
            yield self._result(message)
        elif role == "user":
            yield UserMessage(_text(content))
        elif role in ("system", "developer"):
            yield SystemMessage(_text(content))

    def _assistant(self, message: Mapping[str, Any]) -> AssistantMessage:
        self._responses += 1
        calls = self._calls(message)
        self._unanswered = _Unanswered(calls)
        return AssistantMessage(
            content=_text(message.get("content")) or _text(message.get("refusal")),
            reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
            calls=calls,
            finish_reason=_text_or_none(message.get("finish_reason")),
            usage=_usage(message.get("usage")),
            model=_text_or_none(message.get("model")) or self._model,
        )

    def _calls(self, message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
        entries = message.get("tool_calls") or []
        if not isinstance(entries, list):
            raise TranscriptError("has `tool_calls` that are no list")
        if not entries and isinstance(message.get("function_call"), dict):
            entries = [{"function": message["function_call"]}]
        return tuple(self._call(entry, place) for place, entry in enumerate(entries, 1))

    def _call(self, entry: Any, place: int) -> ToolCall:
        if not isinstance(entry, dict):
            raise TranscriptError("has a tool call that is no object")
        # Custom tools take free text; some recorders leave out the level between.
        called = next((entry[kind] for kind in ("function", "custom") if isinstance(entry.get(kind), dict)), entry)
        name = called.get("name")
        arguments = next((called[key] for key in ("arguments", "input", "args") if key in called), None)
        call_id = _identifier(entry.get("id")) or f"call-{self._responses}.{place}"
        return ToolCall(call_id, name if isinstance(name, str) else "", arguments)

    def _result(self, message: Mapping[str, Any]) -> ToolResult:
        call_id = _identifier(message.get("tool_call_id"))
        answered = self._unanswered.take(call_id, _text_or_none(message.get("name")))
        return ToolResult(call_id or answered or "", _output(message.get("content")))


class _Unanswered:
    """The calls of a round that wait for their results; quick also for a round of very many.

    Args:
        calls: The calls, in order.
    """

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._calls = calls
        self._taken: set[int] = set()
        self._queues: dict[tuple[str, str], deque[int]] = {}
        for place, call in enumerate(calls):
            for queue in (("id", call.id), ("name", call.name), ("any", "")):
                self._queues.setdefault(queue, deque()).append(place)

    def take(self, call_id: str | None, name: str | None) -> str | None:
        """The id of the call a result answers: the one it names, else the next of that tool, else the next."""
        if call_id is not None:
            queues = [("id", call_id)]
        else:
            queues = [("any", "")] if name is None else [("name", name), ("any", "")]
        for queue in (self._queues.get(key, deque()) for key in queues):
            while queue:
                place = queue.popleft()
                if place not in self._taken:
                    self._taken.add(place)
                    return self._calls[place].id
        return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part_text(part) or "" for part in content) if isinstance(content, list) else ""


def _output(content: Any) -> Any:
    if isinstance(content, list):
        texts = [_part_text(part) for part in content]
        return content if None in texts else "".join(text for text in texts if text)
    return content


def _part_text(part: Any) -> str | None:
    """The text of a part; None if it is something else."""
    if isinstance(part, str):
        return part
    texts = (part.get(key) for key in ("text", "refusal")) if isinstance(part, dict) else iter(())
    return next((text for text in texts if isinstance(text, str)), None)


def _kind(part: Any) -> str | None:
    return _text_or_none(part.get("type")) if isinstance(part, dict) else None


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _identifier(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_COUNT:
        return str(value)
    return _text_or_none(value)


def _usage(recorded: Any) -> Usage | None:
    if not isinstance(recorded, dict):
        return None
    sent, received = recorded.get("prompt_tokens_details"), recorded.get("completion_tokens_details")
    return Usage(
        input_tokens=_count(recorded.get("prompt_tokens")),
        output_tokens=_count(recorded.get("completion_tokens")),
        cached_tokens=_count(sent.get("cached_tokens")) if isinstance(sent, dict) else None,
        reasoning_tokens=_count(received.get("reasoning_tokens")) if isinstance(received, dict) else None,
        total_tokens=_count(recorded.get("total_tokens")),
        cost=_dollars(recorded.get("cost")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT else None


def _dollars(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        cost = Decimal(str(value))
    except (InvalidOperation, ValueError):
        return None
    return cost if cost.is_finite() and 0 <= cost <= _MAX_COUNT else None
