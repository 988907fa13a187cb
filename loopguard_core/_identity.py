"""From a tool call to its loop key: what of the arguments tells one call from another."""

from __future__ import annotations

import enum
import inspect
import json
import re
import unicodedata
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

LoopKey = Sequence[str] | Literal[False] | Callable[[Any], Any] | None

MAX_JSON_CHARS = 1_000_000
MAX_NAME_CHARS = 64

_MAX_DEPTH = 64
_MAX_NODES = 200_000
_MAX_TEXT_CHARS = 1_000_000
# What may be punctuation to drop: not the marks that make C# another word than C, nor what belongs to a number.
_MARK = re.compile(r"[^\w\s#%&*/@\\](?!\d)")
_MISSING = object()


class _Exempt(enum.Enum):
    EXEMPT = "exempt"


EXEMPT: Final = _Exempt.EXEMPT
"""The loop key of a call that is not watched."""


def parse_arguments(arguments: Any) -> Any:
    """Return a call's arguments as values. Never raises.

    Args:
        arguments: What the model or the SDK gave. Bytes are decoded, wrong ones replaced.

    Returns:
        `{}` for None and for blank text; the parsed value of JSON text, as Python's `json` reads it (the last of two
        equal keys wins, `NaN` is accepted); text as it is where it is no JSON, too deep, holds an integer longer than
        Python reads, or is longer than 1,000,000 characters; anything else as it is.
    """
    if type(arguments) is dict:  # what most SDKs give
        return arguments
    if isinstance(arguments, (bytes, bytearray, memoryview)):
        arguments = bytes(arguments).decode("utf-8", "replace")
    if arguments is None:
        return {}
    if not isinstance(arguments, str) or len(arguments) > MAX_JSON_CHARS:
        return arguments
    text = arguments.strip()
    if not text:
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return arguments


def normalize(value: Any, names: Sequence[str]) -> Any:
    r"""Apply normalizers, in the order given, to every string in a value.

    Strings are found in lists, tuples and the values of dictionaries (never their keys), 64 levels deep and among the
    first 200,000 members; what lies beyond is left as it is, and so are strings of more than 1,000,000 characters.

    - `nfkc`: Unicode NFKC, so that full-width letters equal plain ones.
    - `casefold`: as `str.casefold`.
    - `whitespace`: runs of white space become one space, the ends are stripped.
    - `punctuation`: characters of a Unicode punctuation category (P*) are removed, and white space is folded, as they
      leave gaps. They stay directly before a digit (`-5`, `3.14`, `10:30`), if they are one of `# % & * / @ \ _` (`C#`,
      `a/b`), and where nothing would be left (`..`). Symbols (S*: `+ < = > $ ^ ~ |`, the backtick) always stay. Meant
      for language: `../a` and `./a` become equal.

    Args:
        value: The loop key, or part of it. It is not changed: what differs is copied.
        names: Which normalizers.

    Raises:
        ValueError: If a name is none of these four.
    """
    steps = [_step(name) for name in names]
    return _normalized(value, steps, _MAX_DEPTH, [_MAX_NODES]) if steps else value


def loop_key_of(
    tool: str, arguments: Any, loop_key: LoopKey, normalizers: Sequence[str], warn: Callable[[str], None]
) -> Any:
    """Return what of a call's arguments counts.

    Args:
        tool: The tool's name, for warnings.
        arguments: The parsed arguments.
        loop_key: None for all arguments. False exempts the tool. A list names the fields that count; `a.b` reaches into
            the object `a` where no field is called `a.b`. A function gets the arguments (the top level copied) and
            returns the key; None exempts the call.
        normalizers: Applied to the key, whatever it was made from.
        warn: Called with one text where `loop_key` gave nothing to go by: the function raised, or returned something
            empty, awaitable or an iterator, or no named field is present. The text holds no argument values.

    Returns:
        The key, `EXEMPT`, or the full arguments after a warning.

    Raises:
        ValueError: If a normalizer is unknown.
    """
    if loop_key is None:
        return normalize(arguments, normalizers)
    if loop_key is False:
        return EXEMPT
    if callable(loop_key):
        key, problem = _from_function(loop_key, arguments)
    else:
        key, problem = _from_fields([loop_key] if isinstance(loop_key, str) else loop_key, arguments)
    if problem:
        warn(f"loop_key of tool {display_name(tool)!r} {problem}; its full arguments are used")
        key = arguments
    return key if key is EXEMPT else normalize(key, normalizers)


