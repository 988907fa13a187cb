"""The state of one agent run, and the calls an adapter makes on it.

The order is `before_model_call, feed_text*, end_message, after_model_call, begin_round, record_result*`, again and
again, then `end`. Anything out of order has a defined answer and is never an exception; `docs/session.md` draws it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, get_args

from loopguard_core import _messages, _saved
from loopguard_core._bounded import count, short_text
from loopguard_core._effects import Effects
from loopguard_core._errors import LoopGuardStop
from loopguard_core._events import DoomLoopDetected, PostModelCall, SessionEnd
from loopguard_core._limits import ActiveClock, Breach, Counters
from loopguard_core._round import OpenRound
from loopguard_core._scoring import Effect, ScoredCall, Scorer
from loopguard_core._types import Action, Channel, Decision, Directive, EndReason, Stop, ToolCall, Usage, Verdict
from loopguard_core.detectors import Detector, Finding, ObservedCall

if TYPE_CHECKING:
    from loopguard_core._guard import LoopGuard

P = ParamSpec("P")
T = TypeVar("T")

_CANCELLED = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
_VERDICT_FIELDS = dataclasses.fields(Verdict)
_UNKNOWN = Usage()
_NOTHING = Directive()
_UNSCORED = Decision(action=None, streak=0)
_QUIET = tuple(Decision(action=None, streak=streak) for streak in range(8))


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


def _contained(
    fallback: Callable[..., T],
) -> Callable[[Callable[Concatenate[Session, P], T]], Callable[Concatenate[Session, P], T]]:
    """Make a fault of ours a logged answer instead of the end of somebody's run; hold the session's lock meanwhile."""

    def decorate(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
        @functools.wraps(method)
        def contained(self: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                with self._lock:
                    return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  # see above
                self._guard.faults.note(method.__name__, error)
                return fallback(*args, **kwargs)

        return contained

    return decorate


def _none(*_: Any, **__: Any) -> None:
    return None


def _no_stop(*_: Any, **__: Any) -> Stop | None:
    return None


def _no_verdict(*_: Any, **__: Any) -> Verdict | None:
    return None


def _no_text(*_: Any, **__: Any) -> str | None:
    return None


def _unscored(calls: Sequence[ToolCall], *_: Any, **__: Any) -> list[Decision]:
    try:
        return [_UNSCORED] * len(calls)
    except Exception:  # noqa: BLE001  # not even a list
        return []


class Session:
    """One run. Made by `LoopGuard.session`; every method may be called from any thread.

    Attributes:
        origin: Where it comes from.
        verdict: Set only when *detection* ended the run: the signal to alert on.
        owners: How many objects the session was tied to; see `LoopGuard.end_with`.
    """

    def __init__(
        self,
        guard: LoopGuard,
        origin: Origin,
        *,
        parent: Session | None,
        scorer: Scorer,
        clock: ActiveClock,
        escalation_model: str | None,
    ) -> None:
        self._guard = guard
        self.origin = origin
        self.verdict: Verdict | None = None
        self.owners = 0
        self._parent = parent
        self._lock = threading.RLock()
        self._limits = guard.policy.limits
        self._capped = any(value is not None for _, value in self._limits)
        self._scorer = scorer
        self._clock = clock
        self._escalation_model = escalation_model
        self._counters = Counters()
        self._effects = Effects(guard.policy.escalation.max if escalation_model is not None else 0)
        self._open = OpenRound()
        self._stop: Stop | None = None
        self._directive: Directive | None = None
        self._ended: SessionEnd | None = None
        self._origin_fields = {field.name: getattr(origin, field.name) for field in dataclasses.fields(Origin)}
        self._messages = 0
        self._message_state: Literal["open", "ended", "called"] = "open"
        self._calls_over_limit = False
        self._answer_asked = False
        self._asleep = False

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id."""
        return self.origin.session_id

    @property
    def turns(self) -> int:
        """Rounds so far, refused or not."""
        return self._counters.turns

    @property
    def model_calls(self) -> int:
        """Successful model calls so far."""
        return self._counters.model_calls

    @property
    def tool_calls(self) -> int:
        """Calls that were let through so far, those of nested runs included."""
        return self._counters.tool_calls

    @property
    def usage(self) -> Usage:
        """Tokens and cost so far, those of nested runs included."""
        return self._counters.usage

    @property
    def seconds(self) -> float:
        """Active seconds so far."""
        return self._clock.seconds

    @property
    def stop(self) -> Stop | None:
        """Why the run is being ended; None while it may go on."""
        return self._stop

    @property
    def ended(self) -> SessionEnd | None:
        """How it ended; None while it is live."""
        return self._ended

    # -- around a model call -----------------------------------------------------------------------------------

    @_contained(lambda *_, **__: _NOTHING)
    def before_model_call(
        self,
        model: str | None = None,
        input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Directive:
        """Ask what to do about the next model call. The same answer is given until the call succeeded or failed.

        Args:
            model: The model's name, where known.
            input_tokens: Tokens about to be sent, where known.
            max_output_tokens: The most that may come back, where known.

        Returns:
            Whether to start it at all, what to put before the model, and whether a stronger model takes it.
        """
        if not self._guard.enabled:
            return _NOTHING
        self._wake()
        # Asked again it is the same call, unless the run was ended in between.
        if self._directive is not None and (self._stop is None or self._directive.stop is not None):
            return self._directive
        self._clock.touch()
        self._message_state = "open"
        stop = self._due_stop() or self._custom_stop()
        if stop is not None:
            self._declare(stop)
            self._directive = Directive(stop=stop)
        else:
            self._directive = self._pending_directive()
        return self._directive

    def _pending_directive(self) -> Directive:
        if not self._effects.pending:
            return _NOTHING
        model = self._escalation_model if self._effects.escalate else None
        return Directive(steer=tuple(self._effects.steers), model=model)

    async def abefore_model_call(
        self,
        model: str | None = None,
        input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Directive:
        """`before_model_call` for async callers; does not block the event loop."""
        directive = self.before_model_call(model, input_tokens, max_output_tokens)
        await self._guard.adrain()
        return directive

    @_contained(_no_stop)
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
        if not self._guard.enabled:
            return None
        used = usage if isinstance(usage, Usage) else _UNKNOWN
        self._settle_directive()
        if self._message_state != "ended":
            self._messages += 1
        self._message_state = "called"
        self._clock.touch()
        self._counters.model_calls += 1
        self._add(used)
        if self._limits.tokens is not None or self._limits.cost is not None:
            self._guard.check_usage(used)
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

    async def aafter_model_call(
        self, model: str | None = None, usage: Usage | None = None, duration: float | None = None
    ) -> Stop | None:
        """`after_model_call` for async callers; waits for `async` hooks."""
        stop = self.after_model_call(model, usage, duration)
        await self._guard.adrain()
        return stop

    @_contained(_none)
    def model_call_failed(self, error: BaseException | None = None) -> None:
        """A model call failed: a retry follows or the run dies.

        Nothing is counted. What the model was to be told waits for the retry; an escalation is not tried again.
        """
        directive, self._directive = self._directive, None
        if directive is not None and directive.stop is None:
            self._effects.failed(escalated=directive.model is not None)

    # -- text --------------------------------------------------------------------------------------------------

    @_contained(_no_verdict)
    def feed_text(self, delta: str, channel: Channel = "content") -> Verdict | None:
        """Read a piece of the running message.

        Args:
            delta: The new text, cut however the provider cuts it.
            channel: `content`, `reasoning` or `arguments`.

        Returns:
            A verdict where a detector fired. Its `abort` says whether to cut the stream.
        """
        if not self._guard.enabled or not self._scorer.reads_text:
            return None
        return self._read(lambda detector: detector.feed_text(delta, channel), channel, self._messages + 1)

    @_contained(_no_verdict)
    def end_message(self, finish_reason: str | None = None) -> Verdict | None:
        """The response is complete.

        Args:
            finish_reason: The provider's, where it gives one.

        Returns:
            A verdict where a detector fired on the whole message.
        """
        self._messages += 1
        self._message_state = "ended"
        if not self._guard.enabled or not self._scorer.reads_text:
            return None
        return self._read(lambda detector: detector.end_message(finish_reason), None, self._messages)

    def _read(
        self, step: Callable[[Detector], Finding | None], channel: Channel | None, message_index: int
    ) -> Verdict | None:
        verdict, effects = self._scorer.read(step, channel, self.turns, message_index, self._judge)
        self._queue(effects)
        if verdict is not None and verdict.action is Action.STOP:
            self._declare(Stop("doom_loop", verdict, verdict.message))
        return verdict

    # -- rounds ------------------------------------------------------------------------------------------------

    @_contained(_unscored)
    def begin_round(self, calls: Sequence[ToolCall]) -> list[Decision]:
        """Judge all calls of one model response before any of them runs.

        An empty round counts for nothing. A round that begins before the last one's results are in closes that one:
        a result that was never recorded counts as unchanged.

        Args:
            calls: Every call of the response.

        Returns:
            One decision a call, in the same order.
        """
        if type(calls) is not list:
            calls = list(calls)
        if not calls:
            return []
        if not self._guard.enabled:
            return [_UNSCORED] * len(calls)
        if self._asleep:
            self._wake()
        self._settle_directive()  # a round shows that its model call succeeded, whether or not that was reported
        if self._message_state == "open":
            self._messages += 1
        self._message_state = "open"
        self._close_round()
        over = self._round_stop() if self._stop is None and (self._capped or self._parent is not None) else None
        self._counters.turns += 1
        scored = self._scorer.score(calls, self._counters.turns, self._messages, self._judge)
        self._open.begin(scored.followed)
        if over is not None:
            self._declare(over)
        if scored.fired:
            self._queue(scored.effects)
            offender = next((row.verdict for row in scored.calls if row.verdict and row.action is Action.STOP), None)
            if offender is not None:
                self._declare(Stop("doom_loop", offender, offender.message))
        decisions = [self._answer(row) for row in scored.calls]
        for call in scored.followed:
            call.shrink()
        return decisions

    def _answer(self, row: ScoredCall) -> Decision:
        verdict, observed = row.verdict, row.observed
        message: str | None = None
        if verdict is not None and verdict.action in (Action.BLOCK, Action.STOP):
            message = verdict.message
        elif self._stop is not None:
            message = _messages.not_executed()
        elif not self._take_tool_call():
            message = _messages.call_over_limit()
            self._calls_over_limit = True
        streak = 0
        if observed is not None:
            streak = observed.streak
            if row.followed:
                self._open.expect(row.id, observed, duplicate=row.duplicate)
            if verdict is None and message is None and not row.duplicate and streak < len(_QUIET):
                return _QUIET[streak]
        return Decision(
            action=row.action,
            streak=streak,
            duplicate=row.duplicate,
            verdict=verdict,
            blocked=message is not None,
            message=message,
        )

    @_contained(_none)
    def record_result(self, call_id: str, output: Any, is_error: bool | None = None) -> None:
        """Record what a call returned. An id that is not of the running round is ignored.

        Args:
            call_id: The id from `ToolCall`.
            output: What the tool returned, or the exception it raised. Only a hash of it is kept.
            is_error: Whether it failed; None lets the core judge from the output (see `docs/session.md`).
        """
        if self._guard.enabled and not self._open.record(call_id, output, is_error):
            self._guard.count("result of an unknown call")

    # -- what happens in between -------------------------------------------------------------------------------

    @_contained(_none)
    def user_turn(self) -> None:
        """A user spoke: asking for the same thing again is legitimate, so streaks start afresh. Limits go on."""
        self._wake()
        self._close_round()
        self._effects.forget_pending()
        for detector in self._scorer.detectors:
            self._scorer.contained(detector, detector.user_turn)

    @_contained(_none)
    def compacted(self) -> None:
        """History was summarised: each known call may be asked for once more without being counted."""
        for detector in self._scorer.detectors:
            self._scorer.contained(detector, detector.compacted)

    @_contained(_none)
    def pause(self) -> None:
        """The run waits for a human. Time stands still until it goes on; `end` then says `paused`."""
        self._asleep = True
        self._clock.pause()

    @_contained(_none)
    def continued(self) -> None:
        """The run goes on after a pause nobody announced: the time since the last call here was no activity."""
        self._clock.skip_idle()
        self._wake()

    @_contained(_no_text)
    def final_answer(self) -> str | None:
        """What to put before the model for the one last call of `on_stop.how = "answer"`.

        Returns:
            The text, the first time it is asked for after a stop; None otherwise.
        """
        if self._stop is None or self._answer_asked:
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
        with self._lock:
            if self._ended is not None and not self._abandoned(reason, error):
                return self._ended
            ended = self._end_reason(reason, error)
            if ended == "paused" or (may_go_on and self._stop is None):
                self._asleep = True
                self._clock.pause()
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
            )
        self._guard.session_ended(self, event)
        return event

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
            self._guard.faults.note(
                "end", text=f"unknown reason {reason!r}; use one of {', '.join(get_args(EndReason))}"
            )
        if error is not None:
            return "cancelled" if isinstance(error, _CANCELLED) else "error"
        return "paused" if self._asleep and self._ended is None else "complete"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error=error)

    # -- save and resume ---------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """The state as plain JSON of at most 32 KB, for `LoopGuard.session(state=...)`; no arguments or results."""
        with self._lock:
            return _saved.fitted(
                {
                    "version": _saved.VERSION,
                    "counters": self._counters.save(),
                    "seconds": round(self.seconds, 3),
                    "messages": self._messages,
                    "effects": self._effects.save(),
                    "round": self._open.save(),
                    "detectors": self._scorer.save(),
                    "stop": _saved.stop_to_json(self._stop),
                    "flags": [int(self._calls_over_limit), int(self._answer_asked), int(self._directive is not None)],
                    "message_state": self._message_state,
                    "key": self._guard.key_to_save(self._scorer.key),
                },
                bounded=self._scorer.own_detectors,
            )

    def restore(self, state: Any) -> None:
        """Go on with a saved run. Parts that cannot be read are named in the log and start afresh."""
        with self._lock:
            parts = _saved.Parts(state, self._guard.faults)
            parts.take_spending("counters", self._counters.restore)
            parts.take("seconds", self._restore_seconds)
            parts.take("messages", self._restore_messages)
            parts.take("effects", self._effects.restore)
            parts.take("round", self._open.restore)
            parts.take("stop", self._restore_stop)
            parts.take("message_state", self._restore_message_state)
            parts.take("flags", self._restore_flags)
            parts.take("key", self._restore_key)
            saved = parts.get("detectors", dict)
            for detector in self._scorer.detectors:
                if saved.get(detector.name) is not None:
                    parts.restore(f"detectors.{detector.name}", detector.restore, saved[detector.name])

    def _restore_seconds(self, value: Any) -> None:
        seconds = float(value)
        if not 0 <= seconds < math.inf:
            raise ValueError("seconds are a finite number, 0 or more")
        self._clock = self._guard.new_clock(before=seconds)

    def _restore_messages(self, value: Any) -> None:
        self._messages = count(value)

    def _restore_message_state(self, value: Any) -> None:
        if value not in ("open", "ended", "called"):
            raise ValueError("unknown state of a message")
        self._message_state = value

    def _restore_flags(self, value: Any) -> None:
        over, asked, waiting = value
        self._calls_over_limit, self._answer_asked = bool(over), bool(asked)
        if waiting:  # a model call was on its way; its answer settles what it carried
            self._directive = self._pending_directive()

    def _restore_stop(self, value: Any) -> None:
        self._stop = _saved.stop_from_json(value)
        self.verdict = None if self._stop is None else self._stop.verdict

    def _restore_key(self, value: Any) -> None:
        if value is not None and self._scorer.key is not None:
            key = bytes.fromhex(short_text(value, 128))
            if not key:
                raise ValueError("an empty key")
            self._scorer.key = key

    # -- inside ------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._asleep:
            return
        self._asleep = False
        self._clock.resume()
        if self._ended is not None:
            self._ended = None
            self._guard.session_resumed(self)

    def _settle_directive(self) -> None:
        """The model call the directive was for succeeded: what it carried is said."""
        directive, self._directive = self._directive, None
        if directive is not None and directive is not _NOTHING and directive.stop is None:
            self._effects.delivered(directive.steer, escalated=directive.model is not None)

    def _queue(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._effects.want(effect.action, effect.detector, effect.identity, effect.since, effect.text)

    def _close_round(self) -> None:
        calls = self._open.close()
        if calls:
            for detector in self._scorer.detectors:
                self._scorer.contained(detector, detector.close_round, calls)

    def _judge(self, verdict: Verdict, proposed: Action, call: ObservedCall | None) -> tuple[Action, bool]:
        if not self._guard.plugins.observes_loops:
            return verdict.action, False
        policy = self._guard.policy
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

    def _event_fields(self) -> dict[str, Any]:
        return {**self._origin_fields, "turn": self.turns}

    def _ancestors(self) -> Iterator[Session]:
        outer = self._parent
        while outer is not None:
            yield outer
            outer = outer._parent  # noqa: SLF001  # another instance of this class

    def _add(self, usage: Usage) -> None:
        self._counters.add(usage)
        for outer in self._ancestors():
            with outer._lock:  # noqa: SLF001  # locks are only ever taken from the inside out
                outer._counters.add(usage)  # noqa: SLF001

    def _take_tool_call(self) -> bool:
        """Count a call that is let through; False if a limit on tool calls leaves no room for it."""
        if self._parent is None and self._limits.tool_calls is None:
            self._counters.tool_calls += 1
            return True
        with ExitStack() as locks:  # checked and counted in one step; taken from the inside out, as everywhere
            for outer in self._ancestors():
                locks.enter_context(outer._lock)  # noqa: SLF001
            if self._used_up_tool_calls() is not None:
                return False
            for session in (self, *self._ancestors()):
                session._counters.tool_calls += 1  # noqa: SLF001
            return True

    def _used_up_tool_calls(self) -> int | None:
        """The limit on tool calls, of this run or one around it, that leaves no room."""
        for session in (self, *self._ancestors()):
            limit = session._limits.tool_calls  # noqa: SLF001
            if limit is not None and session.tool_calls >= limit:
                return limit
        return None

    def _declare(self, stop: Stop) -> None:
        """End the run. A stop inside reaches the outside: every outer run ends before its next model call."""
        if self._stop is not None:
            return
        self._stop = stop
        self.verdict = stop.verdict
        if self._parent is not None:
            with self._parent._lock:  # noqa: SLF001
                self._parent._declare(dataclasses.replace(stop, message=_messages.inner_stop(stop.message)))  # noqa: SLF001

    def _due_stop(self) -> Stop | None:
        """Why no further model call may start: a stop of this run or of one around it, or a limit."""
        if self._stop is not None:
            return self._stop
        if self._parent is None and not self._capped:
            return None
        return self._outside_stop() or self._limit_stop()

    def _outside_stop(self) -> Stop | None:
        return next((outer.stop for outer in self._ancestors() if outer.stop is not None), None)

    def _limit_stop(self) -> Stop | None:
        breach = self._counters.breach(self._limits, self.seconds)
        if breach is None and self._calls_over_limit:
            limit = self._used_up_tool_calls()
            breach = Breach("max_tool_calls", limit, "tool calls", limit)
        for outer in self._ancestors():
            breach = breach or outer._counters.breach(outer._limits, outer.seconds, turns=False)  # noqa: SLF001
        return None if breach is None else Stop(breach.reason, None, _messages.limit_reached(breach))

    def _round_stop(self) -> Stop | None:
        """For surfaces without a seam before the model call: a round after the last one is refused whole."""
        outside = self._outside_stop()
        limit = self._limits.turns
        if outside is not None:
            return outside
        if limit is None or self.turns < limit:
            return None
        return Stop("max_turns", None, _messages.limit_reached(Breach("max_turns", limit, "turns", self.turns)))

    def _custom_stop(self) -> Stop | None:
        if not self._guard.plugins.may_stop:
            return None
        reason = self._guard.plugins.stop_when(self)
        return None if reason is None else Stop("custom", None, _messages.custom_stop(reason))
