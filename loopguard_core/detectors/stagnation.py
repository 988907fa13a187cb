"""`stagnation`: calls that differ, and work that stands still.

| kind | what is counted | where |
|---|---|---|
| `near_identical` | rounds that ask for the same thing in other words, with the same result | `_near_requests` |
| `rephrased` | one message sent again in new words; one thought, or one plan, written down again | `_near_requests` |
| `same_result` | different arguments, and a result that says something and was there before | `_equal_results` |
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
from collections.abc import Sequence
from typing import Any, ClassVar

from loopguard_core._bounded import count
from loopguard_core._history import History
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core._similar import texts_in
from loopguard_core.detectors._edits import Edits
from loopguard_core.detectors._equal_results import EqualResults
from loopguard_core.detectors._near_requests import NearRequests
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._pages import Pages
from loopguard_core.detectors._protocol import CHANGES, REPEATS, Detector, Finding
from loopguard_core.detectors._rows import Row

MIN_NOTHING_NEW = 12
_DONE = re.compile(r"^(?:completed?|done|finished|closed)$|\[[xX]\]|[\u2713\u2714\u2705]")
_LATELY = 3  # rounds within which some result must have come in


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
        self._near = NearRequests(history)
        self._same = EqualResults(history)
        self._pages = Pages(history)
        self._edits = Edits(history)
        self._from = 0
        self._planned = Row(0, 0, 0)
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
                both = (self._same.begin(call, last), self._near.begin(call, last, number))
                findings += [found for found in both if found is not None]
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

    def _several(self) -> bool:
        """Whether the last rounds asked for more than one thing: one alone is `repeated_call`'s."""
        return len({request[0] for _, requests, _ in list(self._history.rounds)[-4:] for request in requests}) > 1

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
            self._near.close(call, result, before)
            self._same.close(call, result, before)

    # -- in between --------------------------------------------------------------------------------------------

    def user_turn(self) -> None:
        """Forget: a user may well want the same thing again."""
        self._near.clear()
        self._same.clear()
        self._pages.clear()
        self._edits.clear()
        self._planned, self._done = Row(0, 0, 0), 0
        self._from = self._history.number

    def save(self) -> Any:
        """Every count."""
        rows = [self._near.save(), self._same.save()]
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
            near, same = rows
            self._near.restore(near)
            self._same.restore(same)
            self._pages.restore(pages)
            self._edits.restore(edits)
            self._from = count(began)
            length, since, at, self._done = map(count, plan)
            self._planned = Row(length, since, at)
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
