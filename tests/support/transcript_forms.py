"""One conversation in every form that is read, written from OpenAI's chat form, so that readers can be compared."""

from __future__ import annotations

import json
from typing import Any

_ROLES = {"system": "system", "user": "human", "assistant": "ai", "tool": "tool"}
_CLASSES = {"system": "SystemMessage", "human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}


def arguments(call: dict[str, Any]) -> tuple[Any, bool]:
    """The parsed arguments of a call; as text, and False, where they are no JSON object."""
    raw = call["function"]["arguments"]
    try:
        parsed = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        return raw, False
    return (parsed, True) if isinstance(parsed, dict) else (raw, False)


def anthropic(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    for message in messages:
        text = [{"type": "text", "text": message["content"]}] if message.get("content") else []
        if message["role"] == "assistant":
            thinking = message.get("reasoning_content")
            blocks = [{"type": "thinking", "thinking": thinking, "signature": "c2ln"}] if thinking else []
            blocks += text
            blocks += [
                {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments(call)[0]}
                for call in message.get("tool_calls") or ()
            ]
            written.append({"role": "assistant", "content": blocks, "stop_reason": None})
        elif message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            last = written[-1]["content"] if written and written[-1]["role"] == "user" else None
            if isinstance(last, list) and all(part["type"] == "tool_result" for part in last):
                last.append(block)
            else:
                written.append({"role": "user", "content": [block]})
        else:
            last = written[-1]["content"] if written and written[-1]["role"] == message["role"] else None
            if message["role"] == "user" and isinstance(last, list) and text:
                last += text  # mixed: a user's words after results, in one message
            else:
                written.append({"role": message["role"], "content": message["content"]})
    return written


def _said(message: dict[str, Any]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": message["reasoning_content"]}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary})
    if message.get("content"):
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": [part]})
    items += [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()
    ]
    return items


def _put(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
    return {"role": message["role"], "content": message["content"]}


def responses_items(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A plain list of items. It cannot hold an empty response."""
    items: list[dict[str, Any]] = []
    for message in messages:
        items += _said(message) if message["role"] == "assistant" else [_put(message)]
    return items


def responses_exchanges(messages: list[dict[str, Any]], *, resend: bool) -> list[dict[str, Any]]:
    """A response object for each model call, with what was sent: all that went before, or what came since."""
    exchanges: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    fresh: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "assistant":
            fresh.append(_put(message))
            continue
        output = _said(message)
        sent = history + fresh if resend else fresh
        number = len(exchanges)
        link = {} if resend or not number else {"previous_response_id": f"resp_{number - 1}"}
        exchanges.append({"id": f"resp_{number}", "object": "response", "input": sent, "output": output, **link})
        history, fresh = history + fresh + output, []
    if fresh:
        exchanges.append({"input": history + fresh if resend else fresh})
    return exchanges


def langchain_dump(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`model_dump` of each message."""
    written = []
    for message in messages:
        kind = _ROLES[message["role"]]
        dump: dict[str, Any] = {"content": message.get("content") or "", "additional_kwargs": {}, "type": kind}
        if kind == "ai":
            if message.get("reasoning_content"):
                dump["additional_kwargs"] = {"reasoning_content": message["reasoning_content"]}
            calls = [(call, *arguments(call)) for call in message.get("tool_calls") or ()]
            for key, valid in (("tool_calls", True), ("invalid_tool_calls", False)):
                dump[key] = [
                    {"name": call["function"]["name"], "args": args, "id": call["id"], "type": key[:-1]}
                    for call, args, parsed in calls
                    if parsed is valid
                ]
        elif kind == "tool":
            dump |= {"tool_call_id": message["tool_call_id"], "status": "success", "artifact": None}
        written.append(dump)
    return written


def langchain_dict(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`messages_to_dict`."""
    return [{"type": dump["type"], "data": dump} for dump in langchain_dump(messages)]


def langchain_constructors(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`dumpd`."""
    return [
        {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", _CLASSES[dump["type"]]],
            "kwargs": dump,
        }
        for dump in langchain_dump(messages)
    ]
