"""A fault of ours must never become the run's."""

from __future__ import annotations

from types import TracebackType

from loopguard_core import LoopGuard


class contained:  # noqa: N801  # reads as a statement: `with contained(guard, "judging a round"):`
    """Note an exception and go on after the block.

    Args:
        guard: Where it is noted.
        label: What failed, for the log.
    """

    __slots__ = ("_guard", "_label")

    def __init__(self, guard: LoopGuard, label: str) -> None:
        self._guard = guard
        self._label = label

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.faults.note(f"gateway {self._label}", error)
        return True
