"""Which part of a file, list or page sequence a call asks for, by the usual names of arguments."""

from __future__ import annotations

import re
from typing import Any

Range = tuple[int, int]
"""Half-open, from 0."""

_DEFAULT_WIDTH = 100
_START_LENGTH = (
    *(("offset", length) for length in ("limit", "length", "count")),
    *(("start", length) for length in ("count", "length", "limit")),
    *(("skip", length) for length in ("take", "limit")),
    *(("start_index", length) for length in ("max_length", "max_results")),
    *(("from", length) for length in ("size", "count", "limit", "length")),
    *(("first", "count"), ("start", "size"), ("start_line", "count"), ("line", "count")),
)
_START_END = (
    *(("start_line", "end_line"), ("line_start", "line_end"), ("from_line", "to_line"), ("startLine", "endLine")),
    *(("lineStart", "lineEnd"), ("start_row", "end_row"), ("start", "end"), ("from", "to"), ("first", "last")),
    *(("begin", "end"), ("from_row", "to_row"), ("first_row", "last_row"), ("from_page", "to_page")),
    *(("start_page", "end_page"), ("first_page", "last_page"), ("row_start", "row_end")),
)
_PAGE = ("page", "page_number", "pageNumber", "page_no", "page_index")
_VIEW = ("view_range", "lines", "line_range", "pages", "page_range", "rows", "row_range", "range")
_WRITTEN = re.compile(r"\s*(\d{1,9})\s*(?:-|–|\.\.|:|,|to)\s*(\d{1,9})\s*")

RANGE_STARTS = frozenset([*(start for start, _ in (*_START_LENGTH, *_START_END)), *_PAGE, *_VIEW])
"""Names of arguments one of which every range has."""

RANGE_KEYS = RANGE_STARTS | {end for _, end in (*_START_LENGTH, *_START_END)} | {"page_size", "per_page"}
"""Names of arguments that say which part is asked for, and not of what."""


def range_of(arguments: dict[Any, Any]) -> Range | None:
    """The range a call asks for; None if there is none to be seen."""
    for name in _VIEW:
        view = arguments.get(name)
        if type(view) is str and len(view) < 32 and (written := _WRITTEN.fullmatch(view)) is not None:
            view = list(written.groups())
        if type(view) is list and len(view) == 2 and (found := _between(view[0], view[1])) is not None:
            return found
    for first, last in _START_END:
        if first in arguments and last in arguments:
            found = _between(arguments[first], arguments[last])
            if found is not None:
                return found
    return _by_length(arguments) or _by_page(arguments)


def _between(first: Any, last: Any) -> Range | None:
    start, end = _number(first), _number(last)
    return (start, end + 1) if start is not None and end is not None and end >= start else None


def _by_length(arguments: dict[Any, Any]) -> Range | None:
    for first, length in _START_LENGTH:
        if first in arguments:
            start, size = _number(arguments[first]), _number(arguments.get(length))
            if start is not None and (size or first == "offset"):
                return start, start + (size or _DEFAULT_WIDTH)
    return None


def _by_page(arguments: dict[Any, Any]) -> Range | None:
    for name in _PAGE:
        if name in arguments and (page := _number(arguments[name])) is not None:
            return page, page + 1
    return None


def _number(value: Any) -> int | None:
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 40 else None
