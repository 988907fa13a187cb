"""Chat Completions on the wire: the bodies, the stream's chunks and the usage of one reply."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from loopguard_core.testing.personas import ChatRequest, Reply

Price = tuple[Decimal, Decimal]
"""Dollars for a million input tokens, and for a million output tokens."""

DONE = "[DONE]"

_MILLION = 1_000_000
_CHARS_PER_TOKEN = 4
_PIECE = 16
_OWN_ID = re.compile(r"call_(\d{1,9})_\d+")


@dataclass(frozen=True, slots=True)
class Completion:
    """One successful reply with everything filled in that the script left open."""

    id: str
    model: str
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, Any]

    @classmethod
    def build(
        cls, request: ChatRequest, reply: Reply, *, completion_id: str, model: str, price: Price | None
    ) -> Completion:
        """Gives the calls their ids and works out the usage."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            turn = _turn(request)
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{turn}_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_text},
                }
                for index, call in enumerate(reply.tool_calls)
            ]
        return cls(completion_id, model, message, reply.finish, _usage(request, reply, price))

    def body(self) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choice = {"index": 0, "message": self.message, "logprobs": None, "finish_reason": self.finish_reason}
        return self._envelope("chat.completion", [choice]) | {"usage": self.usage}

    def chunks(self, *, include_usage: bool) -> Iterator[dict[str, Any]]:
        """The stream's chunks, in the order a provider sends them."""
        # OpenAI puts a null usage on every earlier chunk where the last one will carry it.
        usage: dict[str, Any] = {"usage": None} if include_usage else {}
        for delta in self._deltas():
            yield self._envelope("chat.completion.chunk", [_choice(delta, None)]) | usage
        yield self._envelope("chat.completion.chunk", [_choice({}, self.finish_reason)]) | usage
        if include_usage:
            yield self._envelope("chat.completion.chunk", []) | {"usage": self.usage}

    def _deltas(self) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": None if self.message["content"] is None else ""}
        for field in ("reasoning_content", "content"):
            for piece in _pieces(self.message.get(field) or ""):
                yield {field: piece}
        for index, call in enumerate(self.message.get("tool_calls", ())):
            function = call["function"]
            yield {"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]}
            for piece in _pieces(function["arguments"]):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        # A fixed time keeps recordings of two equal runs equal.
        return {"id": self.id, "object": kind, "created": 0, "model": self.model, "choices": choices}


def error_body(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """An error as OpenAI-compatible servers send it; what `error` does not say is filled in."""
    return {"error": {"message": f"scripted error {status}", "type": "scripted_error", "code": status} | error}


def event(data: str) -> bytes:
    """One server-sent event."""
    return f"data: {data}\n\n".encode()


def _choice(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def _turn(request: ChatRequest) -> int:
    """The number that goes into this reply's call ids.

    Where an agent cut its history short, counting messages starts lower again; going on from the highest id still in
    sight keeps the ids unique.
    """
    lists = [message.get("tool_calls") for message in request.messages]
    calls = [call for calls in lists if isinstance(calls, list) for call in calls if isinstance(call, dict)]
    seen = [int(own[1]) for call in calls if (own := _OWN_ID.fullmatch(str(call.get("id"))))]
    return max(request.number, max(seen, default=0) + 1)


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)


def _usage(request: ChatRequest, reply: Reply, price: Price | None) -> dict[str, Any]:
    sent = [list(request.messages), request.raw.get("tools") or []]
    prompt = sum(_tokens(json.dumps(part, ensure_ascii=False, separators=(",", ":"))) for part in sent)
    reasoning = _tokens(reply.reasoning or "")
    calls = sum(_tokens(call.name + call.arguments_text) for call in reply.tool_calls)
    completion = max(1, _tokens(reply.text or "") + reasoning + calls)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    if price is not None:
        usage["cost"] = float((price[0] * prompt + price[1] * completion) / _MILLION)
    return usage
