"""Verdicts that belong together: one loop is one thing to read about, however long it went on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loopguard_core._ladder import RANK
from loopguard_core._types import Action, Verdict

_MAX_ROUNDS = 64


@dataclass(slots=True)
class Loop:
    """One streak of one detector.

    Attributes:
        verdicts: Its verdicts, in order; at least one.
    """

    verdicts: list[Verdict]

    @property
    def last(self) -> Verdict:
        """The verdict that has seen most of it."""
        return self.verdicts[-1]

    @property
    def action(self) -> Action:
        """The strongest rung it reached."""
        return max((verdict.action for verdict in self.verdicts), key=RANK.__getitem__)

    @property
    def tools(self) -> list[str]:
        """The tools that are called in it, in order; none where text repeats itself."""
        return list(dict.fromkeys(verdict.tool for verdict in self.verdicts if verdict.tool is not None))

    @property
    def rounds(self) -> tuple[int, int]:
        """First and last round of its evidence; 0 is before the first round."""
        first = min((evidence_rounds(verdict)[0] for verdict in self.verdicts), default=0)
        return first, max(self.last.round, first)

    def reached(self, action: Action) -> Verdict | None:
        """The first verdict of that rung."""
        return next((verdict for verdict in self.verdicts if verdict.action is action), None)


def evidence_rounds(verdict: Verdict) -> list[int]:
    """The rounds that are the evidence of a verdict, as far as it says; at least its own."""
    listed = verdict.evidence.get("at_rounds")
    rounds = [number for number in listed[-_MAX_ROUNDS:] if isinstance(number, int)] if isinstance(listed, list) else []
    since = verdict.evidence.get("since_round")
    if isinstance(since, int) and 0 < since < min(rounds or [verdict.round]):
        rounds = [since, *rounds]
    return rounds or [verdict.round]


def loops(verdicts: Iterable[Verdict]) -> list[Loop]:
    """The loops in a recording's verdicts, the worst first: by rung, then by length."""
    found: list[Loop] = []
    latest: dict[tuple[str | None, ...], Loop] = {}
    for verdict in verdicts:
        # Every step of a lap has a verdict of its own, and all of them are one loop.
        call = ("steps",) if "period" in verdict.evidence else (verdict.tool, verdict.fingerprint)
        key = (verdict.detector, *call, verdict.channel)
        loop = latest.get(key)
        if loop is not None and (verdict.streak > loop.last.streak or _goes_on(verdict, loop)):
            loop.verdicts.append(verdict)
        else:
            loop = latest[key] = Loop([verdict])
            found.append(loop)
    return sorted(found, key=lambda loop: (-RANK[loop.action], -len(loop.verdicts)))


def _goes_on(verdict: Verdict, loop: Loop) -> bool:
    """Whether its evidence began before the loop's last verdict: a streak is only counted as far as a detector sees."""
    first = evidence_rounds(verdict)[0]
    return first < verdict.round and first <= loop.last.round
