"""Near repetition: paraphrase, stock sentences in random order, names and ids swapped.

Such text has no period, but it says little that is new. The measure is its *variety*: how many different grams of four
bytes the last 2,048 bytes of UTF-8 hold, as a share of all. In letters that is about half a page and grams of four
letters; in Chinese 680 characters and grams of a character and a third, so one figure serves every script.
Measured: paraphrase loops 0.03 to 0.16, prose of letters made from one template from 0.30, ordinary prose from 0.48.
What is put together from more parts shows in a longer piece: in 4,096 bytes such loops have 0.04 to 0.11, prose from
0.5 on. A loop over whole paragraphs only shows in 8,192 bytes, where it has 0.15.

This is statistics, not proof, so near evidence never cuts a stream, and the rule stays silent wherever the text does
not read like prose: tables, logs and code say little that is new for good reasons.
"""

from __future__ import annotations

from loopguard_core.detectors._text_lag import LagTracker
from loopguard_core.detectors._text_shape import east_asian, reads_like_prose

WINDOW, VARIETY = 2048, 0.17
"""Bytes that are looked at, and the variety up to which they are a loop."""

MIDDLE_WINDOW, MIDDLE_VARIETY = 4096, 0.175
"""The same for loops put together from many parts."""

WIDE_WINDOW, WIDE_VARIETY = 8192, 0.2
"""The same for loops over paragraphs."""

LEAST = 1024
"""Characters of a message before near repetition is judged."""

COVERAGE = 0.12
"""Share of the recent text that stood nearby before, below which looking closer is not worth it."""

CHARACTERS = 96
"""The same for Chinese, Japanese and Korean, where repeated phrases are too short to be covered: different characters
in the last 256. Prose has over 110, loops have 20 to 90."""

_TAIL, _FEW = 64, 256
_EDGE = 512  # characters at either end of the window that must read like prose
_GRAM = 4  # bytes
_PIECE = 1024  # bytes taken at once, a multiple of the gram
_GLANCE = 256  # characters between two glances at what is known anyway
_PERIODIC = 400  # run from which text with a period is left to the rule for it
_STEP = 640  # characters between two looks at the window
_WIDE_STEP = 2048
_WORTH_WIDE = 0.5  # variety of the small window above which the wide one cannot be a loop
_WORTH_MIDDLE = 0.32


class NearRule:
    """Decides whether the end of a text is a loop without a period.

    Attributes:
        next_look: Length of the message from which on it is worth asking.
    """

    __slots__ = ("_next_wide", "next_look")

    def __init__(self) -> None:
        self.next_look = LEAST
        self._next_wide = WIDE_WINDOW

    def judge(self, tracker: LagTracker, position: int) -> float | None:
        """The variety of the text if it is that of a loop, else None.

        Args:
            tracker: Has just read the text, counters folded.
            position: Length of the message so far in characters.
        """
        self.next_look = position + _GLANCE
        text = tracker.text
        if tracker.coverage < COVERAGE:
            if not east_asian(text[-_TAIL:]):
                return None
            self.next_look = position + _STEP
            if len(set(text[-_FEW:])) > CHARACTERS:
                return None
        if tracker.lag and tracker.run >= max(tracker.lag, _PERIODIC):  # another rule's
            return None
        self.next_look = position + _STEP
        if not reads_like_prose(text[-_EDGE:]):
            return None
        window = _last(text, WINDOW)
        if len(window) < WINDOW:
            self.next_look = min(self.next_look, position + _until_full(len(window), position))
            return None
        return self._look(text, window, position)

    def _look(self, text: str, window: bytes, position: int) -> float | None:
        """The variety of the last page, or of a longer piece, if it is that of a loop."""
        share = variety(window, _WORTH_WIDE)
        if share <= VARIETY:
            return share if reads_like_prose(_oldest(window)) else None
        found = _looped(text, MIDDLE_WINDOW, MIDDLE_VARIETY) if share <= _WORTH_MIDDLE else None
        if found is None and share < _WORTH_WIDE and position >= self._next_wide:
            self._next_wide = position + _WIDE_STEP
            found = _looped(text, WIDE_WINDOW, WIDE_VARIETY)
        if found is None and share > _WORTH_MIDDLE:
            # A new byte brings at most one old gram more: until so many have come, it cannot have fallen enough.
            bytes_a_char = max(1.0, WINDOW / len(window.decode("utf-8", "ignore")))
            self.next_look = position + max(_STEP, int(WINDOW * (share - _WORTH_MIDDLE) / bytes_a_char))
        return found


def _looped(text: str, size: int, most: float) -> float | None:
    """The variety of so many bytes at the end of a text, if it is that of a loop."""
    window = _last(text, size)
    if len(window) < size:
        return None
    share = variety(window, most)
    return share if share <= most and reads_like_prose(_oldest(window)) else None


def _last(text: str, size: int) -> bytes:
    """The last bytes of a text."""
    return text[-size:].encode("utf-8", "surrogatepass")[-size:]


def _until_full(size: int, position: int) -> int:
    """Characters until the window is full, where a character has several bytes: that is before the next look."""
    return (WINDOW - size) * position // size if size * 2 > position * 3 else _STEP


def variety(data: bytes, enough: float = 1.0) -> float:
    """How many different grams of four bytes there are, as a share of the length.

    Args:
        data: The text.
        enough: Share from which on the exact figure is not wanted; then it may be larger than what is returned.
    """
    view, most = memoryview(data), enough * len(data)
    grams: set[int] = set()
    for shift in range(_GRAM):
        stop = shift + (len(data) - shift) // _GRAM * _GRAM
        for start in range(shift, stop, _PIECE):
            grams.update(view[start : min(start + _PIECE, stop)].cast("I"))
            if len(grams) > most:
                return len(grams) / len(data)
    return len(grams) / len(data)


def _oldest(window: bytes) -> str:
    """The first characters of the window: a list that has just ended must not be blamed on the prose after it."""
    return window[: 4 * _EDGE].decode("utf-8", "ignore")[:_EDGE]
