"""What every driver in `peers/` shares: play the scenarios, time rounds, print JSON. Standard library only.

A driver gives `main` a function that makes a fresh guard for one run. Of every round the guard is told with `play`; it
answers what came of it: "stop" (refused, raised or ended), "told" (a warning for the model or the caller), or None.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from scenarios import SCENARIOS, Round, Scenario, timing_round

Answer = Literal["stop", "told"] | None

BATCH, BATCHES = 50, 20
CPU_SECONDS = 20.0
_ENDS = 4  # batches at each end that are looked at
_FAST_ENOUGH, _MORE_RUNS = 1.0, 4  # a run below so many seconds is taken so often again


class Guard(Protocol):
    """One run's guard, driven as its README says."""

    def play(self, calls: Round) -> Answer: ...


Make = Callable[[Mapping[str, str]], Guard]
"""Makes a guard for one run, given what a user would declare of each tool."""


def play(make: Make, scenario: Scenario) -> dict[str, int | None]:
    """The rounds in which the guard first told something and first stopped something."""
    guard = make(scenario.traits)
    told: int | None = None
    for number, calls in enumerate(scenario.rounds, 1):
        answer = guard.play(calls)
        if answer == "stop":
            return {"told": told, "stopped": number}
        if answer == "told" and told is None:
            told = number
    return {"told": told, "stopped": None}


def timing(make: Make) -> dict[str, Any]:
    """Processor time of a round, against one JSON dump and one hash of the same arguments, batch by batch."""
    first: list[tuple[float, float]] = []
    last: list[tuple[float, float]] = []
    reached, deadline = 0, time.process_time() + CPU_SECONDS
    for _ in range(1 + _MORE_RUNS):
        started = time.process_time()
        batches = _batches(make, deadline)
        reached = max(reached, len(batches) * BATCH)
        first += batches[:_ENDS]
        last += batches[-_ENDS:] if len(batches) == BATCHES else batches[-1:]
        if time.process_time() - started > _FAST_ENOUGH:
            break
    return {"first": _summary(first), "last": _summary(last), "rounds": reached}


def _batches(make: Make, deadline: float) -> list[tuple[float, float]]:
    guard = make({})
    found = []
    for batch in range(BATCHES):
        rounds = [timing_round(number) for number in range(batch * BATCH, (batch + 1) * BATCH)]
        started = time.process_time()
        for calls in rounds:
            if guard.play(calls) == "stop":  # of what never repeats: it has to go on with another
                guard = make({})
        middle = time.process_time()
        for calls in rounds:
            hashlib.blake2b(json.dumps(calls[0].args, sort_keys=True).encode()).hexdigest()
        found.append(((middle - started) / BATCH, (time.process_time() - middle) / BATCH))
        if time.process_time() > deadline:
            break
    return found


def _summary(batches: list[tuple[float, float]]) -> dict[str, float]:
    work = statistics.median(work for work, _ in batches)
    return {"microseconds": work * 1e6, "ratio": statistics.median(work / max(floor, 1e-9) for work, floor in batches)}


def main(make: Make, *, cannot: Mapping[str, str] | None = None) -> None:
    """Play everything, and print what came of it as one line of JSON.

    Args:
        make: Makes a guard for one run.
        cannot: Scenarios the tool has no check for, or one that cannot run here, each with the reason.
    """
    results = {scenario.name: play(make, scenario) for scenario in SCENARIOS}
    print(json.dumps({"results": results, "cannot": dict(cannot or {}), "timing": timing(make)}))
