"""Reads what `loopguard_core.recorder` wrote: chat messages, and between them lines with the role `loopguard`.

The messages go through the policy like any others. What loopguard did while the session ran is apart from that:
`live_verdicts` and `live_end` give it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loopguard_core._types import Action, Verdict
from loopguard_core.recorder import ROLE
from loopguard_core.transcripts import openai_chat
from loopguard_core.transcripts._model import Document, Transcript
from loopguard_core.transcripts._values import count, identifier, table, text_or_none

NAME = "loopguard recordings"


def recognizes(document: Document) -> bool:
    """Whether the recorder wrote it: other forms have no such role."""
    return next(_lines(document, "session"), None) is not None


def read(document: Document) -> Transcript:
    """Turn a parsed file into a transcript. Lines that are no messages are passed over.

    Raises:
        TranscriptError: It holds something that is no message.
    """
    session = next(_lines(document, "session"), {})
    return Transcript(identifier(session.get("session_id")), openai_chat.read(document).messages)


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """How a recorded session ended.

    Attributes:
        reason: Why, as `SessionEnd` had it.
        message: What the model or the user was told about a stop.
    """

    reason: str
    message: str


def live_verdicts(document: Document) -> tuple[Verdict, ...]:
    """What was detected while the session ran, in order; empty for other forms. What is no verdict is passed over."""
    return tuple(verdict for line in _lines(document, "verdict") if (verdict := _verdict(line)) is not None)


def live_end(document: Document) -> LiveEnd | None:
    """How the session ended, the last time it did; None where it did not, or for other forms."""
    ends = [line for line in _lines(document, "end") if text_or_none(line.get("reason"))]
    return LiveEnd(ends[-1]["reason"], text_or_none(ends[-1].get("message")) or "") if ends else None


def _lines(document: Document, kind: str) -> Iterator[Mapping[str, Any]]:
    for _, member in document.members():
        if isinstance(member, dict) and member.get("role") == ROLE and member.get("type") == kind:
            yield member


def _verdict(line: Mapping[str, Any]) -> Verdict | None:
    detector, action = text_or_none(line.get("detector")), line.get("action")
    if detector is None or action not in list(Action):
        return None
    channel = line.get("channel")
    return Verdict(
        detector=detector,
        action=Action(action),
        streak=count(line.get("streak")) or 0,
        fingerprint=text_or_none(line.get("fingerprint")),
        tool=text_or_none(line.get("tool")),
        call_id=text_or_none(line.get("call_id")),
        round=count(line.get("round")) or 0,
        message_index=count(line.get("message_index")) or 0,
        channel=channel if channel in ("content", "reasoning", "arguments") else None,
        char=count(line.get("char")),
        message=text_or_none(line.get("message")) or "",
        evidence=dict(table(line.get("evidence"))),
    )
