"""Many sessions at once, many threads on one guard, and one very long session. Run: `python benchmarks/soak.py`

Measures memory by what the process has resident, and speed as rounds a second. Ends with status 1 where a bound of the
design is broken: 100 KB a session without text, 32 KB saved, memory back after the end, flat in time and memory.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from loopguard_core import LoopGuard, Session, ToolCall, Usage

ROUNDS = 20
SAMPLE = 200  # sessions whose state is saved
MEGABYTE = 2**20
WORDS = [
    f"{begin}{end}" for begin in ("in", "de", "po", "car", "tra", "mi") for end in ("voice", "livery", "st", "go", "m")
]
POLICY = {"limits": {"turns": 1_000_000, "tokens": 10**12}}


def resident() -> float:
    """Megabytes the process has in memory."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free but kept would look like ours
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / MEGABYTE
    except OSError:  # no Linux: the most there ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- what runs do ------------------------------------------------------------------------------------------------------


def model_call(session: Session) -> None:
    """A model call that asks for tools."""
    session.before_model_call()
    session.after_model_call("scripted", Usage(input_tokens=900, output_tokens=40))


def one_round(session: Session, number: int, arguments: object, result: str) -> None:
    """A model call, and the one tool call it asks for."""
    model_call(session)
    call = ToolCall(f"call_{number}", f"tool_{number % 5}", arguments)
    if not session.begin_round([call])[0].blocked:
        session.record_result(call.id, result)


def healthy(session: Session, number: int) -> None:
    """New arguments, new results."""
    one_round(session, number, {"path": f"/srv/{session.id}/{number}.json"}, f"{session.id}: line {number} of many")


def looping(session: Session, _: int) -> None:
    """The same call with the same result: refused at the third time, ended at the sixth, and asked for on and on."""
    one_round(session, 5, {"invoice_id": "INV-2291"}, "timeout")


def talking(session: Session, number: int) -> None:
    """A streamed answer beside the call; the last message is left open, in the middle of its text."""
    chance = random.Random(f"{session.id} {number}")
    for _ in range(8):
        session.feed_text(" ".join(chance.choices(WORDS, k=15)) + ". ")
    if number < ROUNDS - 1:
        session.end_message("tool_calls")
        healthy(session, number)


KINDS: dict[str, Callable[[Session, int], None]] = {
    "healthy": healthy,
    "looping": looping,
    "text": talking,
    "nested": healthy,
    "paused": healthy,
}


def started(guard: LoopGuard, number: int) -> tuple[str, Session]:
    """One of each kind in turn; a nested one runs inside a healthy one."""
    kind = list(KINDS)[number % len(KINDS)]
    outer = guard.live(f"run-{number - 3}") if kind == "nested" else None
    return kind, guard.session(f"run-{number}", parent=outer)


# -- what is measured --------------------------------------------------------------------------------------------------


