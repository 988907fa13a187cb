"""Edits that take each other back, and files written again and again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import xxhash

from loopguard_core._bounded import count, short_text
from loopguard_core._canonical import canonical_json
from loopguard_core._history import EXPIRY, History
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._protocol import Finding

MAX_EDITS = 32
"""Edits remembered, the oldest going first."""

MAX_FILES = 8
"""Files whose rewrites are counted."""

_SEESAW = 2  # a lap: from then on what follows was there before, if nothing else moves
_MAX_PENDING = 16  # edits of one round

_OLD = ("old_string", "old_str", "old_text", "old", "search", "find", "before", "original", "from", "o", "pattern")
_NEW = ("new_string", "new_str", "new_text", "new", "replace", "replacement", "after", "updated", "to", "with", "n")
_CONTENT = ("content", "contents", "file_text", "text", "body", "data", "code", "source")
_PATH = ("path", "file_path", "filepath", "file", "filename", "target_file", "p", "uri", "name")
_BESIDE = frozenset(
    {"reason", "explanation", "thought", "description", "title", "instruction", "instructions", "count"}
)


class _Count:
    """How often something was done to one file.

    Attributes:
        times: How often.
        since: Round of the first time.
        last: Round of the last time.
        news: Rounds with news at the last time.
        size: Characters that were written the last time.
        content: Hash of what was written the last time.
    """

    __slots__ = ("content", "last", "news", "since", "size", "times")

    def __init__(
        self, content: str = "", times: int = 0, since: int = 0, last: int = 0, news: int = 0, size: int = 0
    ) -> None:
        self.times, self.since, self.last, self.news = times, since, last, news
        self.size, self.content = size, content


class Edits:
    """Counts undone edits and rewritten files.

    Args:
        history: What the session has seen.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._edits: OrderedDict[str, str] = OrderedDict()
        self._undone: OrderedDict[str, _Count] = OrderedDict()
        self._written: OrderedDict[str, _Count] = OrderedDict()
        self._pending: dict[str, tuple[str, str]] = {}
        self._number = 0

    def begin(self, call: ObservedCall, arguments: dict[Any, Any], number: int) -> Finding | None:
        """Count what a mutating call is about to do; None if it is neither an undo nor a rewrite."""
        if number != self._number:
            self._pending.clear()  # what had no result by now has none
            self._number = number
        old, new = _value(arguments, _OLD), _value(arguments, _NEW)
        if old is not None and new is not None and old != new:
            return self._edit(call, arguments, _hash(old), _hash(new), number)
        content = _value(arguments, _CONTENT)
        if content is not None and call.nature.writes_files and (thing := _thing(arguments)) is not None:
            return self._rewrite(call, _hash(f"{call.tool_key}\n{thing}"), content, number)
        return None

    def _edit(self, call: ObservedCall, arguments: dict[Any, Any], old: str, new: str, number: int) -> Finding | None:
        rest = {key: value for key, value in arguments.items() if key not in (*_OLD, *_NEW) and key not in _BESIDE}
        file = _hash(canonical_json(rest))
        if len(self._pending) < _MAX_PENDING:
            self._pending[call.identity] = (f"{file}{old}{new}", file)
        if f"{file}{new}{old}" not in self._edits:
            return None
        undone = self._undone.get(file)
        if undone is None or self._history.news - undone.news >= EXPIRY:
            undone = self._undone[file] = _Count(since=number)
            if len(self._undone) > MAX_FILES:
                self._undone.popitem(last=False)
        if undone.last != number:
            # To and fro with a new figure each time is a comparison, and a seesaw brings back what was there before.
            measured = undone.times >= _SEESAW and self._history.last_news > undone.last
            undone.times += not measured
            undone.last, undone.news = number, self._history.news
        evidence = {"undone": undone.times, "since_round": undone.since}
        return Finding(undone.times, undone.since, call.identity, "undo", evidence, about=f"<{file}")

    def _rewrite(self, call: ObservedCall, file: str, content: str, number: int) -> Finding | None:
        written = self._written.get(file)
        # What was read since and had changed is progress; so is the same text with more behind it.
        grown = (
            written is not None and len(content) > written.size and _hash(content[: written.size]) == written.content
        )
        if written is None or grown or self._history.read_change > written.last:
            written = self._written[file] = _Count(since=number)
            self._written.move_to_end(file)
            if len(self._written) > MAX_FILES:
                self._written.popitem(last=False)
        if written.last != number:
            written.times, written.last = written.times + 1, number
            written.size, written.content = len(content), _hash(content)
        evidence = {"rewrites": written.times, "since_round": written.since}
        return Finding(written.times, written.since, call.identity, "rewrite", evidence, about=f">{file}")

    def close(self, call: ObservedCall) -> None:
        """Only an edit that succeeded can be undone."""
        edit = self._pending.pop(call.identity, None)
        if edit is None or call.outcome is None or call.outcome.failed:
            return
        self._edits[edit[0]] = edit[1]
        self._edits.move_to_end(edit[0])
        if len(self._edits) > MAX_EDITS:
            self._edits.popitem(last=False)

    def clear(self) -> None:
        """Forget what was counted. Edits stand: taking one back is still taking it back."""
        self._undone.clear()
        self._written.clear()

    def save(self) -> Any:
        """As plain JSON, hashes only."""
        tables = [
            [[key, c.content, c.times, c.since, c.last, c.news, c.size] for key, c in table.items()]
            for table in (self._undone, self._written)
        ]
        pending = [[identity, *edit] for identity, edit in self._pending.items()]
        return [[list(row) for row in self._edits.items()], tables, pending, self._number]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
            TypeError: Not such a state.
        """
        edits, tables, pending, number = state
        self._number = count(number)
        self._pending = {
            short_text(identity): (short_text(edit, 64), short_text(file))
            for identity, edit, file in pending[:_MAX_PENDING]
        }
        self._edits = OrderedDict((short_text(edit, 64), short_text(file)) for edit, file in edits[-MAX_EDITS:])
        self._undone, self._written = (
            OrderedDict(
                (short_text(key), _Count(short_text(content), *map(count, numbers)))
                for key, content, *numbers in table[-MAX_FILES:]
            )
            for table in tables
        )


def _thing(arguments: dict[Any, Any]) -> str | None:
    """What is written: the file, or whatever else is named beside the content."""
    path = _value(arguments, _PATH)
    if path is not None:
        return path
    rest = {key: value for key, value in arguments.items() if key not in (*_CONTENT, *_BESIDE)}
    return canonical_json(rest) if rest else None


def _value(arguments: dict[Any, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
    return None


def _hash(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
