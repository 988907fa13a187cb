"""Recorded conversations: reading them, and playing them through a policy.

```python
from loopguard_core import Policy
from loopguard_core.transcripts import guard_for_replay, play, read_transcript

guard = guard_for_replay(Policy())
replayed = play(read_transcript("run.json"), guard)
print(replayed.ended, [verdict.action for verdict in replayed.verdicts])
```
"""

from __future__ import annotations

from loopguard_core.transcripts._labels import LABEL_SUFFIX, PASSED, Judgement, Label, Saved, find_label, judge
from loopguard_core.transcripts._model import (
    AssistantMessage,
    Document,
    Message,
    SystemMessage,
    ToolResult,
    Transcript,
    TranscriptError,
    UserMessage,
)
from loopguard_core.transcripts._player import Replayed, guard_for_replay, play
from loopguard_core.transcripts._reading import (
    READERS,
    Reader,
    parse_transcript,
    read_recording,
    read_transcript,
)
from loopguard_core.transcripts._telling import is_user_turn, recall, speak

__all__ = [
    "LABEL_SUFFIX",
    "PASSED",
    "READERS",
    "AssistantMessage",
    "Document",
    "Judgement",
    "Label",
    "Message",
    "Reader",
    "Replayed",
    "Saved",
    "SystemMessage",
    "ToolResult",
    "Transcript",
    "TranscriptError",
    "UserMessage",
    "find_label",
    "guard_for_replay",
    "is_user_turn",
    "judge",
    "parse_transcript",
    "play",
    "read_recording",
    "read_transcript",
    "recall",
    "speak",
]
