"""`loopguard key`."""

import datetime as dt
import json
import pathlib
import re
from collections.abc import Callable
from decimal import Decimal

import pytest

from loopguard_core.cli import main
from loopguard_core.keys import open_keyring, open_ledger

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], sqlite_url: str) -> Run:
    def call(command: str, *words: str, store: str | None = sqlite_url) -> tuple[int, str, str]:
        status = main(["key", command, *words, *([] if store is None else ["--store", store])])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_create_prints_the_key_once_as_json(run: Run, sqlite_url: str) -> None:
    status, out, _ = run("create", "billing", "--limit", "0.10", "--reset", "monthly", "--format", "json")
    row = json.loads(out)
    assert status == 0
    assert list(row) == ["name", "key", "limit", "reset"]
    assert (row["name"], row["limit"], row["reset"]) == ("billing", 0.10, "monthly")
    with open_keyring(sqlite_url) as keyring, open_ledger(sqlite_url) as ledger:
        assert keyring.verify(row["key"]) == "billing"
        assert ledger.status("billing").limit == Decimal("0.10")
    assert row["key"] not in run("show", "billing")[1]
    assert row["key"] not in run("list", "--format", "json")[1]


def test_create_without_a_limit(run: Run) -> None:
    status, out, _ = run("create", "free")
    assert status == 0
    assert re.search(r"secret  lg-\S{43}\n", out)
    assert "only its hash is stored" in out
    assert json.loads(run("show", "free", "--format", "json")[1])["limit"] is None


def test_create_twice_needs_replace_and_keeps_the_limit(run: Run) -> None:
    run("create", "k", "--limit", "5", "--reset", "daily")
    status, _, err = run("create", "k")
    assert status == 2
    assert "has a secret already" in err
    status, out, _ = run("create", "k", "--replace", "--format", "json")
    assert status == 0
    assert (json.loads(out)["limit"], json.loads(out)["reset"]) == (5, "daily")


def test_a_wrong_limit_makes_no_key(run: Run) -> None:
    for wrong in ("-1", "nan", "ten"):
        status, _, err = run("create", "k", f"--limit={wrong}")
        assert status == 2
        assert err.startswith(f'loopguard: limit = "{wrong}": must be')
    assert "No keys in" in run("list")[1]


def test_spend_list_show(run: Run) -> None:
    run("create", "billing", "--limit", "0.10", "--reset", "monthly")
    run("create", "a-team")
    status, out, _ = run("spend", "billing", "0.045")
    assert status == 0
    assert "$0.045 (45% of the limit)" in out
    assert "██████████████████░" in out
    assert f"{dt.datetime.now(dt.UTC):%a %Y-%m-%d}" in out
    listed = json.loads(run("list", "--format", "json")[1])
    assert [(row["name"], row["spent"], row["remaining"]) for row in listed] == [
        ("a-team", 0, None),
        ("billing", 0.045, 0.055),
    ]
    table = run("list")[1]
    assert "billing" in table
    assert "$0.10 a month" in table
    shown = json.loads(run("show", "billing", "--format", "json")[1])
    assert list(shown["days"].values()) == [0.045]
    assert shown["resets_at"].endswith("-01T00:00:00+00:00")


def test_set_changes_what_is_named(run: Run) -> None:
    run("create", "k", "--limit", "1", "--reset", "daily")
    assert json.loads(run("set", "k", "--limit", "2", "--format", "json")[1])["reset"] == "daily"
    row = json.loads(run("set", "k", "--reset", "weekly", "--format", "json")[1])
    assert (row["limit"], row["reset"]) == (2, "weekly")
    row = json.loads(run("set", "k", "--limit", "none", "--format", "json")[1])
    assert (row["limit"], row["reset"]) == (None, "weekly")
    status, _, err = run("set", "k")
    assert status == 2
    assert "nothing to change" in err


def test_delete_forgets_secret_and_spending(run: Run, sqlite_url: str) -> None:
    secret = json.loads(run("create", "k", "--format", "json")[1])["key"]
    run("spend", "k", "1")
    assert run("delete", "k") == (0, "k is deleted.\n", "")
    with open_keyring(sqlite_url) as keyring:
        assert keyring.verify(secret) is None
    for command in ("delete", "show"):
        status, out, err = run(command, "k")
        assert (status, out) == (1, "")
        assert "there is no key 'k'" in err


def test_the_store_of_the_policy(run: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPGUARD_CONFIG", raising=False)
    policy = f'[key]\nname = "billing"\nstore = "sqlite:///{tmp_path / "named.db"}"\n'
    (tmp_path / "loopguard.toml").write_text(policy)
    assert run("spend", "billing", "1", store=None)[0] == 0
    assert (tmp_path / "named.db").is_file()


def test_the_default_store(run: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()  # where the search for a policy ends
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPGUARD_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert run("spend", "billing", "1", store=None)[0] == 0
    assert (tmp_path / ".loopguard" / "keys.db").is_file()


def test_a_store_that_cannot_be_used(run: Run, tmp_path: pathlib.Path) -> None:
    status, _, err = run("list", store=f"sqlite:///{tmp_path}/nowhere/x.db")
    assert status == 2
    assert err.startswith("loopguard: sqlite:///")


def test_names_are_never_read_as_markup(run: Run) -> None:
    run("spend", "[red]x[/red]", "1")
    assert "[red]x[/red]" in run("list")[1]
    assert "[red]x[/red]" in run("show", "[red]x[/red]")[1]


def test_looking_creates_nothing(run: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the store's file nor, for the default store, its directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for store in ("sqlite:///budget.db", None):
        status, out, _ = run("list", store=store)
        assert (status, out[:11]) == (0, "No keys in ")
        for command in ("show", "delete"):
            status, _, err = run(command, "k", store=store)
            assert status == 1
            assert "there is no key 'k' in sqlite:///" in err
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_no_address_is_named(run: Run) -> None:
    status, _, err = run("list", store="nope")
    assert status == 2
    assert err.startswith('loopguard: store = "nope": no address; write sqlite:///FILE, redis://HOST/0, ')
    assert err.endswith(" (sqlite:///nope for a file of that name)\n")


def test_a_store_in_a_directory_that_is_not_there_is_an_error(run: Run, tmp_path: pathlib.Path) -> None:
    status, _, err = run("list", store=f"sqlite:///{tmp_path / 'nope' / 'budget.db'}")
    assert status == 2
    assert f"there is no directory {tmp_path / 'nope'}; create it" in err
