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
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Literal

from loopguard_core import _shell_words as known

Kind = Literal["reads", "tests", "writes", "sleeps", "unknown"]
Told = Kind | list[str]
"""What a command does, or the words of the one that it runs, for a program that runs another."""

_LONG = 4096
_NESTED = 8  # programs that run one another
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
_ASSIGNMENT = re.compile(r"\w+\+?=\S*$")
_SQL_WRITE = re.compile(
    r"\b(?:insert|update|delete|drop|create|alter|truncate|merge|grant|revoke|replace)(?:\b|One|Many|Index)",
    re.IGNORECASE,
)
_SQL_FILE = re.compile(r"(?:^|\s)(?:-f|--file|<|\\i)\s*\S|\.(?:read|restore|import)\b")
_METHOD = re.compile(r"(?:-[a-zA-Z]*X|--request|--method)[ =]?['\"]?(?:POST|PUT|PATCH|DELETE)", re.IGNORECASE)
_BODY = ("-d", "--data", "-F", "--form", "-T", "--upload-file", "--json", "--post")
_SAVES = re.compile(r"-[a-zA-Z]*[oO]$|--output$|--remote-name$")
_SED_IN_PLACE = re.compile(r"-[nErsuz]*i|--in-place")
_PERL_IN_PLACE = re.compile(r"-[0-9pnlaws]*i")
_PERL_FILTER = re.compile(r"-[0-9lawF]*[np]")
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


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
    kinds = [kind for part in _PARTS.split(plain) if (kind := _part(part.split(), command)) is not None]
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


def _part(words: list[str], whole: str) -> Kind | None:
    """What one part does; None if it is nothing, such as a change of the folder."""
    told = _told(words, whole)
    for _ in range(_NESTED):
        if not isinstance(told, list):
            return told
        told = _told(told, whole) or "unknown"
    return "unknown"


def _told(words: list[str], whole: str) -> Told | None:
    words = _program(words)
    if not words or words[0] in known.NOTHING:
        return None
    name = words[0].lower()
    if "/" in name and not name.startswith("./"):
        name = name.rpartition("/")[2]
    rest = words[1:]
    if "--help" in rest or "--version" in rest:
        return "reads"
    decide = _DECIDE.get(name)
    if decide is not None:
        return decide(rest, whole)
    if name in known.SUB:
        return _subcommand(name, rest, whole)
    return _by_name(name, rest)


def _by_name(name: str, rest: list[str]) -> Kind:
    flags = set(rest)
    if name in known.SLEEPS:
        return "sleeps"
    if name in known.WRITES:
        return "reads" if not flags.isdisjoint(known.LISTS_ONLY.get(name, ())) else "writes"
    if name in known.FORMATTERS or (name == "ruff" and rest[:1] == ["format"]):
        return "reads" if known.CHECKS_ONLY & flags else "writes"
    if name in known.TESTS:
        return "writes" if known.TEST_WRITES & flags else "tests"
    if name in known.READS:
        return "reads"
    verb = known.SHELL_VERBS.fullmatch(name)
    if verb is None:
        return _by_verb(rest)
    return "reads" if verb["reads"] else "writes"


def _by_verb(rest: list[str]) -> Kind:
    """A program nobody knows that is told what to do in words: `portal-cli order show 88`. Only reading is believed."""
    first = [word.lower() for word in takewhile(lambda word: not word.startswith("-"), rest)][:3]
    if any(known.WRITING_VERBS.match(word) for word in first):
        return "unknown"
    return "reads" if any(known.PLAIN_READING_VERBS.match(word) for word in first[:2]) else "unknown"


