"""How far back the same text stands: the one measurement all text rules share.

`LagTracker` keeps two figures about the end of a text: the smallest `lag` such that the last characters also stand
`lag` characters earlier, and the `run`, how many characters in a row do. A text of period p has lag p, and its run
grows for as long as it repeats.

It costs a fixed amount of work a block, whatever the text is:

- While a lag is known, one comparison of two slices tells whether it still holds.
- Otherwise the ends of the text are looked up among *anchors*: short grams noted at every 16th position. Of 16
  neighbouring ends exactly one lies on the grid shifted by a given lag, so no lag within reach is missed. Grams are
  compared as text, never by hash alone, so there is nothing that can collide.
"""

from __future__ import annotations

REACH = 8192
"""Characters back that are searched. Also the longest period that can be found."""

GRID = 16
"""Anchors are noted at positions that are multiples of this."""

GRAM = 12
"""Characters of an anchor in scripts with letters: long enough to be rare, short enough for a phrase."""

WIDE_GRAM = 6
"""Characters of an anchor in Chinese, Japanese and Korean, where a character says as much as a syllable or word."""

_WIDE = "\u2e80"  # the first character of the East Asian blocks
_SLACK = 2048  # text kept beyond the reach, so that it is cut only once in so many characters
_NOTED = 4096  # characters between two clearings of old anchors
_ENDS = range(GRID)
_NEARBY = 2560  # lags that count as coverage: paraphrase is near, a quotation is far
_MEMORY = 1536.0  # characters over which coverage is averaged


class LagTracker:
    """Follows the smallest lag at the end of a text.

    Attributes:
        text: The last characters, at least `REACH` of them once there were as many.
        end: Length of the whole text so far.
        lag: How far back the end of the text stands already; 0 if it does not.
        run: Characters in a row that equal those `lag` earlier.
        closed_lag: Lag of the run that this block ended; 0 if it ended none.
        closed_run: Length of that run.
        closed_at: Where it ended, as an index into `text`.
        coverage: Share of the recent text, from 0 to 1, that stood nearby before.
    """

    __slots__ = ("_anchors", "_clear_at", "_covered_to", "closed_at", "closed_lag", "closed_run", "coverage", "end",
                 "lag", "run", "text")  # fmt: skip

    def __init__(self) -> None:
        self.text = ""
        self.end = 0
        self.lag = 0
        self.run = 0
        self.closed_lag = 0
        self.closed_run = 0
        self.closed_at = 0
        self.coverage = 0.0
        self._anchors: dict[str, int] = {}
        self._clear_at = REACH + _NOTED
        self._covered_to = 0

    def append(self, block: str) -> None:
        """Add a block of text."""
        text = self.text
        self.text = ""  # so that the next line grows the only reference in place instead of copying it
        text += block
        size = len(text)
        if size > REACH + 2 * _SLACK:
            text = text[-(REACH + _SLACK) :]
            size = len(text)
        self.text = text
        added = len(block)
        self.end += added
        end, lag, covered = self.end, self.lag, 0
        self.closed_lag = 0
        if lag:
            start = size - added
            if text[start:] == text[start - lag : size - lag]:
                self.run += added
                covered = added
                self._covered_to = end
            else:
                covered = _common_prefix(text, start, lag, added)
                self._covered_to = end - added + covered
                self.closed_lag, self.closed_run, self.closed_at = lag, self.run + covered, start + covered
                self.lag = lag = 0
        if not lag and size > GRAM:
            covered += self._acquire(text, size)
        if self.lag > _NEARBY:
            covered = 0
        self.coverage += (covered - added * self.coverage) / _MEMORY
        self._note(text, size, added)

    def _acquire(self, text: str, size: int) -> int:
        """Look for a lag that holds at the very end of the text; how many characters it adds to the coverage."""
        find, end, wide = self._anchors.get, self.end, not text.isascii()
        best = at = 0
        for back in _ENDS:
            stop = size - back
            start = stop - (WIDE_GRAM if wide and text[stop - 1] >= _WIDE else GRAM)
            place = find(text[start:stop])
            if place is None:
                continue
            lag = end - back - place
            if (best and lag >= best) or lag > start or lag > REACH:
                continue
            if text[stop:] == text[stop - lag : size - lag]:
                best, at = lag, back
        if not best:
            return 0
        self.lag = best
        self.run = run = _common_suffix(text, size - at, best) + at
        fresh = end - max(end - run, self._covered_to)
        self._covered_to = end
        return fresh

    def _note(self, text: str, size: int, added: int) -> None:
        """Note the anchors of the block just added; forget those out of reach."""
        anchors, offset = self._anchors, self.end - size
        first = size - added
        first += GRID - (offset + first) % GRID
        if first < GRAM:
            first += (GRAM - first + GRID - 1) // GRID * GRID
        wide = not text.isascii()
        for stop in range(first, size + 1, GRID):
            length = WIDE_GRAM if wide and text[stop - 1] >= _WIDE else GRAM
            anchors[text[stop - length : stop]] = offset + stop
        if self.end >= self._clear_at:
            self._clear_at = self.end + _NOTED
            oldest = self.end - REACH
            self._anchors = {gram: place for gram, place in anchors.items() if place > oldest}


def _common_prefix(text: str, start: int, lag: int, length: int) -> int:
    """How many of the `length` characters from `start` on equal those `lag` earlier, given that not all do."""
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) >> 1
        if text[start + low : start + middle] == text[start + low - lag : start + middle - lag]:
            low = middle
        else:
            high = middle
    return low


def _common_suffix(text: str, stop: int, lag: int) -> int:
    """How many characters before `stop` equal those `lag` earlier."""
    most, run, step = stop - lag, 0, 64
    while run < most:
        length = min(step, most - run)
        start = stop - run
        if text[start - length : start] == text[start - length - lag : start - lag]:
            run += length
            step *= 2
            continue
        low, high = 0, length
        while high - low > 1:
            middle = (low + high) >> 1
            if text[start - middle : start - low] == text[start - middle - lag : start - low - lag]:
                low = middle
            else:
                high = middle
        return run + low
    return run


def last_run(text: str, probe: int) -> tuple[int, int]:
    """Smallest lag and run at the end of a text, searched from scratch.

    Args:
        text: The text.
        probe: Characters at its end that must stand earlier for a lag to count.

    Returns:
        Lag and run; zeros if the end stands nowhere else.
    """
    size = len(text)
    found = text.rfind(text[-probe:], 0, size - 1)
    if found < 0:
        return 0, 0
    lag = size - probe - found
    return lag, _common_suffix(text, size, lag)


def period(unit: str) -> int:
    """The smallest period of a text that is repeated: 2 for `abab`."""
    return (unit + unit).find(unit, 1)
