"""What a detector is: a small pure state machine that sees rounds and text and reports findings.

A detector never decides what is done. It says how much evidence there is; the policy's ladder turns that into an
action. It has no clock and no randomness, so the same transcript always gives the same findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from loopguard_core._ladder import Ladder
from loopguard_core._types import Channel
from loopguard_core.detectors._observed import ObservedCall

REPEATS = 1
"""Something about the round was there before, or something failed."""
SEARCHES = 2
"""It searches."""
CHANGES = 4
"""It changes something, runs a command, hands work over, reads a part of something, or says why it is made."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence for a loop.

    Attributes:
        streak: How often it was seen, in the detector's own unit.
        since: The round (or message) in which this streak began; steering happens once per streak.
        identity: The call it is about; None for text.
        kind: Names a row of the ladder table below the detector's own, for example `poll`.
        evidence: Facts for the operator. Plain JSON, never arguments, results or text.
        char: Offset in the channel's text; None for calls.
        abort: True if the running stream is to be cut.
        advice: Names what the model is told, where that is not the kind's: a key of `loopguard_core._advice`.
        about: What the streak is about, where it spans several identities of the tool; steering happens once for it.
        across: True if the streak spans several tools.
    """

    streak: int
    since: int
    identity: str | None = None
    kind: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    char: int | None = None
    abort: bool = False
    about: str | None = None
    advice: str | None = None
    across: bool = False


class Detector:
    """Base of all detectors; each method may be left as it is.

    A subclass sets `name`, and `ladder` if only observing is not enough; the policy's
    `[detectors.<name>] ladder` is merged over it. One instance serves one session and is only called under that
    session's lock.
    """

    name: ClassVar[str]
    ladder: ClassVar[Ladder] = Ladder(observe=1)
    wakes_on: ClassVar[int] = 0
    """Which rounds `begin_round` and `close_round` are called for: the sum of some of `REPEATS`, `SEARCHES` and
    `CHANGES`; 0 for every round. A healthy round wakes few, so that it costs little."""

    def describe(self, finding: Finding, tool: str | None) -> str:
        """The finding as one clause, for people and for the model: starts lower case, ends without a full stop.

        Args:
            finding: One of this detector's.
            tool: The tool's name, safe to show; None for text.
        """
        about = f"`{tool}` " if tool else "the text "
        return f"{about}repeats without progress (streak {finding.streak})"

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Score a round before anything in it runs.

        Args:
            calls: The distinct calls that are not exempt, in the order the model asked for them.
            number: The round, from 1.
        """
        return ()

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        """Take note of what the last round's calls returned."""

    def begin_message(self) -> None:
        """Forget the running message: it failed, and a retry writes it anew."""

    def feed_text(self, delta: str, channel: Channel) -> Finding | None:
        """Read a piece of the running message, cut however the provider, or loopguard, cuts it."""
        return None

    def end_message(self, finish_reason: str | None) -> Finding | None:
        """The message is complete."""
        return None

    def user_turn(self) -> None:
        """A user spoke: asking again is legitimate now."""

    def compacted(self) -> None:
        """History was summarised: the model no longer sees what it was told before."""

    def save(self) -> Any:
        """State as plain JSON, bounded; None if there is none."""
        return None

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: The state is not one of this detector's.
        """
