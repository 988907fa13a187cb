"""What `text_repetition` says of ordinary files, and of loops cut from them. Run: `python benchmarks/text_files.py`

Each file is read as one message: nothing in it is a loop, unless its author repeats himself. Then pieces of the same
files are repeated, after some other text of the same file, and it is counted how many of these loops are found and how
many characters after their beginning. By default the files are those of Python's standard library; name folders for
others. The same files give the same figures.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loopguard_core import LoopGuard, Verdict

SUFFIXES = frozenset(
    {".py", ".pyi", ".c", ".h", ".md", ".rst", ".txt", ".html", ".json", ".csv", ".xml", ".toml", ".log"}
)
LEAST, MOST = 2_000, 200_000  # characters of a file
CHUNK = 64  # the verdict is the same whatever it is
PERIODS = ((1, 3), (4, 16), (17, 64), (65, 256), (257, 1_000), (1_001, 2_500), (2_501, 6_000))
LOOPS = 60
BEFORE = (600, 1_300)  # characters of other text before a loop
COPIES, LEAST_LOOP = 7, 5_000


def texts(folders: Iterable[Path], most: int) -> Iterator[str]:
    """The files that are text, in the order of their names."""
    paths = (path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES)
    found = 0
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")[:MOST]
        except (OSError, UnicodeError):
            continue
        if len(text) < LEAST:
            continue
        yield text
        found += 1
        if found == most:
            return


def verdicts(guard: LoopGuard, text: str) -> Iterator[Verdict]:
    """What is said of one message; a cut ends it."""
    with guard.session() as session:
        for at in range(0, len(text), CHUNK):
            verdict = session.feed_text(text[at : at + CHUNK])
            if verdict is not None:
                yield verdict
                if verdict.abort:
                    return


def ordinary(guard: LoopGuard, files: list[str]) -> Counter[str]:
    """How many files got which verdict; the strongest counts."""
    said: Counter[str] = Counter()
    for text in files:
        found = [("cut" if verdict.abort else verdict.action.value) for verdict in verdicts(guard, text)]
        said[next((word for word in ("cut", "steer", "observe") if word in found), "nothing")] += 1
    return said


def looping(guard: LoopGuard, files: list[str], shortest: int, longest: int) -> list[int]:
    """Characters from the beginning of each loop to the cut, of those that were cut."""
    choose = random.Random(f"{shortest}")  # the same loops each time
    found = []
    for _ in range(LOOPS):
        period = choose.randint(shortest, longest)
        before = choose.randint(*BEFORE)
        text = choose.choice([text for text in files if len(text) >= before + period])
        start = choose.randint(0, len(text) - before - period)
        unit = text[start + before : start + before + period]
        loop = unit * max(COPIES, -(-LEAST_LOOP // period))
        cut = next((verdict for verdict in verdicts(guard, text[start : start + before] + loop) if verdict.abort), None)
        if cut is not None and cut.char is not None:
            found.append(cut.char - before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What text_repetition says of ordinary files, and of loops cut from them."
    )
    parser.add_argument("folders", nargs="*", type=Path, help="default: Python's standard library")
    parser.add_argument("--files", type=int, default=2_000, help="files at most; default: 2,000")
    args = parser.parse_args()
    files = list(texts(args.folders or [Path(sysconfig.get_path("stdlib"))], args.files))
    guard, console = LoopGuard(), Console()
    said = ordinary(guard, files)
    counts = ", ".join(f"{word} {said[word]:,}" for word in ("nothing", "observe", "steer", "cut"))
    console.print(f"{len(files):,} files, {sum(map(len, files)):,} characters: {counts}")
    table = Table("period", "found", "characters, median", "most")
    for shortest, longest in PERIODS:
        found = looping(guard, files, shortest, longest)
        middle, most = (int(statistics.median(found)), max(found)) if found else (0, 0)
        table.add_row(f"{shortest:,} to {longest:,}", f"{len(found)} of {LOOPS}", f"{middle:,}", f"{most:,}")
    console.print(table)


if __name__ == "__main__":
    main()
