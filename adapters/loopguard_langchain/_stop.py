"""The exception that ends a LangChain run."""

from __future__ import annotations

from loopguard_core import LoopGuardStop as _CoreStop

try:
    # LangGraph's tool nodes and LangChain's retry and fallback middleware swallow or retry a plain exception, but let
    # this one through.
    from langgraph.errors import GraphBubbleUp as _Base
except ImportError:  # langchain-core alone
    _Base = Exception  # type: ignore[assignment, misc]


class LoopGuardStop(_CoreStop, _Base):
    """loopguard ended the run. `stop`, `reason` and `verdict` say why."""
