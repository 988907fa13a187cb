"""Presets: plain mappings laid under what the user wrote, so that every key of theirs still wins."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from loopguard_core._ladder import DETECTORS

PresetName = Literal["default", "openrouter", "dsh", "patient", "strict", "observe"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    # The reference behaviour to the letter: one detector, results not looked at, fingerprints that compare.
    "openrouter": {
        "outcomes": "ignore",
        "fingerprints": "sha256",
        "ladder": {"observe": 2, "steer": False, "escalate": False, "block": 3, "stop": 6},
        "privacy": {"plain_fingerprints": True},
        "detectors": {name: {"enabled": name == "repeated_call"} for name in DETECTORS},
    },
    "observe": {"shadow": True},
}
"""What each preset available in this release sets."""

LATER_PRESETS: tuple[str, ...] = ("dsh", "patient", "strict")
"""Presets whose detectors this release does not have."""


def check_preset(value: Any) -> str:
    """The preset's name, if this release has it.

    Raises:
        ValueError: It has not. The text names the presets there are, and the nearest to what was written.
    """
    available = ", ".join(PRESETS)
    name = value if isinstance(value, str) else ""
    if name in PRESETS:
        return name
    if name in LATER_PRESETS:
        raise ValueError(f"this preset comes in a later version; available now: {available}")
    near = difflib.get_close_matches(name.lower(), [*PRESETS, *LATER_PRESETS], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"there is no such preset; {hint}available: {available}")


def under(preset: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """`written` with `preset` laid under it: tables are merged key by key, everything else is the user's."""
    merged = dict(preset)
    for key, value in written.items():
        below = preset.get(key)
        # In code a table may be a ready-made model; what it was not given must not hide the preset.
        table = (
            {name: getattr(value, name) for name in value.model_fields_set} if isinstance(value, BaseModel) else value
        )
        merged[key] = under(below, table) if isinstance(below, Mapping) and isinstance(table, Mapping) else value
    return merged
