"""What the recorder wrote is read again: replayed under any policy, with what happened live beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopguard_core import LoopGuard, Policy, ToolCall, Usage
from loopguard_core.recorder import FileRecorder
from loopguard_core.transcripts import guard_for_replay, play, read_recording, read_transcript
from loopguard_core.transcripts.recordings import live_end, live_verdicts

ALL = {"privacy": {"include_arguments": True, "include_results": True}}


def record(tmp_path: Path, rounds: list[list[tuple[str, Any, Any]]], policy: Any = None) -> str:
    """Record a run of rounds of (tool, arguments, result)."""
    recorder = FileRecorder(tmp_path)
    with LoopGuard(policy, plugins=[recorder]).session("run-7") as session:
        for number, calls in enumerate(rounds):
            session.before_model_call("scripted-1")
            session.end_message()
            session.after_model_call("scripted-1", Usage(100, 20, cost="0.01"))  # type: ignore[arg-type]
            asked = [ToolCall(f"c{number}.{place}", tool, args) for place, (tool, args, _) in enumerate(calls)]
            for call, (_, _, result), decision in zip(asked, calls, session.begin_round(asked), strict=True):
                if not decision.blocked:
                    session.record_result(call.id, result)
    return recorder.path_of("run-7")


LOOP = [[("fetch", {"id": "INV-2291"}, "Error: timed out")]] * 6
CYCLE = [[("read", {"p": 1}, "a")], [("read", {"p": 2}, "b")]] * 5
PROGRESS = [[("run_tests", {}, f"{9 - n} failed")] for n in range(8)]
ROWS = [[("save_row", {"row": n, "name": f"row number {n * 37}"}, "ok")] for n in range(8)]


@pytest.mark.parametrize("policy", [None, ALL], ids=["bare", "with arguments and results"])
@pytest.mark.parametrize(
    ("rounds", "ended"),
    [(LOOP, "doom_loop"), (PROGRESS, "complete"), (ROWS, "complete")],
    ids=["loop", "progress", "rows"],
)
def test_a_replay_ends_as_the_run_did(tmp_path: Path, rounds: Any, ended: str, policy: Any) -> None:
    document, transcript = read_recording(record(tmp_path, rounds, policy))
    with guard_for_replay(Policy()) as guard:
        replayed = play(transcript, guard)
    live = live_end(document)
    assert live is not None
    assert (replayed.ended, live.reason) == (ended, ended)
    told = [(v.round, v.action, v.streak, v.detector) for v in live_verdicts(document)]
    assert [(v.round, v.action, v.streak, v.detector) for v in replayed.verdicts] == told


def test_cycles_are_found_again_in_a_bare_recording(tmp_path: Path) -> None:
    with guard_for_replay(Policy()) as guard:
        replayed = play(read_transcript(record(tmp_path, CYCLE)), guard)
    assert "cycle" in {verdict.detector for verdict in replayed.verdicts}


def test_another_policy_can_be_tried(tmp_path: Path) -> None:
    file = record(tmp_path, LOOP)
    with guard_for_replay(Policy.from_mapping({"ladder": {"block": 2, "stop": 4}})) as guard:
        replayed = play(read_transcript(file), guard)
    assert replayed.stop_round == 4


def test_id_and_usage_are_read(tmp_path: Path) -> None:
    transcript = read_transcript(record(tmp_path, LOOP))
    assert transcript.id == "run-7"
    usages = [message.usage for message in transcript.messages if hasattr(message, "usage")]
    assert [(usage.total_tokens, str(usage.cost)) for usage in usages if usage] == [(120, "0.01")] * 6


def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    file = Path(record(tmp_path, LOOP))
    odd = [
        {"role": "loopguard", "type": "verdict", "detector": 3},
        {"role": "loopguard"},
        {"role": "loopguard", "x": []},
    ]
    odd += [{"role": "loopguard", "type": "verdict", "detector": "d", "action": ["stop"], "streak": -1}]
    with file.open("a", encoding="ascii") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in odd)
    document, transcript = read_recording(file)
    assert len(live_verdicts(document)) == 5
    assert transcript.id == "run-7"


def test_other_forms_hold_nothing_live(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "user", "content": "hi"}]), encoding="ascii")
    document, _ = read_recording(file)
    assert live_verdicts(document) == ()
    assert live_end(document) is None


def test_is_error_counts_in_chat_messages(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "x", "is_error": True},
    ]
    file.write_text(json.dumps(messages), encoding="ascii")
    assert read_transcript(file).messages[1].is_error is True  # type: ignore[union-attr]
