"""What is kept of a session's rounds: to be looked up by detectors, saved, and taken up again; see `_history`."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from loopguard_core._bounded import count, short_text
from loopguard_core._outcome import Result
from loopguard_core.detectors._observed import ObservedCall, Past
from loopguard_core.detectors._protocol import CHANGES, REPEATS, SEARCHES

MAX_IDENTITIES = 40
"""Identities remembered; those seen longest ago go first. No round has more."""

MAX_TOOLS = 8
"""Tools whose last call is remembered whole."""

MAX_ROUNDS = 64
"""Rounds that are looked back on, for cycles."""

WIDE = 8
"""Calls of one round that are told apart in the look back."""

MAX_RESULTS = 32
"""Results that are known again by their hash, whatever call they came from."""

MAX_HOT = 16
"""Tools that are watched because something about them repeated."""

ALL = REPEATS | SEARCHES | CHANGES
"""Everything detectors wake on."""


Request = tuple[str, int]
"""An identity, and the number of the outcome it had."""


class HistoryState:
    """What one session has seen so far, to look up, to save and to take up again.

    Attributes:
        rounds: The last rounds, oldest first: number, what was requested in it, whether it brought news.
        news: Rounds that brought news, counted from the start.
        epoch: Round of the last successful new mutation; 0 before the first.
        last_news: The last round that brought news.
        epoch_tool: The tool that made it.
        read_change: The last round in which a reading call's result changed.
        looked_again: The last round in which a reading call's result was as before, but for what changes by itself.
        renumbered: The last round in which a reading call's result differed in what changes by itself alone.
        last_result: The last round in which a result came in.
        slept: The last round that let time pass: a call that waits, or one that sleeps before it looks.
        waiting: The last round in which time was let pass, or something not done yet was asked about.
        last_calls: The last call of each tool that brought a result, as the next one is compared with it: shrunk.
            Each knows the one before it.
        number: The present round.
        results: The last results, by hash: the tool that gave each.
        repeated: Those of the round that was closed last which their tool had given before.
        tracked: Tools that a detector counts something about, also while the same call is repeated to the letter.
        listening: Set by a detector that wants to see rounds in which nothing repeats, too.
    """

    def __init__(self) -> None:
        self.rounds: deque[tuple[int, tuple[Request, ...], bool]] = deque(maxlen=MAX_ROUNDS)
        self.news = 0
        self.last_news = 0
        self.epoch = 0
        self.epoch_tool = ""
        self.read_change = 0
        self.looked_again = 0
        self.renumbered = 0
        self.slept = 0
        self.waiting = 0
        self.last_calls: OrderedDict[str, ObservedCall] = OrderedDict()
        self._epoch_by = ""
        # Plain dictionaries, which keep the order of insertion: what a healthy round fills has to be fast.
        self._known: dict[str, Past] = {}
        self._held: dict[str, Result] = {}
        self._bytes = 0
        self._hot: dict[str, int] = {}
        self._failed = False
        self._same = False
        self._cues_begun = 0
        self.last_result = 0
        self.number = 0
        self.listening = False
        self.results: dict[str, str] = {}
        self.repeated: set[str] = set()
        self.tracked: set[str] = set()

    def past(self, identity: str) -> Past | None:
        """What is known of an identity."""
        return self._known.get(identity)

    def rounds_of(self, since: int, *, identity: str | None = None, tool: str | None = None) -> list[int]:
        """The rounds remembered that a streak consists of, oldest first.

        Args:
            since: Round in which it began.
            identity: Only rounds that asked for this call.
            tool: Only rounds that asked for this tool, as `ObservedCall.tool_key` has it.
        """
        recent = [(number, requests) for number, requests, _ in self.rounds if number >= since]
        if identity is None and tool is None:
            return [number for number, _ in recent]
        wanted = {identity} if identity else {name for name, past in self._known.items() if past.tool == tool}
        return [number for number, requests in recent if not wanted.isdisjoint([name for name, _ in requests])]

    def waited(self, past: Past) -> bool:
        """Whether the run has been waiting since an identity was last asked for, so that nothing new is no wonder."""
        return self.waiting > 0 and self.waiting >= past.last

    def changed_by_others(self, tool: str, number: int) -> bool:
        """Whether another tool changed the world after a round."""
        return self.epoch > number and self.epoch_tool != tool

    def user_turn(self) -> None:
        """A user spoke: what is known of the world stands, what was counted does not."""
        self.rounds.clear()
        self.last_calls.clear()
        self.results.clear()
        self._hot.clear()
        self._same = False

    # -- save and resume ---------------------------------------------------------------------------------------

    def save(self) -> Any:
        """As plain JSON: hashes and counts, no text."""
        index = {identity: place for place, identity in enumerate(self._known)}
        return {
            "known": [[identity, *past.save()] for identity, past in self._known.items()],
            "rounds": [
                [number, places, int(news)]
                for number, requests, news in self.rounds
                if (places := [[index[identity], outcome] for identity, outcome in requests if identity in index])
            ],
            "marks": [
                *(self.news, self.last_news, self.epoch, self.read_change),
                *(self.looked_again, self.renumbered, self.slept, self.waiting, self.last_result),
            ],
            "epoch_by": [self._epoch_by, self.epoch_tool],
            "calls": [[tool, _saved(last)] for tool, last in self.last_calls.items()],
            "hot": [list(row) for row in self._hot.items()],
            "flags": self._failed + 2 * self.listening + 4 * self._cues_begun + 4 * (ALL + 1) * self._same,
            "results": [list(row) for row in self.results.items()],
            "number": self.number,
            "tracked": sorted(self.tracked)[:MAX_HOT],
        }

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            known = {
                short_text(identity): Past.restored(identity, saved)
                for identity, *saved in state["known"][-MAX_IDENTITIES:]
            }
            names = list(known)
            rounds = [
                (count(number), tuple((names[count(i)], count(outcome)) for i, outcome in places[:WIDE]), bool(new))
                for number, places, new in state["rounds"][-MAX_ROUNDS:]
            ]
            marks = [count(mark) for mark in state["marks"]]
            news, last_news, epoch, read_change, looked_again, renumbered, slept, waiting, last_result = marks
            epoch_by, epoch_tool = map(short_text, state["epoch_by"])
            calls = [(short_text(tool), _restored(tool, last)) for tool, last in state["calls"][-MAX_TOOLS:]]
            hot = {short_text(tool): count(left) for tool, left in state["hot"][-MAX_HOT:]}
            flags, number = count(state["flags"]), count(state["number"])
            results = [(short_text(digest), short_text(tool)) for digest, tool in state["results"][-MAX_RESULTS:]]
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("not a saved history") from error
        self.__init__()  # type: ignore[misc]  # afresh, then filled
        self._known = known
        self.rounds.extend(rounds)
        self.news, self.last_news, self.epoch, self.waiting = news, last_news, epoch, waiting
        self.read_change, self.renumbered, self.slept = read_change, renumbered, slept
        self.looked_again = looked_again
        self._epoch_by, self.epoch_tool, self.last_result = epoch_by, epoch_tool, last_result
        self.last_calls.update(calls)
        self._hot, self.number = hot, number
        self._failed, self.listening = bool(flags & 1), bool(flags & 2)
        self._cues_begun, self._same = flags // 4 & ALL, bool(flags // 4 & (ALL + 1))
        self.results.update(results)
        self.tracked = {short_text(tool) for tool in state["tracked"][:MAX_HOT]}


def _saved(last: ObservedCall) -> list[Any]:
    """The last call of a tool as plain JSON: a hash in place of the arguments."""
    kept = None if last.result is None else last.result.save(look=True)
    return [last.identity, last.hashed(), kept, last.number, last.run]


def _restored(tool: str, state: Any) -> ObservedCall:
    """Take over what `_saved` gave.

    Raises:
        ValueError: Not such a state.
    """
    identity, known, result, number, run = state
    last = ObservedCall("", tool, tool, short_text(identity))
    last.gist = None if known is None else short_text(known)
    last.result = None if result is None else Result.restored(result)
    last.number, last.run = count(number), count(run)
    return last
