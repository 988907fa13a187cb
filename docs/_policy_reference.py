"""Writes the tables of `policy-reference.md` from the JSON schema of `loopguard_core.Policy` and from the ladders.

Run by `_generate.py`, which puts them into the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from loopguard_core import Ladder, Policy
from loopguard_core._ladder import DEFAULT_LADDERS, FOLLOWING_ROWS, RUNGS, LadderSettings
from loopguard_core._policy_parts import (
    DetectorSettings,
    EscalationSettings,
    KeySettings,
    Limits,
    OnStopSettings,
    PrivacySettings,
    TextSettings,
    ToolSettings,
)
from loopguard_core._presets import PRESET_LADDERS, PRESETS

TABLES: Mapping[str, type[BaseModel]] = {
    "ladder = { ... }": LadderSettings,
    "[detectors.NAME]": DetectorSettings,
    "[limits]": Limits,
    '[tools."PATTERN"]': ToolSettings,
    "[text]": TextSettings,
    "[escalation]": EscalationSettings,
    "[on_stop]": OnStopSettings,
    "[key]": KeySettings,
    "[privacy]": PrivacySettings,
}
"""Tables in the order of the page, with the model that checks each."""


def policy_reference() -> str:
    """Every field with its type, default and meaning, then every ladder under every preset."""
    schema = Policy.model_json_schema()
    parts = ["## Top level", "", *_section(Policy, schema)]
    for title, model in TABLES.items():
        parts += ["", f"## `{title}`", "", *_section(model, schema["$defs"][model.__name__])]
    parts += ["", "## Default ladders", "", *_ladders(), "", "## What each preset sets", "", *_presets()]
    return "\n".join(parts)


def _section(model: type[BaseModel], schema: Mapping[str, Any]) -> Iterator[str]:
    file = f"{model.__module__.replace('.', '/')}.py"
    yield f"Source: class `{model.__name__}` in `{file}`."
    yield ""
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {_type(field)} | {default} | {_line(field.get('description', ''))} |"


def _type(field: Mapping[str, Any]) -> str:
    """A type for people: `whole number, 1 or more`, `"daily"` or `"weekly"`."""
    if "anyOf" in field:
        kinds = [_type(kind) for kind in field["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(_code(value) for value in field["enum"])
    if "const" in field:
        return _code(field["const"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if "enum" in field["items"] else "list of text"
    if field.get("type") == "object" or "$ref" in field:
        return "table"
    kind = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}[
        field["type"]
    ]
    if "minimum" in field:
        kind += f" from {field['minimum']}"
    if "exclusiveMinimum" in field:
        kind += f" above {field['exclusiveMinimum']}"
    return kind


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    if default is None or default in ([], {}) or isinstance(default, dict):
        return "-"
    return _code(default)


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _ladders() -> Iterator[str]:
    """One line a row of the table: what holds by default, and what two presets make of it."""
    presets = {name: Policy(preset=name) for name in ("default", "strict", "patient")}
    yield "Source: `DEFAULT_LADDERS` in `loopguard_core/_ladder.py`. Rungs are observe / steer / escalate / block /"
    yield "stop; `-` is off. A preset that is not named here leaves a row as it is, or switches its detector off."
    yield ""
    yield "| row | default | `strict` | `patient` |"
    yield "|---|---|---|---|"
    for row in (*DEFAULT_LADDERS, *FOLLOWING_ROWS):
        detector, _, kind = row.partition(".")
        cells = [_rungs(policy.ladder_for(detector, None, kind or None)) for policy in presets.values()]
        shown = [cells[0], *("same" if cell == cells[0] else cell for cell in cells[1:])]
        yield f"| `{row}` | {' | '.join(shown)} |"


def _rungs(ladder: Ladder) -> str:
    return " / ".join(str(ladder.threshold(rung) or "-") for rung in RUNGS)


def _presets() -> Iterator[str]:
    """What each preset lays under a policy, in the policy's own words."""
    yield "Source: `PRESETS` and `PRESET_LADDERS` in `loopguard_core/_presets.py`. Keys a policy names itself win."
    yield ""
    yield "| preset | detectors that are off | ladders it changes | other keys |"
    yield "|---|---|---|---|"
    for name, preset in PRESETS.items():
        detectors = preset.get("detectors", {})
        off = [f"`{row}`" for row, settings in detectors.items() if settings.get("enabled") is False]
        changed = [f"`{row}`" for row, ladder in PRESET_LADDERS.get(name, {}).items() if ladder.named()]
        many = f"{len(changed)} rows, see above" if len(changed) > 5 else ", ".join(changed)
        ladders = ", ".join(filter(None, ["`ladder`" if "ladder" in preset else "", many]))
        others = [f"`{key} = {_toml(value)}`" for key, value in _flat(preset)]
        yield f"| `{name}` | {', '.join(off) or '-'} | {ladders or '-'} | {', '.join(others) or '-'} |"


def _flat(preset: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in preset.items():
        if isinstance(value, Mapping) and key not in ("ladder", "detectors"):
            yield from ((f"{key}.{inner}", entry) for inner, entry in value.items())
        elif not isinstance(value, Mapping):
            yield key, value


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    sys.exit("run docs/_generate.py")
