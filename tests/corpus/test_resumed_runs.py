"""The healthy conversations, saved and resumed before every message: none is told anything that it is not told live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopguard_core import Policy
from loopguard_core.transcripts import AssistantMessage, ToolResult, guard_for_replay, read_transcript
from loopguard_core.transcripts._player import _Player, is_summary, is_user_turn

CORPUS = Path(__file__).parents[2] / "corpus"


class Resumed(_Player):
    def assistant(self, message: Any) -> None:
        for run in self._runs.values():
            state = json.loads(json.dumps(run.session.save()))
            self._guard.discard(run.session.id)
            run.session = self._guard.session(run.session.id, state=state)
        super().assistant(message)


def told(kind: type[_Player], transcript: Any) -> set[int]:
    """The rounds in which more is done than to note something."""
    guard = guard_for_replay(Policy())
    player = kind(transcript, guard)
    for message in transcript.messages:
        if isinstance(message, AssistantMessage):
            player.assistant(message)
        elif isinstance(message, ToolResult):
            player.result(message)
        elif is_summary(message):
            player.compacted()
        elif is_user_turn(message):
            player.user_turn()
    assert not guard.faults.counts
    return {verdict.round for verdict in player.replayed().verdicts if verdict.action != "observe"}


@pytest.mark.parametrize("folder", sorted(path.name for path in CORPUS.iterdir() if path.is_dir()))
def test_a_healthy_run_is_told_nothing_more_once_it_is_resumed(folder: str) -> None:
    more = {}
    for file in sorted((CORPUS / folder).glob("*.json")):
        if json.loads(file.read_text("utf-8"))["loop"]:
            continue
        transcripts = read_transcript(file)
        for transcript in transcripts if isinstance(transcripts, list) else [transcripts]:
            if rounds := told(Resumed, transcript) - told(_Player, transcript):
                more[file.stem] = rounds
    assert not more
