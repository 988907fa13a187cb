"""Pages that were read before: which ranges of which thing a tool has been through."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import xxhash

from loopguard_core._bounded import count, short_text
from loopguard_core._canonical import canonical_json
from loopguard_core._history import History
from loopguard_core._outcome import Change
from loopguard_core._ranges import RANGE_KEYS, RANGE_STARTS, Range, range_of
from loopguard_core._similar import BESIDE
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._protocol import Finding

MAX_THINGS = 8
"""Files, lists and the like that are followed; those read longest ago go first."""

MAX_RANGES = 24
"""Ranges kept of each; neighbours are joined, so a sweep is one."""

_COVERED = 0.8  # share of a page that was read before
_NARROW = 0.5  # a page less than half as wide as the last looks closer at a part, which is no second sweep
_BESIDE = BESIDE | {"description", "title", "note"}


class _Thing:
    """What was read of one thing.

    Attributes:
        ranges: Sorted, apart from each other; half-open.
        again: Pages in a row that had been read before.
        since: Round of the first of those.
        last: Round of the last page.
        width: Of the last page.
    """

    __slots__ = ("again", "last", "ranges", "since", "width")

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.again = self.since = self.last = self.width = 0

    def covered(self, page: Range) -> float:
        overlap = sum(max(0, min(end, page[1]) - max(start, page[0])) for start, end in self.ranges)
        return overlap / max(1, page[1] - page[0])

    def add(self, page: Range) -> None:
        joined: list[Range] = []
        for start, end in sorted([*self.ranges, page]):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        self.ranges = joined[-MAX_RANGES:]


class Pages:
    """Counts pages in a row that had been read before.

    Args:
        history: What the session has seen.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._things: OrderedDict[str, _Thing] = OrderedDict()

    def begin(self, call: ObservedCall, arguments: dict[Any, Any], number: int) -> Finding | None:
        """Count the page a call asks for; None if it asks for none, or for a new one."""
        if RANGE_STARTS.isdisjoint(arguments) or "mutates" in call.traits:
            return None
        page = range_of(arguments)
        if page is None:
            return None
        key = _key(call.tool_key, arguments)
        thing = self._things.get(key)
        if thing is None or self._history.epoch > thing.last or call.fresh:
            thing = self._things[key] = _Thing()
            if len(self._things) > MAX_THINGS:
                self._things.popitem(last=False)
        self._things.move_to_end(key)
        width = page[1] - page[0]
        if thing.covered(page) < _COVERED:
            thing.again = 0
        elif thing.last != number and width >= _NARROW * thing.width:  # pages of one round are one look
            thing.again += 1
            thing.since = number if thing.again == 1 else thing.since
        thing.add(page)
        thing.last, thing.width = number, width
        if not thing.again:
            return None
        evidence = {"pages": thing.again, "since_round": thing.since}
        return Finding(thing.again, thing.since, call.identity, "pages", evidence, about=key)

    def close(self, call: ObservedCall) -> None:
        """A page that changed since makes reading again reasonable."""
        if self._things and call.outcome is not None and call.outcome.change is Change.CHANGED:
            for thing in self._things.values():
                thing.again = 0

    def clear(self) -> None:
        """Forget."""
        self._things.clear()

    def save(self) -> Any:
        """As plain JSON."""
        return [
            [key, [list(page) for page in thing.ranges], thing.again, thing.since, thing.last, thing.width]
            for key, thing in self._things.items()
        ]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
            TypeError: Not such a state.
        """
        things: OrderedDict[str, _Thing] = OrderedDict()
        for key, ranges, again, since, last, width in state[-MAX_THINGS:]:
            thing = things[short_text(key)] = _Thing()
            thing.ranges = [(count(start), count(end)) for start, end in ranges[:MAX_RANGES]]
            thing.again, thing.since, thing.last, thing.width = count(again), count(since), count(last), count(width)
        self._things = things


def _key(tool: str, arguments: dict[Any, Any]) -> str:
    rest = {key: value for key, value in arguments.items() if key not in RANGE_KEYS and key not in _BESIDE}
    text = f"{tool}\n{canonical_json(rest)}"
    return "#" + xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
