"""A fault of ours must never become the run's."""

from __future__ import annotations

from contextlib import AbstractContextManager

from loopguard_core import LoopGuard


def contained(guard: LoopGuard, label: str) -> AbstractContextManager[None, bool]:
    """Note an exception and go on after the block; only a stop passes.

    Args:
        guard: Where it is noted.
        label: What failed, for the log.
    """
    return guard.faults.contained(f"openai_agents {label}")
