"""`text_repetition`: the model writes the same thing over and over.

It reads the stream of each channel and finds four kinds of repetition:

| kind | what | what follows |
|---|---|---|
| `exact`, `drifting` | a unit of 1 to several thousand characters, again and again; in `drifting` a counter changes | the stream is cut |
| `near` | paraphrase, stock sentences shuffled, names swapped | the model is told |
| `passage` | a long passage of prose again, with other text between | it is noted |

The verdict is a function of the text: the same at whatever places the provider cuts it. The state is bounded, about
125 KB for a channel while a message runs (240 KB of emoji), nothing between messages.

Read on in `_text_channel` (blocks), `_text_lag` (the measurement) and the rules `_text_periodic`, `_text_near` and
`_text_passage`.
"""  # noqa: E501  # a table

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from loopguard_core._bounded import count
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core._types import Channel
from loopguard_core.detectors._protocol import Detector, Finding
from loopguard_core.detectors._retries import Retries
from loopguard_core.detectors._text_channel import ChannelText, Evidence
from loopguard_core.detectors._text_passage import LEAST, PassageRule
from loopguard_core.detectors._text_periodic import BLOCK

MIN_CHARS = 512
"""Characters of a message before anything is judged."""

CHANNELS: tuple[Channel, ...] = ("content", "reasoning")
"""What is read. Arguments of calls are data more often than prose."""

DSH_PASSAGE = 512
"""Characters of a passage that count in preset `dsh`."""

_STREAMS: Mapping[str, str] = {"content": "answer", "reasoning": "reasoning", "arguments": "arguments of a tool call"}


