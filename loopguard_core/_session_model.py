"""The model calls of one run: what each is told, what it cost, whether it may start."""

from __future__ import annotations

import asyncio

from loopguard_core._contained import contained, nothing
from loopguard_core._events import PostModelCall
from loopguard_core._identity import display_name
from loopguard_core._key_limit import is_key_limit
from loopguard_core._money import key_stop, provider_stop
from loopguard_core._prices import warm
from loopguard_core._session_state import NOTHING, limit_stop
from loopguard_core._session_text import SessionText
from loopguard_core._types import Directive, Stop, Usage

CANCELLED = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
"""Ends of a run, or of a model call, from outside."""

UNKNOWN = Usage()
"""What a model call used that nobody reported."""


class SessionModelCalls(SessionText):
    """What is done around a model call."""

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
            if self._money is not None and self._money.loading:
                await asyncio.to_thread(warm)
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
            self._count_usage(None, UNKNOWN)
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
        used = self._count_usage(model, usage if isinstance(usage, Usage) else UNKNOWN)
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
        self._check_usage(used, model, priced=money.prices)
        return used

    def _check_usage(self, usage: Usage, model: str | None, *, priced: bool) -> None:
        """Say once that a limit cannot hold because what it counts is not known of a model call."""
        if self._guard.policy.limits.tokens is not None and usage.total_tokens is None and usage.input_tokens is None:
            text = "limits.tokens is set, but this model call reported no tokens: they are unknown, not zero"
            self.faults.note("usage without tokens", text=text)
        if priced and usage.cost is None:
            name = "of no known name" if not model else f"({display_name(model)})"
            text = (
                f"what a model call {name} spent is unknown, not zero: the provider reported no cost, and there is no"
                " price for it. The extra `prices` has most models' prices, limits.unpriced gives the others one or"
                " denies them"
            )
            self.faults.note("usage without cost", text=text)

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
            if self._money.heard and isinstance(error, CANCELLED):
                self._count_usage(None, UNKNOWN)
            else:
                self._money.failed()
        if error is not None and self._guard.enabled and is_key_limit(error):
            self._declare(provider_stop())
        self._drop_message()
        directive, self._directive = self._directive, None
        if directive is not None and directive.stop is None:
            self._effects.failed(escalated=directive.model is not None)

    @contained(nothing)
    def _model_call_recalled(self) -> None:
        """A model call of which a conversation tells succeeded, before this session was there.

        What the session had to say was said with it. Nothing is counted and no hook is told: what it used is in no
        conversation, and unknown here is not what `limits.unpriced` denies.
        """
        if not self._guard.enabled:
            return
        self._settle_directive()
        if self._message_state != "ended":
            self._messages += 1
        self._message_state = "called"
        if self._money is not None:
            self._money.failed()
