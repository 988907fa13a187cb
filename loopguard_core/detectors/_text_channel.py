"""One channel of one message: cuts the text into blocks and puts each before the rules.

Everything is decided at the end of a block of 64 characters, counted from the start of the message. That is what
makes a verdict a function of the text alone, however a provider cuts it; and it is what makes reading cheap, because
most pieces of a stream only join a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopguard_core.detectors._text_fold import CounterFold
from loopguard_core.detectors._text_lag import LagTracker
from loopguard_core.detectors._text_near import NearRule
from loopguard_core.detectors._text_passage import Passage, PassageRule
from loopguard_core.detectors._text_periodic import BLOCK, PeriodicRule

_FENCE = "```"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rule found.

    Attributes:
        kind: Which rule.
        char: Offset in the message at which it was found.
        unit: Length of what is repeated, in characters; 0 for near evidence.
        run: How much of the text repeats it, in characters.
        repeats: Copies, the first included.
        variety: For near evidence: share of the text that is different grams.
    """

    kind: Literal["exact", "drifting", "near", "passage"]
    char: int
    unit: int = 0
    run: int = 0
    repeats: int = 2
    variety: float | None = None

    @property
    def cuts(self) -> bool:
        """Whether it is proof enough to cut the stream."""
        return self.kind in ("exact", "drifting")


class ChannelText:
    """Reads one channel until its message ends.

    Args:
        min_chars: Characters before anything is judged.
        passage: The rule for passages.

    Attributes:
        pieces: Text that is not read yet.
        waiting: Its length.
    """

    __slots__ = ("_fenced", "_fold", "_min_chars", "_near", "_passage", "_periodic", "_ticks", "_tracker",
                 "pieces", "position", "waiting")  # fmt: skip

    def __init__(self, min_chars: int, passage: PassageRule) -> None:
        self.pieces: list[str] = []
        self.waiting = 0
        self.position = 0
        self._min_chars = min_chars
        self._fold = CounterFold()
        self._tracker = LagTracker()
        self._periodic = PeriodicRule()
        self._near: NearRule | None = NearRule()
        self._passage: PassageRule | None = passage
        self._fenced = False
        self._ticks = 0

    def read(self) -> Evidence | None:
        """Read the whole blocks that are waiting, up to the first evidence; what is left waits for the next call."""
        text = self.pieces[0] if len(self.pieces) == 1 else "".join(self.pieces)
        start, size = 0, len(text)
        found = None
        while found is None and size - start >= BLOCK:
            found = self._block(text[start : start + BLOCK])
            start += BLOCK
        if found is not None and found.cuts:
            start = size  # the rest is not read
        self.pieces = [text[start:]] if start < size else []
        self.waiting = size - start
        return found

    def at_end(self) -> Evidence | None:
        """Read what is left when the message is complete."""
        found = self.read() if self.waiting >= BLOCK else None
        while found is not None and not found.cuts and self.waiting >= BLOCK:
            found = self.read() or found
        if found is None and self._passage is not None and not self._fenced and self.position >= self._min_chars:
            found = self._quoted(self._passage.at_end(self._tracker))
        return found

    def _block(self, raw: str) -> Evidence | None:
        self.position += BLOCK
        if "`" in raw or self._ticks:
            self._follow_fences(raw)
        tracker = self._tracker
        self._periodic.keep(raw)
        tracker.append(self._fold.fold(raw))
        found = None
        if tracker.lag or tracker.closed_lag:  # neither, for most blocks of ordinary text: nothing here repeats
            found = self._repeated(tracker)
        near = self._near
        if found is None and near is not None and near.next_look <= self.position >= self._min_chars:
            variety = None if self._fenced else near.judge(tracker, self.position)
            if variety is not None:
                self._near = None  # once a message: before the next one, nobody can have told the model
                found = Evidence("near", self.position, variety=variety)
        return found

    def _repeated(self, tracker: LagTracker) -> Evidence | None:
        may_fire = self.position >= self._min_chars
        loop = self._periodic.judge(tracker, self._fenced, may_fire)
        if loop is not None:
            return Evidence(loop.kind, self.position, loop.unit, loop.run, loop.repeats)
        if not may_fire or self._passage is None:
            return None
        return self._quoted(self._passage.judge(tracker, self._fenced))

    def _quoted(self, passage: Passage | None) -> Evidence | None:
        if passage is None:
            return None
        self._passage = None  # once a message, as above
        return Evidence("passage", self.position, passage.run, passage.run)

    def _follow_fences(self, raw: str) -> None:
        """Keep track of code blocks: each three back ticks in a row open or close one, also across blocks."""
        joined = "`" * self._ticks + raw
        if joined.count(_FENCE) % 2:
            self._fenced = not self._fenced
        self._ticks = (len(joined) - len(joined.rstrip("`"))) % len(_FENCE)
