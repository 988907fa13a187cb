"""What a session may still use. Nested runs share the cost, tokens, time and tool calls of those around them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

from loopguard_core._limits import ActiveClock, Breach, Counters
from loopguard_core._policy import Limits
from loopguard_core._types import Usage


class Budget:
    """The counters of one session and the caps on them.

    Args:
        limits: The caps.
        clock: Counts active seconds.
        outer: The budget of the run this one is nested in.

    Attributes:
        limits: The caps.
        clock: Counts active seconds.
        counters: What was used.
        lock: Guards the session. Locks of nested sessions are only ever taken from the inside out.
        free: Whether nothing at all caps it.
        refused_calls: Whether a call was refused for want of room; the run then ends before its next model call.
    """

    def __init__(self, limits: Limits, clock: ActiveClock, outer: Budget | None) -> None:
        self.limits = limits
        self.clock = clock
        self.counters = Counters()
        self.lock = threading.RLock()
        self.refused_calls = False
        self._outer = outer
        self.free = outer is None and all(value is None for _, value in limits)

    def _outers(self) -> Iterator[Budget]:
        outer = self._outer
        while outer is not None:
            yield outer
            outer = outer._outer  # noqa: SLF001  # another instance of this class

    @property
    def counts_usage(self) -> bool:
        """Whether a cap depends on what model calls report."""
        return self.limits.tokens is not None or self.limits.cost is not None

    def add(self, usage: Usage) -> None:
        """Count what a model call used, here and in every run around this one."""
        self.counters.add(usage)
        for outer in self._outers():
            with outer.lock:
                outer.counters.add(usage)

    def take_tool_call(self) -> bool:
        """Count a call that is let through; False if a cap, here or around, leaves no room for it."""
        if self._outer is None and self.limits.tool_calls is None:
            self.counters.tool_calls += 1
            return True
        with ExitStack() as locks:  # checked and counted in one step
            for outer in self._outers():
                locks.enter_context(outer.lock)
            if self._used_up_tool_calls() is not None:
                self.refused_calls = True
                return False
            for budget in (self, *self._outers()):
                budget.counters.tool_calls += 1
            return True

    def _used_up_tool_calls(self) -> int | None:
        for budget in (self, *self._outers()):
            limit = budget.limits.tool_calls
            if limit is not None and budget.counters.tool_calls >= limit:
                return limit
        return None

    def breach(self) -> Breach | None:
        """The cap, here or around, that leaves no room for another model call."""
        breach = self.counters.breach(self.limits, self.clock.seconds)
        if breach is None and self.refused_calls:
            limit = self._used_up_tool_calls()
            breach = Breach("max_tool_calls", limit, "tool calls", limit)
        for outer in self._outers():
            breach = breach or outer.counters.breach(outer.limits, outer.clock.seconds, turns=False)
        return breach

    def last_round_over(self) -> Breach | None:
        """The cap on turns, if the last round was already begun."""
        limit, used = self.limits.turns, self.counters.turns
        return None if limit is None or used < limit else Breach("max_turns", limit, "turns", used)
