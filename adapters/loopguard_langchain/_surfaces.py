"""What each way to attach can do."""

from __future__ import annotations

from loopguard_core import Surface

ADAPTER = "langchain"

MIDDLEWARE = Surface(
    name="LoopGuardMiddleware",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "escalate", "block", "stop", "text"}),
)

CALLBACK = Surface(
    name="LoopGuardCallbackHandler",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "stop"}),
)

GUARDED_TOOLS = Surface(
    name="LoopGuardCallbackHandler with guard_tools",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "block", "stop"}),
)
"""Also with `tool_call_wrapper`: the handler judges, the tools ask it before they run."""

TOOL_CALL_WRAPPER = Surface(
    name="tool_call_wrapper",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "block", "stop"}),
)

SURFACES = (MIDDLEWARE, CALLBACK, GUARDED_TOOLS, TOOL_CALL_WRAPPER)
