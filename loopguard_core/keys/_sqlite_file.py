"""The SQLite file: opened privately, shared by threads, safe across forks, and with errors that say what to do.

One connection a process, behind a lock: SQLite lets one writer in at a time anyway. What was spent is flushed to the
disk with its commit (about a quarter of a millisecond on a solid-state disk), so that a power cut loses none of it.
Holds are not: the calls they are for die with the machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from loopguard_core.keys._errors import LedgerError

VERSION = 1
"""Of the schema below. A change of it needs a step in `_prepare` that brings older files up."""

_APPLICATION_ID = 0x6C676B31  # "lgk1"
_BUSY_SECONDS = 10.0
_MEMORY = ":memory:"

_SCHEMA = """
CREATE TABLE keys (name TEXT PRIMARY KEY, amount INTEGER, reset TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE days (name TEXT NOT NULL, day INTEGER NOT NULL, spent INTEGER NOT NULL, PRIMARY KEY (name, day))
  WITHOUT ROWID;
CREATE TABLE holds (id TEXT NOT NULL, name TEXT NOT NULL, day INTEGER NOT NULL, amount INTEGER NOT NULL,
  expires INTEGER NOT NULL, PRIMARY KEY (id, name)) WITHOUT ROWID;
CREATE INDEX holds_by_name ON holds (name, day, expires, amount);
CREATE TABLE secrets (digest TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE) WITHOUT ROWID;
"""

_log = logging.getLogger("loopguard")
_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()
_files_lock = threading.Lock()


class SqliteFile:
    """A database file, or one in memory.

    Args:
        path: The file; None keeps it in memory, for tests: gone when the process ends, and not shared with others.
        make_directory: Whether to create the directory it lies in.
        prepare: Called with each new connection, inside a transaction.
        busy_seconds: How long to wait for another process's transaction.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        make_directory: bool = False,
        prepare: Callable[[sqlite3.Connection], None] = lambda _: None,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        self._path = None if path is None else path.expanduser().absolute()
        self.address = "memory://" if self._path is None else f"sqlite:///{self._path}"
        self._make_directory = make_directory
        self._prepare = prepare
        self._busy_seconds = busy_seconds
        self.lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._flushes = True
        with _files_lock:
            _files.add(self)

    @contextlib.contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[sqlite3.Connection]:
        """A write transaction: all of it happens, or none.

        Args:
            flush: Whether it must survive a power cut. It survives the end of the process in any case.

        Raises:
            LedgerError: The file cannot be used.
        """
        with self.lock, self._translated():
            connection = self._connect()
            if flush is not self._flushes:
                connection.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
                self._flushes = flush
            self._begin(connection)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file; waits for no writer. A missing file is empty, and is not created.

        Raises:
            LedgerError: The file cannot be used.
        """
        with self.lock, self._translated():
            if self._is_missing():
                with contextlib.closing(_empty()) as nothing:
                    yield nothing
                return
            connection = self._connect()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock at once, so that check and change are one step.

        SQLite waits for it in steps that grow to a tenth of a second; others come first meanwhile. Short steps of
        random length are fairer, and the worst wait is several times shorter.
        """
        until = time.monotonic() + self._busy_seconds
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() > until:
                        raise
                    time.sleep(random.uniform(0.0002, 0.003))  # noqa: S311  # no secret
                else:
                    return
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(self._busy_seconds * 1000)}")

    def close(self) -> None:
        """Close the connection; the next use opens a new one. What is in memory stays."""
        with self.lock:
            self.close_locked()

    def close_locked(self) -> None:
        """`close` for a caller that holds the lock."""
        if self._connection is not None and self._path is not None:
            self._connection.close()
            self._connection = None

    # -- opening -----------------------------------------------------------------------------------------------

    def _is_missing(self) -> bool:
        """Whether there is no file yet, in a place where one can be made."""
        if self._path is None or self._connection is not None or self._path.exists():
            return False
        return self._make_directory or self._path.parent.is_dir()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._path is not None:
                _create_privately(self._path, make_directory=self._make_directory)
            connection = sqlite3.connect(
                _MEMORY if self._path is None else self._path,
                timeout=self._busy_seconds,
                isolation_level=None,  # transactions are begun by hand
                check_same_thread=False,  # the lock sees to it
            )
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        if self._path is not None:
            self._use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        self._flushes = True
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        if version == 0 and owner == 0:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise LedgerError(f"{self.address} is the database of another program; name another file")
            _create_tables(connection)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        elif owner != _APPLICATION_ID:
            raise LedgerError(f"{self.address} is the database of another program; name another file")
        elif version > VERSION:
            raise LedgerError(
                f"{self.address} was made by a newer loopguard (schema {version}, this one knows {VERSION});"
                " upgrade loopguard-core"
            )
        self._prepare(connection)
        connection.execute("COMMIT")

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Readers and the writer do not wait for each other in this mode. It is kept in the file."""
        until = time.monotonic() + self._busy_seconds
        while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                # SQLite does not wait here when several processes make the file at the same moment.
                if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    # -- errors ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"{self.address} {self._said(error)}") from error

    def _said(self, error: sqlite3.Error) -> str:
        if _is(error, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return (
                f"was locked by another process for more than {self._busy_seconds:g} seconds; look for one that hangs"
                " (a database shell with an open transaction?)"
            )
        if _is(error, sqlite3.SQLITE_FULL):
            return "cannot be written, the disk is full; free some space"
        if _is(error, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return "is damaged, or no SQLite file; restore a backup, or move it away to start from nothing spent"
        if _is(error, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return "cannot be written; check the permissions of the file and of its directory"
        if _is(error, sqlite3.SQLITE_CANTOPEN):
            return "cannot be opened; check the path, and the permissions of its directory"
        return f"cannot be used: {error}"


def _create_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):  # `executescript` would commit first
        connection.execute(statement)


def _empty() -> sqlite3.Connection:
    connection = sqlite3.connect(_MEMORY, isolation_level=None)
    _create_tables(connection)
    return connection


def _is(error: sqlite3.Error, *codes: int) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in codes  # the lower byte; the upper ones say more than we need


def _create_privately(path: Path, *, make_directory: bool) -> None:
    """Create the file for its owner alone: who can write it can spend without limit. SQLite's side files follow it."""
    try:
        if make_directory:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if os.name == "posix" and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            _log.warning("%s can be written by other users, who can lift every limit; chmod go-w it", path)
    except FileNotFoundError:
        raise LedgerError(f"sqlite:///{path}: there is no directory {path.parent}; create it") from None
    except OSError as error:
        raise LedgerError(
            f"sqlite:///{path} cannot be created ({error.strerror}); check the path and its permissions"
        ) from None


# SQLite must not be carried across a fork: the child would believe it held locks that only the parent has. So every
# connection is closed before one, with no transaction open, and both sides open their own when they next need it.
_held: list[SqliteFile] = []


def _before_fork() -> None:
    _files_lock.acquire()
    for file in _files:
        file.lock.acquire()
        _held.append(file)
        file.close_locked()


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().lock.release()
    _files_lock.release()


def _after_fork_in_child() -> None:
    _after_fork_in_parent()  # this thread took the locks, and is the only one there is in the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
