"""Recordings for tests of reports, as chat messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ARGUMENTS = {"invoice_id": "INV-2291", "password": "hunter2"}

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></svg><b>",
    "&lt;already&gt;",
    "\u202egnp.exe\u2066",
    "\x00\x1b[31m",
    "a" * 10_000,
    "\ud800",
    "",
    "مرحبا",
    "javascript:alert(1)",
)
"""Names nobody should be able to do anything with."""


def loop(rounds: int, *, tool: str = "fetch_invoice", usage: bool = True, cost: bool = False) -> list[dict[str, Any]]:
    """One failing call, again and again."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Is invoice INV-2291 paid?"}]
    for number in range(rounds):
        function = {"name": tool, "arguments": json.dumps(ARGUMENTS)}
        message: dict[str, Any] = {"role": "assistant", "tool_calls": [{"id": f"c{number}", "function": function}]}
        if usage:
            message["usage"] = {"prompt_tokens": 1000 * (number + 1), "completion_tokens": 100}
        if cost:
            message["usage"]["cost"] = 0.01
        messages += [message, {"role": "tool", "tool_call_id": f"c{number}", "content": "Error: 504 Gateway Timeout"}]
    return messages


def work(rounds: int) -> list[dict[str, Any]]:
    """Another call with another result each time, then an answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read them."}]
    for number in range(rounds):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{number * 7919}.py"})}
        messages.append({"role": "assistant", "tool_calls": [{"id": f"c{number}", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"def part_{number * 31}(): ..."})
    return [*messages, {"role": "assistant", "content": "Done."}]


def saved(file: Path, messages: list[dict[str, Any]]) -> Path:
    """The file, written."""
    file.write_text(json.dumps(messages), encoding="ascii")
    return file
