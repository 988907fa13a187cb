"""The conformance suite on a loop without any SDK, and on surfaces that can do less than everything."""

import pytest
from hand_loop_driver import HandLoopDriver

from loopguard_core import Surface
from loopguard_core.testing.conformance import Case, cases

CAN = {
    "everything": ("observe", "steer", "escalate", "block", "stop", "text"),
    "no steering": ("observe", "block", "stop"),
    "no blocking": ("observe", "steer", "escalate", "stop", "text"),
    "stopping alone": ("observe", "stop"),
}
DRIVERS = [HandLoopDriver(Surface(name, "default", frozenset(can))) for name, can in CAN.items()]


@pytest.mark.parametrize("case", cases(*DRIVERS), ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
