"""What a detector is: a small pure state machine that sees rounds and text and reports findings.

A detector never decides what is done. It says how much evidence there is; the policy's ladder turns that into an
action. It has no clock and no randomness, so the same transcript always gives the same findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from loopguard_core._ladder import Ladder
from loopguard_core._outcome import Outcome
from loopguard_core._types import Channel

_SMALL = 256


@dataclass(slots=True, eq=False)
class ObservedCall:
    """One distinct call of a round, as detectors see it.

    `tool`, `arguments` and `text` are whole while the round is scored, and dropped after it: between rounds a session
    keeps nothing of them. A detector that needs them later works out what it needs in `begin_round`.

    Attributes:
        call_id: The provider's id.
        tool: The tool's name as the model wrote it.
        tool_key: The name, or a hash of it where it is long or strange: what state is kept under.
        identity: Hash of tool name and loop key; equal identities are the same call.
        arguments: The parsed arguments, or the raw text where they are not JSON.
        text: Tool name, newline and canonical loop key: what `identity` is the hash of.
        refusable: False for a call the SDK cannot refuse.
        outcome: Set when the round is closed; None if no result was recorded.
        streak: Rounds in a row that contain this identity; set by `repeated_call`.
    """

    call_id: str
    tool: str
    tool_key: str
    identity: str
    arguments: Any = None
    text: str = ""
    refusable: bool = True
    outcome: Outcome | None = None
    streak: int = 1

    def shrink(self) -> None:
        """Drop what a hostile model could have made large."""
        self.arguments = None
        if len(self.text) > _SMALL:
            self.tool, self.text, self.call_id = self.tool_key, "", ""


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
    """

    streak: int
    since: int
    identity: str | None = None
    kind: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    char: int | None = None
    abort: bool = False


class Detector:
    """Base of all detectors; each method may be left as it is.

    A subclass sets `name`, and `ladder` if only observing is not enough; the policy's
    `[detectors.<name>] ladder` is merged over it. One instance serves one session and is only called under that
    session's lock.
    """

    name: ClassVar[str]
    ladder: ClassVar[Ladder] = Ladder(observe=1)

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

    def feed_text(self, delta: str, channel: Channel) -> Finding | None:
        """Read a piece of the running message."""
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
