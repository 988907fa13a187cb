"""What the session has seen: each call's last outcome, what is news, and when the world was changed.

Kept once and read by every detector, so that a healthy round pays for it once. Like them it is a pure state machine:
the same transcript gives the same history.

- **News**: a first result that succeeded and says something, or a changed one.
- **Epoch**: a successful mutation that is new, or whose result is, begins one. What had accumulated before about other
  calls starts afresh.
- **Expiry**: after eight rounds of news without it, a call starts afresh too.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from loopguard_core._bounded import count, short_text
from loopguard_core._masking import same_words_but_ids
from loopguard_core._outcome import Change, Result
from loopguard_core._ranges import RANGE_STARTS
from loopguard_core._similar import BESIDE, gist
from loopguard_core._wording import PLAIN
from loopguard_core.detectors._observed import ObservedCall, Past
from loopguard_core.detectors._protocol import CHANGES, REPEATS, SEARCHES

MAX_IDENTITIES = 40
"""Identities remembered; those seen longest ago go first. No round has more."""

MAX_TOOLS = 8
"""Tools whose last call is remembered whole."""

MAX_ROUNDS = 64
"""Rounds that are looked back on, for cycles."""

MAX_HELD = 16 * 1024
"""Bytes of results held in memory until they can be compared; never saved."""

EXPIRY = 8
"""Rounds of news after which a streak ends. Source: section 5 of the design."""

_WIDE = 8  # calls of one round that are told apart in the look back
MAX_RESULTS = 32
_HEAD = 24  # characters, and difference in length, by which a result looks like the one before
_TELLING = frozenset({"mutates", "delegates"})
# An enum's members are slow to come by.
_FIRST, _SAME, _VOLATILE, _CHANGED, _BACK = Change.FIRST, Change.SAME, Change.VOLATILE, Change.CHANGED, Change.BACK
_TELLING_FIELDS = RANGE_STARTS | BESIDE
_ALL = REPEATS | SEARCHES | CHANGES
MAX_HOT = 16
_LULL = 4  # rounds without news
_HOT = 8  # rounds for which a tool is watched after something about it repeated


Request = tuple[str, int]
"""An identity, and the number of the outcome it had."""


class History:
    """What one session has seen so far.

    Attributes:
        rounds: The last rounds, oldest first: number, what was requested in it, whether it brought news.
        news: Rounds that brought news, counted from the start.
        epoch: Round of the last successful new mutation; 0 before the first.
        last_news: The last round that brought news.
        epoch_tool: The tool that made it.
        read_change: The last round in which a reading call's result changed.
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

    def begin(self, calls: Sequence[ObservedCall], number: int) -> int:
        """Look the calls of a round up, before anything is scored.

        Returns:
            What there is in it that detectors wake on; see `Detector.wakes_on`.
        """
        self.number = number
        # After a failure everything is looked at: it may be one root across tools.
        cues = REPEATS if self._failed or self.listening else 0
        hot = self._hot
        for call in calls:
            past = self._known.get(call.identity)
            if past is not None:
                call.past, call.identity = past, past.identity  # one copy of the text for all who keep it
                self._judge(call, past)
                past.polling = call.polling
                if past.polling and not call.only_asks:
                    self.waiting = number
                    if call.lets_time_pass:
                        self.slept = number
                # The same round again, and nothing else: counting it is all there is to do.
                if len(calls) > 1 or not self._is_again(call):
                    self._watch(call.tool_key)
                    cues |= REPEATS
            elif hot and (left := hot.get(call.tool_key)):
                cues |= REPEATS
                if left > 1:
                    hot[call.tool_key] = left - 1
                else:
                    del hot[call.tool_key]
            elif not cues & REPEATS:
                cues |= self._cues(call)
        self._cues_begun = cues
        return cues

    def _is_again(self, call: ObservedCall) -> bool:
        last = self.rounds[-1][1] if self.rounds else ()
        return len(last) == 1 and last[0][0] == call.identity and call.tool_key not in self.tracked

    def _cues(self, call: ObservedCall) -> int:
        """How a call that was never asked for before may be part of something that stands still."""
        if self.number - self.last_news > _LULL:
            return REPEATS
        nature = call.nature
        if call.traits and not _TELLING.isdisjoint(call.traits):
            return CHANGES | SEARCHES * nature.searches
        if nature.shell or nature.thinks:
            return CHANGES
        if nature.searches:
            return SEARCHES
        arguments = call.arguments
        if type(arguments) is dict and not _TELLING_FIELDS.isdisjoint(arguments):
            return CHANGES
        last = self.last_calls.get(call.tool_key)
        if last is None:
            return 0
        # What goes on where the text of the last one ended may be that one with more of the same.
        grown = last.text.endswith('"}') and call.text.startswith(last.text[:-2])
        return REPEATS if last.run > 1 or grown else 0

    def _watch(self, tool: str) -> None:
        self._hot[tool] = _HOT
        if len(self._hot) > MAX_HOT:
            del self._hot[next(iter(self._hot))]

    def waited(self, past: Past) -> bool:
        """Whether the run has been waiting since an identity was last asked for, so that nothing new is no wonder."""
        return self.waiting > 0 and self.waiting >= past.last

    def changed_by_others(self, tool: str, number: int) -> bool:
        """Whether another tool changed the world after a round."""
        return self.epoch > number and self.epoch_tool != tool

    def _judge(self, call: ObservedCall, past: Past) -> None:
        """Whether what accumulated about the call starts afresh."""
        last = past.last
        traits = call.traits
        if (
            (self.epoch >= last and self._epoch_by != call.identity)
            or (self.read_change >= last and "reads" not in traits)
            or ("delegates" in traits and self.last_news > last)
        ):
            call.fresh = True
        elif self.news - past.news >= EXPIRY:
            call.fresh, call.probe = True, past.refused

    def close(self, calls: Sequence[ObservedCall], number: int) -> int:  # noqa: C901 - the hot path, in one piece
        """Take note of what a round brought; each result gets its `change`.

        Returns:
            As `begin`.
        """
        cues, news, epoch_by = self._cues_begun, False, None
        if self.listening:
            cues |= REPEATS
        if self._failed and any(call.result is not None for call in calls):
            self._failed = False  # what was refused leaves it as it was
        if self.repeated:
            self.repeated.clear()
        known, last_calls, results, held, watched = self._known, self.last_calls, self.results, self._held, False
        for call in calls:
            identity, tool, result = call.identity, call.tool_key, call.result
            past = known.pop(identity, None)
            if past is None:
                past = Past(identity, tool, number)
                if len(known) >= MAX_IDENTITIES:
                    del known[oldest := next(iter(known))]
                    if (gone := held.pop(oldest, None)) is not None:
                        self._bytes -= gone.held
                        gone.let_go()
            known[identity] = call.past = past  # the one asked for last
            last = last_calls.get(tool)
            if result is not None:
                self.last_result = number
                digest, before = result.digest, past.result
                if given := results.get(digest) == tool:
                    self.repeated.add(digest)
                if before is None:
                    past.result, change, failed = result, _FIRST, result.failed
                    if failed or given or (last is not None and _may_repeat(result, last.result)):
                        self._failed = self._failed or failed
                        self._watch(tool)
                    news = news or not (failed or result.empty)
                    self._hold(identity, result)
                else:
                    if before.digest == digest:
                        result = call.result = before  # what is known of it need not be worked out again
                    change = self._compare(call, past, before, result)
                    news = news or change is _CHANGED
                    if result is not before:
                        self._hold(identity, result)
                results[digest] = tool
                if len(results) > MAX_RESULTS:
                    del results[next(iter(results))]
                call.change = change
                if "mutates" in call.traits and not result.failed and (change is _FIRST or change is _CHANGED):
                    epoch_by, self.epoch_tool = identity, tool
            if tool in self._hot:
                watched = True
            past.refused, past.last = call.refused, number
            past.times += 1
            if last is None:
                if len(last_calls) >= MAX_TOOLS:
                    last_calls.popitem(last=False)
            else:
                again = last.identity == identity
                if result is None:
                    last.run += again
                    continue  # what was refused or lost is no call to compare with
                if again:
                    call.run = last.run + 1
                last.before, call.before = None, last
                last_calls.move_to_end(tool)
            last_calls[tool] = call
            call.number = number
        if watched and not self._nothing_moves(calls, cues):
            cues |= REPEATS
        if news or epoch_by is not None:
            self.news += 1
            self.last_news = number
        if epoch_by is not None:
            self.epoch, self._epoch_by = number, epoch_by
        requests: list[Request] = []
        for call in calls:
            past = known[call.identity]
            past.news = self.news
            requests.append((call.identity, past.outcome if past.earlier else 0))
        if len(requests) > 1:
            requests = sorted(requests)[:_WIDE]
        self.rounds.append((number, tuple(requests), news))
        return cues

    def _nothing_moves(self, calls: Sequence[ObservedCall], cues: int) -> bool:
        """Whether a round was the one before to the letter, result and all, and so was that one.

        Then no detector learns anything from it that it has not been told.
        """
        call, before = calls[0], self._same
        # Where nothing wakes at the beginning of a round, a known call is the same round again.
        self._same = not cues and len(calls) == 1 and call.change is _SAME and call.past is not None
        return before and self._same

    def _hold(self, identity: str, result: Result) -> None:
        """Hold a result's text as long as there is room."""
        held = self._held
        if identity in held:
            self._drop(identity)
        if result.size > PLAIN:
            result.pack()
        if result.held > MAX_HELD // 2:
            result.let_go()
            return
        held[identity] = result
        self._bytes += result.held
        while self._bytes > MAX_HELD:
            self._drop(next(iter(held)))

    def _drop(self, identity: str) -> None:
        held = self._held.pop(identity)
        self._bytes -= held.held
        held.let_go()

    def _compare(self, call: ObservedCall, past: Past, before: Result, result: Result) -> Change:
        """What a result is against the identity's last one; its tool is watched."""
        change = past.note(result, _SAME if result is before else result.same_as(before))
        self._failed = self._failed or result.failed
        self._watch(call.tool_key)
        past.changes = past.changes + 1 if change is _CHANGED or change is _BACK else 0
        if "reads" in call.traits:
            if change is _CHANGED:
                self.read_change = self.number
            elif change is _VOLATILE:
                self.renumbered = self.number
        return change

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
                *(self.renumbered, self.slept, self.waiting, self.last_result),
            ],
            "epoch_by": [self._epoch_by, self.epoch_tool],
            "calls": [[tool, _saved(last)] for tool, last in self.last_calls.items()],
            "hot": [list(row) for row in self._hot.items()],
            "flags": self._failed + 2 * self.listening + 4 * self._cues_begun + 4 * (_ALL + 1) * self._same,
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
                (count(number), tuple((names[count(i)], count(outcome)) for i, outcome in places[:_WIDE]), bool(new))
                for number, places, new in state["rounds"][-MAX_ROUNDS:]
            ]
            marks = [count(mark) for mark in state["marks"]]
            news, last_news, epoch, read_change, renumbered, slept, waiting, last_result = marks
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
        self._epoch_by, self.epoch_tool, self.last_result = epoch_by, epoch_tool, last_result
        self.last_calls.update(calls)
        self._hot, self.number = hot, number
        self._failed, self.listening = bool(flags & 1), bool(flags & 2)
        self._cues_begun, self._same = flags // 4 & _ALL, bool(flags // 4 & (_ALL + 1))
        self.results.update(results)
        self.tracked = {short_text(tool) for tool in state["tracked"][:MAX_HOT]}


def _may_repeat(result: Result, earlier: Result | None) -> bool:
    """A cheap first look whether a tool gave nearly the same before: few results do."""
    if earlier is None or not -_HEAD <= result.size - earlier.size <= _HEAD:
        return False
    if result.digest == earlier.digest:  # all there is to go by after a resume
        return True
    one, other = result.plain or result.text, earlier.plain or earlier.text
    if one is None or other is None or one[:_HEAD] != other[:_HEAD]:
        return False
    return same_words_but_ids(one, other)


def _saved(last: ObservedCall) -> list[Any]:
    """The last call of a tool as plain JSON: a hash in place of the arguments."""
    if last.gist is None and last.text:
        last.gist = gist(last.plain)
    return [last.identity, last.gist, None if last.result is None else last.result.save(), last.number, last.run]


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
