"""The calls an adapter makes on one agent run.

The order is `before_model_call, feed_text*, end_message, after_model_call, begin_round, record_result*`, again and
again, then `end`. Anything out of order has a defined answer and is never an exception; `docs/session.md` draws it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self, get_args

from loopguard_core import _messages
from loopguard_core._contained import contained, nothing
from loopguard_core._errors import LoopGuardStop
from loopguard_core._events import SessionEnd
from loopguard_core._key_limit import is_key_limit
from loopguard_core._money import provider_stop
from loopguard_core._session_model import CANCELLED, UNKNOWN
from loopguard_core._session_rounds import SessionRounds
from loopguard_core._types import EndReason


class Session(SessionRounds):
    """One run. Made by `LoopGuard.session`; every method may be called from any thread.

    What is done around a model call is in `_session_model`, text in `_session_text`, rounds in `_session_rounds`.
    """

    # -- what happens in between -------------------------------------------------------------------------------

    @contained(nothing)
    def user_turn(self) -> None:
        """A user spoke: asking for the same thing again is legitimate, so streaks start afresh. Limits go on."""
        self._wake()
        self._close_round()
        self._user_spoke = True
        self._effects.forget_pending()
        if self._directive is not None and self._directive.stop is None:
            self._directive = None
        self._pending_text.clear()
        if self._scorer.history is not None:
            self._scorer.history.user_turn()
        for detector in self._scorer.detectors:
            self._scorer.contained(detector, detector.user_turn)

    @contained(nothing)
    def compacted(self) -> None:
        """History was summarised: each known call may be asked for once more, uncounted, once a streak."""
        for detector in self._scorer.detectors:
            self._scorer.contained(detector, detector.compacted)

    @contained(nothing)
    def pause(self) -> None:
        """The run waits for a human. Time stands still until it goes on; `end` then says `paused`."""
        self._asleep = True
        self.budget.clock.pause()

    @contained(nothing)
    def continued(self) -> None:
        """The run goes on after a pause nobody announced: the time since the last call here was no activity."""
        self.budget.clock.skip_idle()
        self._wake()

    @contained(nothing)
    def final_answer(self) -> str | None:
        """What to put before the model for the one last call of `on_stop.how = "answer"`.

        Returns:
            The text, the first time it is asked for after a stop; None otherwise, and where no money is left on a
            key: such a call would be refused, or spend what nobody allowed.
        """
        if self._stop is None or self._answer_asked or self._stop.reason == "key_limit":
            return None
        self._answer_asked = True
        return _messages.final_answer(self._stop.message)

    # -- the end -----------------------------------------------------------------------------------------------

    def end(
        self, reason: EndReason | None = None, error: BaseException | None = None, *, may_go_on: bool = False
    ) -> SessionEnd:
        """End the session and tell the `session_end` hooks. A second call gives the same event.

        After `paused` the session stays usable: it goes on where it was, and ends again.

        Args:
            reason: Why; None works it out. A stop of ours always wins.
            error: The exception that ended the run, if one did.
            may_go_on: True where the caller cannot know whether somebody above it tries again: if that happens, the
                session goes on where it was, and ends again.
        """
        with self.lock:
            if self._ended is not None and not self._abandoned(reason, error):
                return self._ended
            self._leave_call(error)
            ended = self._end_reason(reason, error)
            if ended == "paused" or (may_go_on and self._stop is None):
                self._asleep = True
                self.budget.clock.pause()
            event = self._ended = SessionEnd(
                **self._event_fields(),
                reason=ended,
                verdict=self.verdict,
                usage=self.usage,
                model_calls=self.model_calls,
                turns=self.turns,
                tool_calls=self.tool_calls,
                duration=self.seconds,
                message="" if self._stop is None else self._stop.message,
                error=None if error is None or isinstance(error, LoopGuardStop) else type(error).__name__,
                saving=None if self._shadow is None else self._shadow.saving(self.turns, self.usage),
            )
        self._close_money()
        self._guard.session_ended(self, event)
        return event

    def _leave_call(self, error: BaseException | None) -> None:
        """Of a model call that still runs, or was never reported, what came is counted. Limits say why it died."""
        try:
            money = self._money
            if money is not None and money.granted and (money.heard or money.unreported):
                self._count_usage(None, UNKNOWN)
            if error is not None and self._stop is None and self._guard.enabled and is_key_limit(error):
                self._declare(provider_stop())
        except Exception as fault:  # noqa: BLE001  # see `contained`
            self.faults.note("end", fault)

    def _close_money(self) -> None:
        """No model call runs any more: give back what one holds, and count what is owed."""
        try:
            with self.lock:
                if self._money is None:
                    return
                self._money.failed()
            self._money.close()
        except Exception as fault:  # noqa: BLE001  # see `contained`
            self.faults.note("end", fault)

    def _abandoned(self, reason: EndReason | None, error: BaseException | None) -> bool:
        """Whether a paused run is ended for good."""
        paused = self._ended is not None and self._ended.reason == "paused"
        return paused and (error is not None or reason not in (None, "paused"))

    def _end_reason(self, reason: EndReason | None, error: BaseException | None) -> EndReason:
        if self._stop is not None:
            return self._stop.reason
        if isinstance(error, LoopGuardStop):
            return error.reason
        if reason is not None:
            if reason in get_args(EndReason):
                return reason
            self.faults.note("end", text=f"unknown reason {reason!r}; use one of {', '.join(get_args(EndReason))}")
        if error is not None:
            return "cancelled" if isinstance(error, CANCELLED) else "error"
        return "paused" if self._asleep and self._ended is None else "complete"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error=error)
