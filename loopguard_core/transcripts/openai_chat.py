"""Reads OpenAI chat-completions messages, the form most recorders write.

A file is an object with `messages` (and maybe `id` and `model`), a bare list of messages, or JSONL with one message a
line. One file is one conversation: where it holds several, which one a verdict is about could not be said.

What recorders do differently is taken as it comes:

- Text is a string, null or a list of parts. A result with parts that are no text (a screenshot) keeps all of them,
  because a new picture is a new result.
- Arguments stay as they are, so text that may be no JSON.
- A call without an id gets one from its place: `call-3.1` is the first call of the third assistant message. A result
  without an id answers the next unanswered call, of the same tool where the result names one.
- The `name` of an assistant message is the agent that speaks.
- The old `function_call` and the role `function` count as a call and its result; `developer` is `system`; other roles
  are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopguard_core._types import ToolCall
from loopguard_core.transcripts._envelope import opened, read_each
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
from loopguard_core.transcripts._values import (
    Unanswered,
    identifier,
    joined,
    kind,
    reasoning_text,
    rows,
    text_or_none,
    tool_output,
    usage,
)

NAME = "OpenAI chat messages"

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
    fields, messages = opened(document)
    reader = _MessageReader(text_or_none(fields.get("model")))
    return Transcript(identifier(fields.get("id")), read_each(messages, reader.read))


class _MessageReader:
    """Reads messages in order; remembers which calls of the last round wait for an answer.

    Args:
        model: The model of messages that name none.
    """

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._responses = 0
        self._unanswered = Unanswered()

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
        if isinstance(content, list) and any(kind(part) in _FOREIGN_PARTS for part in content):
            raise TranscriptError(
                "holds a tool call or result as a part of its content, which is not the OpenAI chat form"
            )
        if role == "assistant":
            yield self._assistant(message)
        elif role in ("tool", "function"):
            yield self._result(message)
        elif role == "user":
            yield UserMessage(joined(content))
        elif role in ("system", "developer"):
            yield SystemMessage(joined(content))

    def _assistant(self, message: Mapping[str, Any]) -> AssistantMessage:
        self._responses += 1
        calls = calls_of(message, self._responses)
        self._unanswered = Unanswered(calls)
        return AssistantMessage(
            content=joined(message.get("content")) or joined(message.get("refusal")),
            reasoning=_reasoning(message),
            calls=calls,
            finish_reason=text_or_none(message.get("finish_reason")),
            usage=usage(message.get("usage"), "prompt_tokens", "completion_tokens"),
            model=text_or_none(message.get("model")) or self._model,
            agent=text_or_none(message.get("name")),
        )

    def _result(self, message: Mapping[str, Any]) -> ToolResult:
        call_id = identifier(message.get("tool_call_id"))
        answered = self._unanswered.take(call_id, text_or_none(message.get("name")))
        failed = True if message.get("is_error") is True else None
        return ToolResult(call_id or answered or "", tool_output(message.get("content")), failed)


def calls_of(message: Mapping[str, Any], response: int) -> tuple[ToolCall, ...]:
    """The tool calls of an assistant message.

    Args:
        message: The message.
        response: Its number among the assistant messages, for calls without an id.

    Raises:
        TranscriptError: What should be calls is something else.
    """
    entries = message.get("tool_calls") or []
    if not isinstance(entries, list):
        raise TranscriptError("has `tool_calls` that are no list")
    if not entries and isinstance(message.get("function_call"), dict):
        entries = [{"function": message["function_call"]}]
    return tuple(_call(entry, f"call-{response}.{place}") for place, entry in enumerate(entries, 1))


def _call(entry: Any, otherwise: str) -> ToolCall:
    if not isinstance(entry, dict):
        raise TranscriptError("has a tool call that is no object")
    # Custom tools take free text; some recorders leave out the level between.
    called = next((entry[level] for level in ("function", "custom") if isinstance(entry.get(level), dict)), entry)
    name = called.get("name")
    arguments = next((called[key] for key in ("arguments", "input", "args") if key in called), None)
    return ToolCall(identifier(entry.get("id")) or otherwise, name if isinstance(name, str) else "", arguments)


def _reasoning(message: Mapping[str, Any]) -> str:
    apart = joined(message.get("reasoning_content")) or joined(message.get("reasoning"))
    return apart or "".join(reasoning_text(part) for part in rows(message.get("content")) if kind(part) == "thinking")
