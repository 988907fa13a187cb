"""What hooks receive. Events are values: keeping one keeps nothing else alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
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
class JudgedCall:
    """One call of a round, with the answer to it.

    Attributes:
        id: The provider's id; a hash of it where it is longer than 128 characters.
        tool: The tool's name, cut to 64 printable characters.
        fingerprint: Identity of the call, keyed (see `docs/privacy.md`); None for an exempt call.
        action: What is done about it, or None.
        streak: Rounds in a row that contained it; 0 for an exempt call.
        duplicate: Whether the same identity came before it in this round.
        blocked: Whether it does not run; `message` is then what the model gets in its place.
        message: What the model is told about this call; None where nothing.
        arguments: Its arguments, only if the policy sets `privacy.include_arguments`.
    """

    id: str
    tool: str
    fingerprint: str | None = None
    action: Action | None = None
    streak: int = 0
    duplicate: bool = False
    blocked: bool = False
    message: str | None = None
    arguments: Any = None


@dataclass(frozen=True, kw_only=True)
class RoundJudged(_SessionEvent):
    """The calls of a model response were judged; none of them has run yet.

    Attributes:
        message_index: Number of the assistant message, from 1.
        calls: Every call of it, in order.
        user_spoke: Whether a user spoke since the round before.
    """

    message_index: int = 0
    calls: tuple[JudgedCall, ...] = ()
    user_spoke: bool = False


@dataclass(frozen=True, kw_only=True)
class ResultRecorded(_SessionEvent):
    """A call returned.

    Attributes:
        call_id: As in `JudgedCall`.
        failed: Whether it was a failure.
        fingerprint: Hash of the output, keyed: equal outputs of one session have equal ones.
        output: The output, only if the policy sets `privacy.include_results`.
    """

    call_id: str
    failed: bool
    fingerprint: str
    output: Any = None


@dataclass(frozen=True, slots=True)
class Saving:
    """What shadow mode would have saved: everything after the first call it would have refused.

    Attributes:
        action: What would have been done: `block` or `stop`.
        detector: Which detector fired.
        round: In which round.
        rounds: Rounds after that one.
        tokens: Tokens used after it; None where they are unknown.
        cost: US dollars spent after it; None where they are unknown.
    """

    action: Action
    detector: str
    round: int
    rounds: int
    tokens: int | None = None
    cost: Decimal | None = None


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
        saving: In shadow mode, what would have been saved; None where nothing would have been refused.
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
    saving: Saving | None = None
