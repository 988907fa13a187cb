"""`loop_guard_tool_guardrail`: refuses calls through the SDK's own tool guardrails, tool by tool."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from agents import (
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
    ToolOutputGuardrail,
    ToolOutputGuardrailData,
)
from agents.tool_context import ToolContext

from loopguard_core import LoopGuard, PolicyLike, ToolCall, Usage, as_guard, current_session
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents._lone_turn import GUARDRAIL_MARK
from loopguard_openai_agents._run import Run
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import LoopGuardStop
from loopguard_openai_agents._surfaces import GUARDRAIL
from loopguard_openai_agents._translate import Request


def loop_guard_tool_guardrail(
    guard: LoopGuard | PolicyLike = None, *, name: str = "loopguard"
) -> ToolInputGuardrail[object]:
    """For `tool_input_guardrails=[...]` of a function tool, or of an MCP server that takes them.

    Where hooks or a model of ours judged the round, it does what they decided. Alone it judges the first call of each
    response, and a stop raises `LoopGuardStop`. Give the tool `loop_guard_tool_output_guardrail` too: a guardrail
    that sees no results takes every repeat for one without progress.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        name: How the SDK names it in results.

    Raises:
        PolicyError: The policy cannot be used.
    """
    guard = as_guard(guard)

    async def loopguard(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        refusal = None
        if guard.enabled:
            with guard.faults.contained("openai_agents tool guardrail"):
                refusal = await _refusal(guard, data.context)
        if refusal is None:
            return ToolGuardrailFunctionOutput.allow()
        return ToolGuardrailFunctionOutput.reject_content(refusal)

    setattr(loopguard, GUARDRAIL_MARK, True)
    return ToolInputGuardrail(guardrail_function=loopguard, name=name)


def loop_guard_tool_output_guardrail(
    guard: LoopGuard | PolicyLike = None, *, name: str = "loopguard"
) -> ToolOutputGuardrail[object]:
    """For `tool_output_guardrails=[...]`, beside `loop_guard_tool_guardrail`: records results, refuses nothing.

    Args:
        guard: The same guard. A policy makes another guard, which knows nothing of the first one's runs.
        name: How the SDK names it in results.

    Raises:
        PolicyError: The policy cannot be used.
    """
    guard = as_guard(guard)

    async def loopguard(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        with guard.faults.contained("openai_agents tool output guardrail"):
            run = _alone(guard, data.context.usage)
            if run is not None:
                run.session.record_result(data.context.tool_call_id, data.output, translate.failed(data.output))
        return ToolGuardrailFunctionOutput.allow()

    return ToolOutputGuardrail(guardrail_function=loopguard, name=name)


@dataclass(slots=True, eq=False)
class _Alone(Run):
    """A run that only guardrails see. The usage the SDK adds up is all they know of its model calls.

    Attributes:
        counted: Requests, and tokens read, written and in all, that were counted already.
    """

    counted: tuple[int, int, int, int] = (0, 0, 0, 0)

    async def count(self, context: ToolContext[object]) -> bool:
        """Count the model calls since the last round; False if there were none, and so this is the same round.

        Nothing here can hold a model call back. So a limit and a key are asked behind the call, and end the run there.
        """
        usage = context.usage
        now = (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
        requests, read, written, total = (new - old for new, old in zip(now, self.counted, strict=True))
        if not requests:
            return False
        self.counted = now  # before anything waits: the round's other calls come at the same time
        name = translate.model_name(getattr(context.agent, "model", None))
        await self.session.abefore_model_call(name)
        for _ in range(requests - 1):  # responses that asked for no guarded tool
            await self.session.aafter_model_call()
        await self.session.aafter_model_call(name, Usage(read, written, total_tokens=total) if total else Usage())
        return True


_alone_runs: weakref.WeakKeyDictionary[LoopGuard, weakref.WeakValueDictionary[int, _Alone]] = (
    weakref.WeakKeyDictionary()
)
"""Runs that only guardrails see, by the id of their usage object."""


def _alone(guard: LoopGuard, usage: object) -> _Alone | None:
    runs = _alone_runs.get(guard)
    run = None if runs is None else runs.get(id(usage))
    return run if run is not None and run.tree is not None and run.tree.of(usage) else None


async def _refusal(guard: LoopGuard, context: ToolContext[object]) -> str | None:
    alone = _alone(guard, context.usage)
    call_id, item = context.tool_call_id, context.tool_call
    judged = registry.of_call(context.usage, call_id, item) or registry.of_request(item)
    if judged is not None and judged is not alone:
        return judged.round.refused.get(context.tool_call_id)
    run = alone or _open(guard, context)
    if not await run.count(context):  # another call of a response that was judged by its first one
        return None
    call = ToolCall(context.tool_call_id, context.qualified_tool_name, context.tool_arguments)
    [(_, decision)] = run.judge([Request(context.tool_call, call)])
    if run.session.stop is not None:
        run.session.end()
        await guard.adrain()
        raise LoopGuardStop(run.session.stop)
    return decision.message if decision.blocked else None


def _open(guard: LoopGuard, context: ToolContext[object]) -> _Alone:
    guard.attach(GUARDRAIL)
    agent = getattr(context.agent, "name", None)
    run = _Alone(guard, guard.session(parent=current_session(), agent=agent, surface=GUARDRAIL), finished=True)
    registry.bind_usage(run, context.usage)
    registry.watch(run, context.usage)
    _alone_runs.setdefault(guard, weakref.WeakValueDictionary())[id(context.usage)] = run
    return run
