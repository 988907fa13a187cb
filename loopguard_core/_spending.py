"""What the rounds of a loop have cost: the figures an operator sees beside a verdict."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from loopguard_core._bounded import count, short_text
from loopguard_core._dollars import plain_dollars, total
from loopguard_core._events import Saving
from loopguard_core._limits import dollars_of
from loopguard_core._types import Action, Usage, Verdict

MAX_ROUNDS = 64
"""Model calls looked back on. As many rounds are looked back on for cycles."""

_MAX_SAVED = 32


class Shadow:
    """The first call that a policy in shadow mode would have refused, and what was used by then.

    Args:
        verdict: The verdict.
        action: What would have been done.
        used: What the session had used.
    """

    __slots__ = ("_action", "_detector", "_round", "_used")

    def __init__(self, verdict: Verdict, action: Action, used: Usage) -> None:
        self._action, self._detector, self._round = action, verdict.detector, verdict.round
        self._used = used

    def saving(self, turns: int, used: Usage) -> Saving:
        """What came after it.

        Args:
            turns: Rounds of the session.
            used: What the session used.
        """
        return Saving(
            action=self._action,
            detector=self._detector,
            round=self._round,
            rounds=max(0, turns - self._round),
            tokens=None if used.total_tokens is None else used.total_tokens - (self._used.total_tokens or 0),
            cost=None if used.cost is None else used.cost - (self._used.cost or 0),
        )

    def save(self) -> list[Any]:
        """As plain JSON."""
        cost = None if self._used.cost is None else str(self._used.cost)
        return [self._action.value, self._detector, self._round, self._used.total_tokens, cost]

    @classmethod
    def restored(cls, state: Any) -> Shadow:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            action, detector, number, tokens, cost = state
            used = Usage(total_tokens=None if tokens is None else count(tokens), cost=cost)
            return cls(Verdict(short_text(detector, 128), Action(action), 0, round=count(number)), Action(action), used)
        except TypeError as error:
            raise ValueError("not a saved shadow") from error


class Spending:
    """What each of the last model calls used, by the round it asked for."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: deque[tuple[int, int | None, Decimal | None]] = deque(maxlen=MAX_ROUNDS)

    def note(self, number: int, usage: Usage) -> None:
        """A model call succeeded.

        Args:
            number: The round that its tool calls will be.
            usage: What it used.
        """
        if usage.total_tokens is not None or usage.cost is not None:
            self._calls.append((number, usage.total_tokens, usage.cost))

    def wasted(self, rounds: Sequence[int]) -> dict[str, Any]:
        """What was used to ask for the same again, as evidence.

        Args:
            rounds: The rounds that are the evidence. The first of them was no repeat.

        Returns:
            `wasted_tokens`, and `wasted_cost` in US dollars as text; what is not known is left out.
        """
        repeats = set(rounds[1:])
        tokens = [tokens for number, tokens, _ in self._calls if number in repeats and tokens is not None]
        costs = [cost for number, _, cost in self._calls if number in repeats and cost is not None]
        found: dict[str, Any] = {"wasted_tokens": sum(tokens)} if tokens else {}
        if costs:
            found["wasted_cost"] = plain_dollars(functools.reduce(total, costs))
        return found

    def save(self) -> list[Any]:
        """As plain JSON: the last 32 calls."""
        return [
            [number, tokens, None if cost is None else str(cost)]
            for number, tokens, cost in list(self._calls)[-_MAX_SAVED:]
        ]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            self._calls.extend(
                (
                    count(number),
                    None if tokens is None else count(tokens),
                    None if cost is None else dollars_of(cost),
                )
                for number, tokens, cost in state[-MAX_ROUNDS:]
            )
        except (TypeError, ArithmeticError) as error:
            raise ValueError("not a saved spending") from error
