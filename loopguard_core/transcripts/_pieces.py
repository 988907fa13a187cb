"""A response that a recording has in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field

from loopguard_core._types import ToolCall, Usage
from loopguard_core.transcripts._model import AssistantMessage


@dataclass(slots=True, kw_only=True, eq=False)
class Pieces:
    """What one model call said, as far as it was read."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None

    def message(self) -> AssistantMessage:
        """All of it together."""
        return AssistantMessage(
            "".join(self.content),
            "".join(self.reasoning),
            tuple(self.calls),
            self.finish_reason,
            self.usage,
            self.model,
        )
