"""Chat Completions on the wire."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopguard_core import Channel, Usage
from loopguard_core.transcripts import AssistantMessage, Document, Message, TranscriptError, openai_chat
from loopguard_gateway import _fields, _links
from loopguard_gateway._errors import bad_request
from loopguard_gateway._sse import DONE, written
from loopguard_gateway._wire import Asked, Closing, Piece, Reader, Said

name = "chat_completions"
path = "/chat/completions"
keeps = False

_INSTRUCTIONS = ("system", "developer")
_REASONING = ("reasoning_content", "reasoning")
_MAX_CALLS = 1_024
_ARGUMENTS = {"function": "arguments", "custom": "input"}
_NOT_SAID = ("role", "id", "type")
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")


def asked(body: Mapping[str, Any]) -> Asked:
    """Look into a request."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise bad_request("`messages` must be a list of messages")
    # Which of two names a provider listens to is not known here, so the larger number counts.
    most = [_fields.number(body, field) for field in ("max_completion_tokens", "max_tokens")]
    choices = [_fields.number(body, field) for field in ("n", "best_of")]
    return Asked(
        body,
        model=_text(body.get("model")),
        stream=_fields.flag(body, "stream"),
        output_tokens=max((count for count in most if count is not None), default=None),
        choices=max(count or 1 for count in choices),
        items=messages,
    )


def read(items: Sequence[Any]) -> Sequence[Message]:
    """Messages in the core's form."""
    return openai_chat.read(Document({"messages": list(items)})).messages


def links(items: Sequence[Any]) -> list[tuple[int, bytes]]:
    """A digest of each message; instructions are left out, which may change from one request to the next."""
    return [(place, _link(item)) for place, item in enumerate(items) if _role(item) not in _INSTRUCTIONS]


def _link(item: Any) -> bytes:
    if _role(item) != "assistant":
        return _links.digest(item)
    message = _assistant(item)
    return _links.of_calls(message.calls) if message.calls else _links.of_text(message.content)


def _assistant(message: Any) -> AssistantMessage:
    read_message = next(iter(read([message])), None)
    return read_message if isinstance(read_message, AssistantMessage) else AssistantMessage()


def said(body: Mapping[str, Any]) -> Said:
    """Read a `chat.completion`; of several choices the first one."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        raise TranscriptError("holds no message")
    return _said(message, choice.get("finish_reason"), body)


def _said(message: Mapping[str, Any], finish: Any, body: Mapping[str, Any]) -> Said:
    item = {**message, "role": "assistant"}  # streams and some providers leave it out, the next request has it
    around = {"usage": body.get("usage"), "model": body.get("model"), "finish_reason": finish}
    spoken = _assistant({**item, **around})
    return Said(spoken, (item,), _text(body.get("id")), _text(body.get("model")), spoken.usage)


def results(response: Said, outputs: Mapping[str, str]) -> list[Any] | None:
    """The message, and a tool message for each of its calls; None where they have no ids of their own."""
    message = response.items[0]
    calls = message.get("tool_calls")
    known = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if known != list(outputs):  # calls without ids, two with the same one, or the old `function_call`
        return None
    answers = [{"role": "tool", "tool_call_id": call, "content": output} for call, output in outputs.items()]
    return [message, *answers]


def continued(response: Said, text: str) -> list[Any]:
    """The message without its calls, with a text at its end."""
    return [{"role": "assistant", "content": response.message.content + text}]


def note(text: str) -> Any:
    """A user's message."""
    return {"role": "user", "content": text}


def rebuilt(request: Asked, added: Sequence[Any], *, tools: bool) -> dict[str, Any]:
    """The request with messages added."""
    kept = {key: value for key, value in request.body.items() if tools or key not in _TOOL_FIELDS}
    return {**kept, "messages": [*request.items, *added]}


