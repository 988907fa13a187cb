"""The conformance suite on the Agents SDK."""

import pytest
from loopguard_openai_agents._surfaces import GUARDRAIL
from loopguard_openai_agents_drivers import DRIVERS

from loopguard_core.testing.conformance import Case, cases

BEFORE_MODEL_CALLS = frozenset({"limit on turns"})
"""What a tool guardrail alone cannot do: it sees the round behind the limit, and refuses that."""


def shows(case: Case) -> bool:
    return case.driver.surface is not GUARDRAIL or case.script.name not in BEFORE_MODEL_CALLS


@pytest.mark.parametrize("case", filter(shows, cases(*DRIVERS)), ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
