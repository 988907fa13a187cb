"""What a plugin and what it gives back have to be, and how each mistake is told."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from loopguard_core._ladder import DETECTORS, Ladder
from loopguard_core.detectors import Detector

HOOKS = (
    "doom_loop_detected",
    "session_end",
    "post_model_call",
    "round_judged",
    "result_recorded",
    "loop_key",
    "detectors",
    "stop_when",
)


def unusable_detector(detector: object) -> str | None:
    """What is wrong with what should be a detector."""
    if not isinstance(detector, Detector) or not isinstance(getattr(detector, "name", None), str):
        kind = f"the class {detector.__name__}" if inspect.isclass(detector) else type(detector).__name__
        return f"{kind}, not an instance with a name"
    ladder: object = detector.ladder
    if not isinstance(ladder, Ladder):
        return f"{detector.name} with a ladder that is a {type(ladder).__name__}; write Ladder(observe=3, ...)"
    return f"{detector.name}, which is a name of loopguard's own" if detector.name in DETECTORS else None


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments that have to be given, as pluggy gives them: by name."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def not_installed(name: str, installed: Iterable[str]) -> str:
    """That a plugin a policy names is not there, and which may have been meant."""
    names = sorted(installed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"installed: {', '.join(names) or 'none'}"
    return f"plugins: no plugin {name!r} is installed; {hint}"


def suggestion(hook: str) -> str:
    """What a name that is no hook's may have meant."""
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in hook).lstrip("_")
    near = difflib.get_close_matches(snake, HOOKS, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"hooks are {', '.join(HOOKS)}"


def one_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a callable of any kind the signature the event hooks have."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    target = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004
    if inspect.iscoroutinefunction(target):

        async def observed(event: object) -> object:
            return await function(event)

        return observed

    def called(event: object) -> object:
        return function(event)

    return called
