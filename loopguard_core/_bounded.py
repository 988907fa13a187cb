"""Names that come from a model or a provider, cut to what a saved state may hold."""

from __future__ import annotations

from typing import Any

import xxhash

_LENGTH = 40


def bounded_key(name: Any) -> str:
    """The name itself, or a hash of it where a hostile one would bloat the state; applying it twice changes nothing."""
    key = name if isinstance(name, str) else str(name)
    if len(key) <= _LENGTH and key.isascii() and key.isprintable():
        return key
    return "#" + xxhash.xxh3_64_hexdigest(key.encode("utf-8", "surrogatepass"))
