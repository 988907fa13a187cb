"""Figures and sentences of a report."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from loopguard_core._types import Action
from loopguard_core.report._html import Markup, joined, name_of
from loopguard_core.report._loops import Loop
from loopguard_core.report._spend import Spent
from loopguard_core.report._story import Story

DONE = {
    Action.OBSERVE: "noted",
    Action.STEER: "model told",
    Action.ESCALATE: "stronger model",
    Action.BLOCK: "refused",
    Action.STOP: "ends the run",
}
"""What each rung does, for a reader who has not met the ladder."""

_TOOLS = 3
_CENT = Decimal("0.01")
_DIME = Decimal("0.1")
_TINY = Decimal("0.0001")


def counted(count: int, noun: str) -> str:
    """`1 round`, `1,200 rounds`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def dollars(cost: Decimal) -> str:
    """To the cent, small amounts to a hundredth of one."""
    step = _CENT if cost >= _DIME or not cost else _TINY
    return f"${cost.quantize(step, ROUND_HALF_UP):,}"


def short(number: int) -> str:
    """`950`, `41.2k`, `3.1M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + unit
    return str(number)


def amount(spent: Spent) -> str:
    """Tokens and dollars, each marked where it is an estimate."""
    tokens = f"{'about ' if spent.tokens_estimated else ''}{short(spent.tokens)} tokens"
    if spent.cost is None:
        return tokens
    return f"{tokens}, {'about ' if spent.cost_estimated else ''}{dollars(spent.cost)}"


def saved(without: Spent, guarded: Spent) -> str:
    """The share that is saved, rounded down."""
    if without.cost is not None and guarded.cost is not None and without.cost:
        share = 1 - guarded.cost / without.cost
    else:
        share = Decimal(1) - Decimal(guarded.tokens) / Decimal(without.tokens or 1)
    return f"{int(share * 100)} %"


def source(spent: Spent) -> str:
    """Where the figures come from."""
    tokens = "tokens estimated from the text" if spent.tokens_estimated else "tokens as recorded"
    if spent.cost is None:
        return f"{tokens}; no cost recorded, and no price known for the model"
    return f"{tokens}; dollars {'by price list' if spent.cost_estimated else 'as recorded'}"


def span(first: int, last: int) -> str:
    """`round 3`, `rounds 3 to 9`."""
    if not last:
        return "before the first round"
    return f"round {last}" if first == last else f"rounds {max(1, first):,} to {last:,}"


def subject(loop: Loop) -> Markup:
    """What repeats: tools, three of them at most, or text."""
    tools = loop.tools
    if tools:
        names = [name_of(tool) if at == 0 else joined(", ", name_of(tool)) for at, tool in enumerate(tools[:_TOOLS])]
        return joined(*names, f" and {len(tools) - _TOOLS} more" if len(tools) > _TOOLS else None)
    return joined(
        {"content": "the text", "reasoning": "the reasoning", "arguments": "a call's arguments"}.get(
            loop.last.channel or "", "the message"
        )
    )


def ends(story: Story) -> str:
    """Where the guard would have ended it: `at round 6`, `after response 2` where no call was made."""
    replayed = story.replayed
    return f"at round {replayed.stop_round}" if replayed.stop_round else f"after response {replayed.answered}"


def status(story: Story, found: list[Loop]) -> tuple[str, str]:
    """One word for the class, and a few for the reader."""
    replayed = story.replayed
    if replayed.stop is not None:
        where = ends(story)
        kind = (
            "loop" if replayed.stop.verdict is not None else replayed.stop.reason.removeprefix("max_").replace("_", " ")
        )
        return "stop", f"{'Loop' if kind == 'loop' else f'Limit on {kind}'}: ends {where}"
    if not found:
        return "fine", "No loop"
    action = found[0].action
    if action is Action.BLOCK:
        return "block", "Loop: calls refused"
    if action in (Action.STEER, Action.ESCALATE):
        return "steer", "Loop: model told"
    return "observe", "Noted only"
