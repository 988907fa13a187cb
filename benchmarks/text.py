"""What reading a stream costs, against the reference rules run on every chunk. Run: `python benchmarks/text.py`

The stream comes in chunks of four characters. Figures for each text: joining the chunks (the floor), ours, alone and in
a session, and the three rules of dsh-loop-detector 1.0.0 (period, n-gram, anchor) on every chunk, as its plugin runs
them. All in one run and in CPU time; a busy machine slows every side alike.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from loopguard_core import LoopGuard
from loopguard_core.detectors.text_repetition import TextRepetition

CHUNK = 4
CHARS = 60_000
REFERENCE_CHUNKS = 1_500
REFERENCE_FROM = 10_000  # characters in the buffer when the reference is measured: about two pages
REPEATS = 3


class Reference:
    """The text layers of dsh-loop-detector 1.0.0, as published: all of them, on every chunk, on the whole buffer."""

    def __init__(self) -> None:
        self.buffer = ""

    def feed(self, delta: str) -> bool:
        """Read a chunk; whether it would act."""
        self.buffer += delta
        text = self.buffer
        if len(text) < 512:
            return False
        return self._period(text[-2048:]) or self._cells(text[-2048:]) or self._anchor(text[-8192:])

    def _period(self, tail: str) -> bool:
        for unit in range(8, 257):
            if 4 * unit > len(tail):
                break
            block = tail[-unit:]
            if all(tail[len(tail) - n * unit : len(tail) - (n - 1) * unit] == block for n in (2, 3, 4)):
                return True
        return False

    def _cells(self, tail: str) -> bool:
        seen: dict[str, int] = {}
        for start in range(0, len(tail) - 63, 64):
            cell = tail[start : start + 64]
            seen[cell] = seen.get(cell, 0) + 1
            if seen[cell] >= 3:
                return True
        return False

    def _anchor(self, window: str) -> bool:
        return len(window) > 512 and window.rfind(window[-512:], 0, len(window) - 512) >= 0


def texts() -> dict[str, str]:
    """Ordinary text and the worst there is."""
    rng = random.Random(1)
    words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(2, 9))) for _ in range(3000)]
    sentences = [" ".join(rng.choices(words, k=rng.randint(6, 16))).capitalize() + ". " for _ in range(2000)]
    word = "ab"
    last = "a"
    while len(word) < CHARS:
        word, last = word + last, word
    common = [chr(0x4E00 + rng.randint(0, 2500)) for _ in range(1500)]
    rows = (json.dumps({"id": n, "name": f"item {n}", "value": rng.random(), "ok": True}) + ",\n" for n in range(2000))
    made = {
        "prose": "".join(sentences),
        "code": inspect.getsource(argparse),
        "Chinese prose": "".join("".join(rng.choices(common, k=rng.randint(5, 18))) + "，" for _ in range(6000)),
        "stock sentences, just new enough": "".join(rng.choices(sentences[:45], k=2000)),
        "JSON rows": "".join(rows),
        "digits": "".join(rng.choices("0123456789", k=CHARS)),
        "noise of a and b": "".join(rng.choices("ab", k=CHARS)),
        "near-periodic": "".join("a" * rng.randint(8, 30) + "b" for _ in range(4000)),
        "Fibonacci word": word,
        "emoji noise": "".join(chr(rng.randint(0x1F300, 0x1F9FF)) for _ in range(CHARS)),
    }
    return {name: text[:CHARS] for name, text in made.items()}


def cpu(work: Callable[[], object], units: int) -> float:
    """Nanoseconds a unit, the best of a few repeats."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best / units * 1e9


def chunks(text: str) -> list[str]:
    """The text as it is streamed."""
    return [text[at : at + CHUNK] for at in range(0, len(text), CHUNK)]


def join(pieces: list[str]) -> str:
    """The floor: keep the chunks, join them at the end."""
    kept: list[str] = []
    for piece in pieces:
        kept.append(piece)  # noqa: PERF402
    return "".join(kept)


def detect(pieces: list[str]) -> int:
    """Ours. After a cut a new message begins, so that nothing is got for nothing."""
    detector = TextRepetition()
    feed, cuts = detector.feed_text, 0
    for piece in pieces:
        found = feed(piece, "content")
        if found is not None and found.abort:
            cuts += 1
            detector.end_message(None)
    return cuts


def in_a_session(pieces: list[str]) -> None:
    """Ours, with everything a session does around it."""
    with LoopGuard({}) as guard:
        feed = guard.session().feed_text
        for piece in pieces:
            feed(piece)


def reference(text: str) -> tuple[float, bool]:
    """Nanoseconds a character of the reference rules, with a long answer in the buffer, and whether they fired."""
    started_with = (text * 2)[:REFERENCE_FROM]
    pieces = chunks((text * 2)[REFERENCE_FROM : REFERENCE_FROM + CHUNK * REFERENCE_CHUNKS])

    def work() -> None:
        rules = Reference()
        rules.buffer = started_with
        for piece in pieces:
            fired.add(rules.feed(piece))

    fired: set[bool] = set()

    took = cpu(work, len(pieces) * CHUNK)
    return took, True in fired


def memory(text: str) -> float:
    """Most kilobytes that one channel holds between two chunks."""
    detector = TextRepetition()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    def held() -> Iterator[int]:
        for at in range(0, len(text), 256):
            detector.feed_text(text[at : at + 256], "content")
            yield tracemalloc.get_traced_memory()[0] - before

    most = max(held())
    tracemalloc.stop()
    return most / 1024


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    console = Console()
    table = Table(title=f"CPU time of a stream in chunks of {CHUNK} characters, ns a character")
    for name in ("text", "join", "ours", "in a session", "us a chunk", "reference", "ratio", "cuts", "KB held"):
        table.add_column(name, justify="left" if name == "text" else "right")
    for name, text in texts().items():
        pieces, size = chunks(text), len(text)
        ours = cpu(lambda pieces=pieces: detect(pieces), size)  # type: ignore[misc]
        floor = cpu(lambda pieces=pieces: join(pieces), size)  # type: ignore[misc]
        session = cpu(lambda pieces=pieces: in_a_session(pieces), size)  # type: ignore[misc]
        theirs, fired = reference(text)
        table.add_row(
            name,
            f"{floor:.0f}",
            f"{ours:.0f}",
            f"{session:.0f}",
            f"{ours * CHUNK / 1000:.2f}",
            f"{theirs:,.0f}{'*' if fired else ''}",
            f"{theirs / ours:.0f}x",
            str(detect(pieces)),
            f"{memory(text):.0f}",
        )
    console.print(table)
    console.print("* fired on some chunk, and so did less work there")
    console.print("targets: ours under 500, ratio at least 50x, under 300 KB")


if __name__ == "__main__":
    main()
