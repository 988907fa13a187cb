"""What hooks receive. Events are values: keeping one keeps nothing else alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loopguard_core._types import Action, EndReason, Usage, Verdict


@dataclass(frozen=True, kw_only=True)
class _SessionEvent:
    """Which run an event belongs to.

    Attributes:
        session_id: Id of the session.
        parent_id: Id of the session this one is nested in; None for an outer run.
        agent: Name of the agent, where the SDK gives one.
        adapter: The SDK, for example `langchain`; None for a hand-written loop.
        framework_run_id: The SDK's own id of the run, where it has one.
        turn: Rounds so far.
    """

    session_id: str
    parent_id: str | None = None
    agent: str | None = None
    adapter: str | None = None
    framework_run_id: str | None = None
    turn: int = 0


@dataclass(frozen=True, kw_only=True)
class DoomLoopDetected(_SessionEvent, Verdict):
    """A detector fired. It has the fields of `Verdict` too.

    Attributes:
        proposed: The ladder's action, before overrides and before what the surface can perform.
        arguments: The call's arguments, only if the policy sets `privacy.include_arguments`.
    """

    proposed: Action
    arguments: Any = None


@dataclass(frozen=True, kw_only=True)
class PostModelCall(_SessionEvent):
    """A model call succeeded.

    Attributes:
        model: The model's name, where known.
        usage: Tokens and cost of this call.
        total: Tokens and cost of the session so far, this call included.
        model_calls: Successful model calls so far, this one included.
        duration: Seconds the call took, where known.
    """

    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    total: Usage = field(default_factory=Usage)
    model_calls: int = 0
    duration: float | None = None


@dataclass(frozen=True, kw_only=True)
class SessionEnd(_SessionEvent):
    """A session ended.

    Attributes:
        reason: Why; see `EndReason`.
        verdict: Set only if detection ended it: the signal to alert on.
        usage: Tokens and cost of the whole session; unknown parts are None.
        model_calls: Successful model calls.
        turns: Rounds, refused or not.
        tool_calls: Calls that were let through.
        duration: Active seconds, pauses excluded.
        message: What the model or the user was told about a stop; empty otherwise.
        error: Class name of the exception that ended the run; None otherwise.
    """

    reason: EndReason
    verdict: Verdict | None = None
    usage: Usage = field(default_factory=Usage)
    model_calls: int = 0
    turns: int = 0
    tool_calls: int = 0
    duration: float = 0.0
    message: str = ""
    error: str | None = None
