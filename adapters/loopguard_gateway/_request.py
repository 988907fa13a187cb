"""The body of a request, parsed within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loopguard_gateway._errors import bad_request, too_complex

MAX_PARTS = 2_000_000
"""Brackets and commas a body may have, inside text too: parsed, `[],[],[]` takes 25 times the room that it takes as
text. 32 MiB of prose or of pictures have less, and so has all that a model of today can read at once."""

PART_BYTES = 128
"""About what an object of a parsed body takes in memory."""

_READ = frozenset(
    {
        *("model", "messages", "input", "stream", "n", "best_of", "max_tokens", "max_completion_tokens"),
        *("max_output_tokens", "background", "previous_response_id", "conversation"),
    }
)
"""What decides what a request may cost."""


def parts(raw: bytes) -> int:
    """How many brackets and commas a body has.

    Raises:
        Refused: More than `MAX_PARTS`.
    """
    found = raw.count(b"{") + raw.count(b"[") + raw.count(b",")
    if found > MAX_PARTS:
        raise too_complex(MAX_PARTS)
    return found


def containers(body: Any) -> int:
    """How many objects and lists a parsed body has. Brackets in its texts are none."""
    found, rest = 0, [body]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            found += 1
            rest += value.values()
        elif isinstance(value, list):
            found += 1
            rest += value
    return found


def parsed(raw: bytes) -> Mapping[str, Any]:
    """The object that a body is.

    Raises:
        Refused: It is none, or another reader could take it for something else: of a name that is there twice some take
            the first and some the last, and some do not tell capitals from small letters.
    """
    outermost: list[tuple[str, Any]] = []

    def members(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal outermost
        outermost = found
        return dict(found)

    try:
        body = json.loads(raw, object_pairs_hook=members)
    except RecursionError:
        raise bad_request("the request's body is nested too deeply") from None
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise bad_request(f"the request's body is not JSON{where}") from None
    if not isinstance(body, dict):
        raise bad_request("the request's body must be a JSON object")
    for name in _READ.intersection(name.lower() for name, _ in outermost):
        if [written for written, _ in outermost if written.lower() == name] != [name]:
            raise bad_request(f"`{name}` must be there once, and in small letters")
    return body
