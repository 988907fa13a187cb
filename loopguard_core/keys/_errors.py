"""What can go wrong with a key. Store trouble, a used-up limit and a wrong argument are told apart by their class."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from loopguard_core._dollars import dollars_text
from loopguard_core._errors import LoopGuardError

if TYPE_CHECKING:
    from loopguard_core.keys._status import KeyStatus


class LedgerError(LoopGuardError):
    """The store cannot be used: unreachable, locked, full, damaged, or its library is not installed.

    The text names the store (never its password) and the fix. SQLite has then recorded nothing. Redis may have done
    the step and the answer was lost: money held by it goes back when it expires.
    """


class LedgerValueError(LoopGuardError, ValueError):
    """An argument that cannot be used. The text names field, value and fix."""


class ReservationError(LoopGuardError):
    """A reservation that is not open: settled or released before, or its key was deleted. Nothing was recorded."""


class KeyLimitExceeded(LoopGuardError):  # noqa: N818  # the public name; a limit that holds is no error
    """A key has not enough left. Nothing was reserved on any key of the call.

    Attributes:
        key: Name of the key.
        requested: US dollars that were to be reserved.
        status: How the key stood then.
    """

    def __init__(self, key: str, requested: Decimal, status: KeyStatus) -> None:
        from loopguard_core.keys._names import shown_name

        left = dollars_text(status.remaining or Decimal(0))
        of = "" if status.limit is None else f" of {dollars_text(status.limit)}"
        since = "" if status.resets_at is None else f"; it starts afresh at {status.resets_at:%Y-%m-%d %H:%M} UTC"
        held = f", {dollars_text(status.reserved)} held by running calls" if status.reserved else ""
        super().__init__(
            f"key {shown_name(key)}: {dollars_text(requested)} asked for, {left}{of} left"
            f" ({dollars_text(status.spent)} spent{held}){since}. Raise the limit with"
            f" `loopguard key set`, or wait"
        )
        self.key = key
        self.requested = requested
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.requested, self.status)
