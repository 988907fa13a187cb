"""Pages that were read before: which ranges of which thing a tool has been through."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import xxhash

from loopguard_core._bounded import count, short_text
from loopguard_core._canonical import canonical_json
from loopguard_core._history import History
from loopguard_core._outcome import Change
from loopguard_core.detectors._protocol import Finding, ObservedCall

MAX_THINGS = 8
"""Files, lists and the like that are followed; those read longest ago go first."""

MAX_RANGES = 24
"""Ranges kept of each; neighbours are joined, so a sweep is one."""

_COVERED = 0.8  # share of a page that was read before
_NARROW = 0.5  # a page less than half as wide as the last looks closer at a part, which is no second sweep
_DEFAULT_WIDTH = 100
_START_LENGTH = (("offset", "limit"), ("start", "count"), ("skip", "take"), ("start", "length"), ("offset", "length"), ("from", "size"),
                 ("offset", "count"), ("start_index", "max_length"), ("start", "limit"), ("skip", "limit"), ("start_index", "max_results"))  # fmt: skip
_START_END = (("start_line", "end_line"), ("line_start", "line_end"), ("start", "end"), ("from", "to"), ("from_line", "to_line"),
              ("startLine", "endLine"), ("first", "last"), ("begin", "end"), ("start_row", "end_row"), ("lineStart", "lineEnd"))  # fmt: skip
_PAGE = ("page", "page_number", "pageNumber", "page_no", "page_index")
_RANGE_KEYS = frozenset(
    [
        *(key for pair in (*_START_LENGTH, *_START_END) for key in pair),
        *_PAGE,
        "view_range",
        "page_size",
        "per_page",
        "lines",
    ]
)
_BESIDE = frozenset({"reason", "explanation", "thought", "description", "title", "note"})

Range = tuple[int, int]


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
        if _RANGE_KEYS.isdisjoint(arguments) or "mutates" in call.traits:
            return None
        page = _page(arguments)
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
        return [[key, t.ranges, t.again, t.since, t.last, t.width] for key, t in self._things.items()]

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
    rest = {key: value for key, value in arguments.items() if key not in _RANGE_KEYS and key not in _BESIDE}
    text = f"{tool}\n{canonical_json(rest)}"
    return "#" + xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _page(arguments: dict[Any, Any]) -> Range | None:
    """The half-open range of lines, rows or pages that is asked for; None if there is none to be seen."""
    view = arguments.get("view_range") or arguments.get("lines")
    if isinstance(view, list) and len(view) == 2:
        start, end = _number(view[0]), _number(view[1])
        if start is not None and end is not None and end >= start:
            return start, end + 1
    for first, last in _START_END:
        start, end = _number(arguments.get(first)), _number(arguments.get(last))
        if start is not None and end is not None and end >= start:
            return start, end + 1
    for first, length in _START_LENGTH:
        start, size = _number(arguments.get(first)), _number(arguments.get(length))
        if start is not None and (size or first == "offset"):
            return start, start + (size or _DEFAULT_WIDTH)
    for name in _PAGE:
        page = _number(arguments.get(name))
        if page is not None:
            return page, page + 1
    return None
