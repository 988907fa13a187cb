"""What the session has seen: each call's last outcome, what is news, and when the world was changed.

Kept once and read by every detector, so that a healthy round pays for it once. Like them it is a pure state machine:
the same transcript gives the same history.

- **News**: a first result that succeeded and says something, or a changed one.
- **Epoch**: a successful mutation that is new, or whose result is, begins one. What had accumulated before about other
  calls starts afresh.
- **Expiry**: after eight rounds of news without it, a call starts afresh too.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopguard_core._history_state import (
    MAX_HOT,
    MAX_IDENTITIES,
    MAX_RESULTS,
    MAX_TOOLS,
    WIDE,
    HistoryState,
    Request,
)
from loopguard_core._outcome import Change, Result
from loopguard_core._ranges import RANGE_STARTS
from loopguard_core._similar import BESIDE, likeness, same_place
from loopguard_core._sketch import LARGE, SHORT
from loopguard_core._wording import PLAIN
from loopguard_core.detectors._observed import ObservedCall, Past, plain_of
from loopguard_core.detectors._protocol import CHANGES, REPEATS, SEARCHES

MAX_HELD = 16 * 1024
"""Bytes of results held in memory until they can be compared; never saved."""

EXPIRY = 8
"""Rounds of news after which a streak ends. Source: section 5 of the design."""

_TELLING = frozenset({"mutates", "delegates"})
# An enum's members are slow to come by.
_FIRST, _SAME, _VOLATILE, _CHANGED, _BACK = Change.FIRST, Change.SAME, Change.VOLATILE, Change.CHANGED, Change.BACK
_TELLING_FIELDS = RANGE_STARTS | BESIDE
_LULL = 4  # rounds without news
_HOT = 8  # rounds for which a tool is watched after something about it repeated


class History(HistoryState):
    """What one session has seen so far, kept up round by round."""

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
        grown = last.text.endswith('"}') and call.text.startswith(last.text[:-4])
        return REPEATS if last.run > 1 or grown else 0

    def _watch(self, tool: str) -> None:
        self._hot[tool] = _HOT
        if len(self._hot) > MAX_HOT:
            del self._hot[next(iter(self._hot))]

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
                        if before.held or before.size > LARGE:
                            result = call.result = before  # what is known of it need not be worked out again
                        else:
                            result.adopt(before)
                    change = self._compare(call, past, before, result)
                    news = news or change is _CHANGED
                    if result is not before:
                        self._hold(identity, result)
                results[digest] = tool
                if len(results) > MAX_RESULTS:
                    del results[next(iter(results))]
                call.change = change
                if (
                    "mutates" in call.traits
                    and not result.failed
                    and (change is _FIRST or change is _CHANGED)
                    and not (last is not None and self._same_step(call, result, last))
                ):
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
            requests = sorted(requests)[:WIDE]
        self.rounds.append((number, tuple(requests), news))
        return cues

    def _same_step(self, call: ObservedCall, result: Result, last: ObservedCall) -> bool:
        """Whether a step on a screen is the last one again: on elements numbered anew since, or a few pixels off.

        What was looked at in between was as before but for such numbers, so the step had changed nothing. Right after a
        resume that cannot be told: saved state holds no arguments.
        """
        if last.traits.isdisjoint(_TELLING) and last.before is not None:
            last = last.before  # a look with the same tool, such as a screenshot, came between
        if not self.looked_again > last.number > self.read_change or last.result is None or not last.text:
            return False
        if result.masked != last.result.masked:
            return False
        before, after = plain_of(last.text), call.plain
        if same_place(before, after):
            return True
        if not call.nature.ui or self.renumbered <= last.number:
            return False
        return likeness(before, after, mutates=True, ui=True, renumbered=True) == "near"

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
            _ = result.lines  # whether the next one is another page is all that is asked of it later
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
            else:
                self.looked_again = self.number
                if change is _VOLATILE:
                    self.renumbered = self.number
        return change


def _may_repeat(result: Result, earlier: Result | None) -> bool:
    """A cheap first look whether a tool gave nearly the same before: few results do."""
    if earlier is None or not -SHORT <= result.size - earlier.size <= SHORT:
        return False
    if result.digest == earlier.digest:  # all there is to go by after a resume
        return True
    one, other = result.plain, earlier.plain
    if one is not None and other is not None:
        return one[:SHORT] == other[:SHORT] and result.may_be(earlier)
    return _looks_alike(result, earlier)


def _looks_alike(result: Result, earlier: Result) -> bool:
    """The same for results of which one is packed, or gone since a resume."""
    one, other = result.ends, earlier.ends
    if one is not None and other is not None:
        return one[0] == other[0] and result.may_be(earlier)
    then = earlier.look
    now = None if then is None else result.look
    return now is not None and then is not None and (now.head, now.words) == (then.head, then.words)
