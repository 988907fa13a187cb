"""loopguard for LangChain.

`LoopGuardMiddleware` does everything inside `create_agent`. `LoopGuardCallbackHandler` needs only langchain-core; it
observes and stops, and with `guard_tools` it refuses calls too. `loop_guard_callback` attaches it without a config.
`tool_call_wrapper` refuses calls from inside a LangGraph `ToolNode`. Given the same guard they share it, and every
round counts once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    from loopguard_langchain._stop import LoopGuardStop
    from loopguard_langchain.callback import LoopGuardCallbackHandler
    from loopguard_langchain.context import loop_guard_callback
    from loopguard_langchain.tools import guard_tools
except ImportError as error:
    if (error.name or "").startswith("loopguard"):  # a fault of ours
        raise
    raise ImportError("loopguard_langchain needs langchain-core: pip install 'loopguard-core[langchain]'") from error

if TYPE_CHECKING:
    from loopguard_langchain.middleware import LoopGuardMiddleware
    from loopguard_langchain.tool_node import async_tool_call_wrapper, tool_call_wrapper

__all__ = [
    "LoopGuardCallbackHandler",
    "LoopGuardMiddleware",
    "LoopGuardStop",
    "async_tool_call_wrapper",
    "guard_tools",
    "loop_guard_callback",
    "tool_call_wrapper",
]

_LAZY = {
    "LoopGuardMiddleware": ("middleware", "langchain 1.5 or newer"),
    "async_tool_call_wrapper": ("tool_node", "langgraph"),
    "tool_call_wrapper": ("tool_node", "langgraph"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, needed = _LAZY[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ImportError as error:
        if (error.name or "").startswith("loopguard"):
            raise
        raise ImportError(f"{name} needs {needed}: pip install 'loopguard-core[langchain]'") from error
