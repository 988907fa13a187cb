"""loopguard for the OpenAI Agents SDK.

`GuardedRunner` stands where `Runner` stands and does everything. `LoopGuardHooks` goes into a `Runner` of your own: it
observes, steers, blocks and stops. The model wrapper and the tool guardrail use documented seams alone.
"""

from __future__ import annotations

try:
    from loopguard_openai_agents._sessions import session_of
    from loopguard_openai_agents._stop import LoopGuardStop
    from loopguard_openai_agents.config import guard_run_config
    from loopguard_openai_agents.guardrail import loop_guard_tool_guardrail, loop_guard_tool_output_guardrail
    from loopguard_openai_agents.hooks import LoopGuardHooks
    from loopguard_openai_agents.model import LoopGuardModel, LoopGuardModelProvider
    from loopguard_openai_agents.runner import GuardedRunner, run, run_streamed, run_sync
except ImportError as error:
    raise ImportError(
        "loopguard_openai_agents needs openai-agents 0.20 or newer: pip install 'loopguard-core[openai-agents]'"
    ) from error

__all__ = [
    "GuardedRunner",
    "LoopGuardHooks",
    "LoopGuardModel",
    "LoopGuardModelProvider",
    "LoopGuardStop",
    "guard_run_config",
    "loop_guard_tool_guardrail",
    "loop_guard_tool_output_guardrail",
    "run",
    "run_streamed",
    "run_sync",
    "session_of",
]
