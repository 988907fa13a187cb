"""What a session holds, and why it may have to end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from loopguard_core import _messages
from loopguard_core._budget import Budget
from loopguard_core._effects import Effects
from loopguard_core._events import SessionEnd
from loopguard_core._limits import Breach
from loopguard_core._money import Money
from loopguard_core._outcome import OWN_WORDS
from loopguard_core._pending_text import PendingText
from loopguard_core._refusals import Refusals
from loopguard_core._round import OpenRound
from loopguard_core._scored import Effect
from loopguard_core._scoring import Scorer
from loopguard_core._spending import Shadow
from loopguard_core._types import Directive, Stop, Usage, Verdict

if TYPE_CHECKING:
    from loopguard_core._guard import LoopGuard

NOTHING = Directive()
"""The directive of a model call that is left alone."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a session comes from; carried by every event.

    Attributes:
        session_id: Id of the session.
        parent_id: Id of the session it is nested in.
        agent: Name of the agent.
        adapter: The SDK.
        framework_run_id: The SDK's own id of the run.
    """

    session_id: str
    parent_id: str | None = None
    agent: str | None = None
    adapter: str | None = None
    framework_run_id: str | None = None


class SessionState:
    """The state of one run.

    Attributes:
        origin: Where it comes from.
        parent: The run it is nested in; None for an outer run.
        budget: What it used and may still use.
        lock: The budget's; it guards the whole session.
        faults: Where contained faults are noted.
        verdict: Set only when *detection* ended the run: the signal to alert on.
        owners: How many objects the session was tied to; see `LoopGuard.end_with`.
    """

    def __init__(
        self,
        guard: LoopGuard,
        origin: Origin,
        *,
        parent: SessionState | None,
        scorer: Scorer,
        budget: Budget,
        escalation_model: str | None,
        money: Money | None = None,
    ) -> None:
        self.origin = origin
        self.budget = budget
        self._money = money
        self.lock = budget.lock
        self.faults = guard.faults
        self.verdict: Verdict | None = None
        self.owners = 0
        self._guard = guard
        self.parent = parent
        self._scorer = scorer
        self._escalation_model = escalation_model
        self._effects = Effects(guard.policy.escalation.max if escalation_model is not None else 0)
        self._open = OpenRound(aware=scorer.history is not None, nature_of=scorer.nature_of)
        self._pending_text = PendingText()
        self._refuses = False
        self._refused: Refusals | None = None
        self._stop: Stop | None = None
        self._shadow: Shadow | None = None
        self._directive: Directive | None = None
        self._ended: SessionEnd | None = None
        self._messages = 0
        self._message_state: Literal["open", "ended", "called"] = "open"
        self._fed = False  # whether detectors read text of a message that has not ended
        self._answer_asked = False
        self._asleep = False
        self._origin_fields = {field.name: getattr(origin, field.name) for field in dataclasses.fields(Origin)}

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id."""
        return self.origin.session_id

    @property
    def turns(self) -> int:
        """Rounds so far, refused or not."""
        return self.budget.counters.turns

    @property
    def model_calls(self) -> int:
        """Successful model calls so far."""
        return self.budget.counters.model_calls

    @property
    def tool_calls(self) -> int:
        """Calls that were let through so far, those of nested runs included."""
        return self.budget.counters.tool_calls

    @property
    def usage(self) -> Usage:
        """Tokens and cost so far, those of nested runs included."""
        return self.budget.counters.usage

    @property
    def seconds(self) -> float:
        """Active seconds so far."""
        return self.budget.clock.seconds

    @property
    def money(self) -> Money | None:
        """What it does about money; None where no cap on cost or tokens and no key is set, here or around."""
        return self._money

    @property
    def stop(self) -> Stop | None:
        """Why the run is being ended; None while it may go on."""
        return self._stop

    @property
    def ended(self) -> SessionEnd | None:
        """How it ended; None while it is live."""
        return self._ended

    # -- why it may have to end --------------------------------------------------------------------------------

    def _declare(self, stop: Stop) -> None:
        """End the run. A stop inside reaches the outside: every outer run ends before its next model call."""
        if self._stop is not None:
            return
        self._stop = stop
        self.verdict = stop.verdict
        if self.parent is not None:
            outer = dataclasses.replace(stop, message=_messages.inner_stop(stop.message))
            with self.parent.lock:
                self.parent._declare(outer)  # noqa: SLF001  # another instance of this class

    def _due_stop(self) -> Stop | None:
        """Why no further model call may start: a stop of this run or of one around it, or a limit."""
        if self._stop is not None:
            return self._stop
        if self.budget.free:
            return None
        return self._outside_stop() or limit_stop(self.budget.breach())

    def _round_stop(self) -> Stop | None:
        """For surfaces without a seam before the model call: a round after the last one is refused whole."""
        if self._stop is not None:
            return None
        return self._outside_stop() or limit_stop(self.budget.last_round_over())

    def _outside_stop(self) -> Stop | None:
        outer = self.parent
        while outer is not None:
            if outer.stop is not None:
                return outer.stop
            outer = outer.parent
        return None

    # -- the next model call -----------------------------------------------------------------------------------

    def _pending_directive(self) -> Directive:
        if not self._effects.pending:
            return NOTHING
        model = self._escalation_model if self._effects.escalate else None
        return Directive(steer=tuple(self._effects.steers), model=model)

    def _settle_directive(self, *, reported: bool = True) -> None:
        """The model call the directive was for succeeded: what it carried is said."""
        if not reported and self._money is not None:
            self._money.unreported = self._money.granted
        directive, self._directive = self._directive, None
        if directive is not None and directive is not NOTHING and directive.stop is None:
            self._effects.delivered(directive.steer, escalated=directive.model is not None)

    def _queue(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._effects.want(effect.action, effect.detector, effect.identity, effect.since, effect.text)

    # -- rounds and pauses -------------------------------------------------------------------------------------

    def _close_round(self) -> None:
        self._refuses, self._refused = False, None
        calls = self._open.close()
        if calls:
            self._scorer.close(calls, self.budget.counters.turns)

    def _wake(self) -> None:
        if not self._asleep:
            return
        self._asleep = False
        self.budget.clock.resume()
        if self._ended is not None:
            self._ended = None
            self._guard.session_resumed(self)

    def _event_fields(self) -> dict[str, Any]:
        return {**self._origin_fields, "turn": self.turns}


def limit_stop(breach: Breach | None) -> Stop | None:
    """The end of a run by a cap."""
    if breach is None:
        return None
    if breach.text is not None:
        return Stop(breach.reason, None, f"{OWN_WORDS} The run was ended: {breach.text}.")
    return Stop(breach.reason, None, _messages.limit_reached(breach))
