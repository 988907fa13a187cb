"""The names of `loopguard_openai_agents`. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

from typing import Any, assert_type

from agents import (
    Agent,
    Model,
    RunConfig,
    Runner,
    RunResult,
    RunResultStreaming,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
)
from loopguard_openai_agents import (
    GuardedRunner,
    LoopGuardHooks,
    LoopGuardModel,
    LoopGuardModelProvider,
    LoopGuardStop,
    guard_run_config,
    loop_guard_tool_guardrail,
    loop_guard_tool_output_guardrail,
    run,
    run_streamed,
    run_sync,
    session_of,
)

import loopguard_core
from loopguard_core import LoopGuard, Session, Verdict


async def guarded(agent: Agent[Any], guard: LoopGuard) -> Verdict | None:
    try:
        result = await GuardedRunner.run(agent, "hello", guard=guard, on_stop="end", max_turns=12)
    except LoopGuardStop as stop:
        general: loopguard_core.LoopGuardStop = stop
        return general.verdict
    assert_type(result, RunResult)
    assert_type(await run(agent, "hello", guard="strict", escalate_model="gpt-6"), RunResult)
    assert_type(session_of(result), Session | None)
    streamed = GuardedRunner.run_streamed(agent, "hello", guard=guard)
    assert_type(streamed, RunResultStreaming)
    assert_type(run_streamed(agent, "hello"), RunResultStreaming)
    await Runner.run(agent, "hello", hooks=LoopGuardHooks(guard))
    return None


def seams(agent: Agent[Any], guard: LoopGuard, model: Model) -> None:
    assert_type(GuardedRunner.run_sync(agent, "hello", guard=guard), RunResult)
    assert_type(run_sync(agent, "hello", on_stop="raise"), RunResult)
    config = guard_run_config(guard, RunConfig(), escalate_model=model)
    assert_type(config, RunConfig)
    RunConfig(model_provider=LoopGuardModelProvider(guard=guard))
    wrapped: Model = LoopGuardModel(model, guard, escalate_model="gpt-6", on_stop="answer")
    assert_type(loop_guard_tool_guardrail(guard), ToolInputGuardrail[object])
    assert_type(loop_guard_tool_output_guardrail(guard), ToolOutputGuardrail[object])

    @function_tool(
        tool_input_guardrails=[loop_guard_tool_guardrail(guard)],
        tool_output_guardrails=[loop_guard_tool_output_guardrail(guard)],
    )
    def look(at: int) -> str:
        """Look."""
        return str(at)

    Agent(name="billing", tools=[look], model=wrapped)
