"""What a ledger tells about a key, and what it gives for a reservation."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

from loopguard_core.keys._periods import Reset


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """How a key stands in its present period. Amounts are US dollars.

    Attributes:
        key: Its name.
        limit: What may be spent in a period; None is unlimited.
        spent: What was spent; above the limit where calls cost more than was reserved for them.
        reserved: What running calls hold.
        remaining: What may still be reserved, 0 or more; None where there is no limit.
        reset: When it starts afresh.
        resets_at: The moment it next does, in UTC; None if never.
        today: The day by the store's clock, in UTC.
    """

    key: str
    limit: Decimal | None
    spent: Decimal
    reserved: Decimal
    remaining: Decimal | None
    reset: Reset
    resets_at: dt.datetime | None
    today: dt.date


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money held for one model call. Give it to `settle` or `release`, once.

    Attributes:
        id: Names it in the store.
        keys: The keys it counts on; each holds the whole amount.
        amount: US dollars held on each.
        expires_at: When it goes back if nobody renews it, by the store's clock, in UTC.
        ttl: Seconds it is held from the last time it was reserved or renewed. Renew well before, say after a third.
    """

    id: str
    keys: tuple[str, ...]
    amount: Decimal
    expires_at: dt.datetime
    ttl: float
