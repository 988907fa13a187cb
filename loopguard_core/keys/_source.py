"""The keys a guard's policy and code name, and the store they are in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loopguard_core._policy_parts import KeySettings
from loopguard_core.keys._meter import Meter, StoreError
from loopguard_core.keys._names import check_names
from loopguard_core.keys._open import DEFAULT_STORE, open_ledger

_SQLITE = "sqlite:///"


class KeySource:
    """One guard's store of keys. Nothing is connected to before the first model call.

    Args:
        settings: The policy's `[key]`; None where only the code names keys.

    Attributes:
        ledger: The store.
        place: The same for guards whose stores are the same.
        on_store_error: Whether model calls start while it cannot be used.

    Raises:
        LedgerError: The store's library is not installed.
        LedgerValueError: The address cannot be used.
    """

    def __init__(self, settings: KeySettings | None) -> None:
        address = DEFAULT_STORE if settings is None or settings.store is None else settings.store
        self.ledger = open_ledger(address)
        self.place: object = address
        if address.startswith(_SQLITE) and not address.startswith(f"{_SQLITE}:memory:"):
            self.place = os.path.abspath(os.path.expanduser(address.removeprefix(_SQLITE)))  # noqa: PTH100, PTH111
        elif address.startswith(("sqlite:", "memory:")):
            self.place = self.ledger  # another store in memory is another store
        self.on_store_error: StoreError = "deny" if settings is None else settings.on_store_error
        self._settings = settings
        self._limit_is_due = settings is not None and settings.limit is not None

    def keys(self, named: str | Sequence[str] | None) -> tuple[str, ...]:
        """The policy's key and those the code names; all of them count.

        Raises:
            LedgerValueError: A name cannot be used.
        """
        own = [] if self._settings is None else [self._settings.name]
        return check_names([*own, *(() if named is None else check_names(named))])

    def prepare(self) -> None:
        """Set the policy's limit, once: before the first reservation, so that making a guard waits for no store.

        Raises:
            LedgerError: The store cannot be used; it is tried again the next time.
        """
        if self._limit_is_due and self._settings is not None:
            self.ledger.set_limit(self._settings.name, self._settings.limit, self._settings.reset)
            self._limit_is_due = False


@dataclass(frozen=True)
class Claim:
    """Keys that one run spends on."""

    source: KeySource
    keys: tuple[str, ...]


def meters_of(claims: Iterable[Claim]) -> list[Meter]:
    """A meter for each store: a key that a run and the one around it both name counts once.

    Raises:
        LedgerValueError: There are too many keys.
    """
    by_place: dict[object, list[Claim]] = {}
    for claim in claims:
        by_place.setdefault(claim.source.place, []).append(claim)
    return [
        _meter([claim.source for claim in same], [k for claim in same for k in claim.keys])
        for same in by_place.values()
    ]


def _meter(sources: Sequence[KeySource], keys: Sequence[str]) -> Meter:
    sources = list(dict.fromkeys(sources))

    def prepare() -> None:
        for source in sources:
            source.prepare()

    denies = any(source.on_store_error == "deny" for source in sources)
    return Meter(sources[0].ledger, keys, on_store_error="deny" if denies else "allow", prepare=prepare)
