"""What is known of a call while a detector looks at it, and of an identity that was asked for before."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loopguard_core._bounded import count, short_text
from loopguard_core._outcome import Change, Outcome, Result
from loopguard_core._similar import gist
from loopguard_core._sketch import ANY, HEAD, Steps, another_page, fell
from loopguard_core._traits import UNKNOWN, Nature, Traits

_SMALL = 256
_KEPT = 2048
MAX_OUTCOMES = 4
"""Outcomes of one identity that are known again when they come back."""
_HANDLE = 80
_QUERY = frozenset({"query", "q", "question", "search_query", "search", "keywords", "pattern"})
# What somebody wrote: a status that is told of in it is not its own.
_DOCUMENT = re.compile(
    r"\.(?:md|rst|adoc|tex|docx?|pdf|py|pyi|ipynb|[jt]sx?|mjs|vue|html?|s?css|go|rs|java|kt|rb|php|c|h|cc|cpp|hpp|cs|swift"
    r"|sql|proto|toml)$",
    re.IGNORECASE,
)
_WAITING_KEY = re.compile(
    r"(?:wait|sleep|delay|yield|block|poll)(?:_?(?:s|secs?|seconds|ms|millis|time|for|interval|minutes))*$",
    re.IGNORECASE,
)
_MOVES = re.compile(
    r"\d\s?(?:of|/)\s?\d|\d\s?%|\b(?:remaining|left|progress|eta|processed|copied|completed)\b[\"']?\W{0,3}\d"
    r"|\d\w{0,8}(?: \w{1,16}){0,2} (?:remaining|left|processed|copied|completed)\b",
    re.IGNORECASE,
)
_HANDLE_KEY = re.compile(r"(?:^|_|[a-z])(?:id|session|job|task|handle|pid|run|process|terminal)$", re.IGNORECASE)
_UNKNOWN_NATURE = Nature()


class Past:
    """What is known of an identity that was asked for before.

    Attributes:
        identity: What it is known by.
        tool: The tool's `tool_key`.
        first: Round in which it was first asked for.
        last: Round in which it was last asked for.
        times: Rounds that asked for it.
        changes: Outcomes in a row that differed from the one before.
        same: Outcomes in a row that did not, whatever was changed in between.
        news: Rounds with news in the session, up to and with its last round.
        refused: True if it was refused the last time.
        polling: True if it was a poll when it was last asked for.
        figures: True if nothing but figures has changed so far.
        falling: Which of the first 16 whole numbers fell by up to 20 with each change so far, as bits: what is left.
        moving: True if the last change is of something that gets on: so many of so many, a percentage, what is left, or
            another page altogether.
        result: The last result that was recorded; None before the first.
        earlier: Hashes of the outcomes there were, each with its number, the last one last.
    """

    __slots__ = (
        "changes",
        "earlier",
        "falling",
        "figures",
        "first",
        "identity",
        "last",
        "moving",
        "news",
        "polling",
        "refused",
        "result",
        "same",
        "times",
        "tool",
    )

    def __init__(self, identity: str, tool: str, number: int) -> None:
        self.identity = identity
        self.tool = tool
        self.first = self.last = number
        self.times = self.changes = self.same = self.news = self.falling = 0
        self.refused = self.polling = self.moving = self.figures = False
        self.result: Result | None = None
        self.earlier: Sequence[tuple[str | None, int]] = ()

    @property
    def outcome(self) -> int:
        """Number of the last outcome among those the identity had; 0 for the first."""
        return self.earlier[-1][1] if self.earlier else 0

    def note(self, result: Result, change: Change) -> Change:
        """Take note of a new result.

        Args:
            result: The result.
            change: How it differs from the last one.

        Returns:
            `back` for a change to what was there before; otherwise `change`.
        """
        before, self.result = self.result, result
        self.same = self.same + 1 if change in (Change.SAME, Change.VOLATILE) else 0
        if change is not Change.CHANGED or before is None:
            return change
        first = not self.earlier
        alike = before.figureless is not None and before.figureless == result.figureless
        self.figures = alike and (first or self.figures)
        bits, self.moving = result.sketch.steps or _steps(before, result, alike)
        self.falling = bits & (ANY if first else self.falling) if alike else 0
        earlier = self.earlier or ((before.known_by, 0),)
        digest = result.known_by
        known = next((number for other, number in earlier if other == digest), None)
        number = max(number for _, number in earlier) + 1 if known is None else known
        kept = [row for row in earlier if row[1] != number][-(MAX_OUTCOMES - 1) :]
        self.earlier = (*kept, (digest, number))
        return change if known is None else Change.BACK

    def steps(self, result: Result) -> Steps | None:
        """How a result of a round that is still open differs from the last one; None for the first.

        Worked out when the run is saved, because when it is resumed the text is gone.
        """
        before = self.result
        if before is None or before.digest == result.digest:
            return None
        alike = before.figureless is not None and before.figureless == result.figureless
        return result.sketch.steps or _steps(before, result, alike)

    def save(self) -> list[Any]:
        """As plain JSON."""
        kept = None if self.result is None else self.result.save(course=True)
        numbers = [self.first, self.last, self.times, self.changes, self.news, self.same, self.falling]
        flags = self.refused + 2 * self.polling + 4 * self.figures
        return [self.tool, numbers, flags, kept, [list(row) for row in self.earlier]]

    @classmethod
    def restored(cls, identity: str, state: Any) -> Past:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        tool, numbers, flags, kept, earlier = state
        past = cls(identity, short_text(tool), 0)
        past.first, past.last, past.times, past.changes, past.news, past.same, past.falling = map(count, numbers)
        past.earlier = tuple((short_text(digest), count(number)) for digest, number in earlier[-MAX_OUTCOMES:])
        past.refused, past.polling, past.figures = bool(flags & 1), bool(flags & 2), bool(flags & 4)
        past.result = None if kept is None else Result.restored(kept)
        return past


def _steps(before: Result, result: Result, alike: bool) -> Steps:
    moving = bool(_MOVES.search((result.text or "")[:HEAD])) or another_page(result.lines, before.lines)
    return fell(result.numbers, before.numbers) if alike else 0, moving


@dataclass(eq=False)  # without slots, so that what is rarely set costs nothing: one is made for every call
class ObservedCall:
    """One distinct call of a round, as detectors see it.

    `tool`, `arguments` and `text` are whole while the round is scored. After it a session keeps no argument of the
    caller's, and of the text only what is small, until the tool is called again. A detector that needs more later works
    it out in `begin_round`.

    Attributes:
        call_id: The provider's id.
        tool: The tool's name as the model wrote it.
        tool_key: The name, or a hash of it where it is long or strange: what state is kept under.
        identity: Hash of tool name and loop key; equal identities are the same call.
        arguments: The parsed arguments, or the raw text where they are not JSON.
        text: Tool name, newline and canonical loop key: what `identity` is the hash of.
        refusable: False for a call the SDK cannot refuse.
        nature: What is known of the tool; see `loopguard_core._traits`.
        traits: What is known of this call: a set of `reads`, `mutates`, `polls`, `delegates`; empty if unknown.
        past: What is known of the identity; None the first time.
        fresh: True if the world changed since it was last asked for, so that what accumulated starts afresh.
        probe: True if it had been refused, and is let through once to see whether anything changed.
        refused: True if it was refused in this round. Set after scoring.
        gist: A hash in place of `text`, once it was asked for; see `hashed`.
        signature: Hashes of what a search returned, entry by entry; None for other tools.
        result: What it returned; of several different results in one round, all of them as one; None if no result was
            recorded. Whole when the round is closed.
        change: The result against the last one of the same identity, set when the round is closed; None where outcomes
            are ignored.
        number: Its round, set when it is closed.
        before: The tool's call before that one, for the last call of a tool; see `History.last_calls`.
        run: How often in a row the tool was asked for it, likewise.
        streak: Rounds in a row that contain this identity; set by `repeated_call`.
    """

    call_id: str
    tool: str
    tool_key: str
    identity: str
    arguments: Any = None
    text: str = ""
    refusable: bool = True
    nature: Nature = _UNKNOWN_NATURE
    traits: Traits = UNKNOWN
    result: Result | None = field(default=None, init=False)
    change: Change | None = field(default=None, init=False)
    number: int = field(default=0, init=False)
    before: ObservedCall | None = field(default=None, init=False)
    run: int = field(default=1, init=False)
    streak: int = field(default=1, init=False)
    past: Past | None = field(default=None, init=False)
    fresh: bool = field(default=False, init=False)
    probe: bool = field(default=False, init=False)
    refused: bool = field(default=False, init=False)
    signature: frozenset[int] | None = field(default=None, init=False)
    gist: str | None = field(default=None, init=False)

    @property
    def outcome(self) -> Outcome | None:
        """What it returned, as one value; None if no result was recorded."""
        result = self.result
        return None if result is None else Outcome(result.digest, result.failed, self.change, result)

    def shrink(self, keep: bool = False) -> None:
        """Drop what a hostile model could have made large, and what is not ours.

        Args:
            keep: Whether small arguments stay, as text, until the tool is called again.
        """
        self.arguments = None
        if len(self.text) > _SMALL:
            self.tool, self.call_id = self.tool_key, ""
        if not keep or len(self.text) > _KEPT:
            self.text = ""

    def hashed(self) -> str | None:
        """A hash of what of the arguments counts; None if it was let go before anybody asked for it."""
        if self.gist is None and self.text:
            self.gist = gist(self.plain)
        return self.gist

    @property
    def plain(self) -> Any:
        """What of the arguments counts, as plain JSON; None if it was let go."""
        return plain_of(self.text)

    @property
    def polling(self) -> bool:
        """Whether it asks for something that is not done yet: by its name, or by what it returned the last time.

        A result makes a poll only of a call that does not start things, and whose arguments hold a handle or nothing.
        """
        result = None if self.past is None else self.past.result
        if "polls" in self.traits:
            return result is None or not result.finished
        if self.nature.declared or result is None or result.failed:
            return False
        most = 0 if "mutates" in self.traits else _HANDLE  # what a name says is sent must be nothing
        if type(self.arguments) is dict and _waits(self.arguments):
            return not result.finished and _holds_handle(self.arguments, most)
        if not result.pending:
            return False
        if self.nature.shell:
            return "reads" in self.traits
        return not self.nature.starts and _holds_handle(self.arguments, most)

    @property
    def lets_time_pass(self) -> bool:
        """Whether it sleeps before it looks: in the command, or by an argument."""
        if self.nature.shell:
            return "polls" in self.traits
        return type(self.arguments) is dict and _waits(self.arguments)

    @property
    def only_asks(self) -> bool:
        """Whether its name alone makes it a poll: nothing it returned says that anything is under way."""
        past = self.past
        if past is None or past.result is None or past.result.pending or past.earlier or "polls" not in self.traits:
            return False
        return not self.nature.declared and not self.lets_time_pass

    @property
    def holds_handle(self) -> bool:
        """Whether its arguments are nothing but short values, as those of a question about one thing are."""
        return _holds_handle(self.arguments, _HANDLE)


def _waits(arguments: dict[Any, Any]) -> bool:
    """Whether an argument makes the call itself let time pass: `wait_s = 30`, `yield_ms = 1000`."""
    for key, value in arguments.items():  # a plain loop: this runs whenever a call is made again
        kind = type(value)
        if (kind is int or kind is float) and value > 0:
            name = str(key)
            if name[:1] in "wsdybpWSDYBP" and _WAITING_KEY.match(name):  # few begin as those words do
                return True
    return False


def _holds_handle(arguments: Any, most: int) -> bool:
    """Whether arguments are nothing but short values: ids, names, flags, numbers.

    Args:
        arguments: Of the call.
        most: Characters of a value that is no id. Ids may have more.
    """
    if type(arguments) is not dict:  # a strange mapping may never end
        return arguments is None or arguments == ""
    return all(
        value is None
        or isinstance(value, bool | int | float)
        or (
            isinstance(value, str)
            and not (key in _QUERY and " " in value)
            and not _DOCUMENT.search(value)
            and (len(value) <= most or (len(value) <= _HANDLE and _HANDLE_KEY.search(str(key)[-_HANDLE:])))
        )
        for key, value in arguments.items()
    )


def plain_of(text: str) -> Any:
    """The loop key in `ObservedCall.text`, as plain JSON; None if there is none."""
    try:
        return json.loads(text.partition("\n")[2])
    except ValueError:
        return None
