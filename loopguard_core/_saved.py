"""The form of a saved session: plain JSON, at most 32 KB, read back part by part so that damage stays local."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from loopguard_core._bounded import bounded_key, count, short_text
from loopguard_core._faults import Faults
from loopguard_core._outcome import RESULT_PARTS
from loopguard_core._types import Action, Channel, EndReason, Stop, Verdict

T = TypeVar("T")

VERSION = 1

MAX_BYTES = 32 * 1024
"""Size of the saved state as compact ASCII JSON."""

_TEXT_LIMIT = 1024
_MOST_OF_ONE = 12 * 1024  # bytes of one detector: more is none of ours
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def stop_to_json(stop: Stop | None) -> dict[str, Any] | None:
    """A stop as plain JSON."""
    if stop is None:
        return None
    saved = {**stop.as_dict(), "message": stop.message[:_TEXT_LIMIT]}
    if stop.verdict is not None:
        call_id = stop.verdict.call_id
        saved["verdict"] |= {
            "message": stop.verdict.message[:_TEXT_LIMIT],
            "call_id": None if call_id is None else bounded_key(call_id),
            "evidence": _plain(stop.verdict.evidence),
        }
    return saved


def stop_from_json(value: Any) -> Stop | None:
    """A stop from its JSON.

    Raises:
        ValueError: It is not one.
    """
    if value is None:
        return None
    try:
        reason, verdict = value["reason"], value["verdict"]
        if reason not in get_args(EndReason):
            raise ValueError("unknown reason")
        message = short_text(value["message"], _TEXT_LIMIT)
        return Stop(reason, None if verdict is None else _verdict_from_json(verdict), message)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a saved stop") from error


def _verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    texts = {
        name: None if value[name] is None else short_text(value[name], _TEXT_LIMIT)
        for name in ("fingerprint", "tool", "call_id")
    }
    if value["channel"] not in (None, *get_args(Channel)):
        raise ValueError("unknown channel")
    return Verdict(
        detector=short_text(value["detector"], _TEXT_LIMIT),
        action=Action(value["action"]),
        streak=count(value["streak"]),
        round=count(value["round"]),
        message_index=count(value["message_index"]),
        channel=value["channel"],
        char=None if value["char"] is None else count(value["char"]),
        abort=bool(value["abort"]),
        message=short_text(value["message"], _TEXT_LIMIT),
        evidence=_plain(value["evidence"]),
        **texts,
    )


def _plain(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Evidence of a third party's detector may be anything; what is not small plain JSON is left out."""
    try:
        text = json.dumps(dict(evidence), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {}
    return dict(evidence) if len(text) <= _TEXT_LIMIT else {}


def fitted(state: dict[str, Any]) -> dict[str, Any]:
    """The state, cut to `MAX_BYTES`.

    Ours hardly ever comes near that. A third party's detector may keep whatever it likes, or no JSON at all: that goes
    first. Then goes what comparing would be finer with, and then what was counted last of all.
    """
    size = _size(state)
    for cut in (_without_bloated_detectors, _without_sketches, _without_figures):
        if size <= MAX_BYTES:
            return state
        state = cut(state)
        size = _size(state)
    while size > MAX_BYTES:
        detectors = state["detectors"]
        largest = max(detectors, key=lambda name: _size(detectors[name]), default=None)
        if largest is None:
            return {**state, "round": [], "effects": None}
        state = {**state, "detectors": {name: value for name, value in detectors.items() if name != largest}}
        size = _size(state)
    return state


def _without_bloated_detectors(state: dict[str, Any]) -> dict[str, Any]:
    detectors = {name: value for name, value in state["detectors"].items() if _size(value) <= _MOST_OF_ONE}
    return {**state, "detectors": detectors}


def _without_sketches(state: dict[str, Any]) -> dict[str, Any]:
    """Without what is kept only to compare texts and arguments that are gone."""
    calls = [[key, _plain_result(result), *rest[:3], None, rest[4]] for key, result, *rest in state["round"]]
    history = state["history"]
    if history is not None:
        last = [
            [tool, [identity, None, _plain_result(kept), *rest]]
            for tool, (identity, _, kept, *rest) in history["calls"]
        ]
        known = [[*row[:4], _plain_result(row[4]), *row[5:]] for row in history["known"]]
        history = {**history, "calls": last, "known": known}
    return {**state, "round": calls, "history": history}


def _plain_result(saved: list[Any] | None) -> list[Any] | None:
    return None if saved is None else saved[:RESULT_PARTS]


def _without_figures(state: dict[str, Any]) -> dict[str, Any]:
    """Without what operators are told beside a verdict, and results that are known again whatever they came from."""
    history = state["history"]
    return {**state, "spending": [], "history": None if history is None else {**history, "results": []}}


def _size(value: Any) -> int:
    try:
        return len(_ENCODER.encode(value))
    except (TypeError, ValueError, RecursionError):
        return MAX_BYTES + 1


_AFRESH = "That part starts afresh."
_SPENDING = "What it had spent is unknown: limits count from zero."


class Parts:
    """Reads a saved state part by part.

    Args:
        state: What `Session.save` gave, possibly damaged on its way.
        faults: Where damage is noted. Lost spending is logged for every run it is lost in.
    """

    def __init__(self, state: Any, faults: Faults) -> None:
        self._faults = faults
        self._state: Mapping[str, Any] = {}
        if not isinstance(state, Mapping):
            self._damage("", "it is not an object", _SPENDING)
        elif state.get("version") != VERSION:
            self._damage("", "its version is unknown", _SPENDING)
        else:
            self._state = state

    def has(self, name: str) -> bool:
        """Whether there is such a part."""
        return name in self._state

    def take(self, name: str, restore: Callable[[Any], None], *, lost: str = _AFRESH) -> None:
        """Hand one part to whoever it belongs to."""
        if not self._state:
            return
        if name not in self._state:
            self._damage(name, "it is missing", lost)
            return
        self.restore(name, restore, self._state[name], lost=lost)

    def take_spending(self, name: str, restore: Callable[[Any], None]) -> None:
        """Hand on the part that says what was spent."""
        self.take(name, restore, lost=_SPENDING)

    def restore(self, name: str, restore: Callable[[Any], None], value: Any, *, lost: str = _AFRESH) -> None:
        """Hand a value to whoever it belongs to."""
        try:
            restore(value)
        except Exception as error:  # noqa: BLE001  # any damage at all
            self._damage(name, f"it cannot be read ({type(error).__name__})", lost)

    def get(self, name: str, kind: type[T]) -> T:
        """One part, or an empty one if it is missing or of another kind."""
        value = self._state.get(name)
        if isinstance(value, kind):
            return value
        if self._state:
            self._damage(name, f"it is not a {kind.__name__}", _AFRESH)
        return kind()

    def _damage(self, part: str, what: str, lost: str) -> None:
        # A label a part: each is logged once, whatever else was damaged before.
        label = f"saved state, part {part!r}" if part else "saved state"
        self._faults.note(label, text=f"{what}. {lost}", always=lost is _SPENDING)
