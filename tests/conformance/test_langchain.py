"""The conformance suite on LangChain."""

import pytest

from loopguard_core.testing.conformance import Case, cases

pytest.importorskip("langchain_openai")

from langchain_drivers import DRIVERS  # needs the SDK


@pytest.mark.parametrize("case", cases(*DRIVERS), ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
