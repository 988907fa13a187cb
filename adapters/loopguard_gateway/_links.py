"""Digests of the parts of a conversation, by which it is known again when the next request brings it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from loopguard_core import ToolCall

_SIZE = 16


def digest(*parts: Any) -> bytes:
    """A digest of plain JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()


def of_calls(calls: Iterable[ToolCall]) -> bytes:
    """The digest of what a response asks for. Clients may drop its text, and write its arguments anew."""
    return digest("calls", [[call.id, call.name, _arguments(call.arguments)] for call in calls])


def of_text(text: str) -> bytes:
    """The digest of a response that only says something."""
    return digest("said", text.strip())


def chain(start: bytes, links: Sequence[bytes]) -> list[bytes]:
    """A digest for each beginning of the conversation, the empty one first."""
    places = [start]
    for link in links:
        places.append(hashlib.blake2b(places[-1] + link, digest_size=_SIZE).digest())
    return places


def _arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
