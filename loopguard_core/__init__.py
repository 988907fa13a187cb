"""loopguard: notices that an agent run is stuck in a loop and answers on a ladder, up to ending it cleanly.

Start with `LoopGuard` and `Policy`; adapters for agent SDKs are packages of their own. Nothing here imports an SDK.
"""

from typing import TYPE_CHECKING, Any

from loopguard_core._canonical import canonical_json
from loopguard_core._context import current_session, inside
from loopguard_core._errors import LoopGuardError, LoopGuardStop, PluginError, PolicyError
from loopguard_core._estimate import estimate_tokens
from loopguard_core._events import (
    DoomLoopDetected,
    JudgedCall,
    PostModelCall,
    ResultRecorded,
    RoundJudged,
    Saving,
    SessionEnd,
)
from loopguard_core._fingerprint import fingerprint
from loopguard_core._guard import LoopGuard, PolicyLike, as_guard
from loopguard_core._hookspec import hookimpl
from loopguard_core._key_limit import is_key_limit
from loopguard_core._ladder import Ladder
from loopguard_core._policy import Policy
from loopguard_core._policy_file import resolve_policy
from loopguard_core._session import Session
from loopguard_core._surface import Surface
from loopguard_core._token_sizes import TokenSizes
from loopguard_core._types import Action, Channel, Decision, Directive, EndReason, Stop, ToolCall, Usage, Verdict
from loopguard_core.detectors import Detector, Finding, ObservedCall

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "Action",
    "Channel",
    "Decision",
    "Detector",
    "Directive",
    "DoomLoopDetected",
    "EndReason",
    "Finding",
    "JudgedCall",
    "Ladder",
    "LoopGuard",
    "LoopGuardError",
    "LoopGuardStop",
    "ObservedCall",
    "PluginError",
    "Policy",
    "PolicyError",
    "PolicyLike",
    "PostModelCall",
    "ResultRecorded",
    "RoundJudged",
    "Saving",
    "Session",
    "SessionEnd",
    "Stop",
    "Surface",
    "TokenSizes",
    "ToolCall",
    "Usage",
    "Verdict",
    "as_guard",
    "canonical_json",
    "current_session",
    "estimate_tokens",
    "fingerprint",
    "hookimpl",
    "inside",
    "is_key_limit",
    "resolve_policy",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("loopguard-core")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
