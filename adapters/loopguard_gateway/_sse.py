"""Server-sent events, read beside the bytes they came in: what is passed on is what was received."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")
_OVERLAP = 3
"""Bytes at the end of what was searched that may be the beginning of an event's end."""

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        raw: Its bytes, the empty line at its end included.
        data: Its data; None for a comment, and for bytes that are no event.
    """

    raw: bytes
    data: str | None

    def json(self) -> dict[str, Any] | None:
        """Its data, where that is a JSON object."""
        if self.data is None or not self.data.startswith("{"):
            return None
        try:
            value = json.loads(self.data)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class Events:
    """Cuts a stream into events, however it arrives. Its length is bounded by whoever feeds it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, piece: bytes) -> list[Event]:
        """The events that are complete now."""
        buffer = self._buffer
        buffer += piece
        found: list[Event] = []
        begin = 0
        while (end := _END.search(buffer, max(begin, self._searched))) is not None:
            found.append(_event(bytes(buffer[begin : end.end()])))
            begin = self._searched = end.end()
        del buffer[:begin]
        self._searched = max(0, len(buffer) - _OVERLAP)
        return found

    def rest(self) -> bytes:
        """What came after the last complete event; the stream is over."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def _event(raw: bytes) -> Event:
    lines = [line for line in _LINE.split(raw) if line.startswith(b"data")]
    data = [value.removeprefix(b" ") for line in lines for name, _, value in (line.partition(b":"),) if name == b"data"]
    return Event(raw, b"\n".join(data).decode("utf-8", "replace") if data else None)


def written(data: dict[str, Any] | str, name: str | None = None) -> bytes:
    """An event of the gateway's own."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {name}\ndata: {text}\n\n".encode() if name else f"data: {text}\n\n".encode()
