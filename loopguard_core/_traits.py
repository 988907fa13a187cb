"""What kind of tool a call goes to: from the policy, else from MCP annotations, else from names and arguments.

One place and one table; `docs/outcomes.md` says it to users. Where nothing is known, nothing is claimed: an unknown
tool starts no epoch and is no poll.

| trait | meaning | inferred from |
|---|---|---|
| `reads` | changes nothing | readOnlyHint; get, list, search, ...; shell commands that only read or test; SELECT; GET |
| `mutates` | changes the world | destructiveHint, readOnlyHint = false; send, create, write, edit, ...; INSERT; POST |
| `tests` | checks, and may end differently the next time | `run_tests`; shell commands that test, lint, build |
| `polls` | asks whether something is done | poll, `*_status`, `wait_for_*`; a waiting time; results, see `polling` |
| `waits` | lets time pass: exempt | sleep, wait, pause; a shell command that only sleeps |
| `searches` | looks something up by words | `web_search`, `grep`, `tavily`, ...; see `_search_query` |
| `delegates` | hands over to another agent | transfer_to_*, handoff*, delegate*, *_agent |
| `exempt` | not looked at | only by policy |
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loopguard_core import _shell
from loopguard_core import _trait_words as known
from loopguard_core._masking import MASKS, Masker
from loopguard_core._search_query import is_search

Traits = frozenset[str]
UNKNOWN: Traits = frozenset()
READS: Traits = frozenset({"reads"})
MUTATES: Traits = frozenset({"mutates"})
TESTS: Traits = frozenset({"reads", "tests"})
POLLS: Traits = frozenset({"reads", "polls"})
WAITS: Traits = frozenset({"waits"})
DELEGATES: Traits = frozenset({"delegates"})
_NEW_THINGS = frozenset({"mutates", "delegates"})

_DEED_KEYS = ("command", "subcommand", "action", "operation", "op", "verb", "mode", "method")
_DEED = re.compile(r"[a-zA-Z]+(?:[_-][a-zA-Z]+){0,3}")
_LONGEST_DEED = 32
_HANDOFF = re.compile(
    r"(?:transfer(?:_back)?_to|hand_?off(?:_to)?|delegate(?:_to|_work)?|switch_to|route_to|consult|call_agent|ask_agent"
    r"|assign_(?:to|work)|return_(?:control|to)|hand_back|give_back|pass_to|run_agent|spawn_agent|sub_?agente?|invoke_agent|dispatch_agent)(?:_\w+)?$|task$"
)
_AGENT = re.compile(r"(?:\w+_)?(?:agent|subagent|coworker)$")
_WAIT_FOR = re.compile(
    r"(?:wait|sleep|pause|delay)(?:_(?:for_)?(?:seconds|secs|ms|minutes|time|a_bit|until))?$|(?:\w+_)?sleep$"
)
_WAIT_UNTIL = re.compile(
    r"(?:wait|poll|await)(?:_(?:for|until|on))?_\w+$"
    r"|(?:check|get|query|fetch)_(?:\w+_)?(?:status|progress|job|build|run|deployment)$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")
_SQL = re.compile(r"\s*(?:--[^\n]*\n\s*)*(?:with\b.{0,2000}?\)\s*)?(\w+)", re.IGNORECASE | re.DOTALL)
_SQL_READS = frozenset({"select", "show", "describe", "desc", "explain", "pragma", "values", "table", "analyze"})
_SQL_WRITES = frozenset(
    {"insert", "update", "delete", "create", "drop", "alter", "merge", "truncate", "grant", "replace", "upsert", "copy"}
)
_LONGEST_NAME = 200
# What only stands in a command line: an option, a path, a sign of the shell. `move forward` has none of them.
_COMMAND_LINE = re.compile(r"^\s*\S+\s.*?(?:(?<!\S)--?[A-Za-z]|[/|><=$\\`'\"]|&&|;|\w\.\w)", re.DOTALL)
_MASK = Masker()
_MASK_MUTATING = Masker(mutates=True)
_MASK_DEBUGGING = Masker([mask for mask in MASKS if mask != "addresses"])  # they are what is looked for
_MASK_TAKING = Masker(mutates=True, takes=True)
_MASK_SEARCHING = Masker(searches=True)


@dataclass(frozen=True, slots=True)
class Nature:
    """What is known of a tool before its arguments are seen.

    Attributes:
        traits: Of every call; empty if unknown or if the arguments decide.
        declared: True if the policy or an annotation says so: then arguments and results do not change it.
        shell: The arguments hold a shell command.
        program: The program it is a command of, where the tool is named for it: `kubectl`.
        statement: The arguments may hold a statement that decides: SQL, or an HTTP method.
        ui: A step in a user interface, whose short acknowledgement tells nothing of what it did.
        starts: It starts things, so that a result saying "running" does not make it a poll.
        writes_files: Its name says that it writes or edits files or text.
        searches: Its name says that it searches, or the policy.
        search_fields: Arguments that hold the query where none has a usual name.
        thinks: Its name says that it only takes down what the model thinks.
        plans: Its name says that it takes down a plan or a list of things to do.
        deed: An argument may name what is done: `command = "view"`, `action = "create"`.
        mask: Masks the results of its calls.
        mask_mutating: Masks the results of those that change something.
        result_key: Fields of a JSON result that count; empty for all.
    """

    traits: Traits = UNKNOWN
    declared: bool = False
    shell: bool = False
    program: str = ""
    statement: bool = False
    ui: bool = False
    starts: bool = False
    writes_files: bool = False
    searches: bool = False
    search_fields: tuple[str, ...] = ()
    thinks: bool = False
    plans: bool = False
    deed: bool = False
    mask: Masker = _MASK
    mask_mutating: Masker = _MASK_MUTATING
    result_key: Any = None

    @property
    def by_arguments(self) -> bool:
        """Whether the arguments of each call decide."""
        return (self.shell or self.statement or self.deed) and not self.declared

    def of(self, arguments: Any) -> Traits:
        """The traits of one call, where the arguments decide."""
        if self.shell:
            command = _shell.command_in(arguments)
            if command is None and self.program:
                command = _deed(arguments)
            if command is not None and self.program and not command.startswith(self.program):
                command = f"{self.program} {command}"
            return _of_command(command)
        return (
            (_of_statement(arguments) if self.statement else None)
            or _of_deed(arguments)
            or self.traits
            or _ran(arguments)
        )

    def masker(self, traits: Traits) -> Masker:
        """What masks the results of a call with these traits."""
        return self.mask if _NEW_THINGS.isdisjoint(traits) else self.mask_mutating


@functools.lru_cache(maxsize=2048)
def infer(name: str) -> Nature:
    """What the name alone says. Names come from the model: long ones are not looked at."""
    if len(name) > _LONGEST_NAME:
        return Nature()
    plain = _plain(name)
    words = [word for word in plain.split("_") if word]
    if plain in known.SHELL_NAMES or (plain.endswith(("_bash", "_shell", "_exec", "_terminal")) and "get" not in words):
        return Nature(shell=True, starts=True)  # noqa: S604  # says of a tool that it is one
    if _shell.is_program(plain):
        return Nature(shell=True, program=plain)  # noqa: S604  # as above
    if plain in known.CODE_NAMES:
        return Nature(starts=True)
    if _HANDOFF.match(plain) or (_AGENT.match(plain) and words[0] not in known.READ_WORDS | known.MUTATION_WORDS):
        return Nature(DELEGATES, starts=True)
    if _WAIT_FOR.match(plain):
        return Nature(WAITS)
    return _from_words(plain, words, is_search(name))


def _plain(name: str) -> str:
    """`mcp__github__createIssue`, `functions.create_issue` and `create-issue` are all `create_issue`."""
    last = name.rpartition("__")[2] or name
    last = re.split(r"[./:]", last)[-1] or last
    return "_".join(part for part in _SPLIT.split(_CAMEL.sub("_", last)) if part).lower()


def _from_words(plain: str, words: list[str], searches: bool) -> Nature:
    statement = bool({"sql", "query", "db", "database", "http", "request", "api", "fetch", "graphql"} & set(words))
    ui = bool(known.UI_WORDS & set(words)) and not {"get", "list", "search", "find"} & set(words[:1])
    starting = known.STARTING_WORDS & set(words[:2])
    if words[1:] == ["queue"]:
        starting = starting - {"queue"}  # `slurm_queue` is one
    asks = bool(words) and words[-1] in known.POLL_WORDS and starting <= known.STARTED
    starts = bool(starting) and words[0] not in known.READ_WORDS and not asks
    polls = bool(words and (words[-1] in known.POLL_WORDS or known.POLL_WORDS & set(words[:1]))) or bool(
        _WAIT_UNTIL.match(plain)
    )
    traits = _verb(words, ui=ui)
    if traits == READS and not known.TEST_WORDS.isdisjoint(words[:2]):
        traits = TESTS
    if polls and "mutates" not in traits and not starts:
        traits = POLLS
    writes_files = bool(
        {"write", "edit", "replace", "patch", "insert", "save", "update", "create", "apply", "rewrite"} & set(words)
    )
    return Nature(
        traits,
        statement=statement,
        ui=ui,
        starts=starts,
        writes_files=writes_files,
        searches=searches,
        mask=_MASK_SEARCHING if searches else _MASK if known.DEBUGGERS.isdisjoint(words) else _MASK_DEBUGGING,
        mask_mutating=_MASK_MUTATING if known.TAKING_WORDS.isdisjoint(words) else _MASK_TAKING,
        thinks=bool(known.THINKING_WORDS & set(words)),
        plans=bool(known.PLAN_WORDS & set(words)) and "reads" not in traits,
        deed="reads" not in traits,
    )


def _verb(words: list[str], *, ui: bool) -> Traits:
    """The trait of the word that says what is done: a fact asked for at the end, else the first verb."""
    if not words:
        return UNKNOWN
    if words[-1] in known.FACT_WORDS and not (
        words[0] in known.MUTATION_WORDS and len(words) == 2 and words[0] in ("set", "update", "write", "save")
    ):
        return READS
    if words[-1] in known.READING_ENDS and words[0] not in known.MUTATION_WORDS:
        return READS  # `vector_store_search`, `memory_query`
    if not known.EDITING_WORDS.isdisjoint(words):
        return MUTATES  # `search_replace`, `find_and_replace`
    for word in words:
        if word in known.READ_WORDS:
            return READS
        if word in known.MUTATION_WORDS:
            return MUTATES
        if word in known.SWITCHING_WORDS and not known.SWITCHED.isdisjoint(words):
            return MUTATES  # `turn_on_light`, and not `turn_page`
    return MUTATES if ui else UNKNOWN


def _of_deed(arguments: Any) -> Traits | None:
    """What an argument says is done; None if none does."""
    deed = _deed(arguments)
    if deed is None:
        return None
    words = _plain(deed).split("_")
    return _verb(words, ui=not known.UI_WORDS.isdisjoint(words)) or None


def _ran(arguments: Any) -> Traits:
    """What a command line among the arguments does, where the tool is no shell by its name: `run_on_host`."""
    command = arguments.get("command") if type(arguments) is dict else None
    if type(command) is not str or " " not in command:
        return UNKNOWN
    if command.split(None, 1)[0].lower() in known.ENGLISH_COMMANDS and not _COMMAND_LINE.search(
        command[:_LONGEST_NAME]
    ):
        return UNKNOWN
    traits = _of_command(command)
    return UNKNOWN if traits == WAITS else traits


def _deed(arguments: Any) -> str | None:
    """The argument that names what is done."""
    if type(arguments) is not dict:
        return None
    for key in _DEED_KEYS:
        deed = arguments.get(key)
        if type(deed) is str and len(deed) <= _LONGEST_DEED and _DEED.fullmatch(deed):
            return deed
    return None


def annotated(annotations: Mapping[str, Any]) -> Traits | None:
    """What MCP annotations declare; None if they say nothing.

    `readOnlyHint` true reads; `readOnlyHint` false or `destructiveHint` true mutates. `idempotentHint` says nothing
    about loops: repeating without effect is still repeating.
    """
    if annotations.get("readOnlyHint") is True:
        return READS
    if annotations.get("readOnlyHint") is False or annotations.get("destructiveHint") is True:
        return MUTATES
    return None


def _of_command(command: str | None) -> Traits:
    if command is None:
        return UNKNOWN
    kind, sleeps = _shell.kind_of(command)
    if kind == "sleeps":
        return WAITS
    if kind in ("reads", "tests"):
        return POLLS if sleeps else TESTS if kind == "tests" else READS
    return MUTATES if kind == "writes" else UNKNOWN


def _of_statement(arguments: Any) -> Traits:
    if type(arguments) is not dict:
        return UNKNOWN
    method = next((arguments[key] for key in ("method", "http_method") if type(arguments.get(key)) is str), None)
    if method is not None:
        return READS if method.upper() in ("GET", "HEAD", "OPTIONS") else MUTATES
    for key in ("query", "sql", "statement"):
        text = arguments.get(key)
        if isinstance(text, str) and (match := _SQL.match(text[:4096])):
            word = match[1].lower()
            if word in _SQL_READS:
                return READS
            if word in _SQL_WRITES:
                return MUTATES
    return UNKNOWN


def declared(base: Nature, traits: Traits | None, mask: Masker, mask_mutating: Masker, result_key: Any) -> Nature:
    """A nature with what the policy or an annotation says about the tool.

    Args:
        base: What its name says.
        traits: As declared; None leaves what the name says.
        mask: For the results of its calls.
        mask_mutating: For the results of those that change something.
        result_key: Fields of a result that count.
    """
    known = replace(base, mask=mask, mask_mutating=mask_mutating, result_key=result_key)
    return known if traits is None else replace(known, traits=traits, declared=True)


__all__ = [
    "DELEGATES",
    "MASKS",
    "MUTATES",
    "POLLS",
    "READS",
    "TESTS",
    "UNKNOWN",
    "WAITS",
    "Nature",
    "Traits",
    "annotated",
    "infer",
]
