"""The calls an adapter makes on one agent run.

The order is `before_model_call, feed_text*, end_message, after_model_call, begin_round, record_result*`, again and
again, then `end`. Anything out of order has a defined answer and is never an exception; `docs/session.md` draws it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, get_args

from loopguard_core import _messages
from loopguard_core._bounded import call_key
from loopguard_core._contained import contained, nothing
from loopguard_core._errors import LoopGuardStop
from loopguard_core._events import DoomLoopDetected, PostModelCall, ResultRecorded, RoundJudged, SessionEnd
from loopguard_core._key_limit import is_key_limit
from loopguard_core._money import key_stop, provider_stop
from loopguard_core._prices import warm
from loopguard_core._refusals import Refusals
from loopguard_core._round_events import judged_calls, recorded_result
from loopguard_core._scoring import RANK, ScoredCall, ScoredRound
from loopguard_core._session_state import NOTHING, SessionState, limit_stop
from loopguard_core._spending import Shadow
from loopguard_core._types import Action, Channel, Decision, Directive, EndReason, Stop, ToolCall, Usage, Verdict
from loopguard_core.detectors import Detector, Finding, ObservedCall

_CANCELLED = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
_VERDICT_FIELDS = dataclasses.fields(Verdict)
_UNKNOWN = Usage()
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


class Session(SessionState):
    """One run. Made by `LoopGuard.session`; every method may be called from any thread."""

    _user_spoke = False

    # -- around a model call -----------------------------------------------------------------------------------

    def before_model_call(
        self,
        model: str | None = None,
        input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Directive:
        """Ask what to do about the next model call. The same answer is given until the call succeeded or failed.

        Where the run spends on a key this waits for the key's store; nothing else of the session does meanwhile.

        Args:
            model: The model's name, where known.
            input_tokens: Tokens about to be sent, where known. `estimate_tokens` gives a figure for a text.
            max_output_tokens: The most that may come back, where known.

        Returns:
            Whether to start it at all, what to put before the model, and whether a stronger model takes it.
        """
        try:  # what `contained` does, but not under the lock where a store is waited for
            with self.lock:
                directive = self._before(model, input_tokens, max_output_tokens)
            if directive is None and self._money is not None:
                directive = self._answered(self._money.ask())
            return directive or NOTHING
        except Exception as error:  # noqa: BLE001  # see `contained`
            self.faults.note("before_model_call", error)
            return NOTHING

    async def abefore_model_call(
        self,
        model: str | None = None,
        input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Directive:
        """`before_model_call` for async callers; does not block the event loop."""
        directive: Directive | None = NOTHING
        try:
            with self.lock:
                directive = self._before(model, input_tokens, max_output_tokens)
            if directive is None and self._money is not None:
                directive = self._answered(await self._money.aask())
        except Exception as error:  # noqa: BLE001  # see `contained`
            self.faults.note("before_model_call", error)
        await self._guard.adrain()
        return directive or NOTHING

    def _before(self, model: str | None, input_tokens: int | None, max_output_tokens: int | None) -> Directive | None:
        """The answer; None where a key's store has to be asked first."""
        if not self._guard.enabled:
            return NOTHING
        self._wake()
        money, waiting = self._money, self._directive
        # Asked again it is the same call, unless the run was ended in between.
        if waiting is not None and (
            waiting.stop is not None or (self._stop is None and (money is None or money.granted))
        ):
            return waiting
        self.budget.clock.touch()
        self._message_state = "open"
        if money is not None and money.unreported:
            self._count_usage(None, _UNKNOWN)
        stop = self._due_stop() or self._custom_stop()
        if stop is None and money is not None:
            stop = limit_stop(money.room(model, input_tokens, max_output_tokens))
            if stop is None and money.meters:
                return None
            money.granted = stop is None
        return self._directed(stop)

    def _answered(self, reason: str | None) -> Directive:
        """The key's store was asked: why the call must not start, or None."""
        with self.lock:
            stop = self._due_stop() if reason is None else key_stop(reason)
            if self._money is not None:
                self._money.granted = stop is None
                if stop is not None:
                    self._money.failed()
            directive = self._directed(stop)
        if stop is not None and self._money is not None:
            self._money.pay()
        return directive

    def _directed(self, stop: Stop | None) -> Directive:
        if stop is not None:
            self._declare(stop)
            self._directive = Directive(stop=stop)
        elif self._directive is None:
            self._directive = self._pending_directive()
        return self._directive

    def after_model_call(
        self, model: str | None = None, usage: Usage | None = None, duration: float | None = None
    ) -> Stop | None:
        """A model call succeeded: count it and tell the `post_model_call` hooks.

        Args:
            model: The model that answered, where known.
            usage: What it used; parts that are None are unknown, not zero.
            duration: Seconds it took, where known.

        Returns:
            Why no further model call will start, or None. The calls of this response still run: a limit stops before
            the next model call, not in the middle of a round.
        """
        try:  # as in `before_model_call`
            with self.lock:
                stop = self._after(model, usage, duration)
            if self._money is not None:
                self._money.pay()
            return stop
        except Exception as error:  # noqa: BLE001  # see `contained`
            self.faults.note("after_model_call", error)
            return None

    async def aafter_model_call(
        self, model: str | None = None, usage: Usage | None = None, duration: float | None = None
    ) -> Stop | None:
        """`after_model_call` for async callers; waits for `async` hooks, and does not block the event loop."""
        stop: Stop | None = None
        try:
            try:
                if self._money is not None and self._money.loading:
                    await asyncio.to_thread(warm)
            finally:  # counted also where the waiting task is cancelled
                with self.lock:
                    stop = self._after(model, usage, duration)
            if self._money is not None:
                await self._money.apay()
        except Exception as error:  # noqa: BLE001  # see `contained`
            self.faults.note("after_model_call", error)
        await self._guard.adrain()
        return stop

    def _after(self, model: str | None, usage: Usage | None, duration: float | None) -> Stop | None:
        if not self._guard.enabled:
            return None
        self._settle_directive()
        if self._message_state != "ended":
            self._messages += 1
        self._message_state = "called"
        self.budget.clock.touch()
        self.budget.counters.model_calls += 1
        used = self._count_usage(model, usage if isinstance(usage, Usage) else _UNKNOWN)
        self._scorer.spending.note(self.turns + 1, used)
        if self._guard.plugins.observes_model_calls:
            self._guard.plugins.post_model_call(
                PostModelCall(
                    **self._event_fields(),
                    model=model,
                    usage=used,
                    total=self.usage,
                    model_calls=self.model_calls,
                    duration=duration,
                )
            )
        return self._due_stop()

    def _count_usage(self, model: str | None, usage: Usage) -> Usage:
        """Count what a model call used, with its price; where money matters, and nowhere else, an estimate too."""
        money = self._money
        if money is None:
            self.budget.add(usage)
            return usage
        used = money.ended(model, usage)
        self.budget.add(used)
        if money.prices and used.cost is None:
            self.budget.add_unpriced()
        self._guard.check_usage(used, model, priced=money.prices)
        return used

    def model_call_failed(self, error: BaseException | None = None) -> None:
        """A model call failed: a retry follows or the run dies. On an event loop this does not wait for a store.

        Nothing is counted, except of a stream that was cancelled where a cap on cost or tokens or a key is set: what
        came of it is paid for, and is estimated. What the model was to be told waits for the retry; an escalation is
        not tried again.

        Args:
            error: Why. A provider's answer that a spending limit is reached (see `is_key_limit`) ends the run.
        """
        try:  # as in `before_model_call`
            with self.lock:
                self._failed(error)
            if self._money is not None:
                self._money.pay()
        except Exception as fault:  # noqa: BLE001  # see `contained`
            self.faults.note("model_call_failed", fault)

    def _failed(self, error: BaseException | None) -> None:
        if self._money is not None:
            if self._money.heard and isinstance(error, _CANCELLED):
                self._count_usage(None, _UNKNOWN)
            else:
                self._money.failed()
        if error is not None and self._guard.enabled and is_key_limit(error):
            self._declare(provider_stop())
        self._drop_message()
        directive, self._directive = self._directive, None
        if directive is not None and directive.stop is None:
            self._effects.failed(escalated=directive.model is not None)

    # -- text --------------------------------------------------------------------------------------------------

    @contained(nothing)
    def feed_text(self, delta: str, channel: Channel = "content") -> Verdict | None:
        """Read a piece of the running message.

        Args:
            delta: The new text, cut however the provider cuts it.
            channel: `content`, `reasoning` or `arguments`.

        Returns:
            A verdict where a detector fired. Its `abort` says whether to cut the stream.
        """
        if self._money is not None:
            self._money.hears(delta)
        if not self._guard.enabled or not self._scorer.reads_text:
            return None
        # Other people's detectors get every piece at once; ours read in blocks, which costs far less.
        text = self._pending_text.add(delta, channel) if self._scorer.own_detectors else delta
        return None if text is None else self._read_text(text, channel)

    def _read_text(self, text: str, channel: Channel) -> Verdict | None:
        return self._read(lambda detector: detector.feed_text(text, channel), channel, self._messages + 1)

    @contained(nothing)
    def end_message(self, finish_reason: str | None = None) -> Verdict | None:
        """The response is complete.

        Args:
            finish_reason: The provider's, where it gives one.

        Returns:
            A verdict where a detector fired on the whole message.
        """
        reads = self._guard.enabled and self._scorer.reads_text
        found = [self._read_text(text, channel) for channel, text in self._pending_text.rest()] if reads else []
        self._messages += 1
        self._message_state = "ended"
        if reads:
            found.append(self._read(lambda detector: detector.end_message(finish_reason), None, self._messages))
        verdicts = [verdict for verdict in found if verdict is not None]
        return max(verdicts, key=lambda verdict: RANK[verdict.action], default=None)

    @contained(nothing)
    def message_restarted(self) -> None:
        """Somebody between the model and the caller asks anew inside one model call: what was read is in no message.

        A retry the caller sees is `model_call_failed` and `before_model_call` instead.
        """
        self._drop_message()

    def _drop_message(self) -> None:
        """The running message will never be complete: a retry writes it anew."""
        self._pending_text.clear()
        if self._scorer.reads_text:
            for detector in self._scorer.detectors:
                self._scorer.contained(detector, detector.begin_message)

    def _read(
        self, step: Callable[[Detector], Finding | None], channel: Channel | None, message_index: int
    ) -> Verdict | None:
        verdict, effects = self._scorer.read(step, channel, self.turns, message_index, self._judge)
        self._queue(effects)
        if verdict is not None and verdict.action is Action.STOP:
            self._declare(Stop("doom_loop", verdict, verdict.message))
        return verdict

    # -- rounds ------------------------------------------------------------------------------------------------

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
            output: What the tool returned, or the exception it raised. Only a hash of it is kept.
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
                self._count_usage(None, _UNKNOWN)
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
            return "cancelled" if isinstance(error, _CANCELLED) else "error"
        return "paused" if self._asleep and self._ended is None else "complete"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error=error)

    # -- inside ------------------------------------------------------------------------------------------------

    def _custom_stop(self) -> Stop | None:
        if not self._guard.plugins.may_stop:
            return None
        reason = self._guard.plugins.stop_when(self)
        return None if reason is None else Stop("custom", None, _messages.custom_stop(reason))

    def _tell_round(self, calls: Sequence[ToolCall], scored: ScoredRound, decisions: Sequence[Decision]) -> None:
        try:
            privacy = self._guard.policy.privacy
            rows = judged_calls(calls, scored, decisions, self._scorer.fingerprint, arguments=privacy.include_arguments)
            event = RoundJudged(
                **self._event_fields(), message_index=self._messages, calls=rows, user_spoke=self._user_spoke
            )
            self._user_spoke = False
            self._guard.plugins.round_judged(event)
        except Exception as error:  # noqa: BLE001  # the round is judged, whoever hears of it
            self.faults.note("round_judged", error)

    def _tell_result(self, call_id: str, output: Any, is_error: bool | None) -> None:
        result = recorded_result(output, is_error, self._scorer.key)
        if result is not None:
            failed, mark = result
            shown = output if self._guard.policy.privacy.include_results else None
            self._guard.plugins.result_recorded(
                ResultRecorded(
                    **self._event_fields(), call_id=call_key(call_id), failed=failed, fingerprint=mark, output=shown
                )
            )

    def _judge(self, verdict: Verdict, proposed: Action, call: ObservedCall | None) -> tuple[Action, bool]:
        policy = self._guard.policy
        if policy.shadow and self._shadow is None and RANK[proposed] >= RANK[Action.BLOCK]:
            self._shadow = Shadow(verdict, proposed, self.usage)
        if not self._guard.plugins.observes_loops:
            return verdict.action, False
        event = DoomLoopDetected(
            **{field.name: getattr(verdict, field.name) for field in _VERDICT_FIELDS},
            **self._event_fields(),
            proposed=proposed,
            arguments=call.arguments if call is not None and policy.privacy.include_arguments else None,
        )
        refusable = call is None or call.refusable
        perform = functools.partial(self._scorer.perform, refusable=refusable)
        told, overridden = self._guard.plugins.doom_loop_detected(event, perform)
        return told.action, overridden
