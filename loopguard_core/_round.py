"""The round that is running: which calls it has, and what they returned so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from loopguard_core._bounded import SHORT_ID, bounded_key, call_key, short_text
from loopguard_core._failed import judge_error, nothing_done
from loopguard_core._failures import words_of
from loopguard_core._outcome import Result, combine, is_own_words, text_of
from loopguard_core._search_results import packed, result_signature, unpacked
from loopguard_core._traits import Nature
from loopguard_core.detectors import ObservedCall
from loopguard_core.detectors._observed import Past

MAX_CALLS = 40
"""Distinct calls of one round that are followed. Of a larger fan-out those with the smallest hashes are kept, so that
neither order nor luck decides which, and a repeated one keeps the same."""


_TRAITS = 6


class _Slot:
    """One call by its id. Calls that share an id form a chain: providers that reuse one answer in order."""

    __slots__ = ("answered", "call", "next", "result")

    def __init__(self, call: ObservedCall, result: Result | None = None) -> None:
        self.call = call
        self.result = result
        self.answered = result is not None
        self.next: _Slot | None = None


class OpenRound:
    """Collects results until the next round begins, in whatever order and from whatever thread they come.

    Args:
        aware: Whether results are ever compared with what changes by itself masked out.
        nature_of: What is known of a tool, for a round that is restored.
    """

    __slots__ = ("_aware", "_calls", "_nature_of", "_own", "_slots", "_spare", "_unread")

    def __init__(self, *, aware: bool = True, nature_of: Callable[[str], Nature] = lambda _: Nature()) -> None:
        self._aware = aware
        self._nature_of = nature_of
        self._calls: list[ObservedCall] = []
        # Nearly always each call has an id of its own: then its result goes to the call itself, and there are no slots.
        self._own: dict[str, ObservedCall] = {}
        self._slots: dict[str, _Slot] = {}
        self._spare = 0
        self._unread: ObservedCall | _Slot | None = None

    def begin(self, calls: list[ObservedCall]) -> None:
        """Start with the distinct calls that are followed."""
        self._calls = calls
        self._spare = MAX_CALLS - len(calls)

    def begin_with_all(self, calls: list[ObservedCall]) -> None:
        """Start with distinct calls that are all followed, and wait for their results."""
        self._calls = calls
        own = self._own
        for call in calls:
            own[call.call_id] = call
        if len(own) < len(calls):  # some share an id
            own.clear()
            for call in calls:
                self._add(call.call_id, _Slot(call))

    def expect(self, call_id: str, call: ObservedCall, *, duplicate: bool) -> None:
        """Wait for the result of a followed call; of its duplicates only as many are waited for as fit.

        Args:
            call_id: As `call_key` gives it.
            call: The call.
            duplicate: Whether its identity is waited for already.
        """
        if duplicate:
            if self._spare <= 0:
                return
            self._spare -= 1
        self._add(call_id, _Slot(call))

    def _add(self, key: str, slot: _Slot) -> None:
        last = self._slots.setdefault(key, slot)
        if last is not slot:
            while last.next is not None:
                last = last.next
            last.next = slot

    def record(self, call_id: str, output: Any, is_error: bool | None) -> bool:
        """Note a result; the last one for an id counts, and our own refusals are no results.

        Returns:
            False if no call of this round has that id.
        """
        if type(call_id) is not str or len(call_id) > SHORT_ID:
            call_id = call_key(call_id)
        place: ObservedCall | _Slot | None = self._own.get(call_id) or self._slot(call_id)
        if place is None:
            return False
        try:
            if not is_own_words(output):
                call = place.call if isinstance(place, _Slot) else place
                if is_error is None:
                    is_error = judge_error(output) or ("mutates" in call.traits and nothing_done(output))
                place.result = self._result(call, output, is_error)
        except Exception:
            self._unread = place
            raise
        return True

    def count_unread(self, number: int) -> None:
        """Let a result that could not be read count as one that was never there: what is not known proves nothing.

        Args:
            number: The round.
        """
        place, self._unread = self._unread, None
        if place is not None:
            place.result = Result(f"\0{number}", False, None)

    def _slot(self, key: str) -> _Slot | None:
        """The first slot of an id that has no answer yet, else the last."""
        slot = self._slots.get(key) or self._slots.get(bounded_key(key))  # saved state keeps the bounded form
        if slot is not None:
            while slot.answered and slot.next is not None:
                slot = slot.next
            slot.answered = True
        return slot

    def _result(self, call: ObservedCall, output: Any, failed: bool) -> Result:
        nature = call.nature
        text = output if type(output) is str and nature.result_key is None else text_of(output, nature.result_key)
        if not self._aware:
            return Result(text, failed, None)
        if nature.searches:
            call.signature = result_signature(output) | (call.signature or frozenset())
        mask = nature.masker(call.traits)
        if not failed:
            return Result(text, failed, mask)
        return Result(text, failed, mask, words_of(call.tool, call.plain), call.tool)

    def close(self) -> list[ObservedCall]:
        """End the round: each distinct call with its result."""
        calls, self._calls = self._calls, []
        self._own.clear()
        if self._slots:
            results: dict[str, list[Result]] = {}
            for _, slot in self._each():
                if slot.result is not None:
                    results.setdefault(slot.call.identity, []).append(slot.result)
            for call in calls:
                call.result = combine(results.get(call.identity, ()))
            self._slots = {}
        return calls

    def _each(self) -> Iterator[tuple[str, _Slot]]:
        for key, first in self._slots.items():
            slot: _Slot | None = first
            while slot is not None:
                yield key, slot
                slot = slot.next

    def save(self, past: Callable[[str], Past | None] = lambda _: None) -> list[Any]:
        """As plain JSON, so that results may come in after a resume.

        Args:
            past: What is known of an identity.
        """
        own = [(key, call.result, call) for key, call in self._own.items()]
        slots = [(key, slot.result, slot.call) for key, slot in self._each()]
        saved: list[Any] = []
        for key, result, call in own + slots:
            known = None if result is None else past(call.identity)
            steps = None if result is None or known is None else known.steps(result)
            kept = None if result is None else result.save(course=self._aware, look=self._aware, steps=steps)
            saved.append([bounded_key(key), kept, *_saved(call)])
        return saved

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        calls: dict[str, ObservedCall] = {}
        taken = OpenRound()
        try:
            for key, saved, identity, tool, traits, known, refused, *signature in state[:MAX_CALLS]:
                new = ObservedCall(short_text(key), short_text(tool), tool, short_text(identity))
                new.nature = self._nature_of(tool)
                new.traits = frozenset(short_text(trait) for trait in traits[:_TRAITS])
                new.refused = bool(refused)
                new.gist = None if known is None else short_text(known)
                new.signature = unpacked(signature[0]) if signature else None
                slot = _Slot(calls.setdefault(identity, new), None if saved is None else Result.restored(saved))
                taken._add(key, slot)
        except TypeError as error:
            raise ValueError("not a saved round") from error
        self._calls, self._slots = list(calls.values()), taken._slots
        self._spare = 0
        self._own = {}


def _saved(call: ObservedCall) -> list[Any]:
    saved = [call.identity, call.tool_key, sorted(call.traits), call.hashed(), int(call.refused)]
    return saved if call.signature is None else [*saved, packed(call.signature)]
