"""The places in LlamaIndex this adapter hooks into, and how.

`run`, `take_step`, `parse_agent_output` and `call_tool` exist on every agent. A hook is a method bound to the instance:
the workflow engine finds steps with `inspect.ismethod`, and agents are pydantic models, which refuse plain assignment.
"""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable
from typing import Any, cast

from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent
from llama_index_instrumentation.dispatcher import active_instrument_tags
from workflows.handler import WorkflowHandler
from workflows.runtime.types.results import WaitingForEvent

from loopguard_core import LoopGuardError

__all__ = [
    "RUN_ID",
    "STEPS",
    "WaitingForEvent",
    "bind",
    "bound",
    "check",
    "current_run_id",
    "says_turn_limit",
    "unbind",
    "when_done",
]

STEPS = ("parse_agent_output", "call_tool")
"""Workflow steps: a hook must carry their configuration."""

RUN_ID = "llamaindex.run_id"


def check(target: AgentWorkflow | BaseWorkflowAgent) -> None:
    """Refuse an installed version on which the seams are gone, before a run depends on them.

    Raises:
        LoopGuardError: They are.
    """
    agents = list(target.agents.values()) if isinstance(target, AgentWorkflow) else [target]
    missing = [f"{type(target).__name__}.{name}" for name in ("run", *STEPS) if not callable(_method(target, name))]
    missing += [
        f"{type(agent).__name__}.{name}"
        for agent in agents
        for name in ("take_step", "handle_tool_call_results", "finalize")
        if not callable(_method(agent, name))
    ]
    missing += [
        f"{type(target).__name__}.{name} as a step"
        for name in STEPS
        if getattr(_method(target, name), "_step_config", None) is None
    ]
    if not hasattr(WorkflowHandler, "stop_event_result"):
        missing.append("WorkflowHandler.stop_event_result")
    if missing:
        raise LoopGuardError(
            f"this llama-index-core lacks what loopguard attaches to ({', '.join(missing)}), so nothing would be "
            "guarded: pip install 'llama-index-core>=0.14.22,<0.15'"
        )


def _method(target: object, name: str) -> Any:
    return getattr(type(target), name, None)


def bind(target: object, name: str, hook: Callable[..., Any]) -> None:
    """Put a hook in the place of a method of this one object.

    Args:
        target: The object.
        name: The method.
        hook: A plain function. It is copied, because a step's configuration is kept on the function.
    """
    plain = cast("types.FunctionType", hook)
    own = types.FunctionType(plain.__code__, plain.__globals__, name, plain.__defaults__, plain.__closure__)
    own.__kwdefaults__ = plain.__kwdefaults__
    functools.update_wrapper(own, getattr(type(target), name))
    object.__setattr__(target, name, types.MethodType(own, target))


def bound(target: object, name: str) -> bool:
    """Whether a hook is in that place, and is this object's own: a shallow copy carries those of its original."""
    method = vars(target).get(name)
    return method is not None and getattr(method, "__self__", None) is target


def unbind(target: object, *names: str) -> None:
    """Take hooks away."""
    for name in names:
        if name in vars(target):
            object.__delattr__(target, name)


def current_run_id() -> str | None:
    """Id of the run this code is part of; also inside tools, in worker threads too."""
    run_id = active_instrument_tags.get().get(RUN_ID)
    return run_id if isinstance(run_id, str) else None


def says_turn_limit(text: str) -> bool:
    """Whether this is what LlamaIndex says at its own limit. It has no class of its own for that."""
    return text.startswith("Max iterations of ")


def when_done(handler: WorkflowHandler, then: Callable[[BaseException | None], None]) -> None:
    """Call a function with what ended a run, before anybody who awaits the handler goes on."""
    task = handler._result_task  # noqa: SLF001  # awaiting in a task of our own would be too late for that

    def done(_: object) -> None:
        if task.cancelled():
            then(asyncio.CancelledError())
        else:
            then(task.exception())

    task.add_done_callback(done)
