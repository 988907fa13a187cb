"""The rounds of one run: calls judged before any of them runs, and what they returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopguard_core import _messages
from loopguard_core._contained import contained, nothing
from loopguard_core._refusals import Refusals
from loopguard_core._scored import ScoredCall, ScoredRound
from loopguard_core._session_model import SessionModelCalls
from loopguard_core._types import Action, Decision, Stop, ToolCall

_UNSCORED = Decision(action=None, streak=0)
_SMALL_ROUND = 8  # calls up to which a round's small arguments are kept until its tools are called again
_QUIET = tuple(Decision(action=None, streak=streak) for streak in range(8))


def _quiet(streak: int) -> Decision:
    return _QUIET[streak] if streak < len(_QUIET) else Decision(action=None, streak=streak)


def _unscored(calls: Sequence[ToolCall], *_: Any, **__: Any) -> list[Decision]:
    try:
        return [_UNSCORED] * len(calls)
    except Exception:  # noqa: BLE001  # not even a list
        return []


class SessionRounds(SessionModelCalls):
    """What is done about the calls of a round."""

    def begin_round(self, calls: Sequence[ToolCall]) -> list[Decision]:
        """Judge all calls of one model response before any of them runs.

        An empty round counts for nothing. A round that begins before the last one's results are in closes that one:
        a result that was never recorded counts as unchanged.

        Args:
            calls: Every call of the response.

        Returns:
            One decision a call, in the same order.
        """
        try:  # what `contained` does, without its cost on the hot path
            with self.lock:
                return self._begin_round(calls)
        except Exception as error:  # noqa: BLE001  # see `contained`
            self.faults.note("begin_round", error)
            return _unscored(calls)

    def _begin_round(self, calls: Sequence[ToolCall]) -> list[Decision]:
        calls = calls if type(calls) is list else list(calls)
        if not calls:
            return []
        if not self._guard.enabled:
            return [_UNSCORED] * len(calls)
        if self._asleep:
            self._wake()
        if self._directive is not None:  # a round shows that its model call succeeded, reported or not
            self._settle_directive(reported=False)
        if self._message_state == "open":
            self._messages += 1
            if self._fed:  # a round shows that its message is complete, announced or not
                self._drop_message()
        self._message_state = "open"
        self._close_round()
        budget = self.budget
        over = None if budget.free else self._round_stop()
        budget.counters.turns += 1
        scored = self._scorer.score(calls, budget.counters.turns, self._messages, self._judge)
        followed = scored.followed
        if scored.rows is None and budget.free and self._stop is None:  # nothing to say, and nothing to refuse
            budget.counters.tool_calls += len(calls)
            self._open.begin_with_all(followed)
            decisions = [_QUIET[call.streak] if call.streak < len(_QUIET) else _quiet(call.streak) for call in followed]
        else:
            decisions = self._decided(scored, over)
        if self._guard.plugins.observes_rounds:
            self._tell_round(calls, scored, decisions)
        keep = len(followed) <= _SMALL_ROUND
        for call in followed:
            call.shrink(keep)
        return decisions

    def _decided(self, scored: ScoredRound, over: Stop | None) -> list[Decision]:
        self._open.begin(scored.followed)
        if over is not None:
            self._declare(over)
        if scored.fired:
            self._act_on(scored)
        decisions = [self._answer(row) for row in scored.calls]
        if self._refuses:
            self._refused = Refusals(scored, decisions)
        return decisions

    def _act_on(self, scored: ScoredRound) -> None:
        self._queue(scored.effects)
        offender = next((row.verdict for row in scored.calls if row.verdict and row.action is Action.STOP), None)
        if offender is not None:
            self._declare(Stop("doom_loop", offender, offender.message))

    def _answer(self, row: ScoredCall) -> Decision:
        verdict, observed = row.verdict, row.observed
        message: str | None = None
        if verdict is not None and verdict.action in (Action.BLOCK, Action.STOP):
            message = verdict.message
        elif self._stop is not None:
            message = _messages.not_executed()
        elif not self.budget.take_tool_call():
            message = _messages.call_over_limit()
        if message is not None:
            self._refuses = True
            if observed is not None:
                observed.refused = True
        streak = 0
        if observed is not None:
            streak = observed.streak
            if row.followed:
                self._open.expect(row.id, observed, duplicate=row.duplicate)
            if verdict is None and message is None and not row.duplicate:
                return _quiet(streak)
        return Decision(
            action=row.action,
            streak=streak,
            duplicate=row.duplicate,
            verdict=verdict,
            blocked=message is not None,
            message=message,
        )

    def record_result(self, call_id: str, output: Any, is_error: bool | None = None) -> None:
        """Record what a call returned. An id that is not of the running round is ignored.

        Args:
            call_id: The id from `ToolCall`.
            output: What the tool returned, or the exception it raised. A hash of it is kept, and in memory, at most
                16 KB a session, the text of those that may have to be compared; it is never saved, logged or sent.
            is_error: Whether it failed; None lets the core judge from the output (see `docs/session.md`).
        """
        try:  # as in `begin_round`
            with self.lock:
                if self._guard.enabled:
                    if not self._open.record(call_id, output, is_error):
                        self._guard.count("result of an unknown call")
                    elif self._guard.plugins.observes_results:
                        self._tell_result(call_id, output, is_error)
        except Exception as error:  # noqa: BLE001  # see `contained`
            self.faults.note("record_result", error)
            with self.lock:
                self._open.count_unread(self.budget.counters.turns)

    @contained(nothing)
    def refusal(self, call_id: str | None, tool: str | None = None) -> str | None:
        """What to say in place of a result, where a call is run far from where its round was judged.

        Args:
            call_id: The call's id; None or an empty one where the SDK does not pass it on. Then a call is only known to
                be refused if every call of its tool in this round is; so it is where calls share an id.
            tool: Its tool. A call that has the id but another tool was changed by somebody since, and may run.

        Returns:
            The text if the call of the running round must not run, None if it may.
        """
        return None if self._refused is None or not (call_id or tool) else self._refused.of(call_id, tool)
