"""The SQLite store: for all processes of one machine."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from loopguard_core.keys._periods import Reset, check_reset, day_of, period
from loopguard_core.keys._sqlite_file import SqliteFile
from loopguard_core.keys._store import KEEP_EXPIRED_MS, Account, Clock, Held, milliseconds


class SqliteStore:
    """Limits, spending and holds in an SQLite file.

    Args:
        path: The file; None keeps everything in memory.
        clock: Seconds since 1970.
        make_directory: Whether to create the directory the file lies in.
        busy_seconds: How long to wait for another process's transaction.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock = time.time,
        make_directory: bool = False,
        busy_seconds: float = 10.0,
    ) -> None:
        self._clock = clock
        self._file = SqliteFile(
            path, make_directory=make_directory, prepare=self._forget_old_holds, busy_seconds=busy_seconds
        )

    @property
    def address(self) -> str:
        """Where it is."""
        return self._file.address

    def _now(self) -> int:
        # Asked inside the transaction, so that whoever comes later has the later time.
        return milliseconds(self._clock)

    def _forget_old_holds(self, db: sqlite3.Connection) -> None:
        # Only a crash leaves one, and a crashed process opens the file again: once a connection is often enough.
        db.execute("DELETE FROM holds WHERE expires < ?", (self._now() - KEEP_EXPIRED_MS,))

    def set_limit(self, name: str, limit: int | None, reset: Reset) -> None:
        """Set a key's limit and reset."""
        with self._file.transaction() as db:
            db.execute(
                "INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE"
                " SET amount = excluded.amount, reset = excluded.reset",
                (name, limit, reset),
            )

    def reserve(self, hold: str, names: Sequence[str], amount: int, ttl_ms: int) -> Held | Account:
        """Hold `amount` on all keys, or on none."""
        with self._file.transaction(flush=False) as db:
            now = self._now()
            for name in names:
                account = _account(db, name, now)
                if not account.has_room(amount):
                    return account
            expires = now + ttl_ms
            for name in names:
                _know(db, name)
                db.execute("INSERT INTO holds VALUES (?, ?, ?, ?, ?)", (hold, name, day_of(now), amount, expires))
            return Held(expires)

    def renew(self, hold: str, names: Sequence[str], ttl_ms: int) -> Held | None:
        """Hold on for `ttl_ms` from now."""
        with self._file.transaction(flush=False) as db:
            expires = self._now() + ttl_ms
            changed = sum(
                db.execute("UPDATE holds SET expires = ? WHERE id = ? AND name = ?", (expires, hold, name)).rowcount
                for name in names
            )
            return Held(expires) if changed else None

    def settle(self, hold: str, names: Sequence[str], spent: int) -> bool:
        """End a hold and count what was spent, on the day the hold was made."""
        found = False
        with self._file.transaction() as db:
            for name in names:
                row = db.execute("SELECT day FROM holds WHERE id = ? AND name = ?", (hold, name)).fetchone()
                if row is not None:
                    found = True
                    db.execute("DELETE FROM holds WHERE id = ? AND name = ?", (hold, name))
                    if spent:
                        _count(db, name, row[0], spent)
        return found

    def add(self, names: Sequence[str], spent: int) -> None:
        """Count spending of today."""
        with self._file.transaction() as db:
            today = day_of(self._now())
            for name in names:
                _know(db, name)
                _count(db, name, today, spent)

    def account(self, name: str) -> Account:
        """How a key stands."""
        with self._file.reading() as db:
            return _account(db, name, self._now())

    def history(self, name: str, days: int) -> tuple[int, dict[int, int]]:
        """Today, and what was spent day by day."""
        with self._file.reading() as db:
            today = day_of(self._now())
            rows = db.execute(
                "SELECT day, spent FROM days WHERE name = ? AND day > ? AND day <= ? ORDER BY day",
                (name, today - days, today),
            )
            return today, dict(rows.fetchall())

    def names(self) -> list[str]:
        """Every key there is, sorted."""
        with self._file.reading() as db:
            return [name for (name,) in db.execute("SELECT name FROM keys ORDER BY name")]

    def delete(self, name: str) -> bool:
        """Forget a key."""
        with self._file.transaction() as db:
            db.execute("DELETE FROM days WHERE name = ?", (name,))
            db.execute("DELETE FROM holds WHERE name = ?", (name,))
            return db.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount > 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SqliteSecrets:
    """Digests of secrets, in a table of their own in the same file."""

    def __init__(self, path: Path | None, *, make_directory: bool = False) -> None:
        self._file = SqliteFile(path, make_directory=make_directory)

    def put(self, name: str, digest: str) -> bool:
        """Remember the secret of a key that has none."""
        with self._file.transaction() as db:
            if db.execute("SELECT 1 FROM secrets WHERE name = ?", (name,)).fetchone():
                return False
            db.execute("INSERT INTO secrets VALUES (?, ?)", (digest, name))
            return True

    def replace(self, name: str, digest: str) -> None:
        """Remember the secret of a key in place of the one it may have."""
        with self._file.transaction() as db:
            db.execute("DELETE FROM secrets WHERE name = ?", (name,))
            db.execute("INSERT INTO secrets VALUES (?, ?)", (digest, name))

    def find(self, digest: str) -> str | None:
        """The key a secret belongs to."""
        with self._file.reading() as db:
            row = db.execute("SELECT name FROM secrets WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def drop(self, name: str) -> bool:
        """Forget the secret of a key."""
        with self._file.transaction() as db:
            return db.execute("DELETE FROM secrets WHERE name = ?", (name,)).rowcount > 0

    def holders(self) -> list[str]:
        """Keys that have a secret, sorted."""
        with self._file.reading() as db:
            return [name for (name,) in db.execute("SELECT name FROM secrets ORDER BY name")]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _know(db: sqlite3.Connection, name: str) -> None:
    """A key is known from its first use on, with a limit or without."""
    db.execute("INSERT OR IGNORE INTO keys VALUES (?, NULL, 'none')", (name,))


def _count(db: sqlite3.Connection, name: str, day: int, spent: int) -> None:
    db.execute(
        "INSERT INTO days VALUES (?, ?, ?) ON CONFLICT (name, day) DO UPDATE SET spent = spent + excluded.spent",
        (name, day, spent),
    )


def _account(db: sqlite3.Connection, name: str, now: int) -> Account:
    row = db.execute("SELECT amount, reset FROM keys WHERE name = ?", (name,)).fetchone()
    limit, reset = (None, check_reset(None)) if row is None else (row[0], check_reset(row[1]))
    first, after = period(reset, day_of(now))
    # Added up from the rows themselves: there is no counter that could drift from them. Holds belong to the period
    # they were made in, as the money that is spent on them does.
    within = (name, first, after)
    spent = db.execute(
        "SELECT coalesce(sum(spent), 0) FROM days WHERE name = ? AND day >= ? AND day < ?", within
    ).fetchone()[0]
    reserved = db.execute(
        "SELECT coalesce(sum(amount), 0) FROM holds WHERE name = ? AND day >= ? AND day < ? AND expires > ?",
        (*within, now),
    ).fetchone()[0]
    return Account(name, limit, reset, spent, reserved, day_of(now))
