"""What one program does that a shell command calls, by its name, its second word and its flags.

`_shell_words` has the names. Here are the programs whose arguments decide, and those that run another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Literal

from loopguard_core import _shell_words as known

Kind = Literal["reads", "tests", "writes", "sleeps", "unknown"]
Told = Kind | list[str]
"""What a command does, or the words of the one that it runs, for a program that runs another."""

_NESTED = 8  # programs that run one another
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


def kind_of_part(words: list[str], whole: str) -> Kind | None:
    """What one part of a command does; None if it is nothing, such as a change of the folder.

    Args:
        words: Of the part.
        whole: The command it is part of, quotes and all.
    """
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
