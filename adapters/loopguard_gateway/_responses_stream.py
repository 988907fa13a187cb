"""Events of the Responses API: reading those of the provider, and writing those that end a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from loopguard_core import Channel, Usage
from loopguard_gateway._sse import written
from loopguard_gateway._wire import Closing, Piece, Said

OWN_ID = "resp_loopguard_"
"""What the ids of the gateway's own responses begin with."""

_TEXTS: dict[str, Channel] = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})
_HOSTED = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)
"""What the provider ran on its own: no call to the client."""
_MAX_ITEMS = 4_096


class ResponseReader:
    """Puts the events of a stream together.

    Args:
        read: Reads a whole response object.
    """

    def __init__(self, read: Callable[[Mapping[str, Any]], Said]) -> None:
        self._read_whole = read
        self._response: dict[str, Any] = {}
        self._items: list[Any] = []
        self._open: list[str] = []
        self._sequence = 0
        self._finished = False

    def read(self, data: dict[str, Any]) -> Piece:
        """Take one event in."""
        kind = str(data.get("type"))
        number = data.get("sequence_number")
        self._sequence = number + 1 if type(number) is int else self._sequence + 1
        if isinstance(data.get("response"), dict):
            self._response = data["response"]
            self._finished = kind in _LAST
            return Piece(last=self._finished)
        channel, delta = _TEXTS.get(kind), data.get("delta")
        spoken = [delta] if isinstance(delta, str) else []
        if channel is not None and isinstance(delta, str) and delta:
            if channel == "content":
                self._open.append(delta)
            return Piece([(channel, delta)], spoken, calls=channel == "arguments")
        item = data.get("item")
        if isinstance(item, dict):
            if kind == "response.output_item.done" and len(self._items) < _MAX_ITEMS:
                self._items.append(item)
                self._open.clear()
            return Piece(spoken=spoken, calls=_is_call(item))
        calls = kind.startswith(("response.function_call", "response.custom_tool_call", "response.mcp"))
        return Piece(spoken=spoken, calls=calls)

    def said(self) -> Said:
        """What came so far."""
        if self._finished:
            return self._read_whole(self._response)
        items = [*self._items, *([_message("".join(self._open))] if self._open else [])]
        said = self._read_whole({**self._response, "output": items})
        return Said(said.message, said.items, said.id, said.model, None, cut=True)

    def close(self, closing: Closing) -> bytes:
        """Events that end the stream: the closing message as an item of its own, then the response."""
        text = closing.text if closing.whole else ""
        before = [] if closing.said is None else [item for item in closing.said.items if not _is_call(item)]
        response, message = closed_response(closing, before, text)
        begun = {**response, "status": "in_progress", "output": [], "usage": None}
        events: list[tuple[str, dict[str, Any]]] = []
        if closing.said is None:
            self._sequence = 0
            events += [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
        if message is not None:
            events += _spoken(message, len(before), text)
        events.append((f"response.{response['status']}", {"response": response}))
        return b"".join(self._event(kind, fields) for kind, fields in events)

    def error(self, error: Mapping[str, Any]) -> bytes:
        """The API's own error event, with the object besides for which the official clients raise."""
        fields = {"code": str(error.get("code")), "message": error.get("message"), "param": None, "error": dict(error)}
        return self._event("error", fields)

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return written({"type": kind, **fields, "sequence_number": number}, kind)


def closed_response(closing: Closing, before: list[Any], text: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A response object of the gateway's, and its closing message if there is one.

    Args:
        closing: How it ends.
        before: Items that the client has already.
        text: The closing message.
    """
    asked, said = closing.asked.body, closing.said
    message = _message(text) if text else None
    response = {
        "id": (None if said is None else said.id) or f"{OWN_ID}{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed" if closing.whole else "incomplete",
        "error": None,
        "incomplete_details": None if closing.whole else {"reason": "max_output_tokens"},
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata") or {},
        "model": (None if said is None else said.model) or closing.asked.model or "",
        "output": [*before, *([] if message is None else [message])],
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "temperature": asked.get("temperature"),
        "text": asked.get("text") or {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools") or [],
        "top_p": asked.get("top_p"),
        "usage": _usage(closing.usage),
    }
    return response, message


def _message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    identity = f"msg_loopguard_{uuid.uuid4().hex}"
    return {"id": identity, "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def _spoken(message: dict[str, Any], place: int, text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of one message, as a provider sends them."""
    at = {"item_id": message["id"], "output_index": place, "content_index": 0}
    part = message["content"][0]
    empty = {**message, "status": "in_progress", "content": []}
    return [
        ("response.output_item.added", {"output_index": place, "item": empty}),
        ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**at, "delta": text, "logprobs": []}),
        ("response.output_text.done", {**at, "text": text, "logprobs": []}),
        ("response.content_part.done", {**at, "part": part}),
        ("response.output_item.done", {"output_index": place, "item": message}),
    ]


def _usage(usage: Usage | None) -> dict[str, Any]:
    sent, received = (0, 0) if usage is None else (usage.input_tokens or 0, usage.output_tokens or 0)
    return {
        "input_tokens": sent,
        "input_tokens_details": {
            "cached_tokens": 0 if usage is None else usage.cached_tokens or 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": received,
        "output_tokens_details": {"reasoning_tokens": 0 if usage is None else usage.reasoning_tokens or 0},
        "total_tokens": sent + received,
    }


def _is_call(item: Any) -> bool:
    """Whether an item is something that the client is to run."""
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and kind not in _HOSTED and kind.endswith(("_call", "mcp_approval_request"))
