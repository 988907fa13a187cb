"""The conformance suite on LangChain."""

import pytest

from loopguard_core.testing.conformance import Case, cases

pytest.importorskip("langchain_openai")

from langchain_drivers import MODES, CallbackDriver, MiddlewareDriver  # needs the SDK

DRIVERS = [
    *(MiddlewareDriver(mode) for mode in MODES),
    CallbackDriver("invoke", "create_agent"),
    CallbackDriver("astream", "create_agent", "drain"),
    CallbackDriver("ainvoke", "graph", "drain"),
    CallbackDriver("stream", "create_react_agent"),
]


@pytest.mark.parametrize("case", cases(*DRIVERS), ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
