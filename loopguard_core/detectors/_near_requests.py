"""The same thing asked for in other words, with the same result.

Nearly equal arguments, a command that grows by repeating itself, one message, thought or plan in new words.
"""

from __future__ import annotations

from typing import Any

from loopguard_core._outcome import Result
from loopguard_core._shell import command_in
from loopguard_core._similar import (
    BESIDE,
    Likeness,
    likeness,
    no_new_words,
    thought_again,
    without_words_of,
)
from loopguard_core.detectors._equal_results import reordered, says_the_same, volatile
from loopguard_core.detectors._observed import ObservedCall, plain_of
from loopguard_core.detectors._protocol import Finding
from loopguard_core.detectors._rows import MAX_TOOLS, Row, RowsByTool


class NearRequests(RowsByTool):
    """Counts rounds in a row in which a tool is asked for the same thing in other words.

    Args:
        history: What the session has seen.
    """

    def begin(self, call: ObservedCall, last: ObservedCall, number: int) -> Finding | None:
        """Count a call that asks for what its tool's last call asked for; None if it does not."""
        tool = call.tool_key
        row = self._rows.get(tool)
        if row is not None and self._world_changed(call, row):
            self._drop(tool)
            row = None
        if row is None and (call.identity == last.identity or not self._worth_a_look(call, last)):
            return None  # equal to the letter is `repeated_call`'s
        kind: Likeness | None = "near" if call.identity == last.identity else self._likeness(call, last)
        if kind is None or (row is None and self._history.changed_by_others(tool, last.number)):
            self._drop(tool)
            return None
        if row is None:
            # What grows by repeating itself is counted by how often it grew.
            row = self._rows[tool] = Row(0 if kind == "grown" else last.run, last.number, last.number)
            if len(self._rows) > MAX_TOOLS:
                self._drop(next(iter(self._rows)))
        row.length, row.last = row.length + 1, number
        self._history.tracked.add(tool)
        row.varied = row.varied or call.identity != last.identity
        row.kind = "rephrased" if "rephrased" in (kind, row.kind) else "near"
        self._rows.move_to_end(tool)
        waits = _pending(last) and (call.lets_time_pass if call.nature.shell else call.holds_handle)
        return self._finding(call, row) if row.varied and ("mutates" in call.traits or not waits) else None

    def _finding(self, call: ObservedCall, row: Row) -> Finding:
        name = "rephrased" if row.kind == "rephrased" else "near_identical"
        evidence: dict[str, Any] = {"rounds": row.length, "since_round": row.since}
        advice = None
        if call.nature.thinks:
            evidence["thought"], advice = True, "thought"
        elif name == "rephrased" and "reads" in call.traits:
            evidence["question"], advice = True, "near_identical"
        about = f"~{call.tool_key[:32]}"
        return Finding(row.length, row.since, call.identity, name, evidence, about=about, advice=advice)

    def _world_changed(self, call: ObservedCall, row: Row) -> bool:
        """Whether something else was changed since; what the tool itself changes is what is being looked at."""
        if self._history.changed_by_others(call.tool_key, row.last):
            return True
        return "mutates" in call.traits and self._history.read_change > row.last

    def _drop(self, tool: str) -> None:
        self._rows.pop(tool, None)
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
        if not call.text or not last.text:  # after a resume
            known = call.hashed()
            return "near" if known is not None and known == last.hashed() else None
        before, after = plain_of(last.text), call.plain
        if call.nature.thinks:
            return "rephrased" if thought_again(before, after) else None
        renumbered = self._history.renumbered > last.number > self._history.read_change
        return likeness(
            before,
            after,
            mutates="mutates" in call.traits,
            hands_over="delegates" in call.traits,
            ui=call.nature.ui and (renumbered or _tells(last)),
            renumbered=renumbered,
            writes=call.nature.writes_files,
        )

    def close(self, call: ObservedCall, result: Result, before: ObservedCall | None) -> None:
        """Compare what a call returned with what its tool's call before brought."""
        earlier = None if before is None else before.result
        if before is None or earlier is None:
            return
        tool = call.tool_key
        row = self._rows.get(tool)
        equal = (
            result.digest == earlier.digest
            or volatile(result, earlier)
            or reordered(result, earlier)
            or (call.nature.thinks and not result.failed)  # it returns no more than a count of the thoughts
        )
        if not equal and call.identity != before.identity and (row is not None or _prints_or_grows(call, before)):
            equal = self._says_the_same(call, result, before, earlier)
        if row is not None and not equal and not says_the_same(result, earlier):
            self._drop(tool)
        elif self._history.changed_by_others(tool, before.number):
            return
        elif row is None and equal and call.identity != before.identity and (kind := self._likeness(call, before)):
            length = 1 if kind == "grown" else 2
            self._rows[tool] = Row(length, before.number, self._history.number, varied=True, kind=kind)
            self._history.tracked.add(tool)

    def _says_the_same(self, call: ObservedCall, result: Result, before: ObservedCall, earlier: Result) -> bool:
        """Whether results differ only as their requests do: in words these repeat, or in how often they say a thing."""
        now, then = result.text, earlier.text
        if now is None or then is None or not call.text or not before.text:
            return False  # what their requests had different words for is not known after a resume
        kind = self._likeness(call, before)
        if kind is None:
            return False
        if kind == "grown":
            return no_new_words(call.nature.mask(now), call.nature.mask(then))
        asked, other = call.plain, plain_of(before.text)
        mask = call.nature.masker(call.traits)
        return mask(without_words_of(now, asked, other)) == mask(without_words_of(then, other, asked))

    def clear(self) -> None:
        """Forget."""
        super().clear()
        self._history.tracked.clear()


def _tells(last: ObservedCall) -> bool:
    """Whether a step in a user interface returned more than "ok", which it says of the tenth like button, too."""
    return last.result is None or last.result.failed or not last.result.acknowledges


def _failed(last: ObservedCall) -> bool:
    return last.result is not None and last.result.failed


def _pending(last: ObservedCall) -> bool:
    return last.result is not None and not last.result.failed and last.result.pending


def _prints_or_grows(call: ObservedCall, before: ObservedCall) -> bool:
    """A cheap first look whether two results may differ only as their requests do: few do."""
    if not call.text or not before.text:
        return False
    return (call.nature.shell and "echo" in call.text) or call.text.startswith(before.text[:-4])
