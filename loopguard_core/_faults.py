"""Faults of our own, or of code plugged into us: logged once each, counted, never the end of a run."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from types import TracebackType

from loopguard_core._errors import LoopGuardStop

logger = logging.getLogger("loopguard")

MAX_LABELS = 256
"""Labels that are told apart; the rest are counted together."""


class Faults:
    """Counts contained faults by a short label.

    The log names the exception's class and where it was raised. Its text is left out, because it may quote arguments.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def note(self, label: str, error: BaseException | None = None, *, text: str = "", always: bool = False) -> None:
        """Count a fault, and log it if it is the first with this label.

        Args:
            label: What failed, for example `begin_round` or `plugin alerts`; one of few values.
            error: The exception, if there is one.
            text: What to do about it, or what follows from it.
            always: Log it every time: for what each run must say for itself, such as spending that was lost.
        """
        with self._lock:
            if label not in self._counts and len(self._counts) >= MAX_LABELS:  # labels may name tools
                label = "others"
            self._counts[label] += 1
            first = self._counts[label] == 1
        if not first and not always:
            return
        if error is None:
            logger.warning("%s: %s", label, text or "failed")
            return
        frames = "".join(traceback.format_tb(error.__traceback__))
        tail = f" {text}" if text else " The run goes on without it."
        logger.error("%s failed with %s.%s\n%s", label, type(error).__name__, tail, frames)

    @property
    def counts(self) -> dict[str, int]:
        """How often each label was noted."""
        with self._lock:
            return dict(self._counts)

    def contained(self, label: str) -> Contained:
        """Note an exception of the block and go on behind it; only a stop passes.

        Args:
            label: What failed, for the log; one of few values.
        """
        return Contained(self, label)


class Contained:
    """What `Faults.contained` gives: `with guard.faults.contained("reading a message"):`."""

    __slots__ = ("_faults", "_label")

    def __init__(self, faults: Faults, label: str) -> None:
        self._faults = faults
        self._label = label

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, LoopGuardStop):
            return False
        self._faults.note(self._label, error)
        return True
