"""From an address to a store."""

from __future__ import annotations

import difflib
import re
import time
from pathlib import Path

from loopguard_core._policy_errors import shown
from loopguard_core.keys._errors import LedgerValueError
from loopguard_core.keys._keyring import Keyring
from loopguard_core.keys._ledger import DEFAULT_TTL, Ledger
from loopguard_core.keys._names import shown_name
from loopguard_core.keys._sqlite import SqliteSecrets, SqliteStore
from loopguard_core.keys._store import Clock

DEFAULT_STORE = "sqlite:///~/.loopguard/keys.db"
"""The store where neither the policy nor the caller names one. Its directory is created if it is missing."""

_REDIS = ("redis", "rediss", "unix")
_SCHEMES = ("sqlite", *_REDIS, "memory")
_NAME_OF_FILE = re.compile(r"[\w./~-]*")


def open_ledger(url: str = DEFAULT_STORE, *, ttl: float = DEFAULT_TTL, clock: Clock | None = None) -> Ledger:
    """Open the ledger at an address. Nothing is read or connected to before the first use.

    Args:
        url: One of

            - `sqlite:///budget.db` (in the working directory), `sqlite:////var/lib/budget.db`, `sqlite:///~/budget.db`:
              a file, for all processes of one machine; created, for its owner alone, if it is missing;
            - `redis://[user:password@]host[:port]/0`, `rediss://...` (TLS), `unix:///path/to/redis.sock`: for many
              machines; `?prefix=name` sets several ledgers in one database apart;
            - `memory://`: for tests, gone with the ledger.
        ttl: Seconds a reservation is held unless it is renewed; longer than the longest stream.
        clock: Seconds since 1970, for tests. None is the machine's clock for SQLite and the server's for Redis.

    Raises:
        LedgerValueError: The address cannot be used.
        LedgerError: It is a Redis address and the redis library is not installed.
    """
    scheme, path = _parsed(url)
    if scheme in _REDIS:
        from loopguard_core.keys._redis import RedisStore

        return Ledger(RedisStore(url, clock=clock), ttl=ttl)
    return Ledger(SqliteStore(path, clock=clock or time.time, make_directory=url == DEFAULT_STORE), ttl=ttl)


def check_address(url: object) -> None:
    """Refuse an address that cannot be used, without opening it.

    Raises:
        LedgerValueError: It cannot.
    """
    _parsed(url)


def open_keyring(url: str = DEFAULT_STORE) -> Keyring:
    """Open the secrets kept beside the ledger at the same address.

    Raises:
        LedgerValueError: The address cannot be used.
        LedgerError: It is a Redis address and the redis library is not installed.
    """
    scheme, path = _parsed(url)
    if scheme in _REDIS:
        from loopguard_core.keys._redis import RedisSecrets

        return Keyring(RedisSecrets(url))
    return Keyring(SqliteSecrets(path, make_directory=url == DEFAULT_STORE))


def _parsed(url: object) -> tuple[str, Path | None]:
    """The scheme, and the file of an SQLite address."""
    known = "sqlite:///FILE, redis://HOST/0, rediss://HOST/0, unix:///SOCKET or memory://"
    if not isinstance(url, str):
        raise LedgerValueError(f"store = {shown(type(url).__name__)}: must be the text of an address: {known}")
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in _SCHEMES:
        raise LedgerValueError(_unknown_scheme(scheme, known) if colon else _no_address(url, known))
    if scheme == "sqlite" and rest not in ("/:memory:", ""):
        if not rest.startswith("/") or rest == "/":
            raise LedgerValueError(
                f"store = {shown(url)}: names no file; write sqlite:///FILE, with a fourth slash for an absolute path"
            )
        if not rest.isprintable():
            raise LedgerValueError(f"store = {shown(url)}: a path must hold printable characters only")
        return scheme, Path(rest[1:])
    return scheme, None


def _unknown_scheme(scheme: str, known: str) -> str:
    # The address may hold a password, so of it only the scheme is shown.
    near = difflib.get_close_matches(scheme.lower(), _SCHEMES, n=1)
    hint = f"; did you mean {near[0]}://?" if near else ""
    return f"store: unknown kind of address {shown(scheme)}{hint}; write {known}"


def _no_address(text: str, known: str) -> str:
    if not _NAME_OF_FILE.fullmatch(text):  # it may hold a password
        return f"store: no address; write {known}"
    given = shown_name(text)
    file = f" (sqlite:///{given[1:-1]} for a file of that name)" if text else ""
    return f"store = {given}: no address; write {known}{file}"
