"""`stagnation`: calls that differ, and work that stands still.

| kind | what is counted | where |
|---|---|---|
| `near_identical` | rounds that ask for the same thing in other words, with the same result | here |
| `rephrased` | one message sent again in new words; one thought, or one plan, written down again | here |
| `same_result` | different arguments, and a result that says something and was there before | here |
| `unmoved` | one check that fails in the same way, whatever was changed in between | here |
| `planning` | rounds that do nothing but write a plan, no item of it done | here |
| `nothing_new` | rounds without any news, waiting left out | here |
| `pages` | pages that were read before | `_pages` |
| `undo` | edits that take back an earlier one | `_edits` |
| `rewrite` | whole files written again, nothing read in between having changed | `_edits` |

Empty and negative results with really different arguments are no evidence, nor are the short acknowledgements of calls
that change something.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

from loopguard_core._bounded import count, short_text
from loopguard_core._history import History
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core._masking import same_words_but_ids
from loopguard_core._outcome import Change, Result
from loopguard_core._shell import command_in
from loopguard_core._similar import (
    BESIDE,
    Likeness,
    gist,
    likeness,
    no_new_words,
    same_words,
    texts_in,
    thought_again,
    without_words_of,
)
from loopguard_core.detectors._edits import Edits
from loopguard_core.detectors._observed import ObservedCall, plain_of
from loopguard_core.detectors._pages import Pages
from loopguard_core.detectors._protocol import CHANGES, REPEATS, Detector, Finding

MAX_TOOLS = 16
"""Tools with something to count; those counted longest ago go first."""

MIN_NOTHING_NEW = 12
_SAYS_SOMETHING = 32  # characters of a result that is more than a yes, a number or "done"
_HEAD = 24
_DONE = re.compile(r"^(?:completed?|done|finished|closed)$|\[[xX]\]|[\u2713\u2714\u2705]")
_LATELY = 3  # rounds within which some result must have come in


class _Row:
    """One tool's rounds in a row that bring the same.

    Attributes:
        length: How many.
        since: Round of the first.
        last: Round of the last.
        varied: True once two of them were not equal to the letter.
        kind: How alike they are.
    """

    __slots__ = ("kind", "last", "length", "since", "varied")

    def __init__(self, length: int, since: int, last: int, varied: bool = False, kind: Likeness = "near") -> None:
        self.length = length
        self.since = since
        self.last = last
        self.varied = varied
        self.kind = kind


class Stagnation(Detector):
    """Counts what does not move on.

    Args:
        history: What the session has seen.
    """

    name: ClassVar[str] = "stagnation"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["stagnation.same_result"]
    wakes_on: ClassVar[int] = REPEATS | CHANGES

    def __init__(self, history: History) -> None:
        self._history = history
        self._near: OrderedDict[str, _Row] = OrderedDict()
        self._same: OrderedDict[str, _Row] = OrderedDict()
        self._pages = Pages(history)
        self._edits = Edits(history)
        self._from = 0
        self._planned = _Row(0, 0, 0)
        self._done = 0

    def describe(self, finding: Finding, tool: str | None) -> str:
        """What stands still."""
        times = finding.streak
        texts = {
            "near_identical": f"`{tool}` was asked for the same thing in {times} rounds in a row, with changes that do"
            " not matter, and the result is the same",
            "rephrased": f"`{tool}` was given the same thought {times} times in new words"
            if finding.evidence.get("thought")
            else f"`{tool}` was asked {'' if finding.evidence.get('question') else 'to send '}the same thing"
            f" {times} times in new words",
            "same_result": f"`{tool}` returned the same result {times} times in a row for different arguments",
            "unmoved": f"`{tool}` fails in the same way for the {times}th time, whatever was changed in between",
            "planning": f"the last {times} rounds did nothing but write down a plan",
            "nothing_new": f"the last {times} rounds brought nothing new",
            "pages": f"`{tool}` read {times} pages in a row that had been read before",
            "undo": f"`{tool}` took back an earlier edit {times} times",
            "rewrite": f"`{tool}` wrote the whole file again {times} times, and nothing read since had changed",
        }
        return texts[str(finding.kind)]

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Look at what each call asks for, and at what the rounds before brought."""
        history = self._history
        findings: list[Finding] = []
        for call in calls:
            arguments = call.arguments
            if type(arguments) is dict:
                if (found := self._pages.begin(call, arguments, number)) is not None:
                    findings.append(found)
                if "mutates" in call.traits and (found := self._edits.begin(call, arguments, number)) is not None:
                    findings.append(found)
            last = history.last_calls.get(call.tool_key)
            if last is not None:
                self._compare(call, last, number, findings)
            if (found := _unmoved(call)) is not None:
                findings.append(found)
        findings += self._planning(calls, number)
        quiet = number - 1 - max(history.last_news, self._from)
        if (
            quiet >= MIN_NOTHING_NEW
            and self._several()
            and history.waiting <= history.last_news
            and history.last_result >= number - _LATELY
        ):
            since = max(history.last_news, self._from) + 1
            evidence = {"rounds": quiet, "since_round": since}
            findings += [
                Finding(quiet, since, call.identity, "nothing_new", evidence, about="!nothing_new", across=True)
                for call in calls
            ]
        return findings

    def _planning(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        row = self._planned
        if not all(call.nature.plans for call in calls):
            return ()
        done = sum(_done(call.plain) for call in calls)
        if row.last != number - 1 or done > self._done:
            row.length, row.since = 0, number
        row.length, row.last, self._done = row.length + 1, number, done
        evidence = {"rounds": row.length, "since_round": row.since}
        return [Finding(row.length, row.since, call.identity, "planning", evidence, about="!plan") for call in calls]

    def _same_row(self, tool: str) -> _Row | None:
        row = self._same.get(tool)
        if row is not None and self._changed_since(tool, row.last):
            del self._same[tool]
            return None
        return row

    def _several(self) -> bool:
        """Whether the last rounds asked for more than one thing: one alone is `repeated_call`'s."""
        return len({request[0] for _, requests, _ in list(self._history.rounds)[-4:] for request in requests}) > 1

    # -- the same thing in other words -------------------------------------------------------------------------

    def _compare(self, call: ObservedCall, last: ObservedCall, number: int, findings: list[Finding]) -> None:
        tool = call.tool_key
        row = self._near.get(tool)
        if row is not None and self._world_changed(call, row):
            self._drop(tool)
            row = None
        same = self._same_row(tool)
        if same is not None and call.identity != last.identity:
            known = {"results": same.length, "since_round": same.since}
            findings.append(
                Finding(same.length, same.since, call.identity, "same_result", known, about=f"={tool[:32]}")
            )
        if row is None and (call.identity == last.identity or not self._worth_a_look(call, last)):
            return  # equal to the letter is `repeated_call`'s
        kind: Likeness | None = "near" if call.identity == last.identity else self._likeness(call, last)
        if kind is None or (row is None and self._changed_since(tool, last.number)):
            self._drop(tool)
            return
        if row is None:
            # What grows by repeating itself is counted by how often it grew.
            row = self._near[tool] = _Row(0 if kind == "grown" else last.run, last.number, last.number)
            if len(self._near) > MAX_TOOLS:
                self._drop(next(iter(self._near)))
        row.length, row.last = row.length + 1, number
        self._history.tracked.add(tool)
        row.varied = row.varied or call.identity != last.identity
        row.kind = "rephrased" if "rephrased" in (kind, row.kind) else "near"
        self._near.move_to_end(tool)
        waits = _pending(last) and (call.lets_time_pass if call.nature.shell else call.holds_handle)
        if row.varied and ("mutates" in call.traits or not waits):
            name = "rephrased" if row.kind == "rephrased" else "near_identical"
            evidence: dict[str, Any] = {"rounds": row.length, "since_round": row.since}
            advice = None
            if call.nature.thinks:
                evidence["thought"], advice = True, "thought"
            elif name == "rephrased" and "reads" in call.traits:
                evidence["question"], advice = True, "near_identical"
            findings.append(
                Finding(row.length, row.since, call.identity, name, evidence, about=f"~{tool[:32]}", advice=advice)
            )

    def _world_changed(self, call: ObservedCall, row: _Row) -> bool:
        """Whether something else was changed since; what the tool itself changes is what is being looked at."""
        if self._changed_since(call.tool_key, row.last):
            return True
        return "mutates" in call.traits and self._history.read_change > row.last

    def _changed_since(self, tool: str, number: int) -> bool:
        return self._history.epoch > number and self._history.epoch_tool != tool

    def _drop(self, tool: str) -> None:
        self._near.pop(tool, None)
        self._history.tracked.discard(tool)

    def _worth_a_look(self, call: ObservedCall, last: ObservedCall) -> bool:
        """Whether to compare it now; mostly likeness shows once its result is there."""
        if call.past is not None or last.run > 1 or _failed(last):
            return True
        if type(call.arguments) is dict and not BESIDE.isdisjoint(call.arguments):
            return True
        if call.nature.thinks:
            return True
        if not call.nature.shell or not last.text or len(call.text) <= len(last.text):
            return False
        before, after = command_in(plain_of(last.text)), command_in(call.plain)
        return before is not None and after is not None and after.startswith(before)

    def _likeness(self, call: ObservedCall, last: ObservedCall) -> Likeness | None:
        if not call.text:
            return None
        after = call.plain
        if not last.text:  # after a resume
            same = last.gist is not None and last.gist == gist(after)
            return "near" if same else None
        if call.nature.thinks:
            return "rephrased" if thought_again(plain_of(last.text), after) else None
        renumbered = self._history.renumbered > last.number > self._history.read_change
        return likeness(
            plain_of(last.text),
            after,
            mutates="mutates" in call.traits,
            hands_over="delegates" in call.traits,
            ui=call.nature.ui and (renumbered or _tells(last)),
            renumbered=renumbered,
            writes=call.nature.writes_files,
        )

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        """Compare what came back with what the tool's call before brought."""
        for call in calls:
            outcome = call.outcome
            result = None if outcome is None else outcome.result
            if outcome is None or result is None:
                continue
            self._pages.close(call)
            self._edits.close(call)
            last = self._history.last_calls.get(call.tool_key)
            before = None if last is None else last.before
            if before is not None and before.result is not None:
                self._settle(call, result, before, before.result)
            tells = "mutates" not in call.traits or (call.nature.ui and not result.acknowledges)
            if result.failed or not tells:
                continue
            if outcome.change is Change.FIRST:
                known = result.digest in self._history.repeated
                self._seen_before(call.tool_key, result, before, known=known)
            elif outcome.change is Change.SAME and (row := self._same.get(call.tool_key)) is not None:
                row.length, row.last = row.length + 1, self._history.number

    def _seen_before(self, tool: str, result: Result, before: ObservedCall | None, *, known: bool) -> None:
        """Count a first result that the tool has given before, for other arguments."""
        if result.size < _SAYS_SOMETHING:
            return  # a yes, a number, a "done" may well be the same for many things
        known = known or (before is not None and _volatile(result, before.result))
        row = self._same.get(tool)
        if not known or result.empty or result.pending:
            if row is not None:
                del self._same[tool]
            return
        if row is None:
            row = self._same[tool] = _Row(1, self._history.number - 1, self._history.number)
            if len(self._same) > MAX_TOOLS:
                self._same.popitem(last=False)
        row.length, row.last = row.length + 1, self._history.number

    def _settle(self, call: ObservedCall, result: Result, before: ObservedCall, earlier: Result) -> None:
        tool = call.tool_key
        row = self._near.get(tool)
        equal = (
            result.digest == earlier.digest
            or _volatile(result, earlier)
            or _reordered(result, earlier)
            or (call.nature.thinks and not result.failed)  # it returns no more than a count of the thoughts
        )
        if not equal and call.identity != before.identity and before.text and call.text:
            equal = self._says_the_same(call, result, before, earlier)
        if row is not None and not equal and not _same(result, earlier):
            self._drop(tool)
        elif self._changed_since(tool, before.number):
            return
        elif row is None and equal and call.identity != before.identity and (kind := self._likeness(call, before)):
            length = 1 if kind == "grown" else 2
            self._near[tool] = _Row(length, before.number, self._history.number, varied=True, kind=kind)
            self._history.tracked.add(tool)

    def _says_the_same(self, call: ObservedCall, result: Result, before: ObservedCall, earlier: Result) -> bool:
        """Whether results differ only as their requests do: in words these repeat, or in how often they say a thing."""
        now, then = result.text, earlier.text
        kind = None if now is None or then is None else self._likeness(call, before)
        if kind is None or now is None or then is None:
            return False
        if kind == "grown":
            return no_new_words(call.nature.mask(now), call.nature.mask(then))
        asked, other = call.plain, plain_of(before.text)
        mask = call.nature.masker(call.traits)
        return mask(without_words_of(now, asked, other)) == mask(without_words_of(then, other, asked))

    # -- in between --------------------------------------------------------------------------------------------

    def user_turn(self) -> None:
        """Forget: a user may well want the same thing again."""
        self._near.clear()
        self._history.tracked.clear()
        self._same.clear()
        self._pages.clear()
        self._edits.clear()
        self._from = self._history.number

    def save(self) -> Any:
        """Every count."""
        rows = [
            [[tool, row.length, row.since, row.last, int(row.varied), row.kind] for tool, row in table.items()]
            for table in (self._near, self._same)
        ]
        return [rows, self._pages.save(), self._edits.save(), self._from, self._plan()]

    def _plan(self) -> list[int]:
        return [self._planned.length, self._planned.since, self._planned.last, self._done]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            rows, pages, edits, began, plan = state
            near, same = (
                OrderedDict(
                    (
                        short_text(tool),
                        _Row(
                            count(length),
                            count(since),
                            count(last),
                            bool(varied),
                            kind if kind in get_args(Likeness) else "near",
                        ),
                    )
                    for tool, length, since, last, varied, kind in table[-MAX_TOOLS:]
                )
                for table in rows
            )
            self._pages.restore(pages)
            self._edits.restore(edits)
            self._from = count(began)
            length, since, at, self._done = map(count, plan)
            self._planned = _Row(length, since, at)
            self._near, self._same = near, same
        except TypeError as error:
            raise ValueError("not a saved state of stagnation") from error


def _unmoved(call: ObservedCall) -> Finding | None:
    past = call.past
    if past is None or not past.same or past.result is None or past.polling:
        return None
    if past.result.failed or not past.result.failing:  # calls that failed are `repeated_failure`'s
        return None
    times = past.same + 2  # the first result, those that were equal, and this request
    return Finding(times, past.first, call.identity, "unmoved", {"times": times, "since_round": past.first})


def _done(plan: Any) -> int:
    """How many items of a plan are done."""
    return sum(len(_DONE.findall(text)) for text in texts_in(plan))


def _tells(last: ObservedCall) -> bool:
    """Whether a step in a user interface returned more than "ok", which it says of the tenth like button, too."""
    return last.result is None or last.result.failed or not last.result.acknowledges


def _failed(last: ObservedCall) -> bool:
    return last.result is not None and last.result.failed


def _pending(last: ObservedCall) -> bool:
    return last.result is not None and not last.result.failed and last.result.pending


def _same(result: Result, earlier: Result) -> bool:
    """Whether two results of different arguments say the same: alike failures, or the same lines."""
    if result.failure is not None and earlier.failure is not None:
        return result.failure.shape == earlier.failure.shape
    if result.same_as(earlier) is not Change.CHANGED:
        return True
    if result.size == earlier.size and same_words(result.text or "", earlier.text or ""):
        return True
    one, other = result.text, earlier.text
    return (
        one is not None and other is not None and set(one.casefold().split("\n")) == set(other.casefold().split("\n"))
    )


def _volatile(result: Result, earlier: Result | None) -> bool:
    """Whether a result is the one before but for what changes by itself; a cheap look first, because few are."""
    if earlier is None or abs(result.size - earlier.size) > _HEAD:
        return False
    one, other = result.text, earlier.text
    if one is None or other is None or (one[:_HEAD] != other[:_HEAD] and one[-_HEAD:] != other[-_HEAD:]):
        return False
    return same_words_but_ids(one, other) and result.masked == earlier.masked


def _reordered(result: Result, earlier: Result) -> bool:
    """Whether two results hold the same characters in another order; again a cheap look first."""
    if result.size != earlier.size or result.size < _SAYS_SOMETHING:
        return False
    one, other = result.text, earlier.text
    return one is not None and other is not None and sorted(one) == sorted(other)
