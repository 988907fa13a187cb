"""What each way to attach can do."""

from __future__ import annotations

from loopguard_core import Surface

ADAPTER = "langchain"

MIDDLEWARE = Surface(
    name="LoopGuardMiddleware",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "escalate", "block", "stop"}),
)

CALLBACK = Surface(
    name="LoopGuardCallbackHandler",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "stop"}),
)

SURFACES = (MIDDLEWARE, CALLBACK)
