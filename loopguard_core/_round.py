"""The round that is running: which calls it has, and what they returned so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loopguard_core._bounded import bounded_key
from loopguard_core._outcome import combine, is_own_words, judge_error, result_digest
from loopguard_core.detectors import ObservedCall

MAX_CALLS = 96
"""Distinct calls of one round that are followed. Of a larger fan-out those with the smallest hashes are kept, so that
neither order nor luck decides which, and a repeated one keeps the same."""


class _Slot:
    """One call by its id; several may share an identity."""

    __slots__ = ("call", "digest")

    def __init__(self, call: ObservedCall, digest: str | None = None) -> None:
        self.call = call
        self.digest = digest


class OpenRound:
    """Collects results until the next round begins, in whatever order and from whatever thread they come."""

    __slots__ = ("_calls", "_slots")

    def __init__(self) -> None:
        self._calls: list[ObservedCall] = []
        self._slots: dict[str, list[_Slot]] = {}

    def begin(self, calls: list[ObservedCall]) -> None:
        """Start with the distinct calls that are followed."""
        self._calls = calls
        self._slots = {}

    def expect(self, call_id: str, call: ObservedCall) -> None:
        """Wait for the result of a call."""
        self._slots.setdefault(bounded_key(call_id), []).append(_Slot(call))

    def record(self, call_id: str, output: Any, is_error: bool | None) -> bool:
        """Note a result; the last one for an id counts, and our own refusals are no results.

        Returns:
            False if no call of this round has that id.
        """
        slots = self._slots.get(bounded_key(call_id))
        if not slots:
            return False
        # Providers that reuse an id within a round answer in order.
        slot = next((slot for slot in slots if slot.digest is None), slots[-1])
        if not is_own_words(output):
            slot.digest = result_digest(output, judge_error(output) if is_error is None else is_error)
        return True

    def close(self) -> list[ObservedCall]:
        """End the round: each distinct call with its outcome."""
        calls, self._calls = self._calls, []
        digests: dict[str, list[str]] = {}
        for slot in self._all():
            if slot.digest is not None:
                digests.setdefault(slot.call.identity, []).append(slot.digest)
        for call in calls:
            call.outcome = combine(digests.get(call.identity, ()))
        self._slots = {}
        return calls

    def _all(self) -> Iterable[_Slot]:
        return (slot for slots in self._slots.values() for slot in slots)

    def save(self) -> list[Any]:
        """As plain JSON, so that results may come in after a resume."""
        rows = [
            [key, slot.call.identity, slot.digest, bounded_key(slot.call.tool)]
            for key, slots in self._slots.items()
            for slot in slots
        ]
        return rows[:MAX_CALLS]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        calls: dict[str, ObservedCall] = {}
        slots: dict[str, list[_Slot]] = {}
        try:
            for key, identity, digest, tool in state:
                call = calls.setdefault(str(identity), ObservedCall(str(key), str(tool), str(identity)))
                slot = _Slot(call, None if digest is None else str(digest))
                slots.setdefault(str(key), []).append(slot)
        except TypeError as error:
            raise ValueError("not a saved round") from error
        self._calls, self._slots = list(calls.values()), slots
