"""The conformance suite on the Agents SDK."""

import pytest
from loopguard_openai_agents_drivers import DRIVERS

from loopguard_core.testing.conformance import Case, cases


@pytest.mark.parametrize("case", cases(*DRIVERS), ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
