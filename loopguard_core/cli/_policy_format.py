"""How `loopguard policy show` writes a policy down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopguard_core._ladder import RUNGS, Ladder
from loopguard_core._policy import Policy
from loopguard_core._policy_errors import dotted, shown


def as_json(policy: Policy, source: str) -> str:
    """One JSON object: `source`, `policy` as in the file, `ladders` and `tool_ladders` resolved (null is off)."""
    settings = _dumped(policy, "json")
    document = {
        "source": source,
        "policy": settings,
        "ladders": {name: _rungs(ladder) for name, ladder in policy.ladders().items()},
        "tool_ladders": {name: _rungs(ladder) for name, ladder in policy.tool_ladders().items()},
        "hazards": policy.hazards(),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_toml(policy: Policy, source: str) -> str:
    """A policy file that says all of this policy, with the resolved ladders as comments."""
    lines = [f"# Effective policy; source: {shown(source, quotes=False)}"]
    for name, ladder in policy.ladders().items():
        lines.append(f"# {shown(name, quotes=False)}: {_sentence(ladder)}")
    for name, ladder in policy.tool_ladders().items():
        lines.append(f"# repeated_call for {shown(name)}: {_sentence(ladder)}")
    settings = _settings(policy)
    if policy.privacy.fingerprint_key is not None:
        lines.append("# privacy.fingerprint_key is set and not shown")
    if policy.key is not None and policy.key.store != _without_password(policy.key.store):
        lines.append("# the password in key.store is not shown")
    lines.extend(f"{key} = {_toml(value)}" for key, value in settings.items() if not _is_table(key, value))
    for key, value in settings.items():
        if _is_table(key, value):
            lines.extend(_toml_table((key,), value))
    return "\n".join(lines)


def print_table(console: Console, policy: Policy, source: str) -> None:
    """The policy for reading: ladders first, then every setting, then the hazards."""
    ladders = Table("detector", *(rung.value for rung in RUNGS), title="Ladders", title_justify="left")
    for name, ladder in policy.ladders().items():
        ladders.add_row(Text(shown(name, quotes=False)), *_cells(ladder))
    for name, ladder in policy.tool_ladders().items():
        ladders.add_row(Text(f"repeated_call for {shown(name)}"), *_cells(ladder))
    settings = Table("key", "value", title="Settings", title_justify="left")
    for path, value in _flat(_settings(policy)):
        settings.add_row(Text(dotted(path)), Text(_toml(value)))
    console.print(Text(f"Policy from {shown(source, quotes=False)}"), soft_wrap=True)
    console.print(ladders)
    console.print(settings)
    for hazard in policy.hazards():
        console.print(Text(f"hazard: {hazard}", style="yellow"), soft_wrap=True)


def _settings(policy: Policy) -> dict[str, Any]:
    """What can be written in a file: nothing that is None, no empty table, no secret, nothing that draws a hazard."""
    settings = _dumped(policy, "python")
    settings["privacy"].pop("fingerprint_key")
    return {key: written for key, value in settings.items() if (written := _written(value)) not in (None, {})}


def _dumped(policy: Policy, mode: Literal["json", "python"]) -> dict[str, Any]:
    settings = policy.model_dump(mode=mode)
    # Tools and patterns are merged by what each of them names; naming the defaults too would change the result.
    settings.update(policy.model_dump(mode=mode, include={"tools", "detectors"}, exclude_unset=True))
    if settings["key"]:
        settings["key"]["store"] = _without_password(settings["key"]["store"])
    return settings


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: inner for key, entry in value.items() if (inner := _written(entry)) is not None and inner != {}}
    return value


def _without_password(address: str | None) -> str | None:
    return None if address is None else re.sub(r"//[^/@]*@|\?.*", lambda found: found[0][:2] + "...", address)


def _rungs(ladder: Ladder) -> dict[str, int | None]:
    return {rung.value: ladder.threshold(rung) for rung in RUNGS}


def _cells(ladder: Ladder) -> list[str]:
    return ["-" if threshold is None else str(threshold) for threshold in _rungs(ladder).values()]


def _sentence(ladder: Ladder) -> str:
    on = [f"{rung} {threshold}" for rung, threshold in _rungs(ladder).items() if threshold is not None]
    return ", ".join(on) or "every rung off"


def _flat(settings: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in settings.items():
        if _is_table(key, value):
            yield from _flat(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _is_table(key: str, value: Any) -> bool:
    # Ladders and models read better on one line.
    return isinstance(value, Mapping) and key not in {"ladder", "models"}


def _toml_table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not _is_table(key, value)}
    if plain:
        yield f"\n[{'.'.join(_toml_key(part) for part in path)}]"
        yield from (f"{_toml_key(key)} = {_toml(value)}" for key, value in plain.items())
    for key, value in table.items():
        if key not in plain:
            yield from _toml_table((*path, key), value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # The escapes of JSON are escapes of TOML, which adds only that DEL must be one.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return text if "." in text else f"{text}.0"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value)
