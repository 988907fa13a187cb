"""What SQLite can do to us, and what we say then."""

import logging
import os
import pathlib
import sqlite3
import stat
import sys

import pytest

from loopguard_core.keys import Ledger, LedgerError, LedgerValueError, open_keyring, open_ledger
from loopguard_core.keys._sqlite import SqliteStore

posix = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "budget.db"


@posix
def test_the_file_is_for_its_owner_alone(path: pathlib.Path) -> None:
    old = os.umask(0)
    try:
        with open_ledger(f"sqlite:///{path}") as ledger:
            ledger.spend("k", 1)
            files = [file for file in path.parent.iterdir() if file.name.startswith("budget")]
            assert len(files) == 3
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(old)


@posix
def test_a_file_others_can_write_is_warned_about(path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    path.touch()
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING, "loopguard"), open_ledger(f"sqlite:///{path}") as ledger:
        ledger.spend("k", 1)
    assert "can be written by other users" in caplog.text


def test_locked_by_another_process(path: pathlib.Path) -> None:
    store = SqliteStore(path, busy_seconds=0.05)
    ledger = Ledger(store)
    ledger.set_limit("k", 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match=r"was locked by another process for more than 0.05 seconds"):
        ledger.reserve("k", 1)
    assert ledger.status("k").remaining == 1  # reading waits for nobody
    other.execute("ROLLBACK")
    ledger.reserve("k", 1)
    other.close()
    ledger.close()


def test_disk_full(path: pathlib.Path) -> None:
    store = SqliteStore(path)
    ledger = Ledger(store)
    ledger.set_limit("k", 5)
    with store._file.reading() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
    store._file._connection.execute(f"PRAGMA max_page_count = {pages}")  # type: ignore[union-attr]

    def fill() -> None:
        for _ in range(1_000):
            ledger.reserve("u" * 128, "0.001")

    with pytest.raises(LedgerError, match="the disk is full; free some space"):
        fill()
    before = ledger.status("u" * 128).reserved
    with pytest.raises(LedgerError):
        ledger.reserve(["u" * 128, "k"], 1)
    assert ledger.status("u" * 128).reserved == before  # all or nothing
    assert ledger.status("k").reserved == 0
    store._file._connection.execute("PRAGMA max_page_count = 1000000")  # type: ignore[union-attr]
    ledger.reserve("k", 1)
    ledger.close()


@pytest.mark.parametrize("content", [b"not a database at all, only some text of more than a hundred characters" * 3])
def test_no_database(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is damaged, or no SQLite file; restore a backup"):
        open_ledger(f"sqlite:///{path}").status("k")
    assert path.read_bytes() == content


def test_damaged(path: pathlib.Path) -> None:
    with open_ledger(f"sqlite:///{path}") as ledger:
        for number in range(200):
            ledger.spend(f"key number {number}", 1)
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is damaged"), open_ledger(f"sqlite:///{path}") as ledger:
        ledger.reserve("k", 1)


def test_another_programs_database(path: pathlib.Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (a)")
    db.close()
    with pytest.raises(LedgerError, match="the database of another program; name another file"):
        open_ledger(f"sqlite:///{path}").status("k")


def test_a_newer_schema(path: pathlib.Path) -> None:
    with open_ledger(f"sqlite:///{path}") as ledger:
        ledger.spend("k", 1)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LedgerError, match=r"made by a newer loopguard \(schema 99, this one knows 1\)"):
        open_ledger(f"sqlite:///{path}").status("k")


def test_no_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LedgerError, match=r"there is no directory .*nowhere; create it"):
        open_ledger(f"sqlite:///{tmp_path}/nowhere/budget.db").status("k")


def test_a_directory_in_place_of_the_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LedgerError, match="check the path"):
        open_ledger(f"sqlite:///{tmp_path}").status("k")


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everything")
def test_no_permission(path: pathlib.Path) -> None:
    path.touch(0o400)
    with pytest.raises(LedgerError, match="check the permissions"):
        open_ledger(f"sqlite:///{path}").spend("k", 1)


def test_the_default_store_makes_its_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    with open_ledger() as ledger, open_keyring() as keyring:
        ledger.spend("k", 1)
        assert keyring.verify(keyring.create("k")) == "k"
    file = tmp_path / ".loopguard" / "keys.db"
    assert file.is_file()
    if sys.platform != "win32":
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_relative_path_stays_where_it_was_opened(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with open_ledger("sqlite:///budget.db") as ledger:
        monkeypatch.chdir(tmp_path / "elsewhere")
        ledger.spend("k", 1)
        assert ledger.address == f"sqlite:///{tmp_path / 'budget.db'}"
    assert (tmp_path / "budget.db").is_file()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redi://:hunter2@host/0", r'unknown kind of address "redi"; did you mean redis://\?'),
        ("postgres://u:hunter2@h/db", 'unknown kind of address "postgres"; write sqlite:///FILE'),
        ("budget.db", 'store = "budget.db": no address; write sqlite:///FILE'),
        (":hunter2@host", "^store: no address; write sqlite:///FILE"),
        ("sqlite://budget.db", "names no file; write sqlite:///FILE"),
        ("sqlite:///", "names no file"),
        ("sqlite:///a\nb", "printable"),
        (None, "must be the text of an address"),
        ("", "no address"),
    ],
)
def test_addresses_that_cannot_be_used(url: object, said: str) -> None:
    for opener in (open_ledger, open_keyring):
        with pytest.raises(LedgerValueError, match=said) as caught:
            opener(url)  # type: ignore[operator]
        assert "hunter2" not in str(caught.value)
