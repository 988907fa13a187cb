"""Assertions on recorded conversations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopguard_core._guard import PolicyLike
from loopguard_core._policy_file import resolve_policy
from loopguard_core._types import Action
from loopguard_core.transcripts import Transcript, guard_for_replay, parse_transcript, play, read_transcript


def assert_no_loop(
    transcript: str | os.PathLike[str] | Transcript | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    policy: PolicyLike = "default",
) -> None:
    """Assert that a policy would have left a recorded conversation alone. Observing is allowed.

    Args:
        transcript: A path, a `Transcript`, an object with `messages`, or a list of OpenAI chat messages.
        policy: The policy, as `LoopGuard` takes it.

    Raises:
        AssertionError: It would have steered, escalated, blocked or stopped. The text says what and where.
        TranscriptError: The conversation cannot be read.
        PolicyError: The policy cannot be used.
    """
    if isinstance(transcript, Transcript):
        conversation = transcript
    elif isinstance(transcript, str | os.PathLike):
        conversation = read_transcript(Path(transcript))
    else:
        conversation = parse_transcript(json.dumps(transcript).encode())
    replayed = play(conversation, guard_for_replay(resolve_policy(policy)))
    acted = [verdict for verdict in replayed.verdicts if verdict.action is not Action.OBSERVE]
    if acted:
        lines = [f"  round {v.round}: {v.action.value} by {v.detector}, {v.message}" for v in acted]
        raise AssertionError("loopguard would not have left this conversation alone:\n" + "\n".join(lines))
