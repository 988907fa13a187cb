"""The form of a saved session: plain JSON, at most 32 KB, read back part by part so that damage stays local."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from loopguard_core._faults import Faults
from loopguard_core._types import Action, EndReason, Stop, Verdict

T = TypeVar("T")

VERSION = 1

MAX_BYTES = 32 * 1024
"""Size of the saved state as compact ASCII JSON."""

_TEXT_LIMIT = 1024


def stop_to_json(stop: Stop | None) -> dict[str, Any] | None:
    """A stop as plain JSON."""
    if stop is None:
        return None
    saved = {**stop.as_dict(), "message": stop.message[:_TEXT_LIMIT]}
    if stop.verdict is not None:
        call_id = stop.verdict.call_id
        saved["verdict"] |= {
            "message": stop.verdict.message[:_TEXT_LIMIT],
            "call_id": None if call_id is None else str(call_id)[:_TEXT_LIMIT],
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
        verdict = value["verdict"]
        if verdict is not None:
            verdict = Verdict(**{**verdict, "action": Action(verdict["action"])})
        reason = value["reason"]
        if reason not in get_args(EndReason):
            raise ValueError(f"unknown reason {reason!r}")
        return Stop(reason, verdict, str(value["message"]))
    except (KeyError, TypeError) as error:
        raise ValueError("not a saved stop") from error


def _plain(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Evidence of a third party's detector may be anything; what is not small plain JSON is left out."""
    try:
        text = json.dumps(dict(evidence))
    except (TypeError, ValueError, RecursionError):
        return {}
    return dict(evidence) if len(text) <= _TEXT_LIMIT else {}


def fitted(state: dict[str, Any], *, bounded: bool) -> dict[str, Any]:
    """The state, cut to `MAX_BYTES`.

    Args:
        state: What a session saves.
        bounded: True if all detectors are our own, whose state is bounded by construction: measuring costs more than
            saving. A third party's may be of any size or no JSON at all, and goes first.
    """
    if bounded:
        return state
    while _size(state) > MAX_BYTES:
        detectors = state["detectors"]
        largest = max(detectors, key=lambda name: _size(detectors[name]), default=None)
        if largest is None:
            state = {**state, "round": [], "effects": None}
            break
        state = {**state, "detectors": {name: value for name, value in detectors.items() if name != largest}}
    return state


def _size(value: Any) -> int:
    try:
        return len(json.dumps(value, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError):
        return MAX_BYTES + 1


class Parts:
    """Reads a saved state part by part.

    Args:
        state: What `Session.save` gave, possibly damaged on its way.
        faults: Where damage is noted.
    """

    def __init__(self, state: Any, faults: Faults) -> None:
        self._faults = faults
        self._state: Mapping[str, Any] = {}
        if not isinstance(state, Mapping):
            self._damage("it is not an object", "Nothing of it is used: what it had spent is unknown.")
        elif state.get("version") != VERSION:
            self._damage("its version is unknown", "Nothing of it is used: what it had spent is unknown.")
        else:
            self._state = state

    def take(self, name: str, restore: Callable[[Any], None], *, lost: str = "That part starts afresh.") -> None:
        """Hand one part to whoever it belongs to."""
        if not self._state:
            return
        if name not in self._state:
            self._damage(f"part {name!r} is missing", lost)
            return
        self.restore(name, restore, self._state[name], lost=lost)

    def restore(
        self, name: str, restore: Callable[[Any], None], value: Any, *, lost: str = "That part starts afresh."
    ) -> None:
        """Hand a value to whoever it belongs to."""
        try:
            restore(value)
        except Exception as error:  # noqa: BLE001  # any damage at all
            self._damage(f"part {name!r} cannot be read ({type(error).__name__})", lost)

    def get(self, name: str, kind: type[T]) -> T:
        """One part, or an empty one if it is missing or of another kind."""
        value = self._state.get(name)
        if isinstance(value, kind):
            return value
        if self._state:
            self._damage(f"part {name!r} is not a {kind.__name__}", "That part starts afresh.")
        return kind()

    def _damage(self, what: str, lost: str) -> None:
        self._faults.note("saved state", text=f"{what}. {lost}")
