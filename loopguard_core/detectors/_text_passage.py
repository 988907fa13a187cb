"""A passage written out again, with other text between: a plan told twice, a summary that starts over.

One quotation is no loop, so this evidence never cuts a stream, and by default it is only observed.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopguard_core.detectors._text_lag import LagTracker
from loopguard_core.detectors._text_shape import Shape, reads_like_prose

LEAST = 1500
"""Characters from which a repeated passage counts. A quotation is mostly shorter."""

_EDGE = 512
_WORDY = 0.5


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage that was written before.

    Attributes:
        lag: How far back it stands, in characters.
        run: Its length.
    """

    lag: int
    run: int


class PassageRule:
    """Decides whether a passage was written again.

    Args:
        least: Characters from which it counts.
        at_once: True reports it as soon as it is that long, and takes any text of words outside code blocks. False
            waits for its end, which tells it from a loop with a long period, and wants prose.
    """

    __slots__ = ("_at_once", "_least")

    def __init__(self, least: int = LEAST, *, at_once: bool = False) -> None:
        self._least = least
        self._at_once = at_once

    def judge(self, tracker: LagTracker, fenced: bool) -> Passage | None:
        """The passage that has come to its end, or has become long enough, with the block just read.

        Args:
            tracker: Has just read the text.
            fenced: Whether it stands in a code block.
        """
        if self._at_once:
            # Overlapping copies are a period, which is another rule's.
            long_enough = self._least <= tracker.run < tracker.lag and not fenced
            if long_enough and Shape(tracker.text[-self._least :]).letters >= _WORDY:
                return Passage(tracker.lag, tracker.run)
            return None
        if self._least <= tracker.closed_run < tracker.closed_lag:
            return self._prose(tracker, tracker.closed_lag, tracker.closed_run, tracker.closed_at)
        return None

    def at_end(self, tracker: LagTracker) -> Passage | None:
        """The passage that the message ends in."""
        if self._least <= tracker.run < tracker.lag and not self._at_once:
            return self._prose(tracker, tracker.lag, tracker.run, len(tracker.text))
        return None

    def _prose(self, tracker: LagTracker, lag: int, run: int, stop: int) -> Passage | None:
        passage = tracker.text[max(0, stop - run) : stop]
        if reads_like_prose(passage[:_EDGE]) and reads_like_prose(passage[-_EDGE:]):
            return Passage(lag, run)
        return None
