"""What is said about a policy that cannot be used: file, key, value and fix, one line for each problem."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from loopguard_core._errors import PolicyError
from loopguard_core._ladder import DEFAULT_LADDERS

Path = tuple[str | int, ...]

# A table whose keys the user chooses; the model behind it describes one entry.
_PLACEHOLDERS = {"tools": "<tool>", "detectors": "<detector>"}

# What agent SDKs and other guards call things. difflib cannot know that a recursion limit counts turns.
_SDK_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("max_turns", "max_iterations", "max_iter", "max_rounds", "max_steps", "max_llm_calls", "turn_limit"),
            *("step_limit", "steps", "rounds", "iterations", "recursion_limit"),
        ),
        ("limits", "turns"),
    ),
    **dict.fromkeys(
        (
            *("max_cost", "cost_limit", "max_cost_usd", "max_budget", "budget", "budget_usd", "max_spend"),
            *("spend_limit", "max_dollars", "usd", "dollars"),
        ),
        ("limits", "cost"),
    ),
    **dict.fromkeys(("max_tokens", "token_limit", "max_total_tokens", "token_budget"), ("limits", "tokens")),
    **dict.fromkeys(
        ("timeout", "timeout_seconds", "max_seconds", "max_time", "time_limit", "max_duration", "max_execution_time"),
        ("limits", "seconds"),
    ),
    **dict.fromkeys(("max_tool_calls", "max_calls", "call_limit", "tool_call_limit"), ("limits", "tool_calls")),
    **dict.fromkeys(("loop_keys", "loopkey", "key_fields", "exempt"), ("tools", "<tool>", "loop_key")),
    **dict.fromkeys(("doom_loop", "doomloop", "thresholds", "threshold", "max_repeats", "max_identical"), ("ladder",)),
    **dict.fromkeys(("dry_run", "shadow_mode", "observe_only"), ("shadow",)),
    **dict.fromkeys(("escalate_model", "escalation_model", "fallback_model"), ("escalation", "models")),
    **dict.fromkeys(("exit_behavior", "on_loop_stop"), ("on_stop", "how")),
    **dict.fromkeys(("key_limit", "spending_limit", "monthly_limit"), ("key", "limit")),
}
_LADDER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("warn", "warning", "log", "notify", "alert", "report"), "observe"),
    **dict.fromkeys(("nudge", "hint", "inject", "tell", "remind"), "steer"),
    **dict.fromkeys(("deny", "refuse", "reject", "skip"), "block"),
    **dict.fromkeys(("halt", "kill", "abort", "terminate", "end", "raise", "break"), "stop"),
}

# Errors end up in logs; a name of a key that cannot be used may be the key's secret.
_SECRET: tuple[Path, ...] = (("privacy", "fingerprint_key"), ("key", "store"), ("key", "name"))
_SOUNDS_SECRET = re.compile(r"secret|passw|token|fingerprint|store|url|api_?key|(^|\.)key\b", re.IGNORECASE)

_PLAIN = {
    "bool_type": "must be true or false, without quotes",
    "string_type": "must be text in quotes",
    "string_too_short": "must not be empty",
    "missing": "is missing; add it",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be {expected}",
    **dict.fromkeys(("tuple_type", "list_type"), 'must be a list, for example ["..."]'),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be a table of keys"),
}


def policy_error(error: ValidationError, *, model: type[BaseModel], source: str) -> PolicyError:
    """Turn pydantic's error into one line for each problem.

    Args:
        error: What pydantic found.
        model: The policy class, for the keys there are.
        source: Where the policy was written: a file, or the call that made it.
    """
    lines = [_line(dict(problem), model, source) for problem in error.errors(include_url=False)]
    return PolicyError("\n".join(lines))


def dotted(path: Path) -> str:
    """`path` as TOML writes it: `tools."check_*".loop_key`, and `[0]` for a place in a list."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+|<\w+>", part)
            text += ("." if text else "") + (part if bare else '"' + shown(part, quotes=False) + '"')
    return text


