"""Keys with spending limits. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import assert_type

from loopguard_core import Usage
from loopguard_core.keys import (
    DEFAULT_STORE,
    DEFAULT_TTL,
    KeyLimitExceeded,
    Keyring,
    KeyStatus,
    Ledger,
    LedgerError,
    LedgerValueError,
    Reservation,
    ReservationError,
    Reset,
    open_keyring,
    open_ledger,
)
from loopguard_core.prices import price, warm, worst_case


def spend(reset: Reset = "monthly") -> Decimal | None:
    with open_ledger(DEFAULT_STORE, ttl=DEFAULT_TTL) as ledger:
        assert_type(ledger, Ledger)
        ledger.set_limit("billing-agents", Decimal(25), reset=reset)
        try:
            reservation = ledger.reserve(["billing-agents", "ada"], "0.12")
        except KeyLimitExceeded as error:
            print(error)
            return None
        except (LedgerValueError, LedgerError):
            raise
        assert_type(reservation, Reservation)
        assert_type(reservation.expires_at, dt.datetime)
        reservation = ledger.renew(reservation)
        try:
            ledger.settle(reservation, Decimal("0.07"))
        except ReservationError:
            ledger.release(reservation)
        ledger.spend("ada", 1)
        status = ledger.status("billing-agents")
        assert_type(status, KeyStatus)
        assert_type(status.limit, Decimal | None)
        assert_type(status.spent, Decimal)
        assert_type(status.resets_at, dt.datetime | None)
        assert_type(ledger.history("ada"), dict[dt.date, Decimal])
        assert_type(ledger.names(), list[str])
        assert_type(ledger.delete("ada"), bool)
        return status.remaining


async def aspend(ledger: Ledger) -> None:
    reservation = await ledger.areserve("ada", Decimal(1))
    assert_type(reservation, Reservation)
    await ledger.asettle(reservation, Decimal("0.5"))
    assert_type(await ledger.astatus("ada"), KeyStatus)


def secrets() -> None:
    with open_keyring("sqlite:///budget.db") as keyring:
        assert_type(keyring, Keyring)
        assert_type(keyring.create("ada", replace=True), str)
        assert_type(keyring.verify("a secret"), str | None)
        assert_type(keyring.revoke("ada"), bool)


def prices() -> None:
    assert_type(warm(), bool)
    assert_type(price("gpt-6", Usage(input_tokens=1, output_tokens=1), Decimal(15)), Decimal | None)
    assert_type(worst_case("gpt-6", 1_000, 4_000), Decimal | None)
