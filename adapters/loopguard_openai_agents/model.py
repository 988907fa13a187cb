"""`LoopGuardModel` and `LoopGuardModelProvider`: the seam around every model call."""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Handoff,
    MaxTurnsExceeded,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    MultiProvider,
    Tool,
    TResponseInputItem,
)
from agents.agent_output import AgentOutputSchemaBase
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

from loopguard_core import LoopGuard, PolicyLike, as_guard, current_session
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents._lone_turn import LoneTurn, guarded
from loopguard_openai_agents._request import ModelRequest
from loopguard_openai_agents._run import Run
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import OnStop, checked
from loopguard_openai_agents._surfaces import MODEL, MODEL_WITH_GUARDRAIL
from loopguard_openai_agents._turn import Turn

try:
    # The SDK's own mark of a run in model calls; private, so a canary test watches it.
    from agents.models._run_context import get_model_run_owner
except ImportError:

    def get_model_run_owner() -> object | None:
        """There is no mark: calls without hooks of ours cannot be told apart and pass unwatched."""
        return None


class LoopGuardModel(Model):
    """A model that a stronger one can stand in for, whose stream is read while it runs, and that can end a run.

    Give it to an agent whose model is an object: `Agent(model=LoopGuardModel(LitellmModel(...), guard))`. Put it
    outermost. Under `GuardedRunner` or `LoopGuardHooks` it adds escalation and reading to their session; alone it has
    a session of its own for each run: it observes, steers, escalates and stops, and with `loop_guard_tool_guardrail`
    on the tools it blocks too.

    Args:
        model: The model.
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        escalate_model: The stronger model for escalated turns, as an object or a name; None takes the policy's
            `escalation.models.openai_agents`.
        on_stop: How a stop ends a run that has no hooks of ours; None takes the policy's `on_stop.how`.
        provider: Finds the stronger model by its name; None takes the SDK's default.

    Raises:
        PolicyError: The policy cannot be used.
        TypeError: `escalate_model` is neither a model nor a name.
        ValueError: `on_stop` is none of the three.
    """

    def __init__(
        self,
        model: Model,
        guard: LoopGuard | PolicyLike = None,
        *,
        escalate_model: str | Model | None = None,
        on_stop: OnStop | None = None,
        provider: ModelProvider | None = None,
    ) -> None:
        self._model: Model = model._model if isinstance(model, LoopGuardModel) else model  # noqa: SLF001
        self._guard = as_guard(guard)
        self._escalate_model = _checked_model(escalate_model)
        self._on_stop = checked(on_stop, self._guard.policy.on_stop.how)
        self._provider = provider
        self._strong_model: Model | None = None

    def __getattr__(self, name: str) -> Any:
        # The SDK looks at optional attributes of models, such as what kind of cache key they take.
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._model, name)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  # the SDK's name
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> ModelResponse:
        """The model's response, or what takes its place."""
        request = ModelRequest(
            system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, options
        )
        turn = self._turn(request)
        return await request.respond(self._model) if turn is None else await turn.respond()

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  # the SDK's name
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Like `get_response`, event by event."""
        request = ModelRequest(
            system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, options
        )
        turn = self._turn(request)
        events = request.stream(self._model) if turn is None else turn.stream()
        try:
            async for event in events:
                yield event
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    def _turn(self, request: ModelRequest) -> Turn | None:
        """This call as part of its run; None if it is not guarded."""
        with self._guard.faults.contained("openai_agents LoopGuardModel"):
            run = registry.of_items(request.input)
            if run is not None:
                return None if run.closing else Turn(run, request, self._model, self._strong)
            owner = get_model_run_owner()
            if owner is None or not self._guard.enabled:
                return None
            run = registry.of_owner(owner) or self._open(owner, request)
            return LoneTurn(run, request, self._model, self._strong, self._on_stop)
        return None

    # -- a run without hooks of ours -------------------------------------------------------------------------------

    def _open(self, owner: object, request: ModelRequest) -> Run:
        resumed = registry.resumed(self._guard, translate.ends_with_results(request.items))
        if resumed is not None and registry.take(resumed):
            resumed.handled = sys.exc_info()[1]
            registry.bind_owner(resumed, owner)
            return resumed
        surface = MODEL_WITH_GUARDRAIL if any(guarded(tool) for tool in request.tools) else MODEL
        label = escalation_label(self._escalate_model)
        self._guard.attach(surface, escalation=label is not None)
        session = self._guard.session(parent=current_session(), surface=surface, escalation_model=label)
        run = Run(self._guard, session, handled=sys.exc_info()[1])
        registry.bind_owner(run, owner)
        return run

    async def _cleanup_on_run_end(self, owner: object) -> None:
        """The SDK tells every model it used that a run is over."""
        with self._guard.faults.contained("openai_agents the end of a run"):
            run = registry.of_owner(owner)
            if run is not None and run.session.ended is None:
                # Called while the error that ended the run, if one did, is on its way out.
                error = None if run.finished else sys.exc_info()[1]
                error = None if error is run.handled else error  # not the user's own, handled around the run
                if error is None and run.asks and not run.finished:
                    run.session.end("paused")
                    registry.wait(run)
                else:
                    run.session.end("max_turns" if isinstance(error, MaxTurnsExceeded) else None, error)
                await self._guard.adrain()
        for model in (self._model, self._strong_model):
            if model is not None:
                await model._cleanup_on_run_end(owner)  # noqa: SLF001  # part of the Model interface

    # -- the rest of the interface ---------------------------------------------------------------------------------

    def _strong(self, run: Run, name: str) -> Model:
        """The stronger model: what the runner was given, else what this model was, else the policy's by its name."""
        model = run.escalate_model or self._escalate_model or name
        if isinstance(model, str):
            model = (run.provider or self._provider or MultiProvider()).get_model(model)
        self._strong_model = model._model if isinstance(model, LoopGuardModel) else model  # noqa: SLF001
        return self._strong_model

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """The model's own advice."""
        return self._model.get_retry_advice(request)


