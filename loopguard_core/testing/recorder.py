"""A plugin that keeps every event, for tests."""

from __future__ import annotations

import threading

from loopguard_core._events import DoomLoopDetected, PostModelCall, SessionEnd
from loopguard_core._hookspec import hookimpl


class Recorder:
    """Keeps every event. Safe to share between runs and threads: `LoopGuard(plugins=[recorder])`.

    Attributes:
        loops: Every `DoomLoopDetected`.
        ends: Every `SessionEnd`.
        model_calls: Every `PostModelCall`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.loops: list[DoomLoopDetected] = []
        self.ends: list[SessionEnd] = []
        self.model_calls: list[PostModelCall] = []

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> None:
        """Keep the event."""
        with self._lock:
            self.loops.append(event)

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        """Keep the event."""
        with self._lock:
            self.ends.append(event)

    @hookimpl
    def post_model_call(self, event: PostModelCall) -> None:
        """Keep the event."""
        with self._lock:
            self.model_calls.append(event)

    def ladder(self) -> list[str]:
        """The actions with their streaks, such as `observe 2`, in order."""
        return [f"{event.action.value} {event.streak}" for event in self.loops]