def _program(words: list[str]) -> list[str]:
    """A command without what only runs it: `sudo -u root`, `FOO=1`, `timeout 30`, `then`."""
    place, valued, runner = 0, frozenset[str](), False
    while place < len(words):
        word = words[place]
        if word in known.RUNS and (word != "env" or len(words) > place + 1):
            valued, runner = known.RUNS[word], True
        elif word == "timeout":
            place += 1
            while place < len(words) and words[place].startswith("-"):
                place += 1 + (words[place] in ("-k", "-s"))
            valued, runner = frozenset(), True  # what follows is the time
        elif runner and word.startswith("-"):
            place += word in valued
        elif not _ASSIGNMENT.match(word):
            break
        place += 1
    return [word.rstrip(")") or word for word in words[place:]]


def _run(rest: list[str], _: str = "") -> list[str]:
    """What a runner runs: `npx tsc`, `uv run pytest`."""
    return rest[_flags(rest) :]


def _flags(rest: list[str]) -> int:
    """How many of the first words are flags, or values of them."""
    place = 0
    while place < len(rest) and rest[place].startswith("-") and rest[place] != "-":
        place += 1 + (rest[place] in known.VALUED)
    return place


def _interpreter(rest: list[str], whole: str) -> Told:
    module = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else ""
    if module == "pip":
        return _subcommand("pip", rest[2:], whole)
    if module == "venv":
        return "writes"
    if module in known.TESTS or module in known.FORMATTERS:
        return _by_name(module, rest[2:])
    reads = module in ("json.tool", "py_compile", "compileall", "http") or rest[:1] in (["-V"], ["-v"])
    return "reads" if reads else "unknown"


def _subcommand(name: str, rest: list[str], whole: str) -> Told:
    reads, writes = known.SUB[name]
    rest = rest[_flags(rest) :]
    verb = rest[0].lower() if rest else ""
    if name == "git" and verb in ("branch", "remote", "config", "stash", "tag", "worktree"):
        return _git(verb, rest[1:])
    if name == "docker" and verb in known.DOCKER_THINGS:
        return _docker(rest[1:])
    if name == "kubectl" and verb in ("rollout", "config"):
        return "reads" if rest[1:2] and re.match(r"status|history|view|get-|current-", rest[1]) else "writes"
    if name in ("npm", "yarn", "pnpm") and verb in ("run", "run-script"):
        return "tests" if len(rest) > 1 and known.RUN_SCRIPT.match(rest[1]) else "unknown"
    if verb in known.PROJECT_RUNNERS.get(name, ()):
        return _run(rest[1:])
    if name == "cargo" and verb == "fmt":
        return "reads" if "--check" in rest else "writes"
    if (name, verb) == ("uv", "pip"):
        return _subcommand("pip", rest[1:], whole)
    if verb in writes:
        return "writes"
    if verb not in reads:
        return "unknown"
    return "tests" if verb in known.TESTING_VERBS else "reads"


def _git(verb: str, rest: list[str]) -> Kind:
    """Subcommands that list when they name nothing or are told to, and change something otherwise."""
    flags = {word for word in rest if word.startswith("-")}
    told = rest[0] if rest else ""
    if verb == "config":
        listing = bool(flags & {"--get", "--get-all", "--get-regexp", "--list", "-l"}) or told in ("list", "get")
        values = [word for word in rest if not word.startswith("-")]
        return "reads" if listing or (len(values) == 1 and not flags & {"--unset", "--unset-all"}) else "writes"
    if verb in ("stash", "worktree"):
        return "reads" if told in ("list", "show") else "writes"
    if verb == "remote":
        return "reads" if told in ("", "show", "get-url") or not set(rest) - {"-v", "--verbose"} else "writes"
    if flags & {"-d", "-D", "-m", "-M", "-c", "-C", "-f", "-a", "-s", "--delete", "--move"} - (
        {"-a"} if verb == "branch" else set()
    ):
        return "writes"
    listing = bool(
        flags
        & {
            "-l",
            "--list",
            "-a",
            "-r",
            "-v",
            "-vv",
            "--all",
            "--contains",
            "--merged",
            "--no-merged",
            "--show-current",
            "-n",
        }
    )
    return "reads" if listing or not [word for word in rest if not word.startswith("-")] else "writes"


