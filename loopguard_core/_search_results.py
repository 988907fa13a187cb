"""What a search returned, small enough to keep: hashes of the entries, so that two results can be compared.

The core works this out when a result is recorded, because results are not kept, and hands it over as
`ObservedCall.signature`: a `frozenset` of whole numbers, or None where no result was recorded. It is wanted only for
calls of search tools (`is_search`), and costs one pass over at most 128 KB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from zlib import crc32

from loopguard_core._bounded import short_text

MAX_ENTRIES = 16
"""Hashes kept of one result: the smallest ones, so that equal entries are kept on both sides of a comparison."""

SAME = 0.5
"""Share of the smaller result that has to stand in the other one too for the two to overlap."""

_HASH = 8  # characters a hash takes in saved state
_EDGE = 64 * 1024
_LEAST = 6  # characters of an entry worth comparing
_MOST = 64  # entries read of one result: more than a page of results has
_LONGEST = 512  # characters of an entry
_MOST_DEPTH = 12
_URL = re.compile(r"https?://[^\s\"'<>)\]]+")
_NUMBERING = "0123456789.)(#*-[]> \t\r"
_ENDING = ".)(#*-[]> \t\r"  # digits there are part of an address
_SCORES = re.compile(r"\(?\b(?:score|similarity|relevance|distance)\b\W*[\d.]+\)?|\b[01]\.\d+\b", re.IGNORECASE)


def result_signature(output: Any) -> frozenset[int]:
    """The signature of a result: at most 16 hashes of its entries.

    Entries are the addresses in it and, where there is none, the texts of a JSON result or the lines of a text, without
    numbering and scores; the first 64 of them. Of a long result the first and last 64 KB are looked at.

    Args:
        output: What the tool returned. An empty set says that it returned nothing.
    """
    if isinstance(output, str):
        text = output if len(output) <= 2 * _EDGE else f"{output[:_EDGE]}\n{output[-_EDGE:]}"
        entries = _URL.findall(text) if "://" in text else []
        entries = entries or list(islice(_texts(_parsed(text), _MOST_DEPTH), _MOST)) or text.split("\n", _MOST)
    else:
        texts = list(islice(_texts(output, _MOST_DEPTH), _MOST))
        entries = [url for text in texts if "://" in text for url in _URL.findall(text[:_EDGE])] or texts
    hashes = {
        crc32(entry.encode("utf-8", "surrogatepass")) for entry in map(_even, entries[:_MOST]) if len(entry) >= _LEAST
    }
    return frozenset(hashes if len(hashes) <= MAX_ENTRIES else sorted(hashes)[:MAX_ENTRIES])


def overlap(one: frozenset[int], other: frozenset[int]) -> bool:
    """Whether two results say much the same; two empty ones do."""
    if not one or not other:
        return not one and not other
    return len(one & other) >= SAME * min(len(one), len(other))


def packed(hashes: frozenset[int]) -> str:
    """Hashes as one text, for saved state."""
    return "".join(f"{value:08x}" for value in sorted(hashes))


def unpacked(text: Any, most: int = MAX_ENTRIES) -> frozenset[int]:
    """Take over what `packed` gave.

    Args:
        text: As it was saved.
        most: Hashes it may hold.

    Raises:
        ValueError: No such text.
    """
    row = short_text(text, most * _HASH)
    return frozenset(int(row[start : start + _HASH], 16) for start in range(0, len(row), _HASH))


def _parsed(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _texts(value: Any, depth: int) -> Iterator[str]:
    """The texts in a parsed result, names of fields left out."""
    if isinstance(value, str):
        yield from value.split("\n")
    elif depth and isinstance(value, Mapping):
        for part in list(value.values())[:_MOST]:
            yield from _texts(part, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for part in value[:_MOST]:
            yield from _texts(part, depth - 1)


def _even(entry: str) -> str:
    entry = entry[:_LONGEST]
    if "0." in entry or "1." in entry or "core" in entry:
        entry = _SCORES.sub("", entry)
    return entry.lstrip(_NUMBERING).rstrip(_ENDING).casefold()
