"""What each way to attach can do."""

from __future__ import annotations

from loopguard_core import Surface

ADAPTER = "llama_index"

AGENT = Surface(
    name="guard_agent",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "escalate", "block", "stop", "text"}),
)
"""Also `LoopGuardMixin`, which attaches the same way."""

EVENT_HANDLER = Surface(
    name="LoopGuardEventHandler",
    adapter=ADAPTER,
    capabilities=frozenset({"observe"}),
)

TOOL = Surface(
    name="guard_tool",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "block", "stop"}),
)

SURFACES = (AGENT, EVENT_HANDLER, TOOL)
