"""What a session may still use. Nested runs share the cost, tokens, time and tool calls of those around them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal

from loopguard_core._dollars import dollars_text, total
from loopguard_core._limits import ActiveClock, Breach, Counters
from loopguard_core._policy import Limits
from loopguard_core._types import Usage


class Budget:
    """The counters of one session and the caps on them.

    Args:
        limits: The caps.
        clock: Counts active seconds.
        outer: The budget of the run this one is nested in.
        keyed: Whether the run spends on a key.

    Attributes:
        limits: The caps.
        clock: Counts active seconds.
        counters: What was used.
        lock: Guards the session. Locks of nested sessions are only ever taken from the inside out.
        free: Whether nothing at all caps it.
        priced: Whether anybody, here or around, wants to know what model calls cost.
        reserves: Whether a cap, here or around, wants room for the most a model call can use.
        refused_calls: Whether a call was refused for want of room; the run then ends before its next model call.
    """

    def __init__(self, limits: Limits, clock: ActiveClock, outer: Budget | None, *, keyed: bool = False) -> None:
        self.limits = limits
        self.clock = clock
        self.counters = Counters()
        self.lock = threading.RLock()
        self.refused_calls = False
        self._outer = outer
        self._keyed = keyed
        self._held: tuple[Decimal, int] = (Decimal(0), 0)
        self._held_inside: tuple[Decimal, int] = (Decimal(0), 0)
        caps = (limits.turns, limits.cost, limits.tokens, limits.seconds, limits.tool_calls)
        self.free = outer is None and all(cap is None for cap in caps) and not (keyed and limits.unpriced == "deny")
        self.priced: bool = keyed or limits.cost is not None or (outer is not None and outer.priced)
        self.reserves: bool = limits.reserve or (outer is not None and outer.reserves)

    def _outers(self) -> Iterator[Budget]:
        outer = self._outer
        while outer is not None:
            yield outer
            outer = outer._outer  # noqa: SLF001  # another instance of this class

    @property
    def counts_usage(self) -> bool:
        """Whether a cap, here or around, depends on what model calls report."""
        return self.priced or any(budget.limits.tokens is not None for budget in (self, *self._outers()))

    def add(self, usage: Usage) -> None:
        """Count what a model call used, here and in every run around this one."""
        self.counters.add(usage)
        for outer in self._outers():
            with outer.lock:
                outer.counters.add(usage)

    def add_unpriced(self) -> None:
        """Count a model call whose cost nobody knows, here and in every run around this one."""
        self.counters.unpriced += 1
        for outer in self._outers():
            with outer.lock:
                outer.counters.unpriced += 1

    # -- room for the next model call --------------------------------------------------------------------------

    def hold(self, cost: Decimal, tokens: int) -> Breach | None:
        """Hold the most the next model call can use, here and around: everywhere, or nowhere.

        Args:
            cost: US dollars; 0 where nobody can say.
            tokens: Input and output together; 0 where nobody can say.

        Returns:
            The cap that reserves and has no room for it.
        """
        self.release()
        with ExitStack() as locks:  # checked and held in one step
            for outer in self._outers():
                locks.enter_context(outer.lock)
            for budget in (self, *self._outers()):
                breach = budget._no_room(cost, tokens)  # noqa: SLF001  # another instance of this class
                if breach is not None:
                    return breach
            for budget in (self, *self._outers()):
                budget._hold_inside(cost, tokens)  # noqa: SLF001  # see above
        self._held = (cost, tokens)
        return None

    def release(self) -> None:
        """The model call is over, or did not start: what it held goes back."""
        (cost, tokens), self._held = self._held, (Decimal(0), 0)
        if not cost and not tokens:
            return
        self._hold_inside(-cost, -tokens)
        for outer in self._outers():
            with outer.lock:
                outer._hold_inside(-cost, -tokens)  # noqa: SLF001  # see above

    def _hold_inside(self, cost: Decimal, tokens: int) -> None:
        held_cost, held_tokens = self._held_inside
        self._held_inside = (total(held_cost, cost), held_tokens + tokens)

    def _no_room(self, cost: Decimal, tokens: int) -> Breach | None:
        limits, counters = self.limits, self.counters
        if not limits.reserve:
            return None
        held_cost, held_tokens = self._held_inside
        if limits.cost is not None and total(total(counters.cost, held_cost), cost) > limits.cost:
            held = f" and {dollars_text(held_cost)} held by running calls" if held_cost else ""
            text = (
                f"the next model call may cost {dollars_text(cost)}, and of the limit of {dollars_text(limits.cost)}"
                f" {dollars_text(counters.cost)} is spent{held}"
            )
            return Breach("max_cost", limits.cost, "US dollars", counters.cost, text)
        used = counters.tokens
        if limits.tokens is not None and used + held_tokens + tokens > limits.tokens:
            held = f" and {held_tokens} held by running calls" if held_tokens else ""
            most = f"the next model call may use {tokens} tokens"
            text = f"{most}, and of the limit of {limits.tokens} {used} are used{held}"
            return Breach("max_tokens", limits.tokens, "tokens", used, text)
        return None

    # -- used up -----------------------------------------------------------------------------------------------

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
        for budget in (self, *self._outers()) if self.priced else ():
            breach = breach or budget._unpriced()  # noqa: SLF001  # another instance of this class
        return breach

    def _unpriced(self) -> Breach | None:
        limits, count = self.limits, self.counters.unpriced
        if not count or limits.unpriced != "deny" or not (self._keyed or limits.cost is not None):
            return None
        text = "the cost of a model call is not known, and the policy denies such calls (limits.unpriced)"
        return Breach("key_limit" if limits.cost is None else "max_cost", limits.cost, "US dollars", count, text)

    def last_round_over(self) -> Breach | None:
        """The cap on turns, if the last round was already begun."""
        limit, used = self.limits.turns, self.counters.turns
        return None if limit is None or used < limit else Breach("max_turns", limit, "turns", used)
