"""Reads dumps of LangChain messages, in each of the three ways LangChain writes them.

- `messages_to_dict`: `{"type": "ai", "data": {...}}`.
- `dumpd` and `dumps`: `{"lc": 1, "type": "constructor", "id": [..., "AIMessage"], "kwargs": {...}}`.
- `model_dump`: `{"type": "ai", "content": ..., "tool_calls": [...], ...}`.

A file is an object with `messages` (a LangGraph state, also inside `values`), an object with `input` and `output`, a
bare list, or JSONL with one message a line.

- `invalid_tool_calls` belong to the round like `tool_calls`, their arguments as text. Dumps of old versions have calls
  in `additional_kwargs` alone.
- `status: "error"` is a failure; `"success"` is what LangChain writes by default, so the output is judged.
- Reasoning comes from blocks of `content` or from `additional_kwargs`, as the provider's package writes it. What a
  provider ran on its own is no round.
- `RemoveMessage` and unknown kinds are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopguard_core._types import ToolCall, Usage
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
    count,
    identifier,
    joined,
    kind,
    part_text,
    reasoning_text,
    rows,
    table,
    text_or_none,
    tool_output,
)
from loopguard_core.transcripts.openai_chat import calls_of

NAME = "LangChain messages"

_KINDS = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "remove": "",
    "user": "user",
    "assistant": "assistant",
}
"""LangChain's kinds, and the roles that a `ChatMessage` may have."""

_ENOUGH = frozenset({"ai", "human"})  # `system` and `tool` are other people's kinds too
_REASONING = frozenset({"reasoning", "thinking", "reasoning_content"})
_CALLS = frozenset({"tool_call", "tool_use"})


def recognizes(document: Document) -> bool:
    """Whether this looks like a dump of LangChain messages, readable or not."""
    return any(_is_own(member) for _, member in _unpacked(document).members())


def read(document: Document) -> Transcript:
    """Turn a parsed file into a transcript.

    Raises:
        TranscriptError: It holds several conversations, or something that is no message.
    """
    around = table(document.value)
    fields, messages = opened(_unpacked(document))
    reader = _MessageReader()
    transcript_id = identifier(fields.get("id")) or identifier(around.get("id"))
    return Transcript(transcript_id, read_each(messages, reader.read))


def _is_own(member: Any) -> bool:
    if not isinstance(member, dict):
        return False
    within = member.get("messages")
    if isinstance(within, list):
        return any(_is_own(one) for one in within if isinstance(one, dict) and "messages" not in one)
    if _constructed(member) is not None:
        return True
    known = _plain_kind(member.get("type"))
    if isinstance(member.get("data"), dict):
        return known in _KINDS or known == "chat"
    return known in _ENOUGH and "content" in member and "role" not in member


def _constructed(member: Mapping[str, Any]) -> str | None:
    """The class of a message in the constructor form."""
    path = member.get("id")
    if "lc" not in member or not isinstance(member.get("kwargs"), dict) or not isinstance(path, list) or not path:
        return None
    name = path[-1]
    return name if isinstance(name, str) and name.endswith(("Message", "MessageChunk")) else None


def _plain_kind(name: Any) -> str:
    """`ai` for `ai`, `AIMessage` and `AIMessageChunk`."""
    return name.removesuffix("Chunk").removesuffix("Message").lower() if isinstance(name, str) else ""


# -- around the messages -----------------------------------------------------------------------------------------------


def _unpacked(document: Document) -> Document:
    """The document with what LangGraph and tracers put around a state taken off."""
    value = document.value
    if not isinstance(value, dict) or "messages" in value:
        return Document(_flat(value), document.lines)
    if isinstance(table(value.get("values")).get("messages"), list):
        return Document(_flat(value["values"]))
    before, after = _messages_in(value.get("input")), _messages_in(value.get("output"))
    if not any(_is_own(message) for message in (*before, *after)):
        return document
    # A graph's output is its whole state, with its input at the front; a model's is only what it said.
    if after and "messages" in table(value["output"]):
        return Document(after)
    if isinstance(value.get("input"), str):
        before = [{"type": "human", "content": value["input"]}]
    return Document(before + after)


def _flat(value: Any) -> Any:
    """A state whose `messages` are a batch of one."""
    messages = table(value).get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], list):
        return {**value, "messages": messages[0]}
    return value


def _messages_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        within = _flat(value).get("messages")
        return within if isinstance(within, list) else [value]
    return value if isinstance(value, list) else []


