"""What a store must be able to do. Every step is atomic for all processes and machines that share the store.

Times are whole milliseconds since 1970 by the store's own clock, amounts nano-dollars, days those of `_periods`.
Implementations raise `LedgerError` and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopguard_core.keys._periods import Reset

Clock = Callable[[], float]
"""Seconds since 1970."""

KEEP_EXPIRED_MS = 30 * 86_400_000
"""How long an expired hold is remembered, so that a late settle still finds it."""


def milliseconds(clock: Clock = time.time) -> int:
    """The time now."""
    return int(clock() * 1000)


@dataclass(frozen=True, slots=True)
class Account:
    """One key as the store has it, in the period of `day`."""

    name: str
    limit: int | None
    reset: Reset
    spent: int
    reserved: int
    day: int

    def has_room(self, amount: int) -> bool:
        """Whether `amount` more may be held. Nothing more may once all is used, not even a call that costs nothing."""
        if self.limit is None:
            return True
        used = self.spent + self.reserved
        return used < self.limit and used + amount <= self.limit


@dataclass(frozen=True, slots=True)
class Held:
    """A hold that was granted."""

    expires_ms: int


class Store(Protocol):
    """Keeps limits, what was spent by key and day, and what is held."""

    @property
    def address(self) -> str:
        """Where it is, without a password."""

    def set_limit(self, name: str, limit: int | None, reset: Reset) -> None:
        """Set a key's limit and reset, whether the key is known or not."""

    def reserve(self, hold: str, names: Sequence[str], amount: int, ttl_ms: int) -> Held | Account:
        """Hold `amount` on all keys, or on none: then the account of the first that has no room is returned."""

    def renew(self, hold: str, names: Sequence[str], ttl_ms: int) -> Held | None:
        """Hold on for `ttl_ms` from now, also what has expired; None where the hold is not open."""

    def settle(self, hold: str, names: Sequence[str], spent: int) -> bool:
        """End a hold, and count `spent` on the day it was made; False where it is not open on any key."""

    def add(self, names: Sequence[str], spent: int) -> None:
        """Count spending of today that nothing was held for, on all keys."""

    def account(self, name: str) -> Account:
        """How a key stands; one never heard of stands at nothing."""

    def history(self, name: str, days: int) -> tuple[int, dict[int, int]]:
        """Today, and what was spent on each of the last `days` days that has spending."""

    def names(self) -> list[str]:
        """Every key there is, sorted."""

    def delete(self, name: str) -> bool:
        """Forget a key: its limit, its spending and its holds; False if it was not known."""

    def close(self) -> None:
        """Let go of connections; the store may be used again all the same."""


class SecretStore(Protocol):
    """Keeps which key a secret belongs to, by the secret's digest."""

    def put(self, name: str, digest: str) -> bool:
        """Remember the secret of a key that has none; False if it has one."""

    def replace(self, name: str, digest: str) -> None:
        """Remember the secret of a key in place of the one it may have."""

    def find(self, digest: str) -> str | None:
        """The key a secret belongs to."""

    def drop(self, name: str) -> bool:
        """Forget the secret of a key; False if it has none."""

    def holders(self) -> list[str]:
        """Keys that have a secret, sorted."""

    def close(self) -> None:
        """Let go of connections."""