def shown(value: Any, *, quotes: bool = True) -> str:
    """A value as the file has it, short enough for one line and safe for a terminal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        cut = value if len(value) <= 60 else value[:60] + "..."
        text = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in cut)
        return f'"{text}"' if quotes else text
    if isinstance(value, SecretStr):
        return "(not shown)"
    if isinstance(value, Mapping | BaseModel):
        return "a table"
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(item) for item in value)}]" if len(value) <= 4 else f"a list of {len(value)}"
    try:
        return shown(str(value), quotes=False)
    except ValueError:  # an integer of thousands of digits
        return "a number with too many digits"


def _line(problem: dict[str, Any], model: type[BaseModel], source: str) -> str:
    path: Path = tuple(problem["loc"])
    kind, value = problem["type"], problem["input"]
    if path and path[-1] == "[key]":  # the key itself is wrong, not what it holds
        return f"{source}: {dotted(path[:-1])}: {_text(kind, problem, value)}"
    if kind == "missing":
        return f"{source}: {dotted(path)} is missing; add it"
    if kind == "extra_forbidden":
        better = suggestion(path, model)
        fix = f"did you mean {dotted(better)}?" if better else f"there are: {', '.join(_keys_beside(path, model))}"
        # Nobody can say what was meant to be secret in a key that does not exist; the place is enough to find it.
        hide = not isinstance(value, int | float) and (better in _SECRET or _SOUNDS_SECRET.search(dotted(path)))
        return f"{source}: {dotted(path)}{'' if hide else ' = ' + shown(value)}: unknown key; {fix}"
    return f"{source}: {dotted(path)}{'' if path in _SECRET else ' = ' + shown(value)}: {_text(kind, problem, value)}"


def _text(kind: str, problem: dict[str, Any], value: Any) -> str:
    context = problem.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind.startswith("int_"):
        fix = f"; write {value.strip()}" if isinstance(value, str) and value.strip().isdecimal() else ""
        return "must be a whole number, without quotes or decimal point" + fix
    text = _PLAIN.get(kind, "").format(**context) or problem["msg"]
    if kind == "literal_error" and isinstance(value, str):
        near = difflib.get_close_matches(
            value.lower(), re.findall(r"'([^']*)'", str(context["expected"])), n=1, cutoff=0.7
        )
        text += f"; did you mean {near[0]!r}?" if near else ""
    return text


def suggestion(path: Path, model: type[BaseModel]) -> Path | None:
    """The key that was probably meant by the unknown key `path`; None if nothing is near."""
    *table, last = path
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(last)).replace("-", "_").lower()
    if table[:1] == ["detectors"] and f"{table[-1]}.{last}" in DEFAULT_LADDERS:
        return ("detectors", f"{table[-1]}.{last}")
    beside = _keys_beside(path, model)
    if word in beside:
        return (*table, word)
    if "ladder" in table and word in _LADDER_WORDS:
        return (*table, _LADDER_WORDS[word])
    if word in _SDK_WORDS:
        return _as_written(_SDK_WORDS[word], path)
    known = list(_all_keys(model))
    ends = [str(key[-1]) for key in known]
    # A key that exists elsewhere was rather put in the wrong table than misspelt, unless it is all but right here.
    if near := difflib.get_close_matches(word, beside, n=1, cutoff=0.9 if word in ends else 0.7):
        return (*table, near[0])
    near = difflib.get_close_matches(word, ends, n=1, cutoff=0.8)
    if near:
        same = [key for key in known if key[-1] == near[0]]
        return _as_written(min(same, key=lambda key: (-_in_common(key, path), len(key))), path)
    whole = difflib.get_close_matches(word, [dotted(key) for key in known], n=1, cutoff=0.8)
    return next((key for key in known if whole and dotted(key) == whole[0]), None)


def _all_keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a policy, tables included; `<tool>` and `<detector>` stand for names the user chooses."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        inner = _model_in(field.annotation)
        if inner is not None:
            placeholder = (_PLACEHOLDERS[name],) if name in _PLACEHOLDERS else ()
            yield from _all_keys(inner, (*prefix, name, *placeholder))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _model_in(part)) is not None), None)


def _keys_beside(path: Path, model: type[BaseModel]) -> list[str]:
    table = path[:-1]
    return [str(key[-1]) for key in _all_keys(model) if len(key) == len(path) and _in_common(key, table) == len(table)]


def _in_common(key: Path, path: Path) -> int:
    """How many parts at the start of `path` the key `key` shares; a placeholder shares every name."""
    count = 0
    for known, written in zip(key, path, strict=False):
        if known != written and known not in _PLACEHOLDERS.values():
            break
        count += 1
    return count


def _as_written(key: Path, path: Path) -> Path:
    """`key` with the names of `path` in place of placeholders, where both are in the same table."""
    shared = _in_common(key[:-1], path[:-1])
    return (*path[:shared], *key[shared:])
