"""loopguard for LangChain.

`LoopGuardMiddleware` does everything inside `create_agent`. `LoopGuardCallbackHandler` needs only langchain-core; it
observes and stops. Given the same guard they share it, and every round counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from loopguard_langchain._stop import LoopGuardStop
    from loopguard_langchain.callback import LoopGuardCallbackHandler
except ImportError as error:
    if (error.name or "").startswith("loopguard"):  # a fault of ours
        raise
    raise ImportError("loopguard_langchain needs langchain-core: pip install 'loopguard-core[langchain]'") from error

if TYPE_CHECKING:
    from loopguard_langchain.middleware import LoopGuardMiddleware

__all__ = ["LoopGuardCallbackHandler", "LoopGuardMiddleware", "LoopGuardStop"]


def __getattr__(name: str) -> Any:
    if name != "LoopGuardMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from loopguard_langchain.middleware import LoopGuardMiddleware
    except ImportError as error:
        if (error.name or "").startswith("loopguard"):
            raise
        raise ImportError(
            "LoopGuardMiddleware needs langchain 1.5 or newer: pip install 'loopguard-core[langchain]'"
        ) from error
    return LoopGuardMiddleware