def _docker(rest: list[str], _: str = "") -> Kind:
    """`docker compose`, `docker volume` and the like: the word behind says what is done to them."""
    after = rest[_flags(rest) :]
    return "reads" if after and after[0] in known.LISTING else "writes"


def _cloud(rest: list[str], whole: str) -> Kind:
    # The verb is the last of the first words that is one: `gh run view`, `aws s3 cp`, `gcloud compute instances list`.
    rest = rest[_flags(rest) :]
    if rest[:1] == ["api"]:
        sends = any(word.startswith(("-f", "-F", "--field", "--raw-field", "--input")) for word in rest)
        return "writes" if (sends and "GET" not in whole) or _METHOD.search(whole) else "reads"
    first = list(takewhile(lambda word: not word.startswith("-"), rest))[:4]
    for word in reversed([word.lower() for word in first]):
        if known.READING_VERBS.match(word):
            return "reads"
        if known.WRITING_VERBS.match(word):
            return "writes"
    return "unknown"


def _find(rest: list[str], _: str) -> Told:
    if "-delete" in rest or any(word.startswith("-fprint") for word in rest):
        return "writes"
    place = next((place for place, word in enumerate(rest) if word in _FIND_RUNS), None)
    return "reads" if place is None else _run(rest[place + 1 :])


def _sed(rest: list[str], _: str) -> Kind:
    return "writes" if any(_SED_IN_PLACE.match(word) for word in rest) else "reads"


def _perl(rest: list[str], _: str) -> Kind:
    flags = [word for word in rest if word.startswith("-")]
    if any(_PERL_IN_PLACE.match(word) for word in flags):
        return "writes"
    return "reads" if any(_PERL_FILTER.match(word) for word in flags) else "unknown"


def _tar(rest: list[str], _: str) -> Kind:
    lists = bool(rest) and (rest[0] == "--list" or (not rest[0].startswith("--") and "t" in rest[0]))
    return "reads" if lists else "writes"


def _sql(rest: list[str], whole: str) -> Kind:
    if _SQL_WRITE.search(whole):
        return "writes"
    return "unknown" if _SQL_FILE.search(" ".join(rest)) else "reads"


def _redis(rest: list[str], _: str) -> Kind:
    verb = next(iter(rest[_flags(rest) :]), "").lower()
    return "unknown" if not verb else "reads" if verb in known.REDIS_READS else "writes"


def _http(rest: list[str], whole: str) -> Kind:
    if _METHOD.search(whole) or (rest and rest[0].upper() in ("POST", "PUT", "PATCH", "DELETE")):
        return "writes"
    if any(word.startswith(_BODY) for word in rest) and not {"-G", "--get"} & set(rest):
        return "writes"
    return _wget(rest, whole) if any(_SAVES.match(word) for word in rest) else "reads"


def _wget(rest: list[str], whole: str) -> Kind:
    shown = any(word.startswith(("-qO-", "-O-", "--spider")) or word in ("-", "/dev/null") for word in rest)
    return "reads" if shown and not _METHOD.search(whole) else "writes"


_DECIDE: dict[str, Callable[[list[str], str], Told]] = {
    **dict.fromkeys(("python", "python3", "node", "bun", "deno", "ruby", "php"), _interpreter),
    **dict.fromkeys(("npx", "uvx", "bunx"), _run),
    **dict.fromkeys(known.CLOUD, _cloud),
    **dict.fromkeys(("psql", "mysql", "mariadb", "sqlite3", "bq", "duckdb", "mongosh"), _sql),
    **dict.fromkeys(("curl", "http", "https", "httpie"), _http),
    "wget": _wget,
    "redis-cli": _redis,
    "sed": _sed,
    "perl": _perl,
    "tar": _tar,
    "find": _find,
    "docker-compose": _docker,
}
"""Programs whose arguments decide, each in a way of its own."""
