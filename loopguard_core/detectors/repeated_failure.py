"""`repeated_failure`: the same kind of failure again, with other arguments or from other tools.

For one tool: its rounds in a row that failed alike (one root, or one shape of the text), with varying arguments.
Across tools: rounds in a row that failed for one root that has nothing to do with the tools, such as the network.
A success, a count that falls ("8 failed" after "9 failed"), or a successful new mutation starts afresh. Failures are
seen when results are recorded and judged at the next request.

| kind | what it is |
|---|---|
| (none) | one tool, nothing new in between |
| `interleaved` | one tool, and other calls brought news in between: no proof of a loop |
| `varied` | one tool, and now this, now that was wrong with the arguments |
| `put_right` | one tool, and each time something else was wrong with the arguments: they are on their way to right |
| `not_found` | different things looked for and not found: each is an answer |
| `transient` | what may pass by itself; has a row of its own only in preset `patient` |
| `cross_tool` | one root across tools |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

from loopguard_core._bounded import count, short_text
from loopguard_core._failures import TRANSIENT, Failure
from loopguard_core._history import History
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._protocol import REPEATS, Detector, Finding

MAX_TOOLS = 16
"""Failing tools remembered; those that failed longest ago go first."""

_MAX_SHAPES = 8
_SHARED = frozenset({*TRANSIENT, "auth", "resource"})
"""Roots that lie outside a tool, so that several tools can fail for one of them."""

_STAYING = _SHARED | {"unknown_tool"}

_REASONS = {
    "rate": "too many requests",
    "timeout": "timeouts",
    "network": "the network",
    "contention": "locks that others hold",
    "unavailable": "a service that is not available",
    "auth": "missing rights",
    "resource": "a lack of space or memory",
    "not_found": "things that were not found",
    "validation": "arguments that are not valid",
    "unknown_tool": "a tool that does not exist",
    "other": "the same error",
}


class _Row:
    """Failing rounds in a row, of one tool or of one root.

    Attributes:
        failure: The last failure.
        rounds: How many.
        since: Round of the first.
        last: Round of the last.
        seen: What failed: identities of one tool, or tools of one root. At most three are told apart.
        shapes: How the failures looked, each way once; eight are told apart.
        news: Rounds with news in the session when it began.
    """

    __slots__ = ("failure", "last", "news", "rounds", "seen", "shapes", "since")

    def __init__(self, failure: Failure, number: int, news: int) -> None:
        self.failure = failure
        self.rounds = 1
        self.since = self.last = number
        self.seen: list[str] = []
        self.shapes = [failure.shape]
        self.news = news

    def see(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.seen and len(self.seen) < 3:  # see above
                self.seen.append(name)

    def save(self) -> list[Any]:
        return [self.failure.save(), self.rounds, self.since, self.last, self.seen, self.news, self.shapes]

    @classmethod
    def restored(cls, state: Any) -> _Row:
        failure, rounds, since, last, seen, news, shapes = state
        row = cls(Failure.restored(failure), count(since), count(news))
        row.rounds, row.last = count(rounds), count(last)
        row.shapes = [short_text(shape) for shape in shapes[:_MAX_SHAPES]]
        row.see([short_text(name) for name in seen[:3]])
        return row


class RepeatedFailure(Detector):
    """Counts failing rounds.

    Args:
        history: What the session has seen.
    """

    name: ClassVar[str] = "repeated_failure"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["repeated_failure"]
    wakes_on: ClassVar[int] = REPEATS

    def __init__(self, history: History) -> None:
        self._history = history
        self._tools: OrderedDict[str, _Row] = OrderedDict()
        self._shared: _Row | None = None

    def describe(self, finding: Finding, tool: str | None) -> str:
        """What failed, how often, and for which reason."""
        reason = _REASONS[str(finding.evidence.get("root", "other"))]
        if finding.kind == "cross_tool":
            failed = f"{finding.streak} rounds in a row failed with several tools, all because of {reason}"
            return f"{failed}; `{tool}` comes next"
        if finding.evidence.get("again"):
            return (
                f"`{tool}` failed {finding.streak} times in the same way with the same arguments, because of {reason}"
            )
        return f"`{tool}` failed in {finding.streak} rounds in a row with different arguments, because of {reason}"

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Judge what the last rounds brought, now that the model asks again."""
        findings: list[Finding] = []
        for call in calls:
            row = self._row(call.tool_key)
            if row is not None and (len(row.seen) > 1 or self._history.epoch > row.since):
                evidence = {"root": row.failure.root, "failing_rounds": row.rounds, "since_round": row.since}
                about = "!" + call.tool_key[:32]
                findings.append(Finding(row.rounds, row.since, call.identity, self._kind(row), evidence, about=about))
            elif row is None and (found := _again(call)) is not None:
                findings.append(found)
        shared = self._shared
        if shared is not None and self._history.last_news > shared.last:
            self._shared = shared = None
        if shared is not None and len(shared.seen) > 1:
            evidence = {"root": shared.failure.root, "failing_rounds": shared.rounds, "since_round": shared.since}
            findings.extend(
                Finding(shared.rounds, shared.since, call.identity, "cross_tool", evidence, about="!root", across=True)
                for call in calls
            )
        return findings

    def _row(self, tool: str) -> _Row | None:
        row = self._tools.get(tool)
        # What is changed elsewhere mends arguments and files. It hardly mends the network, or missing rights, and it
        # makes no tool.
        if row is not None and self._history.epoch > row.last and row.failure.root not in _STAYING:
            del self._tools[tool]
            return None
        return row

    def _kind(self, row: _Row) -> str | None:
        if row.failure.root == "not_found":
            return "not_found"
        if row.failure.root == "unknown_tool":
            return None  # nothing that other calls bring makes it exist
        if self._history.news > row.news:
            return "interleaved"
        if row.failure.root == "validation" and len(row.shapes) > 1:
            return "put_right" if len(row.shapes) == min(row.rounds, _MAX_SHAPES) else "varied"
        return "transient" if row.failure.transient else None

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        """Count what failed, tool by tool and together."""
        tools: dict[str, list[ObservedCall]] = {}
        for call in calls:
            tools.setdefault(call.tool_key, []).append(call)
        for tool, those in tools.items():
            self._count(tool, those)
        self._count_shared(calls)

    def _count(self, tool: str, calls: list[ObservedCall]) -> None:
        row = self._row(tool)
        if any(call.outcome is not None and not call.outcome.failed for call in calls):
            self._tools.pop(tool, None)
            return
        failure = _failure(calls)
        if failure is None:
            if row is not None and all(call.refused for call in calls):
                row.rounds, row.last = row.rounds + 1, self._history.number
            return
        if row is None or not failure.like(row.failure) or failure.better_than(row.failure):
            row = self._tools[tool] = _Row(failure, self._history.number, self._history.news)
        else:
            if failure.shape not in row.shapes and len(row.shapes) < _MAX_SHAPES:
                row.shapes.append(failure.shape)
            row.rounds, row.last, row.failure = row.rounds + 1, self._history.number, failure
        row.see([call.identity for call in calls])
        self._tools.move_to_end(tool)
        if len(self._tools) > MAX_TOOLS:
            self._tools.popitem(last=False)

    def _count_shared(self, calls: Sequence[ObservedCall]) -> None:
        row = self._shared
        if any(call.outcome is not None and not call.outcome.failed for call in calls):
            if row is not None and self._history.last_news >= self._history.number:
                self._shared = None
            return
        failure = _failure(calls)
        if failure is None:
            if row is not None and all(call.refused for call in calls):
                row.rounds, row.last = row.rounds + 1, self._history.number
            return
        alike = row is not None and (
            failure.shape == row.failure.shape or (failure.root in _SHARED and failure.root == row.failure.root)
        )
        if row is None or not alike:
            row = self._shared = _Row(failure, self._history.number, self._history.news)
        else:
            row.rounds, row.last = row.rounds + 1, self._history.number
        row.see([call.tool_key for call in calls])

    def user_turn(self) -> None:
        """Forget: the user may have repaired what was wrong."""
        self._tools.clear()
        self._shared = None

    def save(self) -> Any:
        """The rows."""
        rows = [[tool, row.save()] for tool, row in self._tools.items()]
        return [rows, None if self._shared is None else self._shared.save()]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            rows, shared = state
            tools = OrderedDict((short_text(tool), _Row.restored(row)) for tool, row in rows[-MAX_TOOLS:])
            self._shared = None if shared is None else _Row.restored(shared)
            self._tools = tools
        except TypeError as error:
            raise ValueError("not a saved state of repeated_failure") from error


def _again(call: ObservedCall) -> Finding | None:
    """One call that fails as it did before, though its tool did other things well in between."""
    past = call.past
    result = None if past is None else past.result
    if past is None or result is None or not past.same or result.failure is None or past.polling:
        return None
    times = past.same + 1
    evidence = {"root": result.failure.root, "failing_rounds": times, "since_round": past.first, "again": True}
    return Finding(times, past.first, call.identity, "interleaved", evidence)


def _failure(calls: Sequence[ObservedCall]) -> Failure | None:
    for call in calls:
        result = None if call.outcome is None else call.outcome.result
        if result is not None and result.failure is not None:
            return result.failure
    return None
