"""One run under `GuardedRunner`: what is put around it, and what its end means."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agents import (
    Agent,
    MaxTurnsExceeded,
    Model,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    RunResult,
    RunResultStreaming,
    RunState,
    TResponseInputItem,
)
from agents.exceptions import RunErrorDetails

from loopguard_core import LoopGuard, PolicyLike, Session, Stop, Surface, as_guard, current_session, inside
from loopguard_openai_agents._closing import close
from loopguard_openai_agents._run import Run
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import LoopGuardStop, OnStop, checked
from loopguard_openai_agents._surfaces import RUNNER, RUNNER_WITH_MODEL_OBJECT
from loopguard_openai_agents.config import all_guarded, guard_run_config
from loopguard_openai_agents.hooks import LoopGuardHooks
from loopguard_openai_agents.model import escalation_label


class RunnerHooks(LoopGuardHooks):
    """The hooks of one run whose session and end the runner looks after.

    Args:
        run: The run.
        hooks: The user's hooks.
    """

    def __init__(self, run: Run, hooks: RunHooks[Any] | None) -> None:
        self._run = run
        self._context: weakref.ref[RunContextWrapper[Any]] | None = None
        super().__init__(run.guard, hooks)

    def _attach(self) -> None:
        """The runner does that."""

    def _run_of(self, context: RunContextWrapper[Any], agent: Agent[Any], input_items: list[TResponseInputItem]) -> Run:
        if self._context is None or self._context() is not context:
            registry.bind(self._run, context)
            self._context = weakref.ref(context)
        return self._run

    def _run_of_response(self, context: RunContextWrapper[Any]) -> Run:
        return self._run  # also where several runs at once were given one context object

    def _run_of_call(self, context: RunContextWrapper[Any]) -> Run:
        return self._run

    def _run_of_tool(self, context: RunContextWrapper[Any]) -> Run:
        registry.bind_usage(self._run, context.usage)
        return self._run

    def _run_of_end(self, context: RunContextWrapper[Any], agent: Agent[Any]) -> Run:
        return self._run

    async def _over(self, run: Run, error: LoopGuardStop | None = None) -> None:
        """The runner sees the exception, or the result."""


class Supervised:
    """One run.

    Args:
        run: What the adapter knows of it.
        how: How a stop ends it.
        hooks: The user's hooks.
        options: What `Runner` was to be given; it is given `self.options`.
        config: The guarded configuration.
    """

    def __init__(
        self, run: Run, how: OnStop, hooks: RunHooks[Any] | None, options: Mapping[str, Any], config: RunConfig
    ) -> None:
        self.run = run
        self.session = run.session
        self.guard = run.guard
        self.how = how
        self.hooks = RunnerHooks(run, hooks)
        self.options = {**options, "hooks": self.hooks, "run_config": config}
        if (options.get("error_handlers") or {}).get("max_turns") is not None:
            self.options["error_handlers"] = self._told_of_turn_limit(options["error_handlers"])
        given = options.get("run_config")
        self._owns_provider = given is None or (isinstance(given, Mapping) and "model_provider" not in given)

    @classmethod
    def open(
        cls,
        agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],  # noqa: A002  # the SDK's name
        guard: LoopGuard | PolicyLike,
        on_stop: OnStop | None,
        escalate_model: str | Model | None,
        session_id: str | None,
        saved: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> Supervised | None:
        """Prepare a run; None if the guard is switched off.

        Raises:
            PolicyError: The policy cannot be used.
            LoopGuardError: The installed openai-agents is too old to refuse a call.
        """
        hooks = options.get("hooks")
        if isinstance(hooks, LoopGuardHooks):
            guard, hooks = hooks.guard if guard is None else guard, hooks.hooks
        guard = as_guard(guard)
        how = checked(on_stop, guard.policy.on_stop.how)
        if not guard.enabled:
            return None
        config = guard_run_config(guard, options.get("run_config"), escalate_model=escalate_model, on_stop=on_stop)
        run = None
        if isinstance(input, RunState):
            known = registry.of_state(guard, input) if session_id is None else registry.of_session(guard, session_id)
            if known is not None and registry.take(known):
                run = known
            elif known is not None and saved is None:
                saved = known.saved  # another attempt from the same point, such as after an error
        if run is None:
            surface = RUNNER if all_guarded(agent, config) else RUNNER_WITH_MODEL_OBJECT
            run = Run(guard, _session(guard, agent, surface, escalate_model, session_id, saved))
        run.loose = run.finished = run.turn_limit = False
        run.escalate_model, run.provider = escalate_model, config.model_provider
        run.settings = config.model_settings
        if isinstance(input, RunState) and input.pending_input:
            run.session.user_turn()
        return cls(run, how, hooks, options, config)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Marks that this run goes on here, so that runs inside its tools find it."""
        with inside(self.session):
            yield

    # -- how it ended ----------------------------------------------------------------------------------------------

    async def returned(self, result: RunResult) -> RunResult:
        """The SDK returned a result."""
        registry.bind(self.run, result.context_wrapper)  # a resumed run may have made no model call
        paused, stop = self.paused(result), self.session.stop
        await self.aend()
        if stop is not None and not paused and self.how == "raise":
            # It ended of itself before its next model call, as it may with the result of a tool.
            raise self.stopped(stop, result)
        return result

    async def failed(self, error: BaseException) -> RunResult:
        """The run raised: the result a stop is turned into, or the error again."""
        error = self.as_stop(error)
        try:
            closed = await self.closed(error)
        finally:
            await self.aend(error)
        if closed is None:
            raise error
        return closed

    def as_stop(self, error: BaseException) -> BaseException:
        """The error; or the stop that was due as the SDK's own turn limit came before it."""
        stop = self.session.stop
        if stop is None or not isinstance(error, MaxTurnsExceeded) or error.run_data is None:
            return error
        stopped = LoopGuardStop(stop)
        stopped.run_data, stopped.__cause__ = error.run_data, error
        return stopped

    async def closed(self, error: BaseException | None, unsaved: Sequence[TResponseInputItem] = ()) -> RunResult | None:
        """The result of a run that a stop ended; None for any other error, and where a stop is to raise.

        Args:
            error: What the run raised.
            unsaved: What the SDK's session does not hold yet.
        """
        if not isinstance(error, LoopGuardStop) or error.run_data is None:
            return None
        stop = self.session.stop or error.stop
        return await close(
            self.run,
            stop,
            error.run_data,
            how=self.how,
            hooks=self.hooks,
            options=self.options,
            unsaved=unsaved,
        )

    def paused(self, result: RunResult | RunResultStreaming) -> bool:
        """Whether it waits for a human; then its session waits for the `RunState` that goes on with it."""
        if not result.interruptions:
            return False
        self.session.pause()
        self.run.saved = self.session.save()
        registry.wait(self.run)
        to_state = result.to_state

        def noted() -> RunState[Any]:
            state = to_state()
            registry.note_state(self.run, state)
            return state

        result.to_state = noted  # type: ignore[method-assign]  # nothing else ties a state to its run for sure
        return True

    def stopped(self, stop: Stop, result: RunResult | RunResultStreaming) -> LoopGuardStop:
        """The exception for a stop after which the SDK returned a result all the same."""
        error = LoopGuardStop(stop)
        error.run_data = RunErrorDetails(
            input=result.input,
            new_items=result.new_items,
            raw_responses=result.raw_responses,
            last_agent=result.last_agent,
            context_wrapper=result.context_wrapper,
            input_guardrail_results=result.input_guardrail_results,
            output_guardrail_results=result.output_guardrail_results,
        )
        return error

    def end(self, error: BaseException | None = None) -> None:
        """The run is over."""
        limit = self.run.turn_limit or isinstance(error, MaxTurnsExceeded)
        self.session.end("max_turns" if limit else None, error)

    async def aend(self, error: BaseException | None = None) -> None:
        """The run is over; waits for `async` hooks, unless it was cancelled."""
        self.end(error)
        if error is None or isinstance(error, Exception):
            await self.guard.adrain()

    async def close_provider(self) -> None:
        """Close the model provider, where the SDK would have made and closed one of its own."""
        if self._owns_provider:
            with self.guard.faults.contained("openai_agents closing the model provider"):
                await self.options["run_config"].model_provider.aclose()

    def _told_of_turn_limit(self, handlers: Mapping[str, Any]) -> dict[str, Any]:
        """A handler makes a normal result of the SDK's own turn limit; this one is told of it all the same."""
        handle = handlers["max_turns"]

        def told(data: Any) -> Any:
            self.run.turn_limit = True
            return handle(data)

        return {**handlers, "max_turns": told}


def _session(
    guard: LoopGuard,
    agent: Agent[Any],
    surface: Surface,
    escalate_model: str | Model | None,
    session_id: str | None,
    saved: Mapping[str, Any] | None,
) -> Session:
    label = escalation_label(escalate_model)
    guard.attach(surface, escalation=label is not None)
    return guard.session(
        session_id,
        parent=current_session(),
        agent=agent.name,
        state=saved,
        surface=surface,
        escalation_model=label,
    )
