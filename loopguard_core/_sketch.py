"""What is known of a text beside its hashes, so that it can be compared when it is gone.

A run that is resumed holds no text of the results it had. What has to be told of the next one all the same is whether
a number fell, whether it is another page, and whether it says the same in another order. For that short hashes of
numbers, lines and words are enough: many have the same one, so that none can be read back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import xxhash

from loopguard_core._bounded import count, short_text

HEAD = 2048
"""Characters of a text that are looked at for numbers and lines."""

ANY = (1 << 16) - 1
"""Stands for all of a text's numbers: of what is not known it may be any that fell."""

SHORT = 24
"""Characters at either end by which two texts look alike."""

LARGE = 16 * 1024
"""Characters up to which a text is compared as a whole."""

_COUNTS = re.compile(r"(?<![\w.,-])\d{1,6}(?![\w.])")
# What is used up gets less in a loop, too.
_SPENT = re.compile(
    r"\b(?:credits?|balance|budget|quota|tokens?|funds|allowance|battery|fuel|attempts?|tries|retries)\b(?: \w{1,12})?"
    r"\W{0,6}\d[\d.,]*"
    r"|\$\s?\d[\d.,]*|(?<!\d)\d[\d.,]{0,24}+\s(?:credits?|tokens?|attempts?|tries|retries)\b",
    re.IGNORECASE,
)
# In lower case: without one of these the pattern cannot match, and looking for them is far faster.
_NEEDS_SPENT = (
    *(
        "credit",
        "balance",
        "budget",
        "quota",
        "token",
        "funds",
        "allowance",
        "battery",
        "fuel",
        "attempt",
        "tries",
        "$",
    ),
)
_MOST_NUMBERS = 16
_STEP = 20  # what is done in a lap of work: the number of a frame or a message jumps further
_DIGITS = re.compile(r"\d+")
_WORDS = re.compile(r"[\w-]{3,}")
_RUNS = re.compile(r"[^\W_]+")
_PAGE = 240
_MANY_LINES = 4
_KNOWN_LINES = 0.2
_MOST_LINES = 16
_WORDS_READ = 4096
_AROUND = 512  # characters on either side of a difference that may tell what it is
_WIDTH = 3  # hexadecimal digits a number or a line is saved in
_MASK = 0xFFF
_LOOKS = 6

Steps = tuple[int, bool]
"""Which numbers fell since the one before, as bits; and whether it is of something that gets on."""

Numbers = tuple[int, ...] | str
"""The first whole numbers of a text; of one that is gone their hashes, written one behind the other."""

Lines = frozenset[int] | str
"""Hashes of a longer text's lines, figures left out; of one that is gone the smallest of them, written likewise."""


def numbers_in(text: str) -> tuple[int, ...]:
    """The first 16 whole numbers of a text, what is used up left out."""
    head = text[:HEAD]
    words = head.lower()
    if any(needle in words for needle in _NEEDS_SPENT):
        head = _SPENT.sub("", head)
    return tuple(map(int, _COUNTS.findall(head)[:_MOST_NUMBERS]))


def lines_in(text: str) -> frozenset[int]:
    """Hashes of the lines of a text, figures left out; none of a short one."""
    if len(text) < _PAGE:
        return frozenset()
    return frozenset(map(_hash, _DIGITS.sub("", text[:HEAD]).split("\n")))


def fell(after: Numbers | None, before: Numbers | None) -> int:
    """Which numbers are a little lower than before, as bits; any, where that is not known."""
    if after is None or before is None or isinstance(after, str):
        return ANY
    if isinstance(before, str):
        hashes = _unpacked(before)
        return sum(
            1 << place
            for place, (high, low) in enumerate(zip(hashes, after, strict=False))
            if any(_short(low + step) == high for step in range(1, _STEP + 1))
        )
    return sum(
        1 << place for place, (high, low) in enumerate(zip(before, after, strict=False)) if 0 < high - low <= _STEP
    )


def another_page(after: Lines | None, before: Lines | None) -> bool:
    """Whether hardly a line was there before: the next page of something. True where that is not known."""
    if after is None or before is None or isinstance(after, str):
        return True
    if not after or not before or len(after) < _MANY_LINES:
        return False
    if isinstance(before, str):
        known = set(_unpacked(before))
        # Where only the smallest were kept, only those as small can be looked up.
        most = max(known) if len(known) == _MOST_LINES else _MASK
        after = frozenset(short for line in after if (short := line & _MASK) <= most)
        return len(after & known) < _KNOWN_LINES * len(after) if after else True
    return len(after & before) < _KNOWN_LINES * len(after)


def differing(one: str, other: str, most: int) -> tuple[str, str] | None:
    """The part in which two texts differ, from the first line to the last and a few around; None if it is long.

    Args:
        one: A text.
        other: Another one.
        most: Characters that are not long.
    """
    shorter = min(len(one), len(other))
    start = _common(shorter, lambda length: one[:length] == other[:length])
    end = _common(shorter - start, lambda length: not length or one[-length:] == other[-length:])
    if max(len(one), len(other)) - start - end > most:
        return None
    first = max(0, start - _AROUND)
    first = one.rfind("\n", max(0, first - _AROUND), first) + 1 or first
    last = len(one) - max(0, end - _AROUND)
    line = one.find("\n", last, last + _AROUND)
    behind = len(one) - (last if line < 0 else line)
    return one[first : len(one) - behind], other[first : len(other) - behind]


