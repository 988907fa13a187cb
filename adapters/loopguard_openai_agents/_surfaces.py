"""What each way to attach can do."""

from __future__ import annotations

from loopguard_core import Surface

ADAPTER = "openai_agents"

RUNNER = Surface(
    name="GuardedRunner",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "escalate", "block", "stop", "text"}),
)

RUNNER_WITH_MODEL_OBJECT = Surface(
    name="GuardedRunner with a model object that is no LoopGuardModel",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "block", "stop"}),
)

HOOKS = Surface(
    name="LoopGuardHooks",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "block", "stop"}),
)

MODEL = Surface(
    name="LoopGuardModel",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "escalate", "stop", "text"}),
)

MODEL_WITH_GUARDRAIL = Surface(
    name="LoopGuardModel with loop_guard_tool_guardrail",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "escalate", "block", "stop", "text"}),
)

GUARDRAIL = Surface(
    name="loop_guard_tool_guardrail",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "block", "stop"}),
)

SURFACES = (RUNNER, RUNNER_WITH_MODEL_OBJECT, HOOKS, MODEL, MODEL_WITH_GUARDRAIL, GUARDRAIL)
