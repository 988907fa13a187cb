"""The hooks a plugin may implement (pluggy, project name `loopguard`).

Mark each implementation with `@hookimpl`. It may take fewer arguments than the specification lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

from loopguard_core._events import DoomLoopDetected, PostModelCall, ResultRecorded, RoundJudged, SessionEnd
from loopguard_core._types import Action

if TYPE_CHECKING:
    from loopguard_core._policy import Policy
    from loopguard_core._session import Session
    from loopguard_core.detectors import Detector

PROJECT = "loopguard"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(PROJECT)
"""Marks a method or function as an implementation of the hook it is named after."""


@hookspec
def doom_loop_detected(event: DoomLoopDetected) -> Action | None:
    """A detector fired; called in the round it fired, before anything of that round runs.

    Returns:
        An `Action` that replaces the verdict's, weaker or stronger, or None. The first answer in registration order
        wins. Limits and key limits cannot be overridden. May not be `async`.
    """


@hookspec
def session_end(event: SessionEnd) -> None:
    """A session ended, for whatever reason. May be `async`."""


@hookspec
def post_model_call(event: PostModelCall) -> None:
    """A model call succeeded. May be `async`."""


@hookspec
def round_judged(event: RoundJudged) -> None:
    """The calls of a model response were judged, with a verdict or without; none of them has run. May be `async`."""


@hookspec
def result_recorded(event: ResultRecorded) -> None:
    """A call returned. What loopguard put in place of a result is none. May be `async`."""


@hookspec
def loop_key(tool: str, arguments: Any) -> Any:
    """What of a call's arguments counts, for tools whose policy does not say.

    Returns:
        The key; False to exempt the call; None for no opinion. The first answer wins. May not be `async`.
    """


@hookspec
def detectors(policy: Policy) -> Iterable[Detector]:  # type: ignore[empty-body]
    """Detectors to add. Called for every new session, so give new instances each time. May not be `async`."""


@hookspec
def stop_when(session: Session) -> str | None:
    """Called before each model call.

    Returns:
        A short reason to end the run before that call (`SessionEnd.reason` is `custom`), or None. May not be `async`.
    """
