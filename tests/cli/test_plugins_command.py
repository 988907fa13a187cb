"""`loopguard plugins`, and what the command says where a command cannot run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loopguard_core.cli import main


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with plugins and a command, as `pip` would have left it, and a directory to work in."""
    site = tmp_path / "site"
    info = site / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_loops.py").write_text(
        "from loopguard_core import hookimpl\n"
        "class Alerts:\n"
        "    @hookimpl\n"
        "    def session_end(self, event): ...\n"
        "class Misspelt:\n"
        "    @hookimpl\n"
        "    def sesion_end(self, event): ...\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[loopguard]\n"
        "acme-alerts = acme_loops:Alerts\n"
        "acme-misspelt = acme_loops:Misspelt\n"
        "acme-missing = acme_is_not_there:Plugin\n"
        "[loopguard.commands]\n"
        "acme = acme_is_not_there:command\n"
        "interrupted = acme_loops:interrupted\n"
    )
    with (site / "acme_loops.py").open("a") as module:
        module.write("def interrupted(words): raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "acme_loops", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The table: by its first column, the others."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if cells}


def test_plugins_are_listed_and_not_imported(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (installed / "loopguard.toml").write_text('plugins = ["acme-alerts"]\n')
    assert main(["plugins"]) == 0
    found = rows(capsys)
    assert found["acme-alerts"] == ["acme 1.0", "yes"]
    assert found["acme-missing"] == ["acme 1.0", "no"]
    assert "acme_loops" not in sys.modules


def test_one_the_policy_names_and_nobody_installed_is_an_error(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = installed / "other.toml"
    policy.write_text('plugins = ["acme-alarms"]\n')
    assert main(["plugins", "--policy", str(policy)]) == 1
    assert rows(capsys)["acme-alarms"] == ["not installed", "yes"]


def test_policy_check_warns_of_one_that_is_not_there(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (installed / "loopguard.toml").write_text('plugins = ["acme-alert"]\n')
    assert main(["policy", "check"]) == 0
    assert (
        "hazard: plugins: no plugin 'acme-alert' is installed; did you mean 'acme-alerts'?" in capsys.readouterr().out
    )
    assert main(["policy", "check", "--strict"]) == 1


def test_check_says_what_each_implements_and_why_one_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--check"]) == 1
    found = rows(capsys)
    assert found["acme-alerts"][-1] == "session_end"
    assert "ModuleNotFoundError" in found["acme-missing"][-1]
    assert "session_end" in found["acme-misspelt"][-1]


def test_a_command_whose_package_is_not_there_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acme", "--help"]) == 2
    told = capsys.readouterr().err
    assert "loopguard acme needs more than the core: pip install 'loopguard-core[acme]'" in told
    assert "in a checkout: pip install '.[acme]'" in told


def test_of_two_commands_to_install_only_the_one_that_is_enough_is_shown(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (installed / "site" / "acme_is_not_there.py").write_text(
        "raise ImportError(\"acme_is_not_there needs acme: pip install 'acme[less]'\")\n"
    )
    assert main(["acme"]) == 2
    told = capsys.readouterr().err
    assert "(acme_is_not_there needs acme)" in told
    assert "acme[less]" not in told


def test_an_interrupted_command_ends_as_a_shell_expects() -> None:
    assert main(["interrupted"]) == 130


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("loopguard-core ")
