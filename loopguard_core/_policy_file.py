"""Where a policy comes from: a file, a mapping, a preset's name, the environment.

Environment variables, read once when a guard is made:

- `LOOPGUARD_CONFIG`: path of the policy file, used where the code names none.
- `LOOPGUARD_PRESET`: the preset, used only where neither the file nor the code names one. A `Policy` made in code is
  complete and not changed by it.
- `LOOPGUARD_ENABLED`: `0`, `false`, `no` or `off` switches loopguard off whatever the policy says. No value switches
  on what a policy switched off.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from loopguard_core._errors import PolicyError
from loopguard_core._policy import Policy
from loopguard_core._policy_errors import shown
from loopguard_core._presets import check_preset

FILE_NAME = "loopguard.toml"
CONFIG_VARIABLE = "LOOPGUARD_CONFIG"
PRESET_VARIABLE = "LOOPGUARD_PRESET"
ENABLED_VARIABLE = "LOOPGUARD_ENABLED"
VARIABLES = (CONFIG_VARIABLE, PRESET_VARIABLE, ENABLED_VARIABLE)

_SQLITE = "sqlite:///"
_OFF = frozenset({"0", "false", "no", "off"})
_ON = frozenset({"1", "true", "yes", "on"})

_log = logging.getLogger("loopguard")


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """The policy a file holds, under the preset of `LOOPGUARD_PRESET` if it names none.

    Args:
        path: A TOML file. Of a `pyproject.toml`, the table `[tool.loopguard]` counts.

    Raises:
        PolicyError: The file cannot be read, or what it says cannot be used.
    """
    return Policy.from_mapping(*_with_preset(*read_policy_file(path)))


def find_policy(start: Path | None = None) -> Path | None:
    """The policy file that holds here, or None.

    `LOOPGUARD_CONFIG` wins, whether its file exists or not. Else the nearest `loopguard.toml`, or `pyproject.toml`
    with a table `[tool.loopguard]`, from `start` upwards; the search ends at the first directory with a `.git`.

    Args:
        start: Where to begin; the working directory by default.

    Raises:
        PolicyError: `LOOPGUARD_CONFIG` begins with a home directory that cannot be told.
    """
    if named := os.environ.get(CONFIG_VARIABLE):
        try:
            return Path(named).expanduser()
        except RuntimeError:
            raise PolicyError(
                f"environment: {CONFIG_VARIABLE} = {shown(named)}: there is no such home; write the whole path"
            ) from None
    directory = (start or Path.cwd()).absolute()
    for here in (directory, *directory.parents):
        if (here / FILE_NAME).is_file():
            return here / FILE_NAME
        if _has_our_table(here / "pyproject.toml"):
            return here / "pyproject.toml"
        if (here / ".git").exists():
            return None
    return None


def resolve_policy(value: Policy | Mapping[str, Any] | str | os.PathLike[str] | None = None) -> Policy:
    """The policy for whatever a user may hand over, before `LOOPGUARD_ENABLED` is asked, which a `LoopGuard` does.

    Args:
        value: A policy; a mapping with its keys; a path, as a string only with a suffix or a slash; a preset's
            name; or None for the file `find_policy` finds, the default policy if there is none.

    Raises:
        PolicyError: There is no such preset or file, or what it says cannot be used.
    """
    return _policy_of(value)


def apply_environment(policy: Policy) -> Policy:
    """`policy`, switched off if `LOOPGUARD_ENABLED` says so. Unknown `LOOPGUARD_*` variables are warned about."""
    for name in sorted(os.environ):
        if name.startswith("LOOPGUARD_") and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(VARIABLES)}"
            _log.warning("The environment variable %s means nothing to loopguard; %s", shown(name, quotes=False), hint)
    enabled = os.environ.get(ENABLED_VARIABLE, "").strip().lower()
    if enabled in _OFF:
        return policy.model_copy(update={"enabled": False})
    if enabled and enabled not in _ON:
        _log.warning(
            "%s=%s is not understood and was ignored; 0, false, no or off switches loopguard off",
            ENABLED_VARIABLE,
            shown(enabled, quotes=False),
        )
    return policy


def read_policy_file(path: str | os.PathLike[str]) -> tuple[Mapping[str, Any], str]:
    """What a policy file says, unchecked, and how errors are to name the file.

    Raises:
        PolicyError: The file is missing, cannot be read, is not UTF-8 or not TOML, or has no table for loopguard.
    """
    file = Path(path)
    if file.suffix.lower() in {".yaml", ".yml", ".json", ".ini"}:
        raise PolicyError(f"{file}: a policy file is TOML; write it as {FILE_NAME}")
    document = _parse(_read(file), file)
    if file.name != "pyproject.toml":
        if "loopguard" in (document["tool"] if isinstance(document.get("tool"), Mapping) else ()):
            raise PolicyError(
                f"{file}: tool.loopguard: only a pyproject.toml has this table; here write [limits] for"
                " [tool.loopguard.limits], and so on"
            )
        return _with_store_beside(document, file), str(file)
    tool = document.get("tool")
    table = tool.get("loopguard") if isinstance(tool, Mapping) else None
    if table is None:
        raise PolicyError(f"{file}: there is no table [tool.loopguard]; add it, or name another file")
    if not isinstance(table, Mapping):
        raise PolicyError(f"{file}: tool.loopguard = {shown(table)}: must be a table; write [tool.loopguard]")
    return _with_store_beside(table, file), f"{file} [tool.loopguard]"


def _with_store_beside(written: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """`written`, where a relative SQLite file is meant from the policy file's directory, wherever the program runs."""
    key = written.get("key")
    if not isinstance(key, Mapping):
        return written
    store = key.get("store")
    if not isinstance(store, str) or not store.startswith(_SQLITE):
        return written
    path = store.removeprefix(_SQLITE)
    if not path or path.startswith(("/", "~", ":memory:")):
        return written
    beside = file.parent.absolute() / path
    return {**written, "key": {**key, "store": f"{_SQLITE}{beside}"}}