class TextRepetition(Detector):
    """Finds a model that repeats itself within a message.

    The streak of exact and drifting evidence is the number of cuts since the user last spoke. A message that went
    well in between does not take one back: a model that loops, is told, makes one call and loops again has had its
    retry, and a run that alternates so would otherwise never end. Near evidence and passages are counted apart, each
    at most once a message, because the model cannot have been told before the message ended.

    Args:
        min_chars: Characters of a message, in each channel, before anything is judged.
        channels: Channels that are read.
        passage_chars: Characters from which a passage that is written again counts.
        passage_at_once: True reports a passage as soon as it is long enough, whatever words it is made of, and counts
            it like a cut (preset `dsh`); False waits for its end and wants prose.
        retries: Counts the cuts, for detectors that share one retry (preset `dsh`); None counts its own.
    """

    name: ClassVar[str] = "text_repetition"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["text_repetition"]

    def __init__(
        self,
        min_chars: int = MIN_CHARS,
        channels: Sequence[Channel] = CHANNELS,
        *,
        passage_chars: int = LEAST,
        passage_at_once: bool = False,
        retries: Retries | None = None,
    ) -> None:
        self._min_chars = min_chars
        self._channels = frozenset(channels)
        self._passage = PassageRule(passage_chars, at_once=passage_at_once)
        self._passage_counts = passage_at_once
        self._cuts = Retries() if retries is None else retries
        self._hits = {"near": 0, "passage": 0}
        self._since = {"near": 0, "passage": 0}
        self._message = 1
        self._running: dict[str, ChannelText] = {}
        # What is too short to be looked at: most messages beside calls never get longer.
        self._short: dict[str, str] = {}
        self._cut = False

    @classmethod
    def dsh(
        cls, min_chars: int = MIN_CHARS, channels: Sequence[Channel] = CHANNELS, retries: Retries | None = None
    ) -> TextRepetition:
        """The detector as preset `dsh` wants it: a passage of 512 characters is enough."""
        return cls(min_chars, channels, passage_chars=DSH_PASSAGE, passage_at_once=True, retries=retries)

    def describe(self, finding: Finding, tool: str | None) -> str:
        """What is repeated, and where."""
        facts = finding.evidence
        where = f"the {_STREAMS.get(str(facts.get('channel')), 'text')}"
        again = "" if finding.kind is not None or finding.streak < 2 else f", as in {_others(finding.streak - 1)}"
        if finding.kind == "near":
            return f"{where} goes on in other words without saying anything new"
        if finding.kind == "passage":
            return f"{where} contains a passage of {facts.get('run')} characters that was written before"
        but = " but for a counter" if facts.get("drifting") else ""
        return (
            f"{where} repeats the same {facts.get('unit')} characters {facts.get('repeats')} times in a row{but}{again}"
        )

    # -- reading -----------------------------------------------------------------------------------------------

    def feed_text(self, delta: str, channel: Channel) -> Finding | None:
        """Read a piece of the running message."""
        text = self._running.get(channel)
        if text is None:
            if channel not in self._channels:
                return None
            delta = self._short.pop(channel, "") + delta
            if len(delta) < BLOCK:
                self._short[channel] = delta
                return None
            text = self._running[channel] = ChannelText(self._min_chars, self._passage)
        if self._cut:
            return None
        text.pieces.append(delta)
        text.waiting += len(delta)
        if text.waiting < BLOCK:
            return None
        found = text.read()
        return None if found is None else self._finding(found, channel)

    def end_message(self, finish_reason: str | None) -> Finding | None:
        """Judge what only shows at the end, and forget the message's text."""
        best: Finding | None = None
        for channel in sorted(self._running):
            found = None if self._cut else self._running[channel].at_end()
            if found is not None:
                finding = self._finding(found, channel)
                if best is None or (finding.abort and not best.abort):
                    best = finding
        self.begin_message()
        return best

    def begin_message(self) -> None:
        """A new message: whatever is left of one that broke off is dropped."""
        if self._running or self._short:
            self._running, self._short = {}, {}
            self._message += 1
        self._cut = False

    def _finding(self, found: Evidence, channel: str) -> Finding:
        facts: dict[str, Any] = {"channel": channel}
        if found.variety is not None:
            facts["variety"] = round(found.variety, 3)
        else:
            facts.update(unit=found.unit, repeats=found.repeats, run=found.run)
        # Steering is once a streak, and `retries` may be more than one: each cut begins one.
        if found.cuts:
            self._cut = True
            facts["drifting"] = found.kind == "drifting"
            return Finding(self._cuts.take(), self._message, evidence=facts, char=found.char, abort=True)
        kind, since = found.kind, self._message
        if kind == "passage" and self._passage_counts:
            streak = self._cuts.take()
        else:
            self._hits[kind] += 1
            self._since[kind] = self._since[kind] or self._message
            streak, since = self._hits[kind], self._since[kind]
        # What was said about paraphrase says nothing about a loop: each kind has its own steering.
        return Finding(streak, since, kind=kind, identity=f"{self.name}.{kind}", evidence=facts, char=found.char)

    # -- what happens in between -------------------------------------------------------------------------------

    def user_turn(self) -> None:
        """Forget the cuts: the user may well want to hear it again. This is where the turn ends."""
        self.begin_message()
        self._cuts.taken = 0
        self._hits = dict.fromkeys(self._hits, 0)
        self._since = dict.fromkeys(self._since, 0)

    def save(self) -> Any:
        """The counters. Text of a running message is not kept: it is read afresh after a resume."""
        near, passage = ([self._hits[kind], self._since[kind]] for kind in ("near", "passage"))
        return [self._message, self._cuts.taken, near, passage]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            message, cuts, *hits = state
            counted = {kind: (count(n), count(since)) for kind, (n, since) in zip(self._hits, hits, strict=True)}
        except TypeError as error:
            raise ValueError("not a saved state of text_repetition") from error
        self._message = count(message)
        self._cuts.taken = count(cuts)
        self._hits = {kind: n for kind, (n, _) in counted.items()}
        self._since = {kind: since for kind, (_, since) in counted.items()}


def _others(cuts: int) -> str:
    return "a message before" if cuts == 1 else f"{cuts} messages before"
