"""What comes from a model, a provider or a saved state, cut to what a session may hold."""

from __future__ import annotations

import sys
from typing import Any

import xxhash

_LENGTH = 40
SHORT_ID = 128
"""Characters up to which a call's id is kept as it is."""

_MAX_COUNT = 2**53


def bounded_key(name: Any) -> str:
    """The name itself, or a hash of it where a hostile one would bloat the state; applying it twice changes nothing."""
    key = name if isinstance(name, str) else str(name)
    if len(key) <= _LENGTH and key.isascii() and (key.isidentifier() or _is_plain(key)):
        return key
    return sys.intern("#" + xxhash.xxh3_64_hexdigest(key.encode("utf-8", "surrogatepass")))


def _is_plain(key: str) -> bool:
    return key.isprintable() and '"' not in key and "\\" not in key  # each takes two characters in JSON


def call_key(call_id: Any) -> str:
    """An id as it is, cut only where it is so long that keeping it would cost memory."""
    key = call_id if type(call_id) is str else str(call_id)
    return key if len(key) <= SHORT_ID else bounded_key(key)


def count(value: Any) -> int:
    """A saved count.

    Raises:
        ValueError: It is no whole number that a session can have counted.
    """
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"a count is a whole number, not {type(value).__name__}")
    return value


def short_text(value: Any, length: int = _LENGTH) -> str:
    """A saved text.

    Raises:
        ValueError: It is no text, or longer than anything that was saved.
    """
    if not isinstance(value, str) or len(value) > length:
        raise ValueError(f"not a text of at most {length} characters")
    return value
