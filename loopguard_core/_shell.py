"""What a shell command does, by the first words of its parts: reads, tests, writes, sleeps, or unknown.

| class | first words |
|---|---|
| reads | `ls`, `cat`, `grep`, `git status`, `kubectl get`, `curl` without a body, ... |
| tests | test runners, linters and builds: they check, and change nothing the agent works on |
| writes | `rm`, `mv`, `sed -i`, `git commit`, `pip install`, `>` into a file, ... |
| sleeps | `sleep`, `wait` |

A command counts as writing if any part writes, as reading if every part reads or tests, as a wait if it only sleeps.
Anything else is unknown. Parts are what `&&`, `;`, `|`, new lines and `$( )` separate; what is quoted is no part,
unless a shell is told to run it (`bash -c '...'`).
"""

from __future__ import annotations

import re
from typing import Any

from loopguard_core import _shell_words as known
from loopguard_core._shell_programs import Kind, kind_of_part

_LONG = 4096
_QUOTES = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_PLAIN_WORD = re.compile(r"[\w./:@%+-]+")
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_FIRST_WORD = re.compile(r"[ \t]*(\w+)")
_TOLD = re.compile(r"\b(?:ba|z|da)?sh\s+-[a-z]*c\s+(?:'([^']*)'|\"((?:[^\"\\]|\\.)*)\")", re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\((?!\()|`")
_REDIRECT = re.compile(r"(?<![<>=&\d-])(?:\d?>>?(?!>)|&>)\s*(?!&|/dev/(?:null|stderr|stdout)|\s*$)\S")
_PARTS = re.compile(r"\|\||&&|[;|\n]|(?<!>)&(?!>)")
_ECHO = re.compile(r"(?:(?<=[;&\n])|\A)[ \t]*(?:echo|printf)\b[^|&;\n<>`$]*(?:&&|;|\n|\Z)")


def is_program(name: str) -> bool:
    """Whether a tool is named like a program whose commands are known: `kubectl`, `git`, `docker`."""
    return name in known.SUB or name in known.CLOUD or name in known.TESTS


def command_in(arguments: Any) -> str | None:
    """The command of a shell tool's call, wherever SDKs put it; None if there is none."""
    if isinstance(arguments, str):
        return arguments
    if type(arguments) is not dict:  # a strange mapping may do anything
        return None
    for name in ("command", "cmd", "commands", "script", "shell_command", "args", "arguments", "input", "code"):
        value = arguments.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value):
            # A shell and what it is told to run, or a program and its arguments.
            if len(value) > 2 and value[1].startswith("-") and value[0].rpartition("/")[2] in ("bash", "sh", "zsh"):
                return str(value[2])
            return " ".join(value)
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 and len(arguments) == 1 else None


def without_echo(command: str) -> str:
    """A command without the parts that only print words: they do nothing, whatever the words are.

    What is written into a file from the command itself is no part of it.
    """
    return command.strip() if "<<" in command else _ECHO.sub(" ", command).strip()


def kind_of(command: str) -> tuple[Kind, bool]:
    """What a command does, and whether it also sleeps.

    Args:
        command: As the model wrote it; its first 4 KB count.
    """
    plain = command[:_LONG]
    if "<<" in plain:
        plain = _without_documents(plain, cut=len(command) > _LONG)
    if "sh " in plain:
        plain = _TOLD.sub(lambda told: "; " + (told[1] or told[2] or "").replace("\\", "") + " ", plain)
    if "'" in plain or '"' in plain:
        plain = _QUOTES.sub(_unquoted, plain)
    if "`" in plain or "$(" in plain:
        plain = _SUBSTITUTION.sub(" ; ", plain)
    kinds = [kind for part in _PARTS.split(plain) if (kind := kind_of_part(part.split(), command)) is not None]
    sleeps = "sleeps" in kinds
    rest = [kind for kind in kinds if kind != "sleeps"]
    if _REDIRECT.search(plain) or "writes" in rest:
        return "writes", sleeps
    if "unknown" in rest or not kinds:
        return "unknown", sleeps
    return ("tests" if "tests" in rest else "reads" if rest else "sleeps"), sleeps


def _without_documents(command: str, *, cut: bool) -> str:
    """A command without what it hands over as here-documents; one without an end is none.

    Line by line, because a pattern that looks for each end reads a hostile command once for each beginning.

    Args:
        command: The command.
        cut: Whether it goes on: then one without an end goes on, too.
    """
    lines = command.split("\n")
    ends: dict[str, list[int]] = {}
    for place in range(len(lines) - 1, 0, -1):  # the next one last, where it is taken from
        if word := _FIRST_WORD.match(lines[place]):
            ends.setdefault(word[1], []).append(place)
    kept: list[str] = []
    place, begun = 0, ""
    while place < len(lines):
        line = lines[place]
        first: re.Match[str] | None = None
        for document in _HEREDOC.finditer(line) if "<<" in line else ():
            first = first or document
            places = ends.get(document["end"], [])
            while places and places[-1] <= place:
                places.pop()
            if places:
                begun += line[: document.start()] + line[document.end() :]
                place = places[-1]
                lines[place] = _FIRST_WORD.sub("", lines[place], count=1)
                break
        else:
            if first is not None and cut and place < len(lines) - 1:
                return "\n".join([*kept, begun + line[: first.start()] + line[first.end() :]])
            kept.append(begun + line)
            place, begun = place + 1, ""
    return "\n".join(kept)


def _unquoted(match: re.Match[str]) -> str:
    """What is quoted says nothing, unless it is no more than a word; but a command in double quotes is run."""
    inner = match[1] if match[1] is not None else match[2]
    if _PLAIN_WORD.fullmatch(inner):
        return inner
    if match[2] is not None and "$(" in inner:
        return "''" + inner[inner.index("$(") :].replace("'", "").replace('"', "")
    return "''"
