"""What the place loopguard is attached to can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopguard_core._types import Action

Capability = Literal["observe", "steer", "escalate", "block", "stop", "text"]


@dataclass(frozen=True, slots=True)
class Surface:
    """One way to attach loopguard to an SDK, with what it can perform there.

    Attributes:
        name: For people, for example `LoopGuardMiddleware`.
        adapter: The SDK's key in `[escalation] models` and in events, for example `langchain`.
        capabilities: What it can perform.
    """

    name: str
    adapter: str
    capabilities: frozenset[Capability]

    def perform(self, action: Action, *, escalation: bool) -> Action:
        """The action itself, or the next weaker one this surface can perform. `stop` stays where it is.

        Args:
            action: What the ladder asks for.
            escalation: Whether a stronger model is configured.
        """
        while action not in (Action.STOP, Action.OBSERVE):
            if action.value in self.capabilities and (action is not Action.ESCALATE or escalation):
                return action
            action = _WEAKER[action]
        return action


ANYWHERE = Surface(
    "a hand-written loop", "default", frozenset({"observe", "steer", "escalate", "block", "stop", "text"})
)
"""Where the caller does everything itself, and so can do everything."""

_WEAKER = {Action.BLOCK: Action.ESCALATE, Action.ESCALATE: Action.STEER, Action.STEER: Action.OBSERVE}