class LoopGuardModelProvider(ModelProvider):
    """Guards every model that is looked up by name: `RunConfig(model_provider=LoopGuardModelProvider(guard=guard))`.

    An agent whose model is an object never asks a provider: see `LoopGuardModel`.

    Args:
        provider: Finds the models; None takes the SDK's default.
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        escalate_model: Like `LoopGuardModel`'s.
        on_stop: Like `LoopGuardModel`'s.

    Raises:
        PolicyError: The policy cannot be used.
        TypeError: `escalate_model` is neither a model nor a name.
        ValueError: `on_stop` is none of the three.
    """

    def __init__(
        self,
        provider: ModelProvider | None = None,
        guard: LoopGuard | PolicyLike = None,
        *,
        escalate_model: str | Model | None = None,
        on_stop: OnStop | None = None,
    ) -> None:
        self._inner = MultiProvider() if provider is None else provider
        self._guard = as_guard(guard)
        self._escalate_model = _checked_model(escalate_model)
        self._on_stop = checked(on_stop, self._guard.policy.on_stop.how)
        self._wrapped: weakref.WeakValueDictionary[int, LoopGuardModel] = weakref.WeakValueDictionary()

    def get_model(self, model_name: str | None) -> Model:
        """The model of that name, guarded. The SDK asks before every call, so one model keeps one wrapper."""
        model = self._inner.get_model(model_name)
        if isinstance(model, LoopGuardModel):
            return model
        wrapped = self._wrapped.get(id(model))
        if wrapped is None:
            wrapped = self._wrapped[id(model)] = LoopGuardModel(
                model,
                self._guard,
                escalate_model=self._escalate_model,
                on_stop=self._on_stop,
                provider=self._inner,
            )
        return wrapped

    async def aclose(self) -> None:
        """Close the provider."""
        await self._inner.aclose()


def escalation_label(model: str | Model | None) -> str | None:
    """What the stronger model is called in events; None where the policy names it."""
    return model if model is None or isinstance(model, str) else translate.model_name(model) or type(model).__name__


def _checked_model(model: str | Model | None) -> str | Model | None:
    if model == "" or not isinstance(model, str | Model | None):
        raise TypeError(
            f"escalate_model = {model!r:.80}: must be a Model, or the name of one; leave it out for what the policy"
            " names"
        )
    return model
