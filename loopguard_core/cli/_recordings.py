"""What the commands on recorded conversations share: which files, under which policy, and how they are named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loopguard_core._policy import Policy
from loopguard_core._policy_file import load_policy, read_policy_file, resolve_policy
from loopguard_core.cli._console import Terminal

T = TypeVar("T")

SUFFIXES = {".json", ".jsonl"}
MANY = 8
"""Files from which a progress bar is worth its line."""


def named_policy(file: str | None, preset: str | None) -> Policy:
    """The policy that `--policy` and `--preset` name; without either, the one loopguard finds.

    Raises:
        PolicyError: It cannot be used.
    """
    if preset is None:
        return resolve_policy() if file is None else load_policy(file)
    if file is None:
        return Policy.from_mapping({"preset": preset}, "--preset")
    written, source = read_policy_file(file)
    return Policy.from_mapping({**written, "preset": preset}, source)


def expanded(
    named: Iterable[str], *, complain: Callable[[str], None], deep: bool = False, ignored: str = ""
) -> tuple[list[str], int]:
    """The files in order, those of directories sorted, and how many directories gave none.

    Args:
        named: Files and directories.
        complain: Told of each directory that gave none.
        deep: Whether directories within directories count.
        ignored: End of the names that are no recordings.
    """
    files: list[str] = []
    failed = 0
    for name in named:
        found: list[str] | None = None
        try:
            if Path(name).is_dir():
                inside = Path(name).rglob("*") if deep else Path(name).iterdir()
                within = (file for file in inside if file.suffix.lower() in SUFFIXES)
                paths = sorted(str(file) for file in within if not file.is_dir())
                found = [path for path in paths if not ignored or not path.endswith(ignored)]
        except OSError:
            pass  # read as a file, it says why
        if found == []:
            complain(f"{name}: holds no *.json or *.jsonl")
            failed += 1
        files.extend([name] if found is None else found)
    return files, failed


def complain(command: str, text: str) -> None:
    """Say on standard error what went wrong."""
    print(f"loopguard {command}: {printable(text)}", file=sys.stderr)


def watched(files: Sequence[T], command: str, *, hidden: bool) -> Iterator[T]:
    """The files, with a progress bar on a terminal. `hidden` where the bar and the output would share the screen."""
    if hidden or len(files) < MANY or not sys.stderr.isatty():
        yield from files
        return
    columns = (TextColumn(command), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Standard output is left alone: rich would send it to standard error.
    with Progress(*columns, console=Terminal(stderr=True), transient=True, redirect_stdout=False) as progress:
        yield from progress.track(files)


def printable(text: str) -> str:
    """`text` without what could drive a terminal, in characters that the output can hold."""
    safe = "".join(char if char.isprintable() else "?" for char in text)
    encoding = sys.stdout.encoding or "utf-8"
    return safe.encode(encoding, "replace").decode(encoding)
