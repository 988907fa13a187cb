"""Exact and drifting repetition: the same unit again and again, letter by letter or but for a counter.

How much repetition is too much depends on what is repeated. The tables below are the whole rule. Measured on 46 loops
and 93 legitimate texts: scaled by 0.5 they raise false alarms on five, by 0.75 on one, as they are on none; scaled by
1.5 all loops are still found, but half of them late. `docs/text.md` has more, on ordinary files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from loopguard_core.detectors._text_fold import COUNTER
from loopguard_core.detectors._text_lag import LagTracker, last_run, period
from loopguard_core.detectors._text_shape import Shape

BLOCK = 64
"""Characters that are judged at once, counted from the start of the message."""

FIRST_LOOK = 200
"""Run, in characters, below which nothing is repetition."""

RAW_KEPT = 16_384
"""Characters of the text as it came that are kept, to tell exact from drifting repetition."""

_RAW_SLACK = 2048
_DECORATED = re.compile(r"\*\*|[\[(]0(?:[.:/,-]0)*[\])]")  # bold type, and counters in brackets
_LISTED = re.compile(r"\*\*|[\[(]0/0[\])]")  # headings and lists have these, and `[12/60]` is so far in a list
_NUMBER = re.compile(r"\d+")
_ITEM = re.compile(r"^[ \t]*0[.)、．] ?(?=\D)", re.MULTILINE)  # how an item of a numbered list begins
_SHORT, _VERSE, _PLAN, _PAGE = 64, 256, 1500, 2000


@dataclass(frozen=True, slots=True)
class Repetition:
    """A unit that is repeated.

    Attributes:
        kind: `exact`, or `drifting` if only counters differ.
        unit: Its length in characters.
        run: Characters that equal those one unit earlier.
    """

    kind: Literal["exact", "drifting"]
    unit: int
    run: int

    @property
    def repeats(self) -> int:
        """Copies, the first included; one that is all but complete counts."""
        return (self.run + min(BLOCK - 1, self.unit // 8)) // self.unit + 1


def exact_run(shape: Shape, fenced: bool) -> int:
    """Run from which a unit that is repeated letter by letter is a loop, in characters.

    Args:
        shape: Of the unit.
        fenced: Whether it stands in a code block, where more repetition is ordinary.
    """
    unit = shape.size
    if shape.blank:
        run = 512
    elif shape.frames:
        run = max(6 * unit, 3000)
    elif shape.letters < 0.3 or (shape.distinct <= 3 and unit > shape.distinct):
        # Rules, borders, hex, zeros, DNA. Rows of them are a grid or a table that somebody may have asked for.
        run = 512 if unit <= 3 and shape.glyphs else 1200 if unit < 8 or "\n" not in shape.text else 3000
    elif unit <= 3:
        run = 512 if shape.spaced else 640  # zeros in base64 are a flood of A
    elif shape.plain and shape.words and not shape.structured:
        if unit <= _VERSE and shape.verse:
            run = max(4 * unit, 640 if shape.lines > 1 else 480)  # a round is sung four times
        elif unit <= _SHORT:
            run = max(6 * unit, 320)
        else:
            run = max(min(3 * unit, 600), 400)
    elif unit <= _SHORT:
        run = max(8 * unit, 480 if shape.words else 640)  # without words it may be base64 or minified
    else:
        run = max(
            min(4 * unit, max(800 - unit, 3 * unit), 800),
            600,
            unit * 3 // 2 if shape.words or unit > _PAGE else 3 * unit,
        )
    # Less than a whole copy is a quotation. Of a long unit the last, unfinished block may still be unread.
    run = max(run, unit if unit < _PLAN else unit - BLOCK + 1)
    return run * 3 // 2 if fenced and unit <= _PAGE else run


def drifting_run(shape: Shape, fenced: bool, changing: int | None = None) -> int | None:
    """Run from which a unit whose counters change is a loop, in characters; None if it never is.

    Args:
        shape: Of the unit, counters folded.
        fenced: Whether it stands in a code block.
        changing: How many of its numbers are others in each copy; None if that is not known.
    """
    unit = shape.size
    items = len(_ITEM.findall(shape.text))
    listed = _LISTED.search(shape.text) is not None
    shape = Shape(_DECORATED.sub("", shape.text) or shape.text)
    # Many numbers are data: a log, a table, a song that counts bottles. A loop counts its own laps, and its items.
    numbers, many = shape.digit_groups - max(0, items - 1), max(2, unit // 48)
    if shape.letters < 0.4 or (numbers > many and (changing is None or changing > many)):
        return None
    sentence = 16 if shape.east_asian else 40
    talks = shape.letters >= 0.6 and shape.plain and shape.words and shape.sentences
    if numbers > many:  # and nearly all stay as they are: a form, a plan for each day
        run = max(24 * unit, 4000) if shape.plain and not shape.structured else max(48 * unit, 12_000)
    elif unit >= 24 and talks and listed:
        run = max(32 * unit, 3200)
    elif unit >= sentence and talks:
        run = max(10 * unit, 900) if unit <= 128 else max(5 * unit, 1280)
    elif unit >= 24 and talks and shape.ends:
        run = max(64 * unit, 2400)
    elif unit >= 24 and shape.plain and not shape.structured:
        run = max(24 * unit, 3000 if unit >= 48 else 4000) if unit <= 256 else max(8 * unit, 4000)
    else:  # an enumeration, rows or boilerplate somebody asked for, up to a length that nobody asks for
        run = max(48 * unit, 12_000)
    return 2 * run if fenced else run


class PeriodicRule:
    """Decides when the run that a `LagTracker` follows is a loop.

    It looks at a run only when that could have become one, so a run costs a few looks however long it gets.
    """

    __slots__ = ("_lag", "_next_look", "_raw")

    def __init__(self) -> None:
        self._raw = ""
        self._lag = 0
        self._next_look = FIRST_LOOK

    def keep(self, raw: str) -> None:
        """Take a block of the text as it came."""
        kept = self._raw
        self._raw = ""  # see `LagTracker.append`
        kept += raw
        if len(kept) > RAW_KEPT + _RAW_SLACK:
            kept = kept[-RAW_KEPT:]
        self._raw = kept

    def judge(self, tracker: LagTracker, fenced: bool, may_fire: bool) -> Repetition | None:
        """The loop that the text is in, if it is in one.

        Args:
            tracker: Has just read the same block, folded.
            fenced: Whether the text stands in a code block.
            may_fire: False while the message is too short to be judged.
        """
        run = tracker.run
        if tracker.lag != self._lag or tracker.closed_lag:
            self._lag = tracker.lag
            # A short lag may be a multiple of the period. A long one is the period, and a copy is the least.
            self._next_look = FIRST_LOOK if tracker.lag <= _VERSE else tracker.lag - BLOCK
        if run < self._next_look or not may_fire:
            return None
        unit = tracker.text[-tracker.lag :]
        unit = unit[-period(unit) :]
        if COUNTER not in unit:
            return self._exact(unit, run, fenced)
        return self._counted(unit, run, fenced)

    def _exact(self, unit: str, run: int, fenced: bool) -> Repetition | None:
        needed = exact_run(Shape(unit), fenced)
        if run >= needed:
            return Repetition("exact", len(unit), run)
        self._next_look = needed
        return None

    def _counted(self, unit: str, run: int, fenced: bool) -> Repetition | None:
        """There are digits in the unit: whether they change is only seen in the text as it came."""
        missing = []
        raw_lag, raw_run = last_run(self._raw, FIRST_LOOK)
        if raw_lag:
            raw_unit = self._raw[-raw_lag:]
            raw_unit = raw_unit[-period(raw_unit) :]
            needed = exact_run(Shape(raw_unit), fenced)
            if raw_run >= needed:
                return Repetition("exact", len(raw_unit), raw_run)
            missing.append(needed - raw_run)
        drifting = drifting_run(Shape(unit), fenced, _changing(self._raw, unit))
        if drifting is not None:
            if run >= drifting:
                return Repetition("drifting", len(unit), run)
            missing.append(drifting - run)
        # The counters may stop changing later on, so even a unit that may drift for ever is looked at again. What is
        # missing counts characters as they came, the run folded ones, which are fewer.
        self._next_look = run + max(BLOCK, min([*missing, run // 2]) * 3 // 4)
        return None


def _changing(raw: str, unit: str) -> int | None:
    """How many numbers of a unit differ between its last two copies in the text as it came; None if it is too short."""
    count = unit.count(COUNTER)
    # The last number may go on in the next block.
    numbers = _NUMBER.findall(raw[-3 * len(unit) - _RAW_SLACK :])[-2 * count - 1 : -1]
    if len(numbers) < 2 * count:
        return None
    return sum(map(str.__ne__, numbers[:count], numbers[count:]))
