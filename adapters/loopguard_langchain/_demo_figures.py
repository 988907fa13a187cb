"""What the runs of `loopguard demo` come to, in figures and in words."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from loopguard_langchain._billing_agent import Run, Spent
from loopguard_langchain._demo_chart import Curve

_CENT = Decimal("0.01")
_LITTLE_SAVED = Decimal("0.95")


def money(amount: Decimal | None) -> str:
    """Dollars with as many digits as it takes to tell small amounts apart."""
    if amount is None:
        return "unknown"
    if amount and amount < _CENT / 10:
        return f"${amount:.6f}"
    return f"${amount:.4f}" if amount < 1 else f"${amount:,.2f}"


def count(number: int | None) -> str:
    """A whole number, for people."""
    return "unknown" if number is None else f"{number:,}"


def calls(run: Run) -> str:
    """How many model calls, with the right noun."""
    return f"{run.model_calls} model call{'' if run.model_calls == 1 else 's'}"


class Measure:
    """What the runs are compared by: dollars, or tokens where an endpoint reports no cost.

    Args:
        runs: All of them; they are compared by the same measure.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.in_dollars = all(spent.cost is not None for run in runs for spent in run.curve)
        self.unit = "dollars" if self.in_dollars else "tokens"

    def amount(self, spent: Spent) -> Decimal:
        """What was spent."""
        return (spent.cost if self.in_dollars else Decimal(spent.tokens or 0)) or Decimal(0)

    def text(self, run: Run) -> str:
        """What a whole run spent."""
        return money(run.total.cost) if self.in_dollars else f"{count(run.total.tokens)} tokens"

    def tick(self, value: float, step: float) -> str:
        """A tick of an axis."""
        if not self.in_dollars:
            return f"{value:,.0f}"
        digits = next((digits for digits in range(2, 9) if abs(round(step, digits) - step) < step / 1000), 9)
        return f"${value:,.{digits}f}"

    def curves(self, runs: Sequence[Run]) -> list[Curve]:
        """What each run had spent after each of its model calls."""
        return [
            Curve(
                f"{run.name}: {calls(run)}, {self.text(run)}", tuple(float(self.amount(spent)) for spent in run.curve)
            )
            for run in runs
        ]


def saved(runs: Sequence[Run]) -> str:
    """What detection saved, in one sentence.

    Args:
        runs: The unguarded one first, then the one it is compared with.
    """
    measure = Measure(runs)
    unguarded, guarded = runs[:2]
    whole = measure.amount(unguarded.total)
    if not whole:
        return "Neither run reported what it cost, so nothing can be said about savings."
    verb = "cost" if measure.in_dollars else "took"
    share = measure.amount(guarded.total) / whole
    start = f"Guarded, the run {verb} {_percent(share)} of the unguarded one"
    if share > _LITTLE_SAVED:
        return f"{start}: there was nothing to save."
    return f"{start}: {measure.text(guarded)} instead of {measure.text(unguarded)}."


def as_json(runs: Sequence[Run], model: str) -> dict[str, Any]:
    """All figures as plain JSON."""
    rows = [
        {
            "run": run.name,
            "attempts": run.attempts,
            "executions": run.executions,
            "model_calls": run.model_calls,
            "tokens": run.total.tokens,
            "cost": _number(run.total.cost),
            "events": [{"action": event.action.value, "streak": event.streak} for event in run.events],
            "ended": run.ended,
            "answer": run.answer,
            "curve": [{"tokens": spent.tokens, "cost": _number(spent.cost)} for spent in run.curve],
        }
        for run in runs
    ]
    return {"model": model, "runs": rows, "saved": saved(runs)}


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


def _percent(share: Decimal) -> str:
    percent = share * 100
    return "less than 1 %" if percent < 1 else f"{percent:.0f} %"
