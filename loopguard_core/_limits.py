"""What a session has used, and the hard caps on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from loopguard_core._bounded import count as _count
from loopguard_core._dollars import kept, total
from loopguard_core._policy import Limits
from loopguard_core._types import TOKEN_FIELDS, EndReason, Usage

_MAX_DIGITS = 100


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that is used up, or that the next model call may go beyond.

    Attributes:
        reason: Of `SessionEnd`.
        limit: The cap.
        unit: What it counts.
        used: How much of it is used.
        text: What is said of it, as a clause; None for the usual words.
    """

    reason: EndReason
    limit: object
    unit: str
    used: object
    text: str | None = None


class Counters:
    """What one session used so far, runs nested in it included where they share its limits.

    Attributes:
        turns: Rounds, refused or not.
        tool_calls: Calls that were let through.
        model_calls: Successful model calls.
        unpriced: Model calls whose cost nobody knows, where somebody wanted to know it.
    """

    __slots__ = (
        "_cost",
        "_estimated",
        "_spent_tokens",
        "_tokens",
        "model_calls",
        "tool_calls",
        "turns",
        "unpriced",
    )

    def __init__(self) -> None:
        self.turns = 0
        self.tool_calls = 0
        self.model_calls = 0
        self.unpriced = 0
        self._estimated = False
        self._tokens: dict[str, int] = {}
        self._spent_tokens = 0
        self._cost: Decimal | None = None

    def add(self, usage: Usage) -> None:
        """Add what a model call used; unknown parts stay unknown."""
        for name in TOKEN_FIELDS:
            value = getattr(usage, name)
            if value is not None:
                self._tokens[name] = self._tokens.get(name, 0) + max(0, value)
        if usage.input_tokens is not None or usage.output_tokens is not None:
            self._spent_tokens += max(0, usage.input_tokens or 0) + max(0, usage.output_tokens or 0)
        else:
            self._spent_tokens += max(0, usage.total_tokens or 0)
        if usage.cost is not None:
            self._cost = total(self.cost, max(Decimal(0), usage.cost))
        if usage.estimated:
            self._estimated = True

    @property
    def usage(self) -> Usage:
        """Everything added so far."""
        return Usage(**self._tokens, cost=self._cost, estimated=self._estimated)

    @property
    def cost(self) -> Decimal:
        """What is known to have been spent, in US dollars."""
        return Decimal(0) if self._cost is None else self._cost

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self._spent_tokens

    def breach(self, limits: Limits, seconds: float, *, turns: bool = True) -> Breach | None:
        """The first limit that leaves no room for another model call.

        Args:
            limits: The caps.
            seconds: Active time so far.
            turns: Whether to look at turns; an outer session's turns do not count those inside it.
        """
        if turns and limits.turns is not None and self.turns >= limits.turns:
            return Breach("max_turns", limits.turns, "turns", self.turns)
        if limits.cost is not None and self._cost is not None and self._cost >= limits.cost:
            return Breach("max_cost", limits.cost, "US dollars", self._cost)
        if limits.tokens is not None and self._spent_tokens >= limits.tokens:
            return Breach("max_tokens", limits.tokens, "tokens", self._spent_tokens)
        if limits.seconds is not None and seconds >= limits.seconds:
            return Breach("max_seconds", limits.seconds, "seconds", round(seconds, 1))
        return None

    def save(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "turns": self.turns,
            "tool_calls": self.tool_calls,
            "model_calls": self.model_calls,
            "tokens": dict(self._tokens),
            "spent_tokens": self._spent_tokens,
            "cost": None if self._cost is None else str(self._cost),
            "unpriced": self.unpriced,
            "estimated": self._estimated,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            numbers = {name: _count(state[name]) for name in ("turns", "tool_calls", "model_calls", "spent_tokens")}
            tokens = {name: _count(value) for name, value in dict(state["tokens"]).items()}
            if not set(tokens) <= set(TOKEN_FIELDS):
                raise ValueError("unknown kind of tokens")
            cost = None if state["cost"] is None else dollars_of(state["cost"])
            unpriced = _count(state.get("unpriced", 0))
        except (KeyError, TypeError, InvalidOperation) as error:
            raise ValueError("not a saved count of what was used") from error
        self.turns, self.tool_calls, self.model_calls = (numbers[n] for n in ("turns", "tool_calls", "model_calls"))
        self._spent_tokens = numbers["spent_tokens"]
        self._tokens = tokens
        self._cost = cost
        self.unpriced = unpriced
        self._estimated = state.get("estimated", False) is True


class ActiveClock:
    """Seconds a session was active: time while it waits for a human does not count.

    Args:
        now: A monotonic clock in seconds.
        before: Seconds from before the session was resumed.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, before: float = 0.0) -> None:
        self._now = now
        self._before = before
        self._since: float | None = now()
        self._touched = self._since

    def skip_idle(self) -> None:
        """Nothing happened since the last `touch`: take that time out."""
        if self._since is not None:
            now = self._now()
            self._since += now - self._touched
            self._touched = now

    @property
    def seconds(self) -> float:
        """Active seconds so far."""
        return self._before + (0.0 if self._since is None else max(0.0, self._now() - self._since))

    def pause(self) -> None:
        """Stand still until `resume`."""
        self._before = self.seconds
        self._since = None

    def resume(self) -> None:
        """Go on."""
        if self._since is None:
            self._since = self._touched = self._now()

    def touch(self) -> None:
        """Something happens now."""
        self._touched = self._now()


def dollars_of(value: Any) -> Decimal:
    """An amount from saved text.

    Raises:
        ValueError: It is none.
    """
    amount = kept(Decimal(value)) if isinstance(value, str) and len(value) <= _MAX_DIGITS else None
    if amount is None:
        raise ValueError("a saved cost is the text of a finite amount")
    return amount
