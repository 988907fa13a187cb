"""What the next model call is to be told, and by whom it is to be answered.

Steering and escalating happen once per streak, and only when the model call they came with succeeded: a failed call is
retried with the same words. An escalation that failed is not tried again, so that a broken strong model cannot break
a run the usual one would have finished.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from loopguard_core._bounded import bounded_key, count, short_text
from loopguard_core._types import Action

MAX_STREAKS = 48
"""Streaks whose steering is remembered; the oldest go first."""

MAX_PENDING = 4
"""Steering messages before one model call."""

MAX_TEXT = 1024
"""Characters of one steering message."""

_NAME = 64
_STEERED, _ESCALATED = 1, 2


class Effects:
    """Pending effects on the next model call.

    Args:
        max_escalations: Model calls of the session that may go to the stronger model.
    """

    def __init__(self, max_escalations: int) -> None:
        self._max_escalations = max_escalations
        self._escalations = 0
        self._streaks: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self.steers: list[str] = []
        self.escalate = False

    @property
    def pending(self) -> bool:
        """Whether there is anything for the next model call."""
        return self.escalate or bool(self.steers)

    @property
    def escalations_left(self) -> bool:
        """Whether another model call may be escalated."""
        return self._escalations + self.escalate < self._max_escalations

    def want(self, action: Action, detector: str, identity: str, since: int, text: str) -> None:
        """Ask for `steer` or `escalate`, unless this streak had it already.

        Args:
            action: `steer` or `escalate`. Without an escalation left it becomes a `steer`.
            detector: Whose streak it is.
            identity: What the streak is about.
            since: Round or message in which the streak began.
            text: What a steered model is told.
        """
        key = (detector[:_NAME], bounded_key(identity))
        began, done = self._streaks.get(key, (since, 0))
        if began != since:
            done = 0
        if action is Action.ESCALATE and not done & _ESCALATED and not self.escalate and not self.escalations_left:
            action = Action.STEER
        bit = _STEERED if action is Action.STEER else _ESCALATED
        if done & bit:
            return
        if action is Action.STEER:
            text = text[:MAX_TEXT]
            if text not in self.steers:
                if len(self.steers) >= MAX_PENDING:  # what is not said now may be said later in the streak
                    return
                self.steers.append(text)
        else:
            self.escalate = True
        self._streaks[key] = (since, done | bit)
        self._streaks.move_to_end(key)
        while len(self._streaks) > MAX_STREAKS:
            self._streaks.popitem(last=False)

    def delivered(self, steers: tuple[str, ...], *, escalated: bool) -> None:
        """The model call that carried these succeeded."""
        self.steers = [text for text in self.steers if text not in steers]
        if escalated:
            self._escalations += 1
            self.escalate = False

    def failed(self, *, escalated: bool) -> None:
        """The model call failed: its words wait for the retry, an escalation is spent."""
        if escalated:
            self._escalations += 1
            self.escalate = False

    def forget_pending(self) -> None:
        """A user spoke: what was to be said about the past is stale."""
        self.steers = []
        self.escalate = False

    def save(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "escalations": self._escalations,
            "streaks": [[detector, identity, *value] for (detector, identity), value in self._streaks.items()],
            "steers": list(self.steers),
            "escalate": self.escalate,
        }

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            streaks = OrderedDict(
                ((short_text(detector, _NAME), short_text(identity)), (count(since), count(done)))
                for detector, identity, since, done in state["streaks"][-MAX_STREAKS:]
            )
            steers = [short_text(text, MAX_TEXT) for text in state["steers"][:MAX_PENDING]]
            escalate, escalations = bool(state["escalate"]), count(state["escalations"])
        except (KeyError, TypeError) as error:
            raise ValueError("not saved effects") from error
        self._streaks, self.steers = streaks, steers
        self.escalate, self._escalations = escalate, escalations