def reporting(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request with `stream_options.include_usage`."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if not body.get("stream") or options.get("include_usage"):
        return None
    return {**body, "stream_options": {**options, "include_usage": True}}


def answer(closing: Closing) -> dict[str, Any]:
    """A `chat.completion` of the gateway's."""
    message = {"role": "assistant", "content": closing.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return _envelope(closing, "chat.completion", [choice]) | {"usage": _usage(closing.usage)}


def _envelope(closing: Closing, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    before = closing.said
    return {
        "id": (before.id if before else None) or f"chatcmpl-loopguard-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": (before.model if before else None) or closing.asked.model or "",
        "choices": choices,
    }


def _usage(usage: Usage | None) -> dict[str, Any]:
    sent, received = (0, 0) if usage is None else (usage.input_tokens or 0, usage.output_tokens or 0)
    return {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": sent + received}


@dataclass(slots=True)
class _Called:
    """A call of a stream, as far as it came."""

    kind: str
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def written(self) -> dict[str, Any]:
        """The call in a message."""
        called = {"name": self.name, _ARGUMENTS[self.kind]: "".join(self.arguments)}
        return {"id": self.id, "type": self.kind, self.kind: called}


class _ChatReader:
    """Puts the chunks of a stream together."""

    def __init__(self) -> None:
        self._message: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self._calls: dict[int, _Called] = {}
        self._finish: str | None = None
        self._body: dict[str, Any] = {}

    def read(self, data: dict[str, Any]) -> Piece:
        for key in ("id", "model", "usage"):
            if data.get(key) is not None:
                self._body[key] = data[key]
        choices = data.get("choices")
        rows = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        spoken = [text for choice in rows for text in _texts_of(choice.get("delta"))]
        first = next((choice for choice in rows if choice.get("index", 0) == 0), None)
        if first is None:
            return Piece(spoken=spoken, report=choices == [] and data.get("usage") is not None)
        return self._choice(first, spoken)

    def _choice(self, choice: dict[str, Any], spoken: list[str]) -> Piece:
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return Piece(spoken=spoken)
        texts: list[tuple[Channel, str]] = []
        reasoning = next((delta[key] for key in _REASONING if isinstance(delta.get(key), str) and delta[key]), None)
        if reasoning:
            self._message["reasoning_content"].append(reasoning)
            texts.append(("reasoning", reasoning))
        for key in ("content", "refusal"):
            if isinstance(delta.get(key), str) and delta[key]:
                self._message["content"].append(delta[key])
                texts.append(("content", delta[key]))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                texts += self._call(call)
        return Piece(texts, spoken, calls=bool(calls) or "function_call" in delta)

    def _call(self, call: dict[str, Any]) -> list[tuple[Channel, str]]:
        place = call.get("index", len(self._calls))
        if not isinstance(place, int) or len(self._calls) >= _MAX_CALLS:
            return []
        kind = "custom" if isinstance(call.get("custom"), dict) else "function"
        known = self._calls.setdefault(place, _Called(kind))
        known.id = known.id or _text(call.get("id")) or ""
        called = call.get(kind)
        if not isinstance(called, dict):
            return []
        known.name = known.name or _text(called.get("name")) or ""
        arguments = _text(called.get(_ARGUMENTS[kind]))
        if arguments is None:
            return []
        known.arguments.append(arguments)
        return [("arguments", arguments)]

    def said(self) -> Said:
        message: dict[str, Any] = {key: "".join(pieces) for key, pieces in self._message.items() if pieces}
        if self._calls:
            message["tool_calls"] = [call.written() for _, call in sorted(self._calls.items())]
        message.setdefault("content", None)
        return _said(message, self._finish, self._body)

    def close(self, closing: Closing) -> bytes:
        events: list[dict[str, Any]] = []

        def chunk(delta: dict[str, Any], finish: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            events.append(_envelope(closing, "chat.completion.chunk", [choice]) | {"id": identity})

        identity = _envelope(closing, "", [])["id"]
        if closing.text:
            begun = {} if closing.said is not None else {"role": "assistant"}
            chunk({**begun, "content": closing.text})
        chunk({}, "stop" if closing.whole else "length")
        options = closing.asked.body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            events.append(
                _envelope(closing, "chat.completion.chunk", []) | {"id": identity, "usage": _usage(closing.usage)}
            )
        return b"".join([*map(written, events), written(DONE)])

    def error(self, error: Mapping[str, Any]) -> bytes:
        return written({"error": dict(error)})


def reader() -> Reader:
    """For one streamed answer."""
    return _ChatReader()


def _role(item: Any) -> str | None:
    role = item.get("role") if isinstance(item, dict) else None
    return role if isinstance(role, str) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts_of(delta: Any) -> Iterator[str]:
    """Everything that a delta says, also in fields that only one provider knows."""
    rest = [delta]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            rest += [inner for key, inner in value.items() if key not in _NOT_SAID]
        elif isinstance(value, list):
            rest += value
