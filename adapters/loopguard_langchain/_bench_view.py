"""What `loopguard bench models` shows: a table for the terminal or for a page, and all figures as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopguard_langchain._bench_personas import PUBLISHED_COST
from loopguard_langchain._bench_runs import DEFAULT, GUARDS, REFERENCE, UNGUARDED, Measured, Subject, Total, totals
from loopguard_langchain._billing_agent import PRICE, TURNS
from loopguard_langchain._demo_figures import money

NOTES = (
    "In brackets: the published figures. The published 41 is a run that a cap of 40 steps ended: the reference begins "
    f"one step more before it looks at the cap. Here a cap of {TURNS} is {TURNS}. Calls are those that really ran; "
    "refused ones are not among them. Costs here are of scripted models at "
    f"${PRICE[0]} and ${PRICE[1]} for a million tokens in and out, so only their ratio says something; the published "
    "ones are what six models charged."
)
"""What has to be known to read the table of the scripted runs."""

Rows = list[list[str]]


def by_subject(measured: Iterable[Measured]) -> list[tuple[Subject, dict[str, Measured]]]:
    """The runs of each subject, by guard."""
    return [
        (subject, {one.guard: one for one in those}) for subject, those in groupby(measured, lambda one: one.subject)
    ]


def run_rows(measured: Sequence[Measured], *, seconds: bool) -> Rows:
    """A heading, one row for each run, and the totals.

    Args:
        measured: Every subject under every guard.
        seconds: Whether to say how long it took, which no two machines agree on.
    """
    rows = [["model", "run", *GUARDS, "default refuses by, in round"]]
    published: dict[str, list[int]] = {UNGUARDED: [], REFERENCE: []}
    for subject, runs in by_subject(measured):
        cells = {guard: _calls(runs.get(guard)) for guard in GUARDS}
        if subject.published is not None:
            for guard, calls in ((UNGUARDED, subject.published.unguarded), (REFERENCE, subject.published.guarded)):
                published[guard].append(calls)
                cells[guard] += f" ({calls})"
        rows.append([subject.model, str(subject.run), *cells.values(), _caught(runs.get(DEFAULT))])
    sums = {guard: totals(measured).get(guard, Total()) for guard in GUARDS}
    beside = {guard: (f" ({sum(calls)})", f" ({PUBLISHED_COST[guard]})") for guard, calls in published.items() if calls}
    rows.append(["calls", "", *(f"{sums[g].calls}{beside.get(g, ('', ''))[0]}" for g in GUARDS), ""])
    rows.append(["cost", "", *(f"{cents(sums[g].cost)}{beside.get(g, ('', ''))[1]}" for g in GUARDS), ""])
    if seconds:
        rows.append(["time", "", *(f"{sums[guard].seconds:.1f} s" for guard in GUARDS), ""])
    return rows


def change_rows(measured: Sequence[Measured]) -> Rows:
    """A heading, and one row for each kind of change."""
    rows = [["what is changed", "reference", "default", "default refuses by, in round"]]
    for subject, runs in by_subject(measured):
        cells = [_calls(runs.get(guard)) for guard in (REFERENCE, DEFAULT)]
        rows.append([subject.model, *cells, _caught(runs.get(DEFAULT))])
    return rows


def show(console: Console, rows: Rows, *, totals: int = 0) -> None:
    """Print rows as a table.

    Args:
        console: Where to.
        rows: The heading first.
        totals: How many of the last rows stand apart.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in rows[0]:
        words = name in ("model", "what is changed", "default refuses by, in round")
        table.add_column(Text(name), justify="left" if words else "right", overflow="fold")
    for number, row in enumerate(rows[1:], 1):
        table.add_row(*map(Text, row), end_section=number == len(rows) - 1 - totals)
    console.print(table)


def markdown(rows: Rows) -> str:
    """Rows as a Markdown table."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---"] * len(rows[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def as_json(measured: Sequence[Measured], changed: Sequence[Measured], endpoint: str) -> dict[str, Any]:
    """All figures as plain JSON.

    Args:
        measured: Every run.
        changed: The runs that show one kind of change each.
        endpoint: Where the models are; `scripted` where they are played.
    """
    return {
        "endpoint": endpoint,
        "cap": TURNS,
        "runs": [_run_json(one) for one in measured],
        "changes": [_run_json(one) for one in changed],
        "totals": {
            guard: {"calls": total.calls, "cost": _number(total.cost), "seconds": round(total.seconds, 3)}
            for guard, total in totals(measured).items()
        },
    }


def cents(amount: Decimal | None) -> str:
    """Dollars and cents; with more digits where it is less than a cent."""
    return money(amount) if amount is None or amount < Decimal("0.01") else f"${amount:,.2f}"


def _calls(one: Measured | None) -> str:
    if one is None:
        return ""
    return "failed" if one.run is None else str(one.run.executions)


def _caught(one: Measured | None) -> str:
    return "" if one is None else ", ".join(f"{detector} {number}" for detector, number in one.caught)


def _run_json(one: Measured) -> dict[str, Any]:
    run, published = one.run, one.subject.published
    row: dict[str, Any] = {"model": one.subject.model, "run": one.subject.run, "guard": one.guard}
    if published is not None and one.guard != DEFAULT:
        row["published"] = published.unguarded if one.guard == UNGUARDED else published.guarded
    if run is None:
        return row | {"error": one.error}
    return row | {
        "calls": run.executions,
        "attempts": run.attempts,
        "model_calls": run.model_calls,
        "tokens": run.total.tokens,
        "cost": _number(run.total.cost),
        "seconds": round(run.seconds, 3),
        "ended": run.ended,
        "caught_by": [{"detector": detector, "round": number} for detector, number in one.caught],
    }


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)
