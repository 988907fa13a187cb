"""What each model call of a recording took: as recorded, else estimated, and never one passed off as the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from loopguard_core._canonical import canonical_json
from loopguard_core._estimate import text_bytes, tokens_of_bytes
from loopguard_core._outcome import text_of
from loopguard_core._prices import price
from loopguard_core._types import Usage
from loopguard_core.transcripts import AssistantMessage, Message, ToolResult


@dataclass(frozen=True, slots=True)
class Spent:
    """One model call, or several together.

    Attributes:
        tokens: Sent and received.
        cost: US dollars; None where it is not known of every call.
        tokens_estimated: Whether the tokens of any call are an estimate.
        cost_estimated: Whether the cost of any call is from a price list, or of estimated tokens.
    """

    tokens: int = 0
    cost: Decimal | None = Decimal(0)
    tokens_estimated: bool = False
    cost_estimated: bool = False

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.tokens + other.tokens,
            None if self.cost is None or other.cost is None else self.cost + other.cost,
            self.tokens_estimated or other.tokens_estimated,
            self.cost_estimated or other.cost_estimated,
        )


def together(calls: Iterable[Spent]) -> Spent:
    """All of them."""
    return sum(calls, Spent())


def spending(messages: Sequence[Message]) -> list[Spent]:
    """What each model call took, in order.

    Where the recording has no usage, a call is taken to have sent everything said before it, as agents do.
    """
    spent: list[Spent] = []
    before = 0
    for message in messages:
        size = _size(message)
        if isinstance(message, AssistantMessage):
            spent.append(_of(message, before, size))
        before += size
    return spent


def _of(message: AssistantMessage, before: int, size: int) -> Spent:
    recorded = message.usage or Usage()
    sent, received, total = recorded.input_tokens, recorded.output_tokens, recorded.total_tokens
    if total is not None and total >= 0:
        usage, estimated = recorded, recorded.estimated
    else:
        estimated = True
        usage = Usage(
            input_tokens=tokens_of_bytes(before) if sent is None else sent,
            output_tokens=tokens_of_bytes(size) if received is None else received,
            cost=recorded.cost,
        )
    real = recorded.cost is not None
    return Spent(
        max(0, usage.total_tokens or 0),
        price(message.model, usage),
        estimated,
        cost_estimated=not real or recorded.estimated,
    )


def _size(message: Message) -> int:
    if isinstance(message, AssistantMessage):
        called = sum(
            text_bytes(call.name)
            + text_bytes(call.arguments if isinstance(call.arguments, str) else canonical_json(call.arguments))
            for call in message.calls
        )
        return text_bytes(message.content) + text_bytes(message.reasoning) + called
    return text_bytes(text_of(message.output) if isinstance(message, ToolResult) else message.content)
