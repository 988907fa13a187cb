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
_HEREDOC = re.compile(
    r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(\w+)(?P=quote)([^\n]*)\n.*?^[ \t]*\2\b", re.DOTALL | re.MULTILINE
)
_CUT_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(\w+)(?P=quote)([^\n]*)\n.*", re.DOTALL)
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
        plain = _HEREDOC.sub(r"\3", plain)
        plain = _CUT_HEREDOC.sub(r"\3", plain) if len(command) > _LONG else plain
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


def _unquoted(match: re.Match[str]) -> str:
    """What is quoted says nothing, unless it is no more than a word; but a command in double quotes is run."""
    inner = match[1] if match[1] is not None else match[2]
    if _PLAIN_WORD.fullmatch(inner):
        return inner
    if match[2] is not None and "$(" in inner:
        return "''" + inner[inner.index("$(") :].replace("'", "").replace('"', "")
    return "''"
