from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from loopguard_core._ladder import DETECTORS
from loopguard_core.cli import main

ALONE = {name: {"enabled": False} for name in DETECTORS if name != "repeated_call"}
"""`repeated_call` alone, so that what is said here holds whatever detectors join it."""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_policy(tmp_path / "loopguard.toml", "")


def write_policy(path: Path, text: str) -> str:
    off = "".join(f"[detectors.{name}]\nenabled = false\n" for name in ALONE)
    path.write_text(f"{text}\n{off}", encoding="utf-8")
    path.chmod(0o644)
    return str(path)


class Command:
    """`loopguard score` as a shell sees it: exit status, standard output, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["score", *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def json(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self("--format", "json", *arguments)
        (line,) = out.splitlines()
        return code, json.loads(line)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def messages(rounds: int, *, same: bool = True, calls: int = 1) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    for number in range(rounds):
        ids = [f"c{number}-{place}" for place in range(calls)]
        arguments = [
            json.dumps({"at": place if same else f"{number} {place} {'x' * number}"}) for place in range(calls)
        ]
        asked = [
            {"id": id_, "type": "function", "function": {"name": "look", "arguments": text}}
            for id_, text in zip(ids, arguments, strict=True)
        ]
        written.append({"role": "assistant", "content": None, "tool_calls": asked})
        written += [
            {"role": "tool", "tool_call_id": id_, "content": f"seen {text}"}
            for id_, text in zip(ids, arguments, strict=True)
        ]
    return written


def case(path: Path, rounds: int = 8, *, loop: bool, same: bool = True, calls: int = 1, **label: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = {"id": path.stem, "loop": loop, **label, "messages": messages(rounds, same=same, calls=calls)}
    path.write_text(json.dumps(written), encoding="utf-8")
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    runs = tmp_path / "runs"
    case(runs / "loops" / "caught.json", loop=True, kind="identical", expect={"not_before_round": 2, "by_round": 4})
    case(runs / "loops" / "late.json", loop=True, kind="identical", expect={"by_round": 2, "why": "It is plain."})
    case(runs / "loops" / "missed.json", loop=True, same=False, kind="shifting", expect={"by_round": 5})
    case(runs / "healthy" / "alone.json", loop=False, same=False, kind="batch")
    case(runs / "healthy" / "alarm.json", 3, loop=False, kind="polling")
    return str(runs)


# -- judging -----------------------------------------------------------------------------------------------------------


def test_every_case_is_judged_and_the_misses_have_reasons(command: Command, folder: str) -> None:
    code, row = command.json(folder)
    assert code == 1
    assert {c["id"]: (c["result"], c["reason"]) for c in row["cases"]} == {
        "caught": ("caught", "block by repeated_call at round 3"),
        "late": ("late", "block by repeated_call at round 3, expected by round 2"),
        "missed": ("missed", "no warning, expected by round 5"),
        "alone": ("left alone", ""),
        "alarm": ("false alarm", "block by repeated_call at round 3"),
    }
    figures = {"loops": 3, "caught": 1, "healthy": 2, "alone": 1, "nagged": 0}
    assert {name: row["total"][name] for name in figures} == figures
    assert (row["good"], row["unread"]) == (False, 0)
    assert row["policy"] == f"{Path('loopguard.toml').absolute()}, preset default"
    assert [*row["kinds"]] == ["identical", "shifting", "batch", "polling"]
    assert row["detectors"] == {"repeated_call": {"caught": 1, "wrong_time": 1, "false_alarms": 1, "nagged": 0}}


def test_what_would_have_been_saved_is_counted_from_the_first_block_or_stop(command: Command, tmp_path: Path) -> None:
    one = case(tmp_path / "one.json", 8, loop=True)
    two = case(tmp_path / "two.json", 8, loop=True, calls=2)
    _, row = command.json(one, two)
    saved = [(c["rounds_saved"], c["calls_saved"], c["rounds_after_stop"]) for c in row["cases"]]
    assert saved == [(5, 6, 2), (5, 12, 2)]  # blocked at 3, stopped at 6
    assert row["total"]["rounds_saved"] == 10
    _, row = command.json("--policy", write_policy(tmp_path / "p.toml", "ladder = { block = false, stop = 3 }"), two)
    assert (row["total"]["calls_saved"], row["total"]["rounds_after_stop"]) == (12, 5)


def test_healthy_runs_that_are_only_warned_are_nagged_and_few_may_be(command: Command, tmp_path: Path) -> None:
    soft = write_policy(tmp_path / "soft.toml", "ladder = { steer = 3, block = false, stop = false }")
    runs = [case(tmp_path / f"{n}.json", 5, loop=False) for n in range(2)]
    code, row = command.json("--policy", soft, "--max-soft", "2", *runs)
    assert (code, row["total"]["alone"], row["total"]["nagged"]) == (0, 2, 2)
    assert row["cases"][0]["reason"].startswith("steer by repeated_call at round 3")
    assert row["detectors"]["repeated_call"]["nagged"] == 2
    assert command.json("--policy", soft, "--max-soft", "1", *runs)[0] == 1


def test_min_loops_is_the_share_that_must_be_caught(command: Command, folder: str) -> None:
    loops = f"{folder}/loops"
    assert [command.json("--min-loops", share, loops)[0] for share in ("0.3333333333", "0.34", "0")] == [0, 1, 0]


def test_excused_cases_are_shown_and_not_counted(command: Command, tmp_path: Path) -> None:
    run = case(tmp_path / "a.json", loop=False, excused="intent cannot be known")
    code, row = command.json(run)
    assert (code, row["excused"], row["total"]["healthy"], row["cases"][0]["passed"]) == (0, 1, 0, False)
    _, out, _ = command(run)
    assert "(not counted: intent cannot be known)" in out


def test_text_and_message_bounds(command: Command, tmp_path: Path) -> None:
    bounds = {"unit": "assistant_message", "not_before_round": 4, "by_round": 5}
    code, row = command.json(case(tmp_path / "a.json", loop=True, expect=bounds))
    assert (code, row["cases"][0]["result"]) == (1, "early")
    assert row["cases"][0]["reason"] == "block by repeated_call at message 3, not before 4"


# -- which files and labels --------------------------------------------------------------------------------------------


def test_healthy_recordings_need_no_label_and_others_do(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.json").write_text(json.dumps(messages(4, same=False)))
    code, row = command.json("--healthy", "mine")
    assert (code, row["total"]["alone"], row["cases"][0]["kind"]) == (0, 1, "healthy")
    code, _, err = command("mine")
    assert (code, err) == (
        2,
        f"loopguard score: {Path('mine/a.json')}: has no label; name healthy recordings with --healthy\n",
    )


def test_a_label_may_lie_beside_a_recording_of_any_form(command: Command, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"type": "ai", "content": "", "tool_calls": m["tool_calls"]}) + "\n"
                    if m["role"] == "assistant" else json.dumps({"type": "tool", **m}) + "\n"
                    for m in messages(8))  # fmt: skip
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.jsonl").write_text(lines)
    (tmp_path / "runs" / "a.label.json").write_text(json.dumps({"loop": True, "kind": "k", "expect": {"by_round": 3}}))
    code, row = command.json("runs")
    assert (code, [(c["id"], c["kind"], c["result"]) for c in row["cases"]]) == (0, [("a", "k", "caught")])


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ({"loop": "yes"}, "has a label without `loop`: true or false"),
        ({"loop": True, "expect": 3}, "has a label whose `expect` is no object"),
        ({"loop": True, "expect": {"unit": "turn"}}, "neither tool_round nor assistant_message"),
        ({"loop": True, "expect": {"by_round": "3"}}, "has a label whose `expect.by_round` is no whole number"),
        ({"loop": True, "preset": 3}, "has a label whose `preset` is no text"),
        ({"loop": True, "preset": "strictest"}, 'cannot be judged: its label: preset = "strictest"'),
    ],
)
def test_a_label_that_cannot_be_used_is_named_and_the_rest_still_count(
    command: Command, tmp_path: Path, label: dict[str, Any], reason: str
) -> None:
    good = case(tmp_path / "good.json", loop=True)
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({**label, "messages": messages(2)}))
    code, row_, err = command("--format", "json", str(bad), good)
    assert code == 2
    assert err.startswith(f"loopguard score: {bad}: ")
    assert reason in err
    row = json.loads(row_)
    assert (row["unread"], row["total"]["caught"]) == (1, 1)


def test_without_a_path_it_says_how_to_name_one(command: Command) -> None:
    code, out, err = command()
    assert (code, out) == (2, "")
    assert "loopguard score FOLDER" in err
    assert "docs/score.md" in err


def test_a_file_named_twice_counts_once(command: Command, folder: str) -> None:
    assert len(command.json(folder, f"{folder}/loops/late.json")[1]["cases"]) == 5


# -- policies ----------------------------------------------------------------------------------------------------------


def test_a_cases_own_preset_holds_unless_the_command_names_a_policy_or_preset(command: Command, tmp_path: Path) -> None:
    polling = messages(4)
    for number, message in enumerate(polling):
        if message["role"] == "tool":
            message["content"] = f"{number} of 8 done"  # progress: only a policy that ignores results blocks it
    run = tmp_path / "a.json"
    run.write_text(json.dumps({"loop": False, "preset": "openrouter", "messages": polling}))
    policy = write_policy(tmp_path / "p.toml", "")
    assert command.json(str(run))[1]["cases"][0]["result"] == "false alarm"
    for named in (["--preset", "default"], ["--policy", policy]):
        assert command.json(*named, str(run))[1]["cases"][0]["result"] in ("left alone", "nagged")


def test_shadow_is_judged_by_what_it_would_have_done(command: Command, folder: str) -> None:
    _, row = command.json("--preset", "observe", f"{folder}/loops/caught.json")
    assert row["cases"][0]["action"] == "block"
    assert row["policy"] == "preset observe, judged by what it would have done"


def test_without_switches_a_detector_off(command: Command, folder: str) -> None:
    _, row = command.json("--without", "repeated_call", folder)
    assert (row["total"]["caught"], row["total"]["alone"]) == (0, 2)
    assert row["policy"].endswith("preset default, without repeated_call")
    code, _, err = command("--without", "repeated_cal", folder)
    assert code == 2
    assert "there is no such detector; did you mean repeated_call?" in err


def test_ablation_says_what_each_detector_is_good_for(command: Command, folder: str) -> None:
    _, row = command.json("--ablation", folder)
    assert row["ablation"] == [
        {
            "detector": "repeated_call",
            "lost": ["caught"],
            "found": [],
            "alarms_gone": ["alarm"],
            "alarms_new": [],
            "nags_gone": [],
        }
    ]
    _, out, err = command("--ablation", folder)
    assert "without repeated_call, loops lost: caught" in out
    assert err == ""


def test_warnings_about_the_policy_are_given_once(
    command: Command, folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = write_policy(tmp_path / "p.toml", "ladder = { stop = false }")
    command("--policy", policy, "--ablation", folder)
    assert len([message for message in caplog.messages if "block without stop" in message]) == 1


# -- table -------------------------------------------------------------------------------------------------------------


def test_the_table_shows_what_is_not_as_wished_and_the_sums(command: Command, folder: str) -> None:
    code, out, err = command(folder)
    lines = [re.sub(r"\s+", " ", line).strip() for line in out.splitlines()]
    assert (code, err) == (1, "")
    assert "late late identical 8 5 block by repeated_call at round 3, expected by round 2. It is plain." in lines
    assert "missed missed shifting 8 0 no warning, expected by round 5" in lines
    assert "identical 2 1 - - - 10" in lines
    assert "repeated_call 1 1 1 0" in lines
    assert not any(line.startswith("caught") for line in lines)
    assert lines[-3:] == [
        f"policy: {Path('loopguard.toml').absolute()}, preset default",
        "loops caught in time 1/3; healthy runs left alone 1/2, 0 of them nagged",
        "saved: 10 rounds and 12 calls after the first block or stop, 4 rounds of them after a stop",
    ]
    _, out, _ = command("--list", folder)
    assert re.search(r"^  caught +caught +identical", out, re.MULTILINE)


def test_names_are_shown_and_never_read_as_markup(command: Command, tmp_path: Path) -> None:
    run = case(tmp_path / "a.json", 2, loop=True, kind="[link=x]k[/link]\x1b[2J")
    assert "[link=x]k[/link]?[2J" in command(run)[1]


@pytest.mark.parametrize("arguments", [("--min-loops", "2"), ("--min-loops", "x"), ("--max-soft", "-1")])
def test_impossible_options_are_status_2(arguments: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["score", *arguments, "x.json"])
    assert raised.value.code == 2
