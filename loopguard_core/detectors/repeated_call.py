"""`repeated_call`: the model asks for the same call again after it saw the result.

An identity's streak is the number of *that tool's* rounds in a row that contain it. Identical calls in one round count
once, order within a round does not matter, and rounds of other tools leave a streak alone:
`[a,b] [a,c] [a,d]` puts `a` at 3.

With outcomes "aware", a streak also ends where the outcome changed, where the world was changed since (see `_history`),
and after eight rounds of news; a call that was refused is then let through once, and counts on only if nothing changed.
With "ignore" arguments alone decide, as in the reference whose figures are in `tests/data/conformance/rounds.jsonl`.

| kind | what it is |
|---|---|
| `poll` | asks for something that is not done yet |
| `mutation` | sends, pays, deletes, writes: every repeat does it again |
| `transient` | fails with what may pass by itself; has a row of its own only in preset `patient` |
| `retry` | a command whose connection broke, or a transaction given up for another: it may be tried a third time |
| `check` | a passing test, run again with nothing changed |
| `status` | a tool named for asking how something is, which says of nothing that it is under way |
| `picture` | a picture that is not equal to the bit, and looks the same |
| `changing` | the same arguments and never the same result, nothing else new in between |
| `changing`, too | a step in a user interface, whose short acknowledgement tells nothing of what it did |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

from loopguard_core._bounded import count, short_text
from loopguard_core._history import History
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core._outcome import Change
from loopguard_core.detectors._observed import ObservedCall, Past
from loopguard_core.detectors._protocol import Detector, Finding

MAX_IDENTITIES = 40
"""Identities remembered in a session; those of the tools used longest ago go first. No round has more."""

_LASTING = frozenset({"auth", "validation", "not_found"})  # time alone mends none of these
_BROKEN = frozenset({"network", "unavailable"})  # a third try of a download or a query is what people do, too
_SEVERAL = 2
_FIRST, _CHANGED, _BACK = Change.FIRST, Change.CHANGED, Change.BACK  # an enum's members are slow to come by
MAX_TOOLS = 64
"""Tools remembered in a session."""


class _Streak:
    """What is counted about one identity.

    Attributes:
        length: Rounds in a row.
        since: Round in which the streak began.
        changed: Results in a row that differed from the one before, nothing else new in between.
        news: True if the last outcome differed, so that the next request starts afresh.
        held: True after a summary: the next request does not count, because the model lost what it had seen.
        spared: True if a summary has already spared this streak a count. It does so once, or a summary in every
            round would hide a loop.
        probed: The streak that goes on if this request, let through to see, brings the same again; 0 if it is none.
    """

    __slots__ = ("changed", "held", "length", "news", "probed", "since", "spared")

    def __init__(self, length: int, since: int) -> None:
        self.length = length
        self.since = since
        self.changed = self.probed = 0
        self.news = self.held = self.spared = False

    @property
    def flags(self) -> int:
        """The three marks as one number."""
        return self.news + 2 * self.held + 4 * self.spared

    @classmethod
    def restored(cls, state: Any) -> _Streak:
        """Take over what was saved.

        Raises:
            ValueError: Not such a state.
        """
        length, since, changed, probed, flags = state
        streak = cls(count(length), count(since))
        streak.changed, streak.probed = count(changed), count(probed)
        streak.news, streak.held, streak.spared = bool(count(flags) & 1), bool(flags & 2), bool(flags & 4)
        return streak


class RepeatedCall(Detector):
    """Counts the rounds in a row that contain the same call.

    Args:
        lowest: The streak from which on findings are reported.
        history: What the session has seen; None if a changed outcome ends no streak.
    """

    name: ClassVar[str] = "repeated_call"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["repeated_call"]

    def __init__(self, lowest: int = 1, history: History | None = None) -> None:
        self._lowest = lowest
        self._history = history
        self._tools: OrderedDict[str, dict[str, _Streak]] = OrderedDict()
        self._identities = 0

    def describe(self, finding: Finding, tool: str | None) -> str:
        """What was repeated, and for how many rounds."""
        asked = f"`{tool}` was requested with the same arguments in {finding.streak} rounds in a row"
        if finding.kind == "changing":
            return asked + ("" if finding.evidence.get("acknowledged") else " and returned something else each time")
        if finding.kind == "poll":
            return asked + " and what it asks about did not change"
        if finding.kind == "picture":
            return asked + " and the picture it returned looks the same"
        if finding.kind in ("transient", "retry"):
            return asked + " and failed in the same way"
        return asked + ("" if self._history is None else " and its result did not change")

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Count the round; every call gets its streak, and a finding from the lowest rung on."""
        if len(calls) == 1:  # by far the most common round: no grouping needed
            call = calls[0]
            key, identity = call.tool_key, call.identity
            before = self._tools.get(key)
            last = None if before is None else before.get(identity)
            if last is not None and self._forgotten(call):
                last = None
            streak = _Streak(1, number) if last is None else self._next(last, call, number)
            if before is not None and len(before) == 1:  # one in place of another: nothing to count
                before.clear()
                before[identity] = streak
                self._tools.move_to_end(key)
            else:
                self._remember(key, {identity: streak}, before)
            call.streak = streak.length
            if last is None and self._lowest > 1:
                return ()
            return self._report(call, streak, calls)
        rounds: dict[str, dict[str, _Streak]] = {}
        for call in calls:
            key = call.tool_key
            present = rounds.setdefault(key, {})
            last = self._tools.get(key, {}).get(call.identity)
            again = last is not None and not self._forgotten(call)
            present[call.identity] = self._next(last, call, number) if last and again else _Streak(1, number)
        findings: list[Finding] = []
        for call in calls:
            findings.extend(self._report(call, rounds[call.tool_key][call.identity], calls))
        for key, present in rounds.items():
            self._remember(key, present, self._tools.get(key))
        return findings

    def _forgotten(self, call: ObservedCall) -> bool:
        """Whether so much else was asked for since that the session no longer knows the call: that ends a streak."""
        return call.past is None and self._history is not None

    def _next(self, last: _Streak, call: ObservedCall, number: int) -> _Streak:
        if call.probe:
            streak = _Streak(1, last.since)
            streak.probed = last.length
        elif last.news or call.fresh:
            streak = _Streak(1, number)
            streak.changed = 0 if call.fresh or self._other_news(call) else last.changed
        else:
            streak = _Streak(last.length if last.held else last.length + 1, last.since)
            streak.spared = last.held or last.spared
        return streak

    def _other_news(self, call: ObservedCall) -> bool:
        """Whether anything else was new since the call was last asked for."""
        return self._history is not None and call.past is not None and self._history.news > call.past.news

    def _report(self, call: ObservedCall, streak: _Streak, calls: Sequence[ObservedCall]) -> Sequence[Finding]:
        call.streak = streak.length
        if streak.length < self._lowest:
            return self._changing(call, streak)
        kind = None if self._history is None else _kind(call, self._history)
        if kind is None and self._history is not None and _others_move(call, calls):
            kind = "poll"
        evidence: dict[str, Any] = {"rounds": streak.length, "since_round": streak.since}
        if kind == "changing":
            evidence["acknowledged"] = True
        advice = None if self._history is None or kind is not None else _advice(call)
        return (Finding(streak.length, streak.since, call.identity, kind, evidence, advice=advice),)

    def _changing(self, call: ObservedCall, streak: _Streak) -> Sequence[Finding]:
        if not streak.changed or "mutates" in call.traits or (call.past is not None and call.past.polling):
            return ()  # what a mutation returns anew is its work
        rounds = streak.changed + 2  # the first result, those that differed, and this request
        evidence = {"rounds": rounds, "different_results": streak.changed + 1}
        return (Finding(rounds, streak.since, identity=call.identity, kind="changing", evidence=evidence),)

    def _remember(self, key: str, present: dict[str, _Streak], before: dict[str, _Streak] | None) -> None:
        self._identities += len(present) - (len(before) if before is not None else 0)
        self._tools[key] = present
        self._tools.move_to_end(key)
        while len(self._tools) > MAX_TOOLS or self._identities > MAX_IDENTITIES:
            _, dropped = self._tools.popitem(last=False)
            self._identities -= len(dropped)

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        """Take note of whether each call returned what it returned the last time."""
        if self._history is None:
            return
        for call in calls:
            if call.change is _FIRST and not call.probe:
                continue  # nothing to compare it with
            present = self._tools.get(call.tool_key)
            streak = None if present is None else present.get(call.identity)
            if streak is None or call.result is None:
                continue
            if call.change is _CHANGED or call.change is _BACK:
                moving = call.past is not None and call.past.moving
                streak.news, streak.changed = True, 0 if moving else streak.changed + 1
            else:
                streak.news, streak.changed = False, 0
                if streak.probed:
                    streak.length, streak.probed = streak.probed, 0

    def user_turn(self) -> None:
        """Forget: a user may well want the same thing again."""
        self._tools.clear()
        self._identities = 0

    def compacted(self) -> None:
        """Let each known call be asked for once more without counting it, once a streak."""
        if self._history is not None:
            for present in self._tools.values():
                for streak in present.values():
                    streak.held = not streak.spared

    def save(self) -> Any:
        """The streaks, tools in order of last use."""
        return [
            [key, [[i, s.length, s.since, s.changed, s.probed, s.flags] for i, s in present.items()]]
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
                tools[short_text(key)] = {short_text(identity): _Streak.restored(row) for identity, *row in rows}
        except TypeError as error:
            raise ValueError("not a saved state of repeated_call") from error
        self._tools.clear()
        self._identities = 0
        for key, present in tools.items():
            self._remember(key, present, None)


def _kind(call: ObservedCall, history: History) -> str | None:
    """The row of the ladder table for a call whose result did not change."""
    past = call.past
    if past is not None and past.polling and call.only_asks and not history.waited(past):
        return "status"
    if past is not None and (past.polling or ("mutates" not in call.traits and _waits(call, past, history))):
        return "poll"
    result = None if past is None else past.result
    if result is not None and result.failed:
        if result.failure is None or result.failure.root in _LASTING:
            return None
        # Trying again after time was let pass is what such failures ask for.
        if past is not None and history.waited(past):
            return "poll"
        if result.failure.root == "contention" or (call.nature.shell and result.failure.root in _BROKEN):
            return "retry"
        return "transient" if result.failure.transient else None
    if "tests" in call.traits and result is not None and not result.failing:
        return "check"
    if "mutates" not in call.traits:
        return "picture" if _looks_alike(call, past, history) else None
    # What is removed in batches is, until none is left.
    moves = (result is not None and result.removed) or (call.nature.ui and _acknowledges(past))
    return "changing" if moves else "mutation"


def _others_move(call: ObservedCall, calls: Sequence[ObservedCall]) -> bool:
    """Whether it is one of several things that are looked at together again and again, and others of them change."""
    past = call.past
    if past is None or past.result is None or past.result.failed or "mutates" in call.traits:
        return False
    moving = [
        other.past
        for other in calls
        if other is not call and other.past is not None and other.past.changes and other.past.last == past.last
    ]
    return len(moving) >= _SEVERAL


def _advice(call: ObservedCall) -> str | None:
    result = None if call.past is None else call.past.result
    if result is None:
        return None
    return "failed" if result.failed else "empty" if result.empty else None


def _waits(call: ObservedCall, past: Past, history: History) -> bool:
    """Whether it looks again at something that has had time to change, and is not known to have failed or ended."""
    return history.waited(past) and not call.nature.starts and (past.result is None or not past.result.finished)


def _acknowledges(past: Past | None) -> bool:
    """Whether what a step returned may be no more than "done"; what has changed before tells when it does not."""
    result = None if past is None else past.result
    return past is None or result is None or (result.acknowledges and not past.earlier)


def _looks_alike(call: ObservedCall, past: Past | None, history: History) -> bool:
    """Whether the last two pictures it returned were alike, but not equal."""
    last = history.last_calls.get(call.tool_key)
    if past is None or past.result is None or last is None or last.identity != call.identity:
        return False
    return last.change is Change.VOLATILE and past.result.picture
