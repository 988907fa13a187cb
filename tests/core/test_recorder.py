"""The recorder: what is in its files, who may read them, and what a file that cannot be written does to a run."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from loopguard_core import LoopGuard, ToolCall, Usage
from loopguard_core.recorder import FileRecorder

SECRET = "hunter2"
ARGUMENTS = {"invoice_id": SECRET}


def run(
    recorder: FileRecorder, policy: Any = None, *, rounds: int = 6, session_id: str = "run-1"
) -> list[dict[str, Any]]:
    """A run that repeats one failing call; the lines of its file."""
    guard = LoopGuard(policy, plugins=[recorder])
    with guard.session(session_id, agent="billing") as session:
        for number in range(1, rounds + 1):
            session.before_model_call("scripted-1")
            session.feed_text(SECRET)
            session.end_message()
            session.after_model_call("scripted-1", Usage(1_000 * number, 50, cost="0.01"), 0.5)  # type: ignore[arg-type]
            (decision,) = session.begin_round([ToolCall(f"c{number}", "fetch_invoice", ARGUMENTS)])
            if not decision.blocked:
                session.record_result(f"c{number}", f"Error: {SECRET} timed out")
    return lines(recorder, session_id)


def lines(recorder: FileRecorder, session_id: str = "run-1") -> list[dict[str, Any]]:
    file = Path(recorder.path_of(session_id))
    return [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()] if file.exists() else []


def of_type(recorded: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in recorded if line.get("type") == kind]


def test_names_fingerprints_verdicts_and_usage_are_recorded(tmp_path: Path) -> None:
    recorded = run(FileRecorder(tmp_path / "r"))
    assert [(line["session_id"], line["agent"]) for line in of_type(recorded, "session")] == [("run-1", "billing")]
    assert [(v["action"], v["streak"]) for v in of_type(recorded, "verdict")] == [
        ("observe", 2),
        ("block", 3),
        ("block", 4),
        ("block", 5),
        ("stop", 6),
    ]
    assert [end["reason"] for end in of_type(recorded, "end")] == ["doom_loop"]
    responses = [line for line in recorded if line["role"] == "assistant"]
    assert [line["usage"]["prompt_tokens"] for line in responses] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert {line["tool_calls"][0]["function"]["name"] for line in responses} == {"fetch_invoice"}
    assert len({line["tool_calls"][0]["function"]["arguments"] for line in responses}) == 1
    answers = [line["content"] for line in recorded if line["role"] == "tool"]
    assert answers[0] == answers[1]
    assert all(answer.startswith("[loopguard]") for answer in answers[2:])


def test_arguments_results_and_texts_are_not(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "r")
    run(recorder)
    assert SECRET not in Path(recorder.path_of("run-1")).read_text(encoding="ascii")


def test_arguments_and_results_are_where_the_policy_says_so(tmp_path: Path) -> None:
    recorded = run(FileRecorder(tmp_path / "r"), {"privacy": {"include_arguments": True, "include_results": True}})
    calls = [line["tool_calls"][0] for line in recorded if line["role"] == "assistant"]
    assert json.loads(calls[0]["function"]["arguments"]) == ARGUMENTS
    assert next(line["content"] for line in recorded if line["role"] == "tool") == f"Error: {SECRET} timed out"


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX systems")
def test_directory_and_files_are_private(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "r")
    run(recorder)
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(recorder.path_of("run-1")).stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX systems")
def test_a_file_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path)
    file = Path(recorder.path_of("run-1"))
    file.touch(mode=0o644)
    file.chmod(0o644)
    run(recorder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", ".", "", "x" * 10_000, "\u202egnp.exe", "-rf", "\ud800"])
def test_hostile_ids_stay_inside_the_directory(tmp_path: Path, name: str) -> None:
    recorder = FileRecorder(tmp_path / "r")
    assert run(recorder, session_id=name)
    (file,) = (tmp_path / "r").iterdir()
    assert file.name.isascii()
    assert not file.name.startswith(("-", "."))
    assert len(file.name) < 80
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_ids_that_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path)
    assert recorder.path_of("a/b") != recorder.path_of("a_b")


def test_redact_sees_every_line_and_its_answer_is_written(tmp_path: Path) -> None:
    def redact(line: dict[str, Any]) -> dict[str, Any] | None:
        if line.get("type") == "session":
            return {**line, "agent": "(hidden)"}
        return None if line["role"] == "tool" else line

    recorded = run(FileRecorder(tmp_path, redact))
    assert [line["agent"] for line in of_type(recorded, "session")] == ["(hidden)"]
    assert [line for line in recorded if line["role"] == "tool"] == []
    assert len(of_type(recorded, "end")) == 1


def test_a_redact_that_raises_writes_nothing_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def redact(line: dict[str, Any]) -> dict[str, Any]:
        raise KeyError(SECRET)

    recorder = FileRecorder(tmp_path / "r", redact)
    guard = LoopGuard(plugins=[recorder])
    with caplog.at_level(logging.WARNING, "loopguard"), guard.session() as session:
        session.begin_round([ToolCall("c1", "fetch", {})])
        session.record_result("c1", "x")
    assert not (tmp_path / "r").exists()
    assert guard.faults.counts == {"plugin FileRecorder": 3}
    assert len(caplog.records) == 1
    assert SECRET not in caplog.text


def test_what_cannot_be_written_is_noted_once_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r").write_text("a file where the directory should be", encoding="ascii")
    recorder = FileRecorder(tmp_path / "r")
    guard = LoopGuard(plugins=[recorder])
    decisions = []
    with caplog.at_level(logging.WARNING, "loopguard"), guard.session("run-1") as session:
        for number in range(3):
            decisions += session.begin_round([ToolCall(f"c{number}", "fetch", {})])
            session.record_result(f"c{number}", "Error: timed out")
    assert [decision.blocked for decision in decisions] == [False, False, True]
    assert guard.faults.counts["plugin FileRecorder"] > 1
    assert len(caplog.records) == 1


def test_lines_that_were_lost_are_counted_in_the_file(tmp_path: Path) -> None:
    place = tmp_path / "r"
    place.write_text("in the way", encoding="ascii")
    recorder = FileRecorder(place)
    with LoopGuard(plugins=[recorder]).session("run-1") as session:
        session.begin_round([ToolCall("c1", "fetch", {})])
        place.unlink()
        session.record_result("c1", "fine")
    recorded = lines(recorder)
    assert [line.get("type", line["role"]) for line in recorded] == ["session", "tool", "end"]
    assert [line.get("lost_before") for line in recorded] == [None, 1, None]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="file size limits are POSIX")
    import signal

    recorder = FileRecorder(tmp_path)
    guard = LoopGuard(plugins=[recorder])
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with guard.session("run-1") as session:
            session.begin_round([ToolCall("c1", "fetch", {})])
            size = Path(recorder.path_of("run-1")).stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))  # room for a part of a line
            session.record_result("c1", "fine")
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    recorded = lines(recorder)
    assert [line.get("type", line["role"]) for line in recorded] == ["session", "assistant", "end"]
    assert recorded[-1]["lost_before"] == 1
    assert guard.faults.counts == {"plugin FileRecorder": 1}


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine", encoding="ascii")
    recorder = FileRecorder(tmp_path / "r")
    (tmp_path / "r").mkdir()
    Path(recorder.path_of("run-1")).symlink_to(target)
    guard = LoopGuard(plugins=[recorder])
    with guard.session("run-1") as session:
        session.begin_round([ToolCall("c1", "fetch", {})])
    assert target.read_text(encoding="ascii") == "mine"
    assert guard.faults.counts["plugin FileRecorder"] >= 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_files_place_does_not_hold_up_the_run(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path)
    os.mkfifo(recorder.path_of("run-1"))
    with LoopGuard(plugins=[recorder]).session("run-1") as session:
        assert session.begin_round([ToolCall("c1", "fetch", {})])


def test_a_file_has_a_greatest_size(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path, max_bytes=3_000)
    recorded = run(recorder, rounds=50)
    assert recorded[-1]["type"] == "full"
    assert Path(recorder.path_of("run-1")).stat().st_size < 3_100


def test_a_paused_run_goes_on_in_its_file(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path)
    guard = LoopGuard(plugins=[recorder])
    session = guard.session("run-1")
    session.begin_round([ToolCall("c1", "ask_human", {})])
    session.pause()
    session.end()
    session.record_result("c1", "go on")
    session.user_turn()
    session.begin_round([ToolCall("c2", "fetch", {})])
    session.end()
    recorded = lines(recorder)
    assert [end["reason"] for end in of_type(recorded, "end")] == ["paused", "complete"]
    assert [line["role"] for line in recorded].count("user") == 1


def test_a_response_without_calls_is_recorded_without_its_text(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path)
    with LoopGuard(plugins=[recorder]).session("run-1") as session:
        session.feed_text(SECRET)
        session.end_message()
        session.after_model_call("m", Usage(10, 5))
    (answer,) = [line for line in lines(recorder) if line["role"] == "assistant"]
    assert answer["content"] == "(text of response 1 not recorded)"
    assert answer["usage"]["total_tokens"] == 15


@pytest.mark.parametrize(
    ("options", "fix"),
    [({"redact": "mask"}, "redact must be a function"), ({"max_bytes": 0}, "positive number of bytes")],
)
def test_bad_options_are_errors_that_say_what_to_do(tmp_path: Path, options: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        FileRecorder(tmp_path, **options)
