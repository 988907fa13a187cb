"""loopguard for LlamaIndex.

`guard_agent` guards a finished agent or `AgentWorkflow` in place. For workflows of your own there are
`LoopGuardEventHandler`, which observes, and `guard_tool`, which refuses.
"""

from __future__ import annotations

try:
    from loopguard_llama_index._registry import session_of
    from loopguard_llama_index._stop import LoopGuardStop
    from loopguard_llama_index.agent import LoopGuardMixin, guard_agent, unguard
    from loopguard_llama_index.events import LoopDetectedEvent
    from loopguard_llama_index.handler import LoopGuardEventHandler
    from loopguard_llama_index.tools import guard_tool
except ImportError as error:
    raise ImportError(
        "loopguard_llama_index needs llama-index-core from 0.14.22 on: pip install 'loopguard-core[llama-index]'"
    ) from error

guard = guard_agent

__all__ = [
    "LoopDetectedEvent",
    "LoopGuardEventHandler",
    "LoopGuardMixin",
    "LoopGuardStop",
    "guard",
    "guard_agent",
    "guard_tool",
    "session_of",
    "unguard",
]