def _policy_of(value: object) -> Policy:
    if isinstance(value, Policy):
        return value
    if isinstance(value, Mapping):
        return Policy.from_mapping(*_with_preset(value, "policy mapping"))
    if value is None:
        found = find_policy()
        return load_policy(found) if found else Policy.from_mapping(*_with_preset({}, "policy"))
    if isinstance(value, os.PathLike) or (isinstance(value, str) and _is_path(value)):
        return load_policy(value)
    if isinstance(value, str):
        try:
            return Policy(preset=check_preset(value))
        except ValueError as error:
            raise PolicyError(f"preset = {shown(value)}: {error}; a path needs a suffix such as .toml") from None
    raise PolicyError(f"a policy is a Policy, a preset's name, a path, a mapping or None, not {type(value).__name__}")


def _is_path(text: str) -> bool:
    return bool(Path(text).suffix) or "/" in text or os.sep in text


def _with_preset(written: Mapping[str, Any], source: str) -> tuple[Mapping[str, Any], str]:
    """`written` with the preset of the environment, where it names none itself."""
    preset = os.environ.get(PRESET_VARIABLE, "").strip()
    if not preset or "preset" in written:
        return written, source
    try:
        return {"preset": check_preset(preset), **written}, source
    except ValueError as error:
        raise PolicyError(f"environment: {PRESET_VARIABLE} = {shown(preset)}: {error}") from None


def _has_our_table(pyproject: Path) -> bool:
    try:
        content = pyproject.read_bytes()
    except OSError:
        return False
    if b"loopguard" not in content:
        return False
    try:
        tool = tomllib.loads(content.decode("utf-8-sig")).get("tool")
    except (ValueError, ArithmeticError, RecursionError):
        # A file that means to configure loopguard and is broken is better reported than passed over.
        return b"tool.loopguard" in content
    return isinstance(tool, dict) and "loopguard" in tool


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            _warn_if_others_can_write(file, os.fstat(opened.fileno()))
            return opened.read()
    except FileNotFoundError:
        by = f" ({CONFIG_VARIABLE} names it)" if os.environ.get(CONFIG_VARIABLE) == str(file) else ""
        raise PolicyError(f"{file}: there is no such file{by}; create it or correct the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PolicyError(f"{file}: cannot be read ({reason}); check the path and its permissions") from None


def _parse(content: bytes, file: Path) -> dict[str, Any]:
    try:
        text = content.decode("utf-8-sig")  # editors on Windows put a mark at the front
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PolicyError(f"{file}:{line}: is not UTF-8; save the file as UTF-8") from None
    try:
        # Decimal: an amount of money is taken exactly as it is written.
        return tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        place, what = (f":{found[1]}", str(error)[: found.start()]) if found else ("", str(error))
        raise PolicyError(f"{file}{place}: is not valid TOML: {what}; correct this line") from None
    except RecursionError:
        raise PolicyError(f"{file}: is nested too deeply for a policy; flatten it") from None
    except (ValueError, ArithmeticError):  # tomllib lets these out for numbers beyond all measure
        raise PolicyError(f"{file}: holds a number with too many digits; correct it") from None


def _warn_if_others_can_write(file: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _log.warning("Policy file %s can be written by other users: they can switch loopguard off; chmod go-w it", file)
    if status.st_uid not in (0, os.geteuid()):
        _log.warning("Policy file %s belongs to another user, who can switch loopguard off", file)
