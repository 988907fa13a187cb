"""The conformance suite on LangChain."""

import pytest

from loopguard_core.testing.conformance import SCRIPTS, Case, cases

pytest.importorskip("langchain_openai")

from langchain_drivers import (  # needs the SDK
    MODES,
    CallbackDriver,
    GuardedToolsDriver,
    HandLoopDriver,
    MiddlewareDriver,
    ToolNodeDriver,
)

DRIVERS = [
    *(MiddlewareDriver(mode) for mode in MODES),
    CallbackDriver("invoke", "create_agent"),
    CallbackDriver("astream", "create_agent", "drain"),
    CallbackDriver("ainvoke", "graph", "drain"),
    CallbackDriver("stream", "create_react_agent"),
    HandLoopDriver("invoke"),
    HandLoopDriver("ainvoke"),
    GuardedToolsDriver("invoke", "graph", "raise"),
    GuardedToolsDriver("ainvoke", "create_react_agent", "drain"),
    GuardedToolsDriver("stream", "create_agent", "drain"),
    ToolNodeDriver("invoke", "graph", handler="drain"),
    ToolNodeDriver("ainvoke", "graph", handler="drain"),
    ToolNodeDriver("astream", "create_react_agent", handler="drain"),
    ToolNodeDriver("stream", "create_react_agent", handler="raise"),
]

ALONE = [
    ToolNodeDriver("invoke", "graph"),
    ToolNodeDriver("ainvoke", "graph"),
    ToolNodeDriver("stream", "create_react_agent"),
    ToolNodeDriver("ainvoke", "create_react_agent"),
    ToolNodeDriver("invoke", "graph", on_stop="raise"),
]


# Its second turn asks for no tool, and nothing but tools is seen by a wrapper alone.
SEEN = [script for script in SCRIPTS if script.name != "the turn after a stop"]


@pytest.mark.parametrize("case", [*cases(*DRIVERS), *cases(*ALONE, scripts=SEEN)], ids=str)
def test_conformance(case: Case) -> None:
    """Every script the surface can show holds on it."""
    case.run()
