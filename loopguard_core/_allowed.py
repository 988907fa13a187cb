"""Calls an operator has allowed, whatever the ladders say of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

MAX_ALLOWED = 1_000
"""Fingerprints remembered; the one allowed longest ago goes first."""


class Allowed:
    """Fingerprints of calls that are observed only. Shared by all sessions of a guard."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, int | None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, fingerprint: Any, times: Any) -> None:
        """See `LoopGuard.allow`."""
        if not isinstance(fingerprint, str) or not fingerprint:
            raise ValueError(f"fingerprint = {fingerprint!r:.80}: give the `fingerprint` of a verdict about a call")
        if times is not None and (type(times) is not int or times < 1):
            raise ValueError(f"times = {times!r:.80}: give a whole number from 1, or None for every time")
        with self._lock:
            self._left[fingerprint] = times
            self._left.move_to_end(fingerprint)
            if len(self._left) > MAX_ALLOWED:
                self._left.popitem(last=False)

    def spares(self, fingerprint: str | None, *, refusal: bool) -> bool:
        """Whether a verdict only observes.

        Args:
            fingerprint: Of the call; None for text.
            refusal: Whether the verdict would refuse the call or end the run: only that uses up one of the times.
        """
        if not self._left or fingerprint is None:
            return False
        with self._lock:
            left = self._left.get(fingerprint, 0)
            if left and refusal:
                self._left[fingerprint] = left - 1
                if left == 1:
                    del self._left[fingerprint]
            return left != 0
