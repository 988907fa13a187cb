"""Shell blocks of the docs: `loopguard ...` runs in this process, of other programs it is checked that they can."""

from __future__ import annotations

import io
import itertools
import re
import shlex
import shutil
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[2]

OPERATORS = {"|", "&&", ";", ">", "<"}
NOT_RUN = {
    "demo": "it has tests of its own, and takes seconds",
    "bench": "the same",
    "gateway": "it serves until it is ended",
}
"""Commands of which only the options are checked, and why."""

MAY_FAIL = {("score", 1), ("watch", 1), ("policy", 1)}
"""Exit statuses that are an answer and no failure."""

STREAM = "The invoice was paid on Tuesday, and the receipt is in the folder.\n"


def run_line(line: str) -> str:
    """Run one line of a shell block.

    Returns:
        What it printed on standard output.

    Raises:
        AssertionError: It does not work.
    """
    output, stdin = "", ""
    words = list(shlex.shlex(line, posix=True, punctuation_chars="|&;<>"))
    while words:
        at = next((at for at, word in enumerate(words) if word in OPERATORS), len(words))
        command, operator, words = words[:at], words[at : at + 1], words[at + 1 :]
        while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
            command = command[1:]
        printed = _run(command, stdin)
        if operator == [">"]:
            Path(words[0]).write_text(printed, encoding="utf-8")
            words = words[1:]
            stdin = ""
        elif operator == ["|"]:
            stdin = printed
        else:
            output += printed
            stdin = ""
    return output


def _run(command: list[str], stdin: str) -> str:
    program, *arguments = command
    if program == "loopguard":
        return _loopguard(arguments, stdin)
    if program == "pip":
        _pip(arguments)
    elif program == "cp":
        shutil.copyfile(*arguments)
    elif program in ("python", "pytest", "mkdocs", "nox"):
        files = [word for word in arguments if word.endswith(".py")]
        assert all((ROOT / file).is_file() or Path(file).is_file() for file in files), f"no such file: {files}"
    elif program == "some-local-model":
        return STREAM
    elif program not in (".", "cd", "export", "unset", "curl", "docker"):
        raise AssertionError(f"nobody knows how to run {program!r}")
    return ""


def _loopguard(arguments: list[str], stdin: str) -> str:
    if arguments and arguments[0] in NOT_RUN:
        words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
        told = _loopguard_ran([*words, "--help"], "")
        unknown = [word for word in arguments if word.startswith("--") and word not in told]
        assert not unknown, f"loopguard {shlex.join(words)} has no {unknown}"
        return ""
    return _loopguard_ran(arguments, stdin)


def _loopguard_ran(arguments: list[str], stdin: str) -> str:
    from loopguard_core.cli import main

    raw, complaints = io.BytesIO(), io.StringIO()
    printed = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # `watch` writes bytes
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with redirect_stdout(printed), redirect_stderr(complaints):
            try:
                status = main(arguments)
            except SystemExit as end:
                status = int(end.code or 0)
    finally:
        sys.stdin = before
    told = raw.getvalue().decode()
    fine = status == 0 or (arguments[0], status) in MAY_FAIL
    assert fine, f"loopguard {shlex.join(arguments)}: exit {status}\n{told}{complaints.getvalue()}"
    return told


def _pip(arguments: list[str]) -> None:
    """What is installed from here has the extras that are named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in arguments:
        extras = re.fullmatch(r"(?:\.|loopguard-core)\[([\w,-]+)\]", word)
        if extras:
            unknown = set(extras[1].split(",")) - set(project["optional-dependencies"])
            assert not unknown, f"there is no extra {', '.join(unknown)}"
