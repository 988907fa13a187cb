"""The conformance suite on the Agents SDK."""

import pytest
from loopguard_openai_agents_drivers import MODES, HooksDriver, RunnerDriver

from loopguard_core.testing.conformance import Case, cases

DRIVERS = [*(RunnerDriver(mode) for mode in MODES), HooksDriver("run"), HooksDriver("run_streamed")]


@pytest.mark.parametrize("case", cases(*DRIVERS), ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
