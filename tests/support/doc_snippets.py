"""The fenced blocks of the docs, and how each kind is run.

    <!-- not run: why -->      before a block: it is only parsed
    <!-- prints -->            before a text block: what the block before it prints; `...` stands for any lines
    <!-- file: name -->        before any block: it is written to that file, in the working directory; Python is
                               not run then: the page imports it, or says `python name` in a shell block

Python blocks of a page run in order in one namespace, as somebody reads them; what a page takes for granted (a model,
an agent) is put there before, see `doc_setups`. TOML blocks are read as policies, shell blocks run line by line
(`doc_commands`), JSON blocks are parsed.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import runpy
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from io import StringIO
from pathlib import Path
from typing import Any

from doc_commands import run_line

from loopguard_core import Policy

ROOT = Path(__file__).parents[2]
SHOWN = ("", "text", "mermaid", "js", "javascript", "typescript", "html", "yaml")
"""Fences nothing runs: output, diagrams, other languages."""

_FENCE = re.compile(
    r"(?:^ *<!-- (?:not run: (?P<why>[^\n]+)|file: (?P<file>\S+)|(?P<prints>prints)) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: File, from the repository's root.
        line: Line of its first line, from 1.
        language: As written behind the fence.
        text: What is in it.
        why_not: Why it is not run; None if it is.
        printed: True if it is what the block before it prints.
        file: Name of the file it is; None if the page names none.
    """

    page: str
    line: int
    language: str
    text: str
    why_not: str | None = None
    printed: bool = False
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every page whose blocks run."""
    found = [*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "examples" / "README.md"]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(page: str) -> Iterator[Block]:
    """The blocks of one page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        printed = match["prints"] is not None
        # In a list blocks are indented.
        code = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        yield Block(page, line, match["language"], code, match["why"], printed, match["file"])


class Runner:
    """Runs the blocks of one page in the working directory.

    Args:
        names: What the page takes for granted.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = {"__name__": "docs", **names}
        self.output = ""

    def run(self, block: Block) -> None:
        """Run one block.

        Raises:
            Exception: It does not do what the page says.
        """
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        if block.printed:
            check_printed(block.text, self.output)
        elif block.language == "python" and block.file is not None:
            compile(block.text, block.page, "exec")
        elif block.language == "python":
            self.output = self._python(block)
        elif block.language == "sh":
            self.output = "" if block.why_not else "".join(self._line(line) for line in shell_lines(block.text))
        elif block.language == "toml":
            check_toml(block)
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language in SHOWN, f"nobody knows how to run {block.language!r}; write python, sh, toml, json"

    def _line(self, line: str) -> str:
        """One shell command. A program that the page wrote runs, and the page goes on with what it defined."""
        program = re.fullmatch(r"python (\S+\.py)", line)
        if program is None or not Path(program[1]).is_file():
            return run_line(line)
        printed = StringIO()
        with redirect_stdout(printed):
            made = runpy.run_path(program[1], run_name="__main__")
        self.names = {**made, **self.names}
        return printed.getvalue()

    def _python(self, block: Block) -> str:
        # Line numbers are the page's, so that a traceback points into it.
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if block.why_not:
            return ""
        self.names.get("before_block", lambda _: None)(self.names)
        printed = StringIO()
        with redirect_stdout(printed):
            made = eval(code, self.names)
            if inspect.iscoroutine(made):
                asyncio.get_event_loop().run_until_complete(made)
        return printed.getvalue()


def check_toml(block: Block) -> None:
    """A policy that can be used, or a package's pyproject.toml whose entry points can be read."""
    table = tomllib.loads(block.text)
    if "project" in table:
        groups = table["project"].get("entry-points", {})
        points = [entry for name, group in groups.items() if name.startswith("loopguard") for entry in group.items()]
        assert points, "a pyproject.toml without an entry point of loopguard"
        assert all(EntryPoint(name, value, "loopguard").module for name, value in points)
        return
    if not block.why_not:
        Policy.from_mapping(table.get("tool", {}).get("loopguard", table), str(block))


def check_printed(shown: str, output: str) -> None:
    """What a page shows is what was printed: the same lines, `...` for any number of others."""
    parts = [re.escape(part.strip("\n")) for part in re.split(r"^\s*\.\.\.$", shown, flags=re.MULTILINE)]
    pattern = r"[\s\S]*".join(parts)
    told = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
    assert re.fullmatch(pattern, told), f"the page shows\n{shown}\nwhat is printed is\n{output}"


def shell_lines(text: str) -> Iterator[str]:
    """The commands of a shell block: continued lines joined, comments gone."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        command = re.sub(r"(^|\s)#.*", "", line).strip()
        if command:
            yield command
