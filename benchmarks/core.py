"""What a guarded round costs, as ratios measured in one run. Run: `python benchmarks/core.py`

The floor is one canonical dump plus one hash of the same arguments. Each figure is the median of interleaved repeats,
in time of this process, so that a busy machine disturbs it less and slows both sides alike.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from loopguard_core import LoopGuard, ToolCall

ROUNDS = 2_000
REPEATS = 15


def arguments(number: int) -> dict[str, object]:
    """About 200 bytes of JSON."""
    return {
        "query": f"weather in city {number:06d} and its surroundings for the next days",
        "path": f"/srv/data/reports/{number:06d}.json",
        "limit": 10,
        "lang": "en",
        "verbose": True,
        "note": "x" * 50,
    }


def microseconds(work: Callable[[], None], count: int) -> float:
    """Time per item."""
    gc.collect()
    started = time.process_time()
    work()
    return (time.process_time() - started) / count * 1e6


def ratio(work: Callable[[], None], floor: Callable[[], None]) -> tuple[float, float, float]:
    """Median of work, floor and their ratio over interleaved repeats."""
    pairs = [(microseconds(work, ROUNDS), microseconds(floor, ROUNDS)) for _ in range(REPEATS)]
    works, floors = zip(*pairs, strict=True)
    return statistics.median(works), statistics.median(floors), statistics.median(w / f for w, f in pairs)


def rounds(
    guard: LoopGuard, calls: Sequence[Mapping[str, object]], results: list[str], tool: str = "lookup_order"
) -> Callable[[], None]:
    """One call a round: begin it, record its result. What a tool's name says decides which detectors look closer."""
    session = guard.session()

    def work() -> None:
        for number, (call, result) in enumerate(zip(calls, results, strict=True)):
            call_id = f"call_{number}"
            session.begin_round([ToolCall(call_id, tool, call)])
            session.record_result(call_id, result)

    return work


def floor_of(calls: Sequence[Mapping[str, object]]) -> Callable[[], None]:
    """The reference operation on the same arguments."""

    def work() -> None:
        for call in calls:
            hashlib.blake2b(json.dumps(call, sort_keys=True).encode()).hexdigest()

    return work


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", type=int, default=1_000_000, help="rounds before the flatness figure is taken")
    options = parser.parse_args()
    distinct = [arguments(number) for number in range(ROUNDS)]
    same = [arguments(0)] * ROUNDS
    short = [f"result {number:06d} " + "y" * 186 for number in range(ROUNDS)]
    table = Table("figure", "ours", "floor", "ratio", "target", title="Cost of a one-call round (µs)")

    def row(name: str, work: Callable[[], None], floor: Callable[[], None], target: str) -> None:
        ours, base, times = ratio(work, floor)
        table.add_row(name, f"{ours:.2f}", f"{base:.2f}", f"{times:.2f}x", target)

    row(
        "200 B arguments, 200 B result, new call each round",
        rounds(LoopGuard(), distinct, short),
        floor_of(distinct),
        "3x",
    )
    # Identical calls with an unchanged result are a verdict from the second round on; without rungs there is none.
    quiet = {"ladder": {"observe": False, "block": False, "stop": False}}
    row(
        "same call, 2 KB unchanged result, no verdict",
        rounds(LoopGuard(quiet), same, ["r" * 2048] * ROUNDS),
        floor_of(same),
        "4x",
    )
    row(
        "first row, preset openrouter (no outcomes)",
        rounds(LoopGuard("openrouter"), distinct, short),
        floor_of(distinct),
        "-",
    )
    row("a tool that searches", rounds(LoopGuard(), distinct, short, "search"), floor_of(distinct), "-")
    commands = [
        {"command": f"cat /srv/data/{n:06d}.json | grep total", "description": "x" * 120} for n in range(ROUNDS)
    ]
    row("a shell command", rounds(LoopGuard(), commands, short, "bash"), floor_of(commands), "-")
    row("a tool that changes things", rounds(LoopGuard(), distinct, short, "update_order"), floor_of(distinct), "-")
    changing = rounds(LoopGuard(), same, short)
    row("same call, changing result (observed every other round)", changing, floor_of(same), "-")

    long_guard = LoopGuard()
    session = long_guard.session()
    for number in range(options.long):
        call_id = f"call_{number}"
        session.begin_round([ToolCall(call_id, "lookup_order", {"query": number})])
        session.record_result(call_id, "r")

    def late() -> None:
        for number, (call, result) in enumerate(zip(distinct, short, strict=True)):
            session.begin_round([ToolCall(f"c{number}", "lookup_order", call)])
            session.record_result(f"c{number}", result)

    row(f"first row again after {options.long:,} rounds in one session", late, floor_of(distinct), "flat")
    console = Console()
    console.print(table)
    console.print(
        f"saved state after {options.long:,} rounds: {len(json.dumps(session.save())):,} bytes (at most 32,768)"
    )
    console.print(f"memory of a live session: {bytes_per_session():,.0f} bytes after 20 rounds (at most 102,400)")


def bytes_per_session(count: int = 1_000) -> float:
    """What a live session holds after 20 rounds, each of two new calls."""
    guard = LoopGuard()
    guard.session("warm").begin_round([ToolCall("c", "lookup_order", {})])
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    sessions = [guard.session(f"s{number}") for number in range(count)]
    for session in sessions:
        for number in range(20):
            calls = [ToolCall(f"{number}_{i}", f"tool_{i}", arguments(number)) for i in range(2)]
            session.begin_round(calls)
            for call in calls:
                session.record_result(call.id, "result" * 30)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count


if __name__ == "__main__":
    main()
