"""The round that is running: which calls it has, and what they returned so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopguard_core._bounded import bounded_key, call_key, short_text
from loopguard_core._outcome import combine, is_own_words, judge_error, result_digest
from loopguard_core.detectors import ObservedCall

MAX_CALLS = 72
"""Distinct calls of one round that are followed. Of a larger fan-out those with the smallest hashes are kept, so that
neither order nor luck decides which, and a repeated one keeps the same."""


class _Slot:
    """One call by its id. Calls that share an id form a chain: providers that reuse one answer in order."""

    __slots__ = ("answered", "call", "digest", "next")

    def __init__(self, call: ObservedCall, digest: str | None = None) -> None:
        self.call = call
        self.digest = digest
        self.answered = digest is not None
        self.next: _Slot | None = None


class OpenRound:
    """Collects results until the next round begins, in whatever order and from whatever thread they come."""

    __slots__ = ("_calls", "_slots", "_spare")

    def __init__(self) -> None:
        self._calls: list[ObservedCall] = []
        self._slots: dict[str, _Slot] = {}
        self._spare = 0

    def begin(self, calls: list[ObservedCall]) -> None:
        """Start with the distinct calls that are followed."""
        self._calls = calls
        self._slots = {}
        self._spare = MAX_CALLS - len(calls)

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
        key = call_key(call_id)
        slot = self._slots.get(key) or self._slots.get(bounded_key(key))  # saved state keeps the bounded form
        if slot is None:
            return False
        while slot.answered and slot.next is not None:
            slot = slot.next
        slot.answered = True
        if not is_own_words(output):
            slot.digest = result_digest(output, judge_error(output) if is_error is None else is_error)
        return True

    def close(self) -> list[ObservedCall]:
        """End the round: each distinct call with its outcome."""
        calls, self._calls = self._calls, []
        if len(calls) == 1 and len(self._slots) == 1:  # by far the most common round
            (slot,) = self._slots.values()
            if slot.next is None:
                calls[0].outcome = combine([slot.digest] if slot.digest is not None else ())
                self._slots = {}
                return calls
        digests: dict[str, list[str]] = {}
        for _, slot in self._each():
            if slot.digest is not None:
                digests.setdefault(slot.call.identity, []).append(slot.digest)
        for call in calls:
            call.outcome = combine(digests.get(call.identity, ()))
        self._slots = {}
        return calls

    def _each(self) -> Iterator[tuple[str, _Slot]]:
        for key, first in self._slots.items():
            slot: _Slot | None = first
            while slot is not None:
                yield key, slot
                slot = slot.next

    def save(self) -> list[Any]:
        """As plain JSON, so that results may come in after a resume."""
        return [[bounded_key(key), slot.call.identity, slot.digest, slot.call.tool_key] for key, slot in self._each()]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        calls: dict[str, ObservedCall] = {}
        restored = OpenRound()
        try:
            for key, identity, digest, tool in state[:MAX_CALLS]:
                new = ObservedCall(short_text(key), short_text(tool), tool, short_text(identity))
                slot = _Slot(calls.setdefault(identity, new), None if digest is None else short_text(digest))
                restored._add(key, slot)
        except TypeError as error:
            raise ValueError("not a saved round") from error
        self._calls, self._slots = list(calls.values()), restored._slots
        self._spare = 0
