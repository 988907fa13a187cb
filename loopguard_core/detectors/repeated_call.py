"""`repeated_call`: the model asks for the same call again after it saw the result.

An identity's streak is the number of *that tool's* rounds in a row that contain it. Identical calls in one round count
once, order within a round does not matter, and rounds of other tools leave a streak alone:
`[a,b] [a,c] [a,d]` puts `a` at 3.

With outcomes "aware", a changed outcome makes the next request streak 1. With "ignore" arguments alone decide, as in
the reference whose figures are in `tests/data/conformance/rounds.jsonl`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

from loopguard_core._bounded import count, short_text
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core._outcome import changed
from loopguard_core.detectors._protocol import Detector, Finding, ObservedCall

MAX_IDENTITIES = 72
"""Identities remembered in a session; those of the tools used longest ago go first. No round has more."""

MAX_TOOLS = 64
"""Tools remembered in a session."""


class _Streak:
    """What is known of one identity.

    Attributes:
        length: Rounds in a row.
        since: Round in which the streak began.
        digest: The last outcome; None until one was recorded.
        news: True if the last outcome differed, so that the next request starts afresh.
        held: True after a summary: the next request does not count, because the model lost what it had seen.
        spared: True if a summary has already spared this streak a count. It does so once, or a summary in every
            round would hide a loop.
    """

    __slots__ = ("digest", "held", "length", "news", "since", "spared")

    def __init__(
        self,
        length: int,
        since: int,
        digest: str | None = None,
        news: bool = False,
        held: bool = False,
        spared: bool = False,
    ) -> None:
        self.length = length
        self.since = since
        self.digest = digest
        self.news = news
        self.held = held
        self.spared = spared


class RepeatedCall(Detector):
    """Counts the rounds in a row that contain the same call.

    Args:
        lowest: The streak from which on findings are reported.
        outcome_aware: Whether a changed outcome ends a streak.
    """

    name: ClassVar[str] = "repeated_call"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["repeated_call"]

    def __init__(self, lowest: int = 1, *, outcome_aware: bool = True) -> None:
        self._lowest = lowest
        self._aware = outcome_aware
        self._tools: OrderedDict[str, dict[str, _Streak]] = OrderedDict()
        self._identities = 0

    def describe(self, finding: Finding, tool: str | None) -> str:
        """What was repeated, and for how many rounds."""
        result = " and its result did not change" if self._aware else ""
        return f"`{tool}` was requested with the same arguments in {finding.streak} rounds in a row{result}"

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Count the round; every call gets its streak, and a finding from the lowest rung on."""
        if len(calls) == 1:  # by far the most common round: no grouping needed
            call = calls[0]
            key = call.tool_key
            before = self._tools.get(key)
            streak = self._next(before, call.identity, number)
            self._remember(key, {call.identity: streak}, before)
            return self._report(call, streak)
        rounds: dict[str, dict[str, _Streak]] = {}
        for call in calls:
            key = call.tool_key
            present = rounds.setdefault(key, {})
            present[call.identity] = self._next(self._tools.get(key), call.identity, number)
        findings: list[Finding] = []
        for call in calls:
            findings.extend(self._report(call, rounds[call.tool_key][call.identity]))
        for key, present in rounds.items():
            self._remember(key, present, self._tools.get(key))
        return findings

    def _next(self, before: dict[str, _Streak] | None, identity: str, number: int) -> _Streak:
        last = before.get(identity) if before is not None else None
        if last is None:
            return _Streak(1, number)
        if last.news:
            return _Streak(1, number, last.digest)
        if last.held:
            return _Streak(last.length, last.since, last.digest, spared=True)
        return _Streak(last.length + 1, last.since, last.digest, spared=last.spared)

    def _report(self, call: ObservedCall, streak: _Streak) -> Sequence[Finding]:
        call.streak = streak.length
        if streak.length < self._lowest:
            return ()
        evidence = {"rounds": streak.length, "since_round": streak.since}
        return (Finding(streak.length, streak.since, identity=call.identity, evidence=evidence),)

    def _remember(self, key: str, present: dict[str, _Streak], before: dict[str, _Streak] | None) -> None:
        self._identities += len(present) - (len(before) if before is not None else 0)
        self._tools[key] = present
        self._tools.move_to_end(key)
        while len(self._tools) > MAX_TOOLS or self._identities > MAX_IDENTITIES:
            _, dropped = self._tools.popitem(last=False)
            self._identities -= len(dropped)

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        """Compare what each call returned with what it returned the last time."""
        if not self._aware:
            return
        for call in calls:
            if call.outcome is None:
                continue
            streak = self._tools.get(call.tool_key, {}).get(call.identity)
            if streak is not None:
                streak.news = changed(streak.digest, call.outcome)
                streak.digest = call.outcome.digest

    def user_turn(self) -> None:
        """Forget: a user may well want the same thing again."""
        self._tools.clear()
        self._identities = 0

    def compacted(self) -> None:
        """Let each known call be asked for once more without counting it, once a streak."""
        if self._aware:
            for present in self._tools.values():
                for streak in present.values():
                    streak.held = not streak.spared

    def save(self) -> Any:
        """The streaks, tools in order of last use."""
        return [
            [key, [[i, s.length, s.since, s.digest, s.news + 2 * s.held + 4 * s.spared] for i, s in present.items()]]
            for key, present in self._tools.items()
        ]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        tools: OrderedDict[str, dict[str, _Streak]] = OrderedDict()
        try:
            for key, rows in state:
                tools[short_text(key)] = {
                    short_text(identity): _Streak(
                        count(length),
                        count(since),
                        None if digest is None else short_text(digest),
                        bool(flags & 1),
                        bool(flags & 2),
                        bool(flags & 4),
                    )
                    for identity, length, since, digest, flags in rows
                }
        except TypeError as error:
            raise ValueError("not a saved state of repeated_call") from error
        self._tools.clear()
        self._identities = 0
        for key, present in tools.items():
            self._remember(key, present, None)