class Figures:
    """Lines of the table, and whether every bound held."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self.broken = False

    def add(self, name: str, value: str, bound: str = "", *, holds: bool = True) -> None:
        """One line."""
        self.rows.append((name, value if holds else f"{value} (!)", bound))
        self.broken = self.broken or not holds

    def table(self) -> str:
        """In Markdown."""
        lines = ["| figure | measured | bound |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in self.rows)]
        return "\n".join(lines)


def at_once(figures: Figures, count: int) -> None:
    """So many live sessions of every kind."""
    guard = LoopGuard(POLICY)
    for number in range(2 * len(KINDS)):  # what is loaded and cached once is no session's
        kind, session = started(guard, number)
        for step in range(ROUNDS):
            KINDS[kind](session, step)
        session.end()
    before = resident()
    began = time.perf_counter()
    sessions = [started(guard, number) for number in range(count)]
    for step in range(ROUNDS):
        for kind, session in sessions:
            KINDS[kind](session, step)
    for kind, session in sessions:
        if kind == "paused":
            session.pause()
            session.end("paused")
    took = time.perf_counter() - began
    used = resident() - before
    figures.add(f"{count:,} sessions at once, {ROUNDS} rounds each, in all", f"{used:,.0f} MB")
    each = used * 1024 / count
    figures.add("one of them, on average", f"{each:.1f} KB", "100 KB", holds=each < 100)
    figures.add("rounds a second, one thread", f"{count * ROUNDS / took:,.0f}")
    saved = [len(json.dumps(session.save())) for _, session in sessions[:SAMPLE]]
    figures.add("saved, the largest", f"{max(saved) / 1024:.1f} KB", "32 KB", holds=max(saved) <= 32 * 1024)
    reasons = Counter(session.end("paused" if kind == "paused" else None).reason for kind, session in sessions)
    stopped = sum(kind == "looping" for kind, _ in sessions)
    figures.add(
        "ended by detection",
        f"{reasons['doom_loop']:,} of {stopped:,} looping, no other",
        "all",
        holds=reasons["doom_loop"] == stopped,
    )
    for _, session in sessions:
        session.continued()
        session.end()
    del sessions, session
    left = resident() - before
    figures.add("in memory after all of them ended", f"{left:,.0f} MB", "a tenth", holds=left < max(20, used / 10))
    figures.add("faults", str(sum(guard.faults.counts.values())), "0", holds=not guard.faults.counts)


def in_threads(figures: Figures, threads: int, rounds: int) -> None:
    """One guard, sessions of its own in every thread, and one that all of them share."""
    guard = LoopGuard(POLICY)
    shared = guard.session("shared")
    wrong: list[str] = []

    def work(name: int) -> None:
        for run in range(rounds // ROUNDS):
            for kind, step in KINDS.items():
                session = guard.session(f"{name}-{run}-{kind}", parent=shared if kind == "nested" else None)
                for number in range(ROUNDS):
                    step(session, number)
                ended = session.end()
                if (ended.reason == "doom_loop") is not (kind == "looping"):
                    wrong.append(f"{kind}: {ended.reason}")
            model_call(shared)
            shared.begin_round([ToolCall(f"c{name}", f"tool_{name}", {"n": run})])
            shared.record_result(f"c{name}", f"{name} {run}")

    workers = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - began
    total = threads * (rounds // ROUNDS) * len(KINDS) * ROUNDS
    figures.add(f"rounds a second, {threads} threads on one guard", f"{total / took:,.0f}")
    figures.add("verdicts that differ from those of one thread", str(len(wrong)), "0", holds=not wrong)
    figures.add("faults", str(sum(guard.faults.counts.values())), "0", holds=not guard.faults.counts)


def for_long(figures: Figures, rounds: int) -> None:
    """One session, whose tools, arguments and results come and go."""
    session = LoopGuard(POLICY).session()
    steps, sizes, memory = [], [], []
    for part in range(10):
        began = time.process_time()
        for number in range(part * rounds // 10, (part + 1) * rounds // 10):
            model_call(session)
            name = f"tool_{number % 1_000}"
            session.begin_round([ToolCall(f"c{number}", name, {"query": f"item {number}", "page": number % 7})])
            session.record_result(f"c{number}", f"row {number} of the list, with what stands in it")
        steps.append((time.process_time() - began) / (rounds / 10) * 1e6)
        sizes.append(len(json.dumps(session.save())))
        memory.append(resident())
    grown = memory[-1] - memory[1]
    slower = min(steps[-3:]) / min(steps[1:4])
    figures.add(f"{rounds:,} rounds in one session, a round", f"{min(steps):.0f} to {max(steps):.0f} µs")
    figures.add("the last three tenths against the second to fourth", f"{slower:.2f}x", "flat", holds=slower < 1.25)
    figures.add("memory added in the last four fifths", f"{grown:.1f} MB", "flat", holds=grown < 2)
    figures.add("saved, at the end", f"{sizes[-1] / 1024:.1f} KB", "32 KB", holds=max(sizes) <= 32 * 1024)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100_000, help="of the long session")
    options = parser.parse_args()
    figures = Figures()
    at_once(figures, options.sessions)
    in_threads(figures, options.threads, options.rounds // 100)
    for_long(figures, options.rounds)
    print(figures.table())
    sys.exit(figures.broken)


if __name__ == "__main__":
    main()
