from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loopguard_core import fingerprint
from loopguard_core.cli import main

CASES = Path(__file__).parents[1] / "data" / "cases"
LOOP = str(CASES / "field-l01-identical-success-x10.json")
HEALTHY = str(CASES / "field-f09-parallel-identical-one-round.json")
KEYS = ["round", "message", "detector", "action", "streak", "tool", "call_id", "channel", "char", "fingerprint", "text"]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


class Command:
    """`loopguard replay` as a shell sees it: exit status, standard output, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["replay", *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        code, out, _ = self("--format", "json", *arguments)
        assert code == 0
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def looping(path: Path, rounds: int, tool: str = "look") -> str:
    messages: list[dict[str, Any]] = []
    for number in range(rounds):
        call = {"id": f"c{number}", "type": "function", "function": {"name": tool, "arguments": '{"a": 1}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "same"},
        ]
    path.write_text(json.dumps(messages), encoding="utf-8")
    return str(path)


def actions(row: dict[str, Any]) -> list[tuple[int, str]]:
    return [(verdict["round"], verdict["action"]) for verdict in row["verdicts"]]


# -- json ------------------------------------------------------------------------------------------------------


def test_json_is_one_object_a_file_in_the_order_given(command: Command, tmp_path: Path) -> None:
    bare = looping(tmp_path / "bare.json", 2)
    rows = command.json(HEALTHY, LOOP, bare)
    assert [row["file"] for row in rows] == [HEALTHY, LOOP, bare]
    assert [row["id"] for row in rows] == [Path(HEALTHY).stem, Path(LOOP).stem, None]
    assert all(list(row) == ["file", "id", "rounds", "messages", "ended", "verdicts"] for row in rows)
    assert [list(verdict) for row in rows for verdict in row["verdicts"]] == [KEYS] * 24
    assert (rows[0]["rounds"], rows[0]["messages"], rows[0]["ended"]) == (2, 2, "complete")
    assert (rows[1]["rounds"], rows[1]["messages"], rows[1]["ended"]) == (24, 24, "doom_loop")


def test_a_verdict_says_where_and_what_and_null_where_it_does_not_apply(command: Command, tmp_path: Path) -> None:
    (row,) = command.json(looping(tmp_path / "run.json", 2))
    (verdict,) = row["verdicts"]
    text = verdict.pop("text")
    assert "`look`" in text
    assert verdict == {
        "round": 2,
        "message": 2,
        "detector": "repeated_call",
        "action": "observe",
        "streak": 2,
        "tool": "look",
        "call_id": "c1",
        "channel": None,
        "char": None,
        "fingerprint": fingerprint("look", {"a": 1}),
    }


def test_a_hostile_tool_name_is_ascii_in_json(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("--format", "json", looping(tmp_path / "run.json", 2, "\ud800\x1b[31m工具" * 40))
    assert (code, out.isascii()) == (0, True)
    assert len(json.loads(out)["verdicts"][0]["tool"]) == 64


# -- policies --------------------------------------------------------------------------------------------------


def test_without_a_policy_the_one_loopguard_finds_holds(command: Command, tmp_path: Path) -> None:
    run = looping(tmp_path / "run.json", 4)
    assert actions(command.json(run)[0]) == [(2, "observe"), (3, "block"), (4, "block")]
    (tmp_path / "loopguard.toml").write_text("ladder = { block = 4 }\n")
    (tmp_path / "loopguard.toml").chmod(0o644)
    assert actions(command.json(run)[0]) == [(2, "observe"), (3, "observe"), (4, "block")]
    assert actions(command.json("--preset", "default", run)[0]) == [(2, "observe"), (3, "block"), (4, "block")]


def test_preset_takes_the_place_of_the_one_in_the_policy_and_leaves_the_rest(command: Command, tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text('preset = "openrouter"\n[limits]\nturns = 2\n')
    policy.chmod(0o644)
    run = looping(tmp_path / "run.json", 3)
    (plain,) = command.json("--policy", str(policy), run)
    (shadow,) = command.json("--policy", str(policy), "--preset", "observe", run)
    assert (actions(plain), plain["ended"]) == ([(2, "observe"), (3, "block")], "max_turns")
    assert (actions(shadow), shadow["ended"]) == ([(2, "observe"), (3, "observe")], "max_turns")
    assert plain["verdicts"][0]["fingerprint"] == fingerprint("look", {"a": 1}, "sha256")


@pytest.mark.parametrize("arguments", [("--policy", "none.toml"), ("--preset", "none")])
def test_a_policy_that_cannot_be_used_is_status_2_and_nothing_is_replayed(
    arguments: tuple[str, str], command: Command
) -> None:
    code, out, err = command(*arguments, LOOP)
    assert (code, out) == (2, "")
    assert "none" in err


def test_hazards_are_warned_about_once_for_all_files(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "loopguard.toml").write_text("ladder = { stop = false }\n")
    (tmp_path / "loopguard.toml").chmod(0o644)
    command(LOOP, HEALTHY, LOOP)
    assert [message for message in caplog.messages if "block without stop" in message] == caplog.messages
    assert len(caplog.messages) == 1


# -- files -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_named_and_the_rest_still_run(command: Command, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"role": "user"}\n{"role"')
    code, out, err = command("--format", "json", "absent.json", HEALTHY, str(broken), LOOP)
    assert code == 2
    assert [json.loads(line)["file"] for line in out.splitlines()] == [HEALTHY, LOOP]
    first, second = err.splitlines()
    assert first == "loopguard replay: absent.json: cannot be read (No such file or directory)"
    assert second.startswith(f"loopguard replay: {broken}:2: is not JSON")


def test_a_directory_is_its_recordings_in_order(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    (folder / "deeper.json").mkdir(parents=True)
    for name in ("b.jsonl", "a.json", "c.JSON", "notes.txt"):
        looping(folder / name, 1)
    assert [row["file"] for row in command.json(str(folder))] == [
        str(folder / n) for n in ("a.json", "b.jsonl", "c.JSON")
    ]


def test_recordings_of_every_form_may_be_named_together(command: Command, tmp_path: Path) -> None:
    samples = CASES.parent / "transcripts"
    unknown = tmp_path / "unknown.json"
    unknown.write_text('[{"type": "robot"}]')
    code, out, err = command("--preset", "openrouter", "--format", "json", str(samples), str(unknown), LOOP)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert err.startswith(f"loopguard replay: {unknown}: is not a recorded conversation in a form this release reads (")
    assert rows[-1]["file"] == LOOP
    assert {(row["rounds"], row["messages"], row["ended"]) for row in rows[:-1]} == {(4, 5, "complete")}
    assert {tuple(actions(row)) for row in rows[:-1]} == {((2, "observe"), (3, "block"), (4, "block"))}


def test_a_directory_without_recordings_is_an_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    code, _, err = command("runs")
    assert (code, err) == (2, "loopguard replay: runs: holds no *.json or *.jsonl\n")


def test_a_file_name_cannot_drive_the_terminal(command: Command) -> None:
    for name in ("\x1b[2Jx.json", "n" * 5000):
        code, _, err = command(name)
        assert code == 2
        assert "\x1b" not in err
        assert "cannot be read" in err


# -- table -----------------------------------------------------------------------------------------------------


def test_the_table_gathers_a_streak_into_one_line_an_action(command: Command) -> None:
    code, out, err = command("--preset", "default", LOOP, HEALTHY)
    lines = [re.sub(r"\s+", " ", line).strip() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines == [
        f"{LOOP} 24 rounds, 24 messages, doom_loop at round 6",
        "round message streak action detector tool or text",
        "2 2 2 observe repeated_call bash",
        "3-5 3-5 3-5 block repeated_call bash",
        "6-24 6-24 6-24 stop repeated_call bash",
        f"{HEALTHY} 2 rounds, 2 messages, complete",
        "2 conversations, 1 ended early (doom_loop 1), 1 with a call refused or the run stopped by detection",
    ]


def test_a_streak_that_began_afresh_is_a_line_of_its_own(command: Command, tmp_path: Path) -> None:
    path = Path(looping(tmp_path / "run.json", 2))
    once = json.loads(path.read_text())
    path.write_text(json.dumps([*once, {"role": "user", "content": "again"}, *once]))
    _, out, _ = command(str(path))
    assert re.findall(r"^ +(\d+) +\d+ +(\d+)  observe", out, re.MULTILINE) == [("2", "2"), ("4", "2")]


def test_names_are_shown_and_never_read_as_markup(command: Command, tmp_path: Path) -> None:
    run = looping(tmp_path / "[red]run.json", 2, "[link=x]rm[/link]\x1b[2J:boom:")
    _, out, _ = command(run)
    assert "[red]run.json" in out
    assert "[link=x]rm[/link]?[2J:boom:" in out


def test_unreadable_files_are_counted_in_the_summary(command: Command) -> None:
    code, out, _ = command("absent.json")
    assert code == 2
    assert out.startswith("0 conversations, 0 ended early")
    assert out.endswith(", 1 not read\n")


# -- as a program ----------------------------------------------------------------------------------------------


def test_the_program_writes_rows_to_stdout_and_warnings_to_stderr(tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text("ladder = { stop = false }\n")
    policy.chmod(0o644)
    program = [sys.executable, "-c", "import sys; from loopguard_core.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*program, "replay", "--format", "json", "--policy", str(policy), LOOP, HEALTHY, "absent.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert [json.loads(line)["ended"] for line in done.stdout.splitlines()] == ["complete", "complete"]
    warning, absent = done.stderr.splitlines()
    assert "block without stop" in warning
    assert absent.startswith("loopguard replay: absent.json: ")
