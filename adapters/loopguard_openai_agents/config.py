"""`guard_run_config`: what a `RunConfig` can do for loopguard, by documented settings only."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Mapping
from typing import Any, Literal

from agents import Agent, Handoff, Model, ModelSettings, RunConfig, ToolErrorFormatter, ToolErrorFormatterArgs

from loopguard_core import LoopGuard, PolicyLike, as_guard
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import OnStop
from loopguard_openai_agents.model import LoopGuardModel, LoopGuardModelProvider


def guard_run_config(
    guard: LoopGuard | PolicyLike = None,
    run_config: RunConfig | Mapping[str, Any] | None = None,
    *,
    escalate_model: str | Model | None = None,
    on_stop: OnStop | None = None,
) -> RunConfig:
    """A copy of a `RunConfig` whose models are guarded; yours is left as it is.

    It wraps the model provider, so every agent whose model is a name, and every agent inside a tool, goes through
    `LoopGuardModel`; it takes note of what really went wrong where the SDK shows the model a fixed text; and it keeps
    the provider's own usage block where a limit on cost needs it.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        run_config: The one to start from.
        escalate_model: The stronger model for escalated turns; None takes `escalation.models.openai_agents`.
        on_stop: How a run without hooks of ours ends; None takes the policy's `on_stop.how`.

    Raises:
        PolicyError: The policy cannot be used.
    """
    guard = as_guard(guard)
    config = run_config if isinstance(run_config, RunConfig) else RunConfig(**(run_config or {}))
    provider = config.model_provider
    if not isinstance(provider, LoopGuardModelProvider):
        provider = LoopGuardModelProvider(provider, guard, escalate_model=escalate_model, on_stop=on_stop)
    model = config.model
    if isinstance(model, Model) and not isinstance(model, LoopGuardModel):
        model = LoopGuardModel(model, guard, escalate_model=escalate_model, on_stop=on_stop, provider=provider)
    formatter = config.tool_error_formatter
    if not isinstance(formatter, _ErrorNotes):
        formatter = _ErrorNotes(guard, formatter)
    settings = config.model_settings
    if guard.policy.limits.cost is not None or guard.policy.key is not None:
        settings = (settings or ModelSettings()).resolve(ModelSettings(preserve_raw_usage=True))
    return dataclasses.replace(
        config, model_provider=provider, model=model, tool_error_formatter=formatter, model_settings=settings
    )


def all_guarded(agent: Agent[Any], config: RunConfig) -> bool:
    """Whether every model goes through `LoopGuardModel`, as far as can be told from the agents handed over to."""
    if config.model is not None:
        return True
    seen: list[Agent[Any]] = []
    found = [agent]
    while found:
        known = found.pop()
        if any(known is other for other in seen):
            continue
        seen.append(known)
        if isinstance(known.model, Model) and not isinstance(known.model, LoopGuardModel):
            return False
        found.extend(other for each in known.handoffs if (other := _handed_over_to(each)) is not None)
    return True


def _handed_over_to(handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | None:
    if isinstance(handoff, Agent):
        return handoff
    ref = getattr(handoff, "_agent_ref", None)  # private, so a canary test watches it
    agent = None if ref is None else ref()
    return agent if isinstance(agent, Agent) else None


class _ErrorNotes:
    """A `tool_error_formatter` that notes errors for loopguard and otherwise leaves them to the user's own."""

    def __init__(self, guard: LoopGuard, formatter: ToolErrorFormatter | None) -> None:
        self._guard = guard
        self._formatter = formatter

    def __call__(self, args: ToolErrorFormatterArgs[Any]) -> str | Awaitable[str | None] | None:
        if self._guard.enabled:
            with self._guard.faults.contained("openai_agents tool_error_formatter"):
                refusal = _note_error(args)
                if refusal is not None:
                    return refusal
        return None if self._formatter is None else self._formatter(args)


def _note_error(args: ToolErrorFormatterArgs[Any]) -> str | None:
    """Keep the real error for the run it belongs to.

    Returns:
        What the model is told instead, if the call was refused: the SDK answers calls of unknown tools before it looks
        at refusals.
    """
    context = args.run_context
    run = registry.of_context(context) or registry.of_call(
        context.usage, args.call_id, getattr(context, "tool_call", None)
    )
    if run is None:
        return None
    kind: Literal["approval_rejected", "tool_not_found", "tool_exception"] = args.kind
    if kind == "tool_exception":
        run.round.errors[args.call_id] = getattr(args, "error", None) or args.default_message
    elif kind == "tool_not_found":
        run.round.errors[args.call_id] = args.default_message
        return run.round.refused.get(args.call_id)
    return None
