"""Spending limits on keys, which hold across threads, processes and machines.

    with open_ledger("sqlite:///budget.db") as ledger:
        ledger.set_limit("billing-agents", Decimal("25"), reset="monthly")
        reservation = ledger.reserve("billing-agents", Decimal("0.12"))  # the most the call can cost
        ...                                                              # the model call
        ledger.settle(reservation, Decimal("0.07"))                      # what it did cost

Read `_ledger` first, for what is promised; then `_store`, for what a store must do, and `_sqlite`, which does it in few
lines; `_redis_scripts` does the same for a fleet. `_meter` is what a session uses; `_keyring` has secrets, which only
the gateway needs.
"""

from loopguard_core.keys._errors import KeyLimitExceeded, LedgerError, LedgerValueError, ReservationError
from loopguard_core.keys._keyring import Keyring
from loopguard_core.keys._ledger import DEFAULT_TTL, Ledger
from loopguard_core.keys._open import DEFAULT_STORE, open_keyring, open_ledger
from loopguard_core.keys._periods import Reset
from loopguard_core.keys._status import KeyStatus, Reservation

__all__ = [
    "DEFAULT_STORE",
    "DEFAULT_TTL",
    "KeyLimitExceeded",
    "KeyStatus",
    "Keyring",
    "Ledger",
    "LedgerError",
    "LedgerValueError",
    "Reservation",
    "ReservationError",
    "Reset",
    "open_keyring",
    "open_ledger",
]
