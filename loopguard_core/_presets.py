"""Presets: settings and ladders laid under what the user wrote, so that every key of theirs still wins."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from loopguard_core._ladder import DEFAULT_LADDERS, DETECTORS, FOLLOWING_ROWS, Ladder, LadderSettings

PresetName = Literal["default", "openrouter", "dsh", "patient", "strict", "observe"]


def _stricter(ladder: Ladder) -> LadderSettings:
    """Steer on at the observe figure, and block one earlier: section 5 of the design."""
    rungs: dict[str, int] = {}
    if ladder.observe is not None:
        rungs["steer"] = ladder.observe
    if ladder.block is not None and ladder.block > 1:
        rungs["block"] = ladder.block - 1
    return LadderSettings(**rungs)


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
    # What that plugin looks at, by the two detectors that replace its layers. They share one retry.
    "dsh": {
        "text": {"min_chars": 512, "channels": ("content", "reasoning"), "retries": 1},
        "detectors": {name: {"enabled": name in ("rephrased_search", "text_repetition")} for name in DETECTORS},
    },
    "patient": {},
    "strict": {},
    "observe": {"shadow": True},
}
"""What each preset sets, but for its ladders."""

_MAY_PASS = LadderSettings(observe=2, steer=False, block=6, stop=10)
_ONE_RETRY = LadderSettings(observe=False, steer=1, stop=2)

PRESET_LADDERS: Mapping[str, Mapping[str, LadderSettings]] = {
    "dsh": {
        "rephrased_search": _ONE_RETRY,
        "rephrased_search.same_results": LadderSettings(observe=False),
        "text_repetition.passage": _ONE_RETRY,
    },
    # Failures that may pass by themselves are given time: section 5 of the design.
    "patient": dict.fromkeys((*FOLLOWING_ROWS, "repeated_call.retry"), _MAY_PASS),
    "strict": {row: _stricter(ladder) for row, ladder in DEFAULT_LADDERS.items()},
}
"""What each preset makes of rows of the table of ladders. Not among its settings: there a row beats its detector, and
so a preset's row would beat what the user says of the detector."""


def check_preset(value: Any) -> str:
    """The preset's name, if there is one.

    Raises:
        ValueError: There is none. The text names the presets there are, and the nearest to what was written.
    """
    available = ", ".join(PRESETS)
    name = value if isinstance(value, str) else ""
    if name in PRESETS:
        return name
    near = difflib.get_close_matches(name.lower(), PRESETS, n=1)
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
