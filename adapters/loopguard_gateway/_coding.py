"""Reads a copy of an answer that is compressed; what is passed on stays as it is."""

from __future__ import annotations

import zlib

READABLE = ("gzip", "deflate")
"""What clients may ask the provider for: the gateway has to read what it counts."""

_GZIP, _ZLIB, _RAW = 31, 15, -15


def accepted(asked: str | None, *, stream: bool) -> str:
    """The Accept-Encoding sent to the provider: of what the client asked for, that which can be read.

    Args:
        asked: The client's.
        stream: Whether an event stream is asked for: it comes plain, so that it can be ended at any event.
    """
    if stream or not asked:
        return "identity"
    codings = [part.strip() for part in asked.split(",")]
    return ", ".join(coding for coding in codings if coding.partition(";")[0].strip() in READABLE) or "identity"


def decoded(body: bytes, coding: str, most: int) -> bytes | None:
    """The body without its coding; None if it cannot be read, or would be larger than `most` bytes."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    ways = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW)}.get(coding, ())
    for bits in ways:
        try:
            reader = zlib.decompressobj(bits)
            text = reader.decompress(body, most)
        except zlib.error:
            continue
        return None if reader.unconsumed_tail else text
    return None
