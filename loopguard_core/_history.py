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
from loopguard_core._outcome import PLAIN, Change, Outcome, Result
from loopguard_core._ranges import RANGE_STARTS
from loopguard_core._similar import BESIDE, gist
from loopguard_core.detectors._protocol import CHANGES, REPEATS, SEARCHES, ObservedCall, Past, plain_of

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
_NEW = (Change.FIRST, Change.CHANGED)
MAX_HOT = 16
_LULL = 4  # rounds without news
_HOT = 8  # rounds for which a tool is watched after something about it repeated


Request = tuple[str, int]
"""An identity, and the number of the outcome it had."""


class LastCall:
    """The last call of a tool: what the next one is compared with.

    Attributes:
        identity: Of the call.
        text: Its `ObservedCall.text`, where that is small; else empty.
        result: What it returned; None if nothing was recorded.
        number: Its round.
        before: The tool's call before that one.
        run: How often in a row the tool was asked for it.
        gist: After a resume, a hash in place of the arguments.
    """

    __slots__ = ("before", "gist", "identity", "number", "result", "run", "text")

    def __init__(
        self,
        identity: str,
        text: str,
        result: Result | None,
        number: int,
        before: LastCall | None,
        known: str | None = None,
    ) -> None:
        self.identity = identity
        self.text = text
        self.result = result
        self.number = number
        if before is not None:
            before.before = None
        self.before: LastCall | None = before
        self.gist = known
        self.run: int = before.run + 1 if before is not None and before.identity == identity else 1

    def save(self) -> list[Any]:
        """As plain JSON: a hash in place of the arguments."""
        if self.gist is None and self.text:
            self.gist = gist(plain_of(self.text))
        return [self.identity, self.gist, None if self.result is None else self.result.save(), self.number, self.run]

    @classmethod
    def restored(cls, state: Any) -> LastCall:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        identity, saved, result, number, run = state
        last = cls(
            short_text(identity),
            "",
            None if result is None else Result.restored(result),
            count(number),
            None,
            None if saved is None else short_text(saved),
        )
        last.run = count(run)
        return last