def _common(most: int, equal: Callable[[int], bool]) -> int:
    """The greatest length up to `most` that is equal."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if equal(middle):
            least = middle
        else:
            most = middle - 1
    return least


def saved_numbers(numbers: Numbers | None) -> str | None:
    """As it is saved."""
    return "".join(f"{_short(number):03x}" for number in numbers) if isinstance(numbers, tuple) else numbers


def saved_lines(lines: Lines | None) -> str | None:
    """As it is saved."""
    if not isinstance(lines, frozenset):
        return lines
    return "".join(f"{short:03x}" for short in sorted({line & _MASK for line in lines})[:_MOST_LINES])


def restored_hashes(state: object) -> str | None:
    """Take over what one of these gave.

    Raises:
        ValueError: Not such a state.
    """
    if state is None:
        return None
    text = short_text(state, _MOST_NUMBERS * _WIDTH)
    if len(text) % _WIDTH:
        raise ValueError("not a row of hashes")
    _unpacked(text)
    return text


class Sketch:
    """What was worked out of one text, or taken over of one that is gone; None for what was not.

    Attributes:
        but_ids: See `words_but_ids`.
        ends: Its first and last characters.
        edges: Hashes of how a large one begins and ends, without what changes by itself.
        numbers: Its numbers.
        lines: Its lines.
        course: Both as they are saved.
        look: Its look.
        steps: How it differs from the one before, of one that was recorded before a resume: see `Past.steps`.
    """

    __slots__ = ("but_ids", "course", "edges", "ends", "lines", "look", "numbers", "steps")

    def __init__(self) -> None:
        self.but_ids: int | None = None
        self.ends: tuple[str, str] | None = None
        self.edges: tuple[str | None, str | None] | None = None
        self.numbers: Numbers | None = None
        self.lines: Lines | None = None
        self.course: tuple[str | None, str | None] | None = None
        self.look: Look | None = None
        self.steps: Steps | None = None

    @classmethod
    def restored(cls, state: Any) -> Sketch:
        """Take over what `Result.save` gave.

        Raises:
            ValueError: Not such a state.
        """
        sketch = cls()
        try:
            numbers, lines, look, steps = state
            sketch.numbers, sketch.lines = restored_hashes(numbers), restored_hashes(lines)
            sketch.look = None if look is None else Look.restored(look)
            if steps is not None:
                bits, moving = steps
                sketch.steps = (count(bits), bool(count(moving)))
        except TypeError as error:
            raise ValueError("not a saved sketch") from error
        return sketch


@dataclass(frozen=True, slots=True)
class Look:
    """Hashes of a text by which another one can be told to be nearly the same. None for what a large one has not.

    Attributes:
        head: Its first 24 characters.
        tail: Its last 24.
        words: The words without digits at its beginning, each once, in no order.
        letters: Its characters, in no order.
        lines: Its lines, each once, in no order, whatever their case.
        said: Its words, in no order, whatever their case.
    """

    head: str
    tail: str
    words: str
    letters: str | None
    lines: str | None
    said: str | None

    @classmethod
    def of(cls, text: str) -> Look:
        """The look of a text."""
        folded = text.casefold() if len(text) <= LARGE else ""
        return cls(
            _hex(text[:SHORT]),
            _hex(text[-SHORT:]),
            _hex_of({word for word in _WORDS.findall(text, 0, _WORDS_READ) if word.isalpha()}),
            _hex("".join(sorted(text))) if folded else None,
            _hex_of(set(folded.split("\n"))) if folded else None,
            _hex("\n".join(sorted(_RUNS.findall(folded)))) if folded and len(text) <= _WORDS_READ else None,
        )

    def save(self) -> str:
        """As one text."""
        parts = (self.head, self.tail, self.words, self.letters, self.lines, self.said)
        return ".".join(part or "" for part in parts)

    @classmethod
    def restored(cls, state: object) -> Look:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        parts = short_text(state, 64).split(".")
        if len(parts) != _LOOKS:
            raise ValueError("not a saved look")
        head, tail, words, letters, lines, said = parts
        return cls(head, tail, words, letters or None, lines or None, said or None)


def _hash(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


def _short(number: int) -> int:
    return xxhash.xxh32_intdigest(b"%d" % number) & _MASK


def _unpacked(text: str) -> list[int]:
    return [int(text[start : start + _WIDTH], 16) for start in range(0, len(text), _WIDTH)]


def _hex(text: str) -> str:
    return xxhash.xxh32_hexdigest(text.encode("utf-8", "surrogatepass"))[:6]


def _hex_of(words: set[str]) -> str:
    return _hex("\n".join(sorted(words)))
