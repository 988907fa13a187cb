"""A round after scoring: each call with its verdict, and what the next model call is to be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopguard_core._bounded import call_key
from loopguard_core._round import MAX_CALLS
from loopguard_core._types import Action, ToolCall, Verdict
from loopguard_core.detectors import ObservedCall


@dataclass(slots=True)
class ScoredCall:
    """One call of a round after scoring.

    Attributes:
        id: The provider's id.
        observed: The call as detectors saw it, shared by duplicates; None if it is exempt or could not be followed.
        duplicate: True if the same identity came before it in this round.
        verdict: The detection; None where no rung was crossed.
        followed: Whether its result is wanted; False for what is too much of a large fan-out.
    """

    id: str
    observed: ObservedCall | None
    duplicate: bool = False
    verdict: Verdict | None = None
    followed: bool = True

    @property
    def action(self) -> Action | None:
        """The action that is taken."""
        return None if self.verdict is None else self.verdict.action


@dataclass(frozen=True, slots=True)
class Effect:
    """Something for the next model call."""

    action: Action
    detector: str
    identity: str
    since: int
    text: str


@dataclass(slots=True)
class ScoredRound:
    """A round after scoring.

    Attributes:
        followed: The distinct calls whose results are wanted.
        rows: Every call, in order; None where `followed` says it all: each call is followed, and none has a verdict.
        effects: What the next model call is to be told.
        fired: Whether there is any verdict.
    """

    followed: list[ObservedCall]
    rows: list[ScoredCall] | None
    effects: Sequence[Effect] = ()
    fired: bool = False

    @property
    def calls(self) -> list[ScoredCall]:
        """Every call, in order."""
        if self.rows is None:
            self.rows = [ScoredCall(call.call_id, call) for call in self.followed]
        return self.rows


def gathered(calls: Sequence[ToolCall], observed: Sequence[ObservedCall | None]) -> ScoredRound:
    """The calls of a round, equal ones gathered, not scored yet."""
    distinct: dict[str, ObservedCall] = {}
    for one in observed:
        if one is not None:
            distinct.setdefault(one.identity, one)
    followed = list(distinct.values())
    if len(followed) == len(calls) <= MAX_CALLS:
        return ScoredRound(followed, None)
    kept = distinct
    if len(followed) > MAX_CALLS:
        followed = sorted(followed, key=lambda call: call.identity)[:MAX_CALLS]
        kept = {call.identity: call for call in followed}
    rows: list[ScoredCall] = []
    for call, one in zip(calls, observed, strict=True):
        if one is None:
            rows.append(ScoredCall(_id_of(call), None))
        else:
            first = distinct[one.identity]
            rows.append(ScoredCall(one.call_id, first, first is not one, followed=one.identity in kept))
    return ScoredRound(followed, rows)


def _id_of(call: ToolCall) -> str:
    try:
        return call_key(call.id)
    except Exception:  # noqa: BLE001  # an SDK's odd object; its result cannot be matched, and counts as unchanged
        return ""
