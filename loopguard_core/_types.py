"""The values that cross the public interface: small, without behaviour of their own, and all but one frozen."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from loopguard_core._dollars import kept

Channel = Literal["content", "reasoning", "arguments"]

EndReason = Literal[
    "complete",
    "doom_loop",
    "max_turns",
    "max_cost",
    "max_tokens",
    "max_seconds",
    "max_tool_calls",
    "key_limit",
    "custom",
    "paused",
    "error",
    "cancelled",
]
"""Why a session ended. `custom` comes from a `stop_when` hook."""


class Action(enum.StrEnum):
    """What loopguard does about a loop, from weakest to strongest."""

    OBSERVE = "observe"
    STEER = "steer"
    ESCALATE = "escalate"
    BLOCK = "block"
    STOP = "stop"


@dataclass(slots=True)  # not frozen: one is made for every call of every round, and freezing trebles its cost
class ToolCall:
    """One tool call as the model asked for it.

    Attributes:
        id: The provider's call id; results are recorded under it.
        name: The tool's name. It comes from the model and may name no tool at all.
        arguments: The parsed arguments, or the raw text where it is not valid JSON.
        refusable: False for a call the SDK cannot refuse, such as one that hands over to another agent or runs at the
            provider: instead of blocked it is steered, or what comes next below that.
        annotations: What an MCP server says of the tool (`readOnlyHint`, `destructiveHint`, ...); None if nothing.
    """

    id: str
    name: str
    arguments: Any = None
    refusable: bool = True
    annotations: Mapping[str, Any] | None = None


_MOST_TOKENS = 2**53
TOKEN_FIELDS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "total_tokens")


def _amount(value: object) -> Decimal | None:
    try:
        amount = value if isinstance(value, Decimal) else Decimal(str(value))
    except Exception:  # noqa: BLE001  # str() of anything may raise anything
        return None
    return kept(amount)


def _tokens(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_TOKENS:
        return None
    return int(value)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of one model call, or of a whole session.

    None means unknown, never zero.

    Attributes:
        input_tokens: Tokens sent, cached ones included.
        output_tokens: Tokens received, reasoning included.
        cached_tokens: The part of `input_tokens` read from a cache.
        reasoning_tokens: The part of `output_tokens` spent on reasoning.
        total_tokens: What the provider calls the total; worked out from the two parts if absent.
        cost: US dollars. Numbers and numeric strings are turned into `Decimal` as written, to the eighteenth decimal;
            what is no amount (text, negative, not finite, above 10^15) is unknown. Adapters pass on what a provider
            says as it is.
        estimated: Whether tokens, and so the cost, are loopguard's own estimate, because the provider reported none.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    cost: Decimal | None = None
    estimated: bool = False

    def __post_init__(self) -> None:
        # Providers report what they like, and none of it may end a run.
        if self.cost is not None:
            object.__setattr__(self, "cost", _amount(self.cost))
        for name in TOKEN_FIELDS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value <= _MOST_TOKENS):
                object.__setattr__(self, name, _tokens(value))
        if self.total_tokens is None and self.input_tokens is not None and self.output_tokens is not None:
            object.__setattr__(self, "total_tokens", self.input_tokens + self.output_tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One detection.

    Attributes:
        detector: Name of the detector, for example `repeated_call`.
        action: What is done about it, after overrides and after what the surface can perform.
        streak: How often the evidence was seen, in the detector's own unit (rounds, laps, cuts).
        fingerprint: Identity of the call, keyed (see `docs/privacy.md`); None for text.
        tool: The tool's name, cut to 64 printable characters; None for text.
        call_id: Id of the offending call; None for text.
        round: Number of the round, from 1; 0 before the first.
        message_index: Number of the assistant message, from 1.
        channel: `content`, `reasoning` or `arguments` for text; None for calls.
        char: Offset in that channel's text where it fired; None for calls.
        abort: True where a running stream is to be cut.
        message: What the model or the operator is told. Never quotes arguments.
        evidence: Facts behind the verdict: plain JSON, never arguments or results.
    """

    detector: str
    action: Action
    streak: int
    fingerprint: str | None = None
    tool: str | None = None
    call_id: str | None = None
    round: int = 0
    message_index: int = 0
    channel: Channel | None = None
    char: int | None = None
    abort: bool = False
    message: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain JSON."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**fields, "action": self.action.value, "evidence": dict(self.evidence)}


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one call of a round.

    Attributes:
        action: The strongest rung crossed, or None.
        streak: Rounds in a row that contained this call, this one included; 0 for an exempt call.
        duplicate: True if the same identity was already scored in this round.
        verdict: The detection behind the action; None where there is none.
        blocked: True if the call must not run. `message` is then what the model gets in its place.
        message: Text for the model; None where it is told nothing about this call.
    """

    action: Action | None
    streak: int
    duplicate: bool = False
    verdict: Verdict | None = None
    blocked: bool = False
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run is ended.

    Attributes:
        reason: One of `SessionEnd`'s reasons.
        verdict: The detection that ended it; None where a limit did.
        message: One paragraph for whoever reads the end of the run.
    """

    reason: EndReason
    verdict: Verdict | None
    message: str

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain JSON."""
        verdict = None if self.verdict is None else self.verdict.as_dict()
        return {"reason": self.reason, "verdict": verdict, "message": self.message}


@dataclass(frozen=True, slots=True)
class Directive:
    """What to do about the next model call.

    Attributes:
        stop: Set if the call must not start.
        steer: Messages to put before the model, in order, after everything it has seen.
        model: Name of the stronger model that takes this one call; None for the usual one.
    """

    stop: Stop | None = None
    steer: tuple[str, ...] = ()
    model: str | None = None
