"""Arguments of a call as hashes, and stand-ins by which two calls can be compared when their arguments are gone.

A run that is resumed holds no arguments. Its tools' last calls are compared with the next ones all the same: field by
field, each as hashes of what it says. For the comparison texts are put in the place of both that are to each other as
the originals are, so that how alike calls are is told in one place, `loopguard_core._similar`.

What hashes cannot tell is how far apart two numbers are, and whether the items of two lists are alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import xxhash

from loopguard_core._bounded import short_text
from loopguard_core._shell import without_echo
from loopguard_core._similar import (
    _DEEDS,
    _INSTRUCTIONS,
    _LABELS,
    _NUMBERED,
    _PARTS,
    _PROSE,
    _RUNS,
    _STATEMENTS,
    _TITLES,
    _WRITTEN,
    BESIDE,
    _keywords,
    _plain,
    gist,
)

Veiled = dict[str, str]
"""By the name of each field, or a hash of it, what `_veil` says; the longest text first."""

MOST_FIELDS = 12
"""Fields of a call that can be compared; one with more cannot."""

_MOST_WORDS = 64  # of a call
_LEAST_PROSE = 20
_LONGEST = 4096
_KNOWN = _DEEDS | _INSTRUCTIONS | _LABELS | _PROSE | _STATEMENTS | _TITLES | _WRITTEN
_RAW = ""  # in place of a name, where the arguments are no object
_NAME = 40
_HASH = 6
_WORD = 4
_HASHES = re.compile(r"[0-9a-f]*")
_SIDES = 6
_ROOM = 4 * _HASH + _WORD * _MOST_WORDS + _SIDES
_PADDING = "the " * 5  # says nothing, and makes prose of a few words
_NUMBERS_FROM = 10**6


def veiled(arguments: Any, *, thought: bool = False) -> Veiled | None:
    """Arguments as hashes; None where they cannot be compared.

    Args:
        arguments: As plain JSON.
        thought: Whether nothing but the longest text counts, of a tool that takes down thoughts.
    """
    if thought and isinstance(arguments, Mapping):
        arguments = max((value for value in arguments.values() if isinstance(value, str)), key=len, default=None)
    if isinstance(arguments, str):
        return {_RAW: _veil(arguments, _MOST_WORDS)[0]}
    if not isinstance(arguments, Mapping):
        return None
    fields = {key: value for key, value in arguments.items() if _plain(key) not in BESIDE}
    if len(fields) > MOST_FIELDS:
        return None
    found: Veiled = {}
    left = _MOST_WORDS
    for key, value in sorted(fields.items(), key=lambda field: -len(field[1]) if isinstance(field[1], str) else 0):
        found[_name(key)], words = _veil(value, left)
        left -= words
    return found


def restored(state: Any) -> Veiled | None:
    """Take over what `veiled` gave.

    Raises:
        ValueError: Not such a state.
    """
    if not isinstance(state, Mapping):
        return None  # nothing, or from an earlier version
    found = {short_text(name, _NAME): short_text(text, _ROOM) for name, text in list(state.items())[:MOST_FIELDS]}
    for text in found.values():
        parts = text.split(".")
        if len(parts) != _SIDES or not all(map(_HASHES.fullmatch, parts)):
            raise ValueError("not veiled arguments")
    return found


def stand_ins(before: Veiled, after: Veiled) -> tuple[Any, Any]:
    """Arguments in the place of two calls', which are to each other as those are.

    Args:
        before: Of the earlier call.
        after: Of the later one.
    """
    pairs = {name: _texts(before.get(name, ""), after.get(name, "")) for name in before.keys() | after.keys()}
    if pairs.keys() == {_RAW}:
        return pairs[_RAW]
    return {name: pairs[name][0] for name in before}, {name: pairs[name][1] for name in after}


def _name(key: Any) -> str:
    name = str(key)
    return name if len(name) <= _NAME and (name in _NUMBERED or _plain(name) in _KNOWN) else f"#{_hex(name)}"


def _veil(value: Any, most: int) -> tuple[str, int]:
    """Hashes of one value, and how many words of it they hold.

    What it says, whatever the order and the marks between words; the same with words and numbers apart, in their order;
    what is left without what it prints; its parts, each once; the words that carry meaning; the numbers among those.
    """
    if not isinstance(value, str) or len(value) > _LONGEST:
        whole = value if isinstance(value, str) else gist({_RAW: value})
        return ".".join((_hex(whole), "", "", "", "", "")), 0
    runs = _RUNS.findall(value.casefold())
    said = _hex(gist(value)), _hex("\n".join(runs)) if runs else ""
    done = _hex(rest) if "echo" in value and (rest := without_echo(value)) else _hex(value.strip())
    parts = _hex("\n".join(sorted({part for raw in _PARTS.split(value) if (part := raw.strip())})))
    words = _keywords(value) if len(value) >= _LEAST_PROSE else set()
    if len(words) > most:
        words = set()
    numbers = {word for word in words if word.isdigit()}
    return ".".join((*said, done, parts, _joined(words - numbers), _joined(numbers))), len(words)


def _joined(words: set[str]) -> str:
    return "".join(sorted(_hex(word)[:_WORD] for word in words))


def _texts(before: str, after: str) -> tuple[str, str]:
    """Two texts that are to each other as the ones are that these are hashes of."""
    one, other = (before or "." * (_SIDES - 1)).split("."), (after or "." * (_SIDES - 1)).split(".")
    if one[0] == other[0] or (one[1] and one[1] == other[1]):
        return f"s{one[0]}", f"s{one[0]}"
    if one[2] and one[2] == other[2]:
        return f"echo before\nd{one[2]}", f"echo after\nd{one[2]}"
    if one[3] and one[3] == other[3]:
        return f"p{one[3]}; q", f"p{one[3]}; q; q"
    return f"{_prose(one)} the", f"{_prose(other)} a"  # the same words for once are not the same text


def _prose(hashes: list[str]) -> str:
    words, numbers = (
        [text[start : start + _WORD] for start in range(0, len(text), _WORD)] for text in (hashes[4], hashes[5])
    )
    if not words and not numbers:
        return f"x{hashes[0]}"
    figures = [str(_NUMBERS_FROM + int(number, 16)) for number in numbers]
    return " ".join([_PADDING, *(f"w{word}" for word in words), *figures])


def _hex(text: str) -> str:
    return xxhash.xxh32_hexdigest(text.encode("utf-8", "surrogatepass"))[:_HASH]
