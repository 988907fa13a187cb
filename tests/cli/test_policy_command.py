from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from loopguard_core._policy import Policy
from loopguard_core._policy_file import load_policy
from loopguard_core.cli.policy import add_parser

FULL = """\
preset = "observe"
ladder = { steer = 4, stop = false }
plugins = ["a\\u007f\\"b"]
[detectors.repeated_call]
ladder = { block = 4 }
[limits]
cost = 0.10
seconds = 1.5
[tools."web *"]
loop_key = ["query"]
normalize = ["casefold"]
[tools."*"]
loop_key = false
[tools.bash]
ladder = { block = 2, stop = 5 }
[escalation]
models = { "my sdk" = "big" }
"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


class Command:
    """The command as a shell sees it: exit code, standard output, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser(prog="loopguard")
        add_parser(parser.add_subparsers(required=True))
        args = parser.parse_args(["policy", *arguments])
        code: int = args.handler(args)
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return str(path)


# -- check -----------------------------------------------------------------------------------------------------


def test_check_of_a_good_file_exits_0(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "loopguard.toml", "[limits]\nturns = 3\n")
    assert command("check", path) == (0, f"{path}: ok\n", "")
    assert command("check", "--strict") == (0, f"{path}: ok\n", "")


def test_check_without_any_file_checks_the_default(command: Command) -> None:
    assert command("check") == (0, "no policy file found, built-in default: ok\n", "")


def test_hazards_are_printed_and_fail_only_under_strict(tmp_path: Path, command: Command) -> None:
    text = "[ladder]\nstop = 3\n[tools.'[red]x[/]']\nloop_key = false\nnormalize = ['nfkc']\n"
    path = written(tmp_path / "p.toml", text)
    code, out, err = command("check", path)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        (
            "hazard: ladder: block = 3 can never fire, because stop = 3 comes no later; give block a lower figure or"
            " switch it off with false"
        ),
        'hazard: tools."[red]x[/]".normalize: no effect, because loop_key = false exempts the tool',
        f"{path}: 2 hazards",
    ]
    assert command("check", path, "--strict")[0] == 1


def test_errors_go_to_standard_error_line_by_line_and_exit_2(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "p.toml", "max_turns = 3\nshadow = 1\n")
    code, out, err = command("check", path)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"error: {path}: shadow = 1: must be true or false, without quotes",
        f"error: {path}: max_turns = 3: unknown key; did you mean limits.turns?",
    ]
    assert command("check", str(tmp_path / "nope.toml"))[0] == 2


def test_check_says_when_the_kill_switch_is_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    assert "note: loopguard is switched off" in command("check")[1]


# -- show ------------------------------------------------------------------------------------------------------


def test_show_prints_ladders_and_settings_as_tables(tmp_path: Path, command: Command) -> None:
    code, out, err = command("show", written(tmp_path / "p.toml", FULL))
    assert (code, err) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    assert ["repeated_call", "2", "4", "-", "4", "-"] in rows
    assert ['repeated_call for "bash"', "2", "4", "-", "2", "5"] in rows
    assert ["limits.cost", "0.10"] in rows
    assert ['tools."web *".loop_key', '["query"]'] in rows


@pytest.mark.parametrize("text", [FULL, "", 'preset = "openrouter"\n'])
def test_show_as_toml_reads_back_as_the_same_policy(tmp_path: Path, command: Command, text: str) -> None:
    path = written(tmp_path / "p.toml", text)
    code, out, _ = command("show", path, "--format", "toml")
    again = load_policy(written(tmp_path / "again.toml", out))
    assert code == 0
    assert again == load_policy(path)
    assert again.hazards() == load_policy(path).hazards()
    assert again.tool("web x") == load_policy(path).tool("web x")
    assert "# repeated_call: observe 2, " in out


def test_show_as_json_has_the_resolved_ladders(tmp_path: Path, command: Command) -> None:
    shown = json.loads(command("show", written(tmp_path / "p.toml", FULL), "--format", "json")[1])
    ladders = shown["ladders"]
    assert ladders["repeated_call"] == {"observe": 2, "steer": 4, "escalate": None, "block": 4, "stop": None}
    assert ladders["cycle"] == {"observe": 2, "steer": 3, "escalate": None, "block": 4, "stop": 6}
    assert shown["tool_ladders"]["bash"]["stop"] == 5
    assert shown["policy"]["shadow"] is True
    assert shown["policy"]["tools"]["web *"] == {"loop_key": ["query"], "normalize": ["casefold"]}
    assert shown["hazards"] == Policy.from_file(tmp_path / "p.toml").hazards()


def test_show_with_a_preset_replaces_the_files_and_needs_no_file(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "loopguard.toml", FULL)

    def preset_and_cost(*arguments: str) -> tuple[Any, Any]:
        policy = json.loads(command("show", *arguments, "--format", "json")[1])["policy"]
        return policy["preset"], policy["limits"]["cost"]

    assert preset_and_cost(path, "--preset", "openrouter") == ("openrouter", "0.10")
    assert preset_and_cost("--preset", "openrouter") == ("openrouter", None)
    assert preset_and_cost() == ("observe", "0.10")


def test_show_of_a_preset_that_is_not_there_exits_2(command: Command) -> None:
    code, out, err = command("show", "--preset", "stict")
    assert (code, out) == (2, "")
    assert "did you mean 'strict'?" in err


@pytest.mark.parametrize("form", ["table", "toml", "json"])
def test_show_hides_secrets(tmp_path: Path, command: Command, form: str) -> None:
    text = '[privacy]\nfingerprint_key = "hunter2"\n[key]\nname = "a"\nstore = "redis://:hunter2@host/0?password=hunter2"\n'
    code, out, _ = command("show", written(tmp_path / "p.toml", text), "--format", form)
    assert code == 0
    assert "hunter2" not in out
    assert "host/0" in out


# -- schema ----------------------------------------------------------------------------------------------------


def test_schema_is_a_json_schema_of_every_key(command: Command) -> None:
    code, out, _ = command("schema")
    schema = json.loads(out)
    assert code == 0
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["properties"]) == set(Policy.model_fields)
    assert schema["additionalProperties"] is False
    rung = schema["$defs"]["LadderSettings"]["properties"]["block"]
    assert rung["anyOf"] == [{"type": "integer", "minimum": 1}, {"const": False}]
    assert all("description" in entry for entry in schema["properties"].values())
