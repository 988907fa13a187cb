"""What the gateway can do."""

from __future__ import annotations

from loopguard_core import Surface

ADAPTER = "gateway"

GATEWAY = Surface(
    name="gateway",
    adapter=ADAPTER,
    capabilities=frozenset({"observe", "steer", "block", "stop", "text"}),
)

SURFACES = (GATEWAY,)