class History:
    """What one session has seen so far.

    Attributes:
        rounds: The last rounds, oldest first: number, what was requested in it, whether it brought news.
        news: Rounds that brought news, counted from the start.
        epoch: Round of the last successful new mutation; 0 before the first.
        last_news: The last round that brought news.
        epoch_tool: The tool that made it.
        read_change: The last round in which a reading call's result changed.
        waiting: The last round in which time was let pass, or something not done yet was asked about.
        last_calls: The last call of each tool.
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
        self.waiting = 0
        self.last_calls: OrderedDict[str, LastCall] = OrderedDict()
        self._epoch_by = ""
        self._known: OrderedDict[str, Past] = OrderedDict()
        self._held: OrderedDict[str, Result] = OrderedDict()
        self._bytes = 0
        self._hot: dict[str, int] = {}
        self._failed = False
        self._cues_begun = 0
        self.number = 0
        self.listening = False
        self.results: OrderedDict[str, str] = OrderedDict()
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
                call.past = past
                self._judge(call, past)
                past.polling = call.polling
                if past.polling:
                    self.waiting = number
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
        if type(arguments) is dict and not (RANGE_STARTS.isdisjoint(arguments) and BESIDE.isdisjoint(arguments)):
            return CHANGES
        last = self.last_calls.get(call.tool_key)
        return REPEATS if last is not None and last.run > 1 else 0

    def _watch(self, tool: str) -> None:
        self._hot[tool] = _HOT
        if len(self._hot) > MAX_HOT:
            del self._hot[next(iter(self._hot))]

    def waited(self, past: Past) -> bool:
        """Whether the run has been waiting since an identity was last asked for, so that nothing new is no wonder."""
        return self.waiting > 0 and self.waiting >= past.last

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

    def close(self, calls: Sequence[ObservedCall], number: int) -> int:
        """Take note of what a round brought; each outcome gets its `change`.

        Returns:
            As `begin`.
        """
        cues, news, epoch_by = self._cues_begun, False, None
        if self.listening:
            cues |= REPEATS
        if self._failed and any(call.outcome is not None for call in calls):
            self._failed = False  # what was refused leaves it as it was
        if self.repeated:
            self.repeated.clear()
        for call in calls:
            past = self._place(call, number)
            outcome = call.outcome
            result = None if outcome is None else outcome.result
            if outcome is not None and result is not None:
                change, result = self._note(call, outcome, past, result)
                news = news or change is Change.CHANGED or (change is Change.FIRST and not _says_nothing(result))
                if "mutates" in call.traits and not outcome.failed and change in _NEW:
                    epoch_by, self.epoch_tool = call.identity, call.tool_key
            if call.tool_key in self._hot:
                cues |= REPEATS
            past.refused, past.last = call.refused, number
            past.times += 1
            self._remember_call(call, result, number)
        if news or epoch_by is not None:
            self.news += 1
            self.last_news = number
        if epoch_by is not None:
            self.epoch, self._epoch_by = number, epoch_by
        self._look_back(calls, number, news)
        return cues

    def _note(self, call: ObservedCall, outcome: Outcome, past: Past, result: Result) -> tuple[Change, Result]:
        """Compare a result with what is known, and keep it."""
        if past.result is not None and past.result.digest == result.digest:
            result = outcome.result = past.result  # what is known of it need not be worked out again
        change = outcome.change = self._compare(call, past, result)
        self._hold(call.identity, result)
        digest, results = result.digest, self.results
        if results.get(digest) == call.tool_key:
            self.repeated.add(digest)
        results[digest] = call.tool_key
        if len(results) > MAX_RESULTS:
            results.popitem(last=False)
        return change, result

    def _place(self, call: ObservedCall, number: int) -> Past:
        past = self._known.get(call.identity)
        if past is None:
            past = self._known[call.identity] = Past(number, call.tool_key)
            if len(self._known) > MAX_IDENTITIES:
                self._drop(self._known.popitem(last=False)[0])
        else:
            self._known.move_to_end(call.identity)
        call.past = past
        return past

    def _compare(self, call: ObservedCall, past: Past, result: Result) -> Change:
        """What a result is against the identity's last one; whatever repeats or fails has its tool watched."""
        if past.result is None:
            past.result = result
            if result.failed or self.results.get(result.digest) == call.tool_key or self._may_repeat(call, result):
                self._failed = self._failed or result.failed
                self._watch(call.tool_key)
            return Change.FIRST
        change = past.note(result, result.same_as(past.result))
        self._failed = self._failed or result.failed
        self._watch(call.tool_key)
        past.changes = past.changes + 1 if change in (Change.CHANGED, Change.BACK) else 0
        if change is Change.CHANGED and "reads" in call.traits:
            self.read_change = self.number
        return change

    def _may_repeat(self, call: ObservedCall, result: Result) -> bool:
        """A cheap first look whether a tool gave nearly the same before: few results do."""
        last = self.last_calls.get(call.tool_key)
        earlier = None if last is None else last.result
        if earlier is None or abs(result.size - earlier.size) > _HEAD:
            return False
        one, other = result.text, earlier.text
        return one is not None and other is not None and one[:_HEAD] == other[:_HEAD]

    def _remember_call(self, call: ObservedCall, result: Result | None, number: int) -> None:
        calls, tool = self.last_calls, call.tool_key
        last = calls.get(tool)
        if result is None and last is not None:
            last.run += last.identity == call.identity
            return  # what was refused or lost is no call to compare with
        calls[tool] = LastCall(call.identity, call.text, result, number, last, call.gist)
        if last is not None:
            calls.move_to_end(tool)
        elif len(calls) > MAX_TOOLS:
            calls.popitem(last=False)

    def _look_back(self, calls: Sequence[ObservedCall], number: int, news: bool) -> None:
        requests: list[Request] = []
        for call in calls:
            if call.past is not None:
                call.past.news = self.news
                requests.append((call.identity, call.past.outcome if call.past.earlier else 0))
        if len(requests) > 1:
            requests = sorted(requests)[:_WIDE]
        self.rounds.append((number, tuple(requests), news))

    def _hold(self, identity: str, result: Result) -> None:
        held = self._held.get(identity)
        if held is result:
            return
        if held is not None:
            self._drop(identity)
        size = result.pack() if result.size > PLAIN else result.held
        if size > MAX_HELD // 2:
            result.let_go()
            return
        self._held[identity] = result
        self._bytes += size
        while self._bytes > MAX_HELD:
            self._drop(next(iter(self._held)))

    def _drop(self, identity: str) -> None:
        held = self._held.pop(identity, None)
        if held is not None:
            self._bytes -= held.held
            held.let_go()

    def user_turn(self) -> None:
        """A user spoke: what is known of the world stands, what was counted does not."""
        self.rounds.clear()
        self.last_calls.clear()
        self.results.clear()
        self._hot.clear()

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
            "marks": [self.news, self.last_news, self.epoch, self.read_change, self.waiting],
            "epoch_by": [self._epoch_by, self.epoch_tool],
            "calls": [[tool, last.save()] for tool, last in self.last_calls.items()],
            "hot": [list(row) for row in self._hot.items()],
            "flags": self._failed + 2 * self.listening + 4 * self._cues_begun,
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
            known = OrderedDict(
                (short_text(identity), Past.restored(saved)) for identity, *saved in state["known"][-MAX_IDENTITIES:]
            )
            names = list(known)
            rounds = [
                (count(number), tuple((names[count(i)], count(outcome)) for i, outcome in places[:_WIDE]), bool(new))
                for number, places, new in state["rounds"][-MAX_ROUNDS:]
            ]
            marks = [count(mark) for mark in state["marks"]]
            news, last_news, epoch, read_change, waiting = marks
            epoch_by, epoch_tool = map(short_text, state["epoch_by"])
            calls = [(short_text(tool), LastCall.restored(last)) for tool, last in state["calls"][-MAX_TOOLS:]]
            hot = {short_text(tool): count(left) for tool, left in state["hot"][-MAX_HOT:]}
            flags, number = count(state["flags"]), count(state["number"])
            results = [(short_text(digest), short_text(tool)) for digest, tool in state["results"][-MAX_RESULTS:]]
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("not a saved history") from error
        self.__init__()  # type: ignore[misc]  # afresh, then filled
        self._known = known
        self.rounds.extend(rounds)
        self.news, self.last_news, self.epoch, self.read_change, self.waiting = (
            news,
            last_news,
            epoch,
            read_change,
            waiting,
        )
        self._epoch_by, self.epoch_tool = epoch_by, epoch_tool
        self.last_calls.update(calls)
        self._hot, self.number = hot, number
        self._failed, self.listening = bool(flags & 1), bool(flags & 2)
        self._cues_begun = flags // 4 & (REPEATS | SEARCHES | CHANGES)
        self.results.update(results)
        self.tracked = {short_text(tool) for tool in state["tracked"][:MAX_HOT]}


def _says_nothing(result: Result) -> bool:
    return result.failed or result.empty
