"""Different arguments, and a result that says something and was there before."""

from __future__ import annotations

from loopguard_core._outcome import Change, Result
from loopguard_core._similar import same_words
from loopguard_core._sketch import SHORT, Look
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._protocol import Finding
from loopguard_core.detectors._rows import MAX_TOOLS, Row, RowsByTool

_SAYS_SOMETHING = 32  # characters of a result that is more than a yes, a number or "done"
_FREQUENT = "0123456789eaitnsr \n"


class EqualResults(RowsByTool):
    """Counts results a tool gave before, for other arguments.

    Args:
        history: What the session has seen.
    """

    def begin(self, call: ObservedCall, last: ObservedCall) -> Finding | None:
        """What was counted about a call's tool, now that it is asked for something else."""
        tool = call.tool_key
        row = self._rows.get(tool)
        if row is not None and self._history.changed_by_others(tool, row.last):
            del self._rows[tool]
            return None
        if row is None or call.identity == last.identity:
            return None
        evidence = {"results": row.length, "since_round": row.since}
        return Finding(row.length, row.since, call.identity, "same_result", evidence, about=f"={tool[:32]}")

    def close(self, call: ObservedCall, result: Result, before: ObservedCall | None) -> None:
        """Count what a call returned; `before` is its tool's call before that."""
        tells = "mutates" not in call.traits or (call.nature.ui and not result.acknowledges)
        if result.failed or not tells:
            return
        if call.change is Change.FIRST:
            # What another agent answers often begins with an id of its own.
            known = result.digest in self._history.repeated or (
                before is not None and volatile(result, before.result, ends="delegates" in call.traits)
            )
            self._seen_before(call.tool_key, result, known=known)
        elif call.change is Change.SAME and (row := self._rows.get(call.tool_key)) is not None:
            row.length, row.last = row.length + 1, self._history.number

    def _seen_before(self, tool: str, result: Result, *, known: bool) -> None:
        """Count a first result that the tool has given before, for other arguments."""
        if result.size < _SAYS_SOMETHING:
            return  # a yes, a number, a "done" may well be the same for many things
        row = self._rows.get(tool)
        if not known or result.empty or result.pending:
            if row is not None:
                del self._rows[tool]
            return
        if row is None:
            row = self._rows[tool] = Row(1, self._history.number - 1, self._history.number)
            if len(self._rows) > MAX_TOOLS:
                self._rows.popitem(last=False)
        row.length, row.last = row.length + 1, self._history.number


def says_the_same(result: Result, earlier: Result) -> bool:
    """Whether two results of different arguments say the same: alike failures, or the same lines."""
    if result.failure is not None and earlier.failure is not None:
        return result.failure.shape == earlier.failure.shape
    if result.same_as(earlier) is not Change.CHANGED:
        return True
    one, other = result.text, earlier.text
    if one is None or other is None:
        looks = _looks(result, earlier)
        if looks is None:
            return False
        now, then = looks
        same = result.size == earlier.size and now.said is not None and now.said == then.said
        return same or (now.lines is not None and now.lines == then.lines)
    if result.size == earlier.size and same_words(one, other):
        return True
    return set(one.casefold().split("\n")) == set(other.casefold().split("\n"))


def volatile(result: Result, earlier: Result | None, *, ends: bool = False) -> bool:
    """Whether a result is the one before but for what changes by itself; a cheap look first, because few are.

    Args:
        result: The result.
        earlier: The one before.
        ends: Whether it is enough that they end alike.
    """
    if earlier is None or abs(result.size - earlier.size) > SHORT:
        return False
    one, other = result.ends, earlier.ends
    if one is None or other is None:
        looks = _looks(result, earlier)
        if looks is None:
            return False
        now, then = looks
        if now.words != then.words or not (now.head == then.head or (ends and now.tail == then.tail)):
            return False
        return result.masked_as(earlier)
    if one[0] != other[0] and not (ends and one[1] == other[1]):
        return False
    return result.may_be(earlier) and result.masked_as(earlier)


def reordered(result: Result, earlier: Result) -> bool:
    """Whether two results hold the same characters in another order; again a cheap look first."""
    if result.size != earlier.size or result.size < _SAYS_SOMETHING:
        return False
    one, other = result.text, earlier.text
    if one is None or other is None:
        looks = _looks(result, earlier)
        return looks is not None and looks[0].letters is not None and looks[0].letters == looks[1].letters
    # Counting a few characters is far cheaper than sorting all of them, and mostly settles it.
    return all(one.count(mark) == other.count(mark) for mark in _FREQUENT) and sorted(one) == sorted(other)


def _looks(result: Result, earlier: Result) -> tuple[Look, Look] | None:
    """How two results looked, where the text of one is gone; None where that is not known."""
    then = earlier.look  # first: mostly it is this one that is gone
    now = None if then is None else result.look
    return None if now is None or then is None else (now, then)
