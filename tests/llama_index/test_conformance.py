"""The conformance suite on LlamaIndex."""

import pytest
from loopguard_llama_index_drivers import DRIVERS
from loopguard_llama_index_workflow_drivers import WORKFLOW_DRIVERS

from loopguard_core.testing.conformance import Case, cases


@pytest.mark.parametrize("case", cases(*DRIVERS, *WORKFLOW_DRIVERS), ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