# -- messages ----------------------------------------------------------------------------------------------------------


class _MessageReader:
    """Reads messages in order; remembers which calls of the last round wait for an answer."""

    def __init__(self) -> None:
        self._responses = 0
        self._piece: str | None = None
        self._unanswered = Unanswered()

    def read(self, entry: Any) -> Iterator[Message]:
        """Nothing for a kind that is not known.

        Raises:
            TranscriptError: It is no message.
        """
        name, message = _opened(entry)
        plain = _plain_kind(name)
        role = _KINDS.get(_plain_kind(message.get("role")) if plain == "chat" else plain)
        self._refuse_pieces(name, message)
        if role == "assistant":
            yield self._assistant(message)
        elif role == "tool":
            yield self._result(message)
        elif role == "user":
            yield UserMessage(joined(message.get("content")))
        elif role == "system":
            yield SystemMessage(joined(message.get("content")))

    def _refuse_pieces(self, name: str, message: Mapping[str, Any]) -> None:
        piece = identifier(message.get("id")) if name.endswith("Chunk") else None
        if piece is not None and piece == self._piece:
            raise TranscriptError("is a piece of a streamed message; record whole messages")
        self._piece = piece

    def _assistant(self, message: Mapping[str, Any]) -> AssistantMessage:
        self._responses += 1
        calls = self._calls(message)
        self._unanswered = Unanswered(calls)
        about = table(message.get("response_metadata"))
        content = message.get("content")
        return AssistantMessage(
            content=_spoken(content),
            reasoning=_reasoning(content, table(message.get("additional_kwargs"))),
            calls=calls,
            finish_reason=text_or_none(about.get("finish_reason")) or text_or_none(about.get("stop_reason")),
            usage=_usage(message.get("usage_metadata"), about),
            model=text_or_none(about.get("model_name")) or text_or_none(about.get("model")),
            agent=text_or_none(message.get("name")),
        )

    def _calls(self, message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
        found: list[Any] = []
        for key in ("tool_calls", "invalid_tool_calls"):
            listed = message.get(key) or []
            if not isinstance(listed, list):
                raise TranscriptError(f"has `{key}` that are no list")
            found += listed
        if not found and (older := calls_of(table(message.get("additional_kwargs")), self._responses)):
            return older
        if not found:
            found = [block for block in rows(message.get("content")) if kind(block) in _CALLS]
        return calls_of({"tool_calls": found}, self._responses)

    def _result(self, message: Mapping[str, Any]) -> ToolResult:
        call_id = identifier(message.get("tool_call_id"))
        answered = self._unanswered.take(call_id, text_or_none(message.get("name")))
        failed = True if message.get("status") == "error" else None
        return ToolResult(call_id or answered or "", tool_output(message.get("content")), failed)


def _opened(entry: Any) -> tuple[str, Mapping[str, Any]]:
    """The kind of a message and its fields, whichever way it was dumped.

    Raises:
        TranscriptError: It is no message.
    """
    if not isinstance(entry, dict):
        raise TranscriptError("is not a message: it is no object")
    constructed = _constructed(entry)
    if constructed is not None:
        return constructed, entry["kwargs"]
    name = entry.get("type")
    if not isinstance(name, str):
        raise TranscriptError("is not a LangChain message: it has no `type`")
    return name, entry["data"] if isinstance(entry.get("data"), dict) else entry


def _spoken(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part_text(part) or "" for part in content if kind(part) not in _REASONING)
    return joined(content)


def _reasoning(content: Any, more: Mapping[str, Any]) -> str:
    blocks = "".join(reasoning_text(part) for part in rows(content) if kind(part) in _REASONING)
    return blocks or joined(more.get("reasoning_content")) or reasoning_text(more.get("reasoning"))


def _usage(recorded: Any, about: Mapping[str, Any]) -> Usage | None:
    raw = table(about.get("token_usage")) or table(about.get("usage"))
    if not isinstance(recorded, dict) and "cost" not in raw:
        return None
    tokens = table(recorded)
    return Usage(
        input_tokens=count(tokens.get("input_tokens")),
        output_tokens=count(tokens.get("output_tokens")),
        cached_tokens=count(table(tokens.get("input_token_details")).get("cache_read")),
        reasoning_tokens=count(table(tokens.get("output_token_details")).get("reasoning")),
        total_tokens=count(tokens.get("total_tokens")),
        cost=raw.get("cost"),
    )
