"""What kind of text something is, from its characters alone: prose, markup, data, glyphs.

What repetition means depends on it. A sentence that comes four times is a loop; a table row, a separator or a line of
a log that does is ordinary. Nothing here knows any word of any language.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cached_property

SAMPLE = 512
"""Characters that are looked at; the kind of a longer text shows in its last half page."""

_NUMBERS = re.compile(r"\d+(?:[.,:/]\d+)*")
_DIGIT_GROUPS = re.compile(r"\d+(?:[.:/-]\d+)*")  # a version, a time and a date are one counter each
_EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_LABEL = re.compile(r"\s*[\w*#|-]{1,24}\s?[:：=|]")

# Without brackets: code has many, prose few.
_SENTENCE_MARKS = (
    " \n.,!?;:'\"-\u2010\u2013\u2014\u2018\u2019\u201c\u201d\u2026、。！，：；？「」『』\u0964\u0965\u060c\u061b\u061f"
)
_PLAIN = frozenset(_SENTENCE_MARKS)
_ENDS = tuple(".!?\u2026。！？\u0964\u061f")  # and the stops of Hindi and Arabic
_CLOSING = "\"'\u2019\u201d»」』）)*_` \t"

# As Java and JavaScript, Python, Ruby, C, Rust and Go print them.
_FRAME = re.compile(
    r"\s*(?:at [\w$.<>/\[\] ]+\(|at \S+:\d+|File \".*, line \d|from \S+:\d+:in |#\d+ +(?:0x|in )|\d+: +0x|\S+\.go:\d+ )"
)
_FIRST_MARK = "\u0300"

_PLAIN_SHARE = 0.9
_FEW_SPACES = 12
_VERSE_LINE = 72

# Of a text that reads like prose. Measured on 512 characters: prose has at most 22 numbers and 14 odd signs.
_PROSE_LETTERS = 0.55
_PROSE_NUMBERS = 23
_PROSE_ODD = 36
_FEW_LINES = 4


class Shape:
    """The make-up of a piece of text.

    Args:
        text: The piece; of a long one the end is looked at.

    Attributes:
        size: Its length in characters.
        text: Its last 512 characters, without the marks that combine with letters.
        letters: Share of letters, of any script, from 0 to 1.
        distinct: Different characters.
        blank: White space alone.
        plain: Letters, spaces and the punctuation of sentences, nearly alone: prose, not code or markup.
    """

    def __init__(self, text: str) -> None:
        self.size = len(text)
        self.text = text = without_marks(text[-SAMPLE:])
        counts = Counter(text)
        letters = marks = 0
        for char, times in counts.items():
            if char.isalpha():
                letters += times
            elif char in _PLAIN:
                marks += times
        self.letters = letters / max(1, len(text))
        self.plain = letters + marks >= _PLAIN_SHARE * len(text)
        self.distinct = len(counts)
        self.blank = not letters and text.isspace()

    @cached_property
    def digit_groups(self) -> int:
        """Numbers; what dots, colons, slashes and hyphens hold together is one."""
        return len(_DIGIT_GROUPS.findall(self.text))

    @property
    def glyphs(self) -> bool:
        """Neither letter nor digit: rules, borders, dots."""
        return not self.letters and not self.digit_groups

    @property
    def east_asian(self) -> bool:
        """Whether there is Chinese, Japanese or Korean in it."""
        return east_asian(self.text)

    @property
    def structured(self) -> bool:
        """More quotes, brackets and other signs than words would need: rows of data, statements, markup."""
        return (_odd(self.text) + self.text.count('"')) * _PROSE_ODD > len(self.text)

    @property
    def words(self) -> bool:
        """Whether it is made of words: spaces between them, or a script that needs none."""
        text = self.text
        spaces = text.count(" ") + text.count("\n")
        if spaces * _FEW_SPACES >= len(text):
            return True
        return not text.isascii() and spaces * _FEW_SPACES + 2 * len(_EAST_ASIAN.findall(text)) > len(text)

    @property
    def spaced(self) -> bool:
        """Whether it is a word and a space: `no no no`."""
        return self.letters > 0.5 and any(map(str.isspace, self.text))

    @property
    def lines(self) -> int:
        """How many lines it has that are not blank, wherever in a line it begins."""
        cut = self.text.find("\n") + 1
        return len(_lines(self.text[cut:] + self.text[:cut]))

    @property
    def verse(self) -> bool:
        """Short lines, two or more: a stanza, a list, a block of imports."""
        lines = _lines(self.text)
        return len(lines) > 1 and len(self.text) < _VERSE_LINE * len(lines)

    @cached_property
    def frames(self) -> bool:
        """Whether it is made of the frames of a stack trace: a recursion has many of them."""
        lines = _lines(self.text)[1:]  # the first may be cut
        found = sum(1 for line in lines if _FRAME.match(line))
        return found > 0 and found * 2 >= len(lines)  # Python and Go print a second line to each

    @property
    def ends(self) -> bool:
        """Whether a sentence ends in it."""
        return any(mark in self.text for mark in _ENDS)

    @property
    def sentences(self) -> bool:
        """Running text, or lines that end as sentences do. Records, logs and lists mostly do not."""
        if "\n" not in self.text:
            return True
        cut = self.text.index("\n") + 1  # a unit begins anywhere in a line; this way it begins with one
        return _sentences(_lines(self.text[cut:] + self.text[:cut]))


def without_marks(text: str) -> str:
    """A text without vowel signs and accents that combine with letters, as Hindi, Thai and Arabic have them."""
    if text.isascii():
        return text
    return "".join([char for char in text if char < _FIRST_MARK or unicodedata.category(char)[0] != "M"])


def east_asian(text: str) -> bool:
    """Whether there is Chinese, Japanese or Korean in it."""
    return not text.isascii() and _EAST_ASIAN.search(text) is not None


def reads_like_prose(text: str) -> bool:
    """Whether about 512 characters read like prose of somebody who talks, not like a list, a log or code."""
    text = without_marks(text)
    shape = Shape(text)
    if shape.letters < _PROSE_LETTERS or not shape.words:
        return False
    if len(_NUMBERS.findall(text)) * _PROSE_NUMBERS > len(text) or _odd(text) * _PROSE_ODD > len(text):
        return False
    lines = _lines(text)
    if len(lines) <= _FEW_LINES:
        return True
    whole = lines[1:-1]
    labelled = sum(1 for line in whole if _LABEL.match(line))  # speakers, keys, columns
    return 2 * labelled <= len(whole) and _sentences(whole)


def _odd(text: str) -> int:
    """Signs that prose has few of. An apostrophe inside a word is none of them, nor is a hyphen."""
    return len(_ODD.findall(text.replace("**", "")))


_ODD = re.compile(rf"[^\w\s{re.escape(_SENTENCE_MARKS)}（）]|_|(?<![^\W_])'|'(?![^\W_])")


def _lines(text: str) -> list[str]:
    """The lines that are not empty."""
    return [line for line in text.split("\n") if line and not line.isspace()]


def _sentences(lines: list[str]) -> bool:
    """Whether more than half of the lines end as sentences do."""
    return 2 * sum(1 for line in lines if line.rstrip(_CLOSING).endswith(_ENDS)) > len(lines)