def display_name(tool: object) -> str:
    """Return a tool's name as it may be shown: at most 64 characters, all printable.

    Control, bidirectional and other unprintable characters become `?`, a cut name ends in `…`, a blank one is
    `(unnamed)`.
    """
    if not isinstance(tool, str) or not tool[: 2 * MAX_NAME_CHARS].strip():
        return "(unnamed)"
    if len(tool) <= MAX_NAME_CHARS and tool.isprintable():
        return tool
    shown = "".join(char if char.isprintable() else "?" for char in tool[: MAX_NAME_CHARS + 1])
    return shown if len(shown) <= MAX_NAME_CHARS else shown[: MAX_NAME_CHARS - 1] + "…"


def _from_function(function: Callable[[Any], Any], arguments: Any) -> tuple[Any, str]:
    """Return the key a function gives, and what is wrong with it (an empty text if nothing)."""
    try:
        # A copy, so that a careless `pop` does not change what the tool is called with.
        key = function(dict(arguments) if type(arguments) is dict else arguments)
        if key is None:
            return EXEMPT, ""
        if inspect.isawaitable(key) or isinstance(key, (Iterator, AsyncIterator)):
            if isinstance(key, Coroutine):
                key.close()  # left alone, it complains when it is collected
            return None, f"returned something to wait for or to iterate over ({type(key).__name__})"
        if isinstance(key, (str, bytes, dict, list, tuple, set, frozenset)) and not key:
            return None, "returned nothing"
    except Exception as error:  # noqa: BLE001 - the function is the user's
        return None, f"raised {type(error).__name__}"
    return key, ""


def _from_fields(fields: Sequence[str], arguments: Any) -> tuple[Any, str]:
    if not isinstance(arguments, Mapping):
        return None, "names fields, but the arguments are no object"
    found = {field: _value_at(field, arguments) for field in fields}
    present = {field: value for field, value in found.items() if value is not _MISSING}
    if not present:
        return None, f"names only absent fields ({', '.join(map(display_name, fields)) or 'none'})"
    return present, ""


def _value_at(field: str, arguments: Mapping[str, Any]) -> Any:
    if field in arguments:
        return arguments[field]
    place: Any = arguments
    for name in field.split("."):
        if not isinstance(place, Mapping) or name not in place:
            return _MISSING
        place = place[name]
    return place


def _normalized(value: Any, steps: list[Callable[[str], str]], depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if isinstance(value, str):
        for step in steps if len(value) <= _MAX_TEXT_CHARS else ():
            value = step(value)
        return value
    if depth == 0 or left[0] < 0:
        return value
    if type(value) is dict:
        return {key: _normalized(member, steps, depth - 1, left) for key, member in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)([_normalized(member, steps, depth - 1, left) for member in value])
    return value


def _step(name: str) -> Callable[[str], str]:
    step = _STEPS.get(name)
    if step is None:
        raise ValueError(f"unknown normalizer {name!r}: use {', '.join(_STEPS)}")
    return step


def _fold_space(text: str) -> str:
    return " ".join(text.split())


def _drop_punctuation(text: str) -> str:
    kept = _MARK.sub(lambda found: "" if unicodedata.category(found[0])[0] == "P" else found[0], text)
    return _fold_space(kept) or _fold_space(text)


_STEPS: dict[str, Callable[[str], str]] = {
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "casefold": str.casefold,
    "whitespace": _fold_space,
    "punctuation": _drop_punctuation,
}
