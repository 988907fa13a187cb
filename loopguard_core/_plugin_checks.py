"""What a plugin and what it gives back have to be, and how each mistake is told."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pluggy

from loopguard_core._errors import PluginError
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

OBSERVERS = frozenset({"session_end", "post_model_call", "round_judged", "result_recorded"})
"""Hooks whose result is not used; only these may be `async def`."""


def checked_hooks(manager: pluggy.PluginManager, plugin: object, label: str) -> list[str]:
    """The hooks a plugin implements.

    Raises:
        PluginError: It implements none, misspells one, takes an argument the hook does not give, or is `async` where
            a result is used.
    """
    hooks: list[str] = []
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            continue
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            raise PluginError(f"plugin {label}: there is no hook {hook!r}; {_suggestion(hook)}")
        function = getattr(plugin, attribute)
        if options.get("wrapper") or options.get("hookwrapper"):
            raise PluginError(f"plugin {label}: {hook} is a wrapper; loopguard calls implementations one by one")
        if hook not in OBSERVERS and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise PluginError(
                f"plugin {label}: {hook} must be a plain `def`, because its result decides; "
                f"only {' and '.join(sorted(OBSERVERS))} may be `async def`"
            )
        given = tuple(getattr(manager.hook, hook).spec.argnames)
        unknown = [name for name in _required_arguments(function) if name not in given]
        if unknown:
            fix = f"def {attribute}({', '.join(('self', *given))})"
            raise PluginError(f"plugin {label}: {hook} is given no argument {unknown[0]!r}; write {fix}")
        hooks.append(hook)
    if not hooks:
        undecorated = [hook for hook in HOOKS if callable(getattr(plugin, hook, None))]
        hint = f"decorate {undecorated[0]} with @hookimpl" if undecorated else f"hooks are {', '.join(HOOKS)}"
        if inspect.isfunction(plugin):
            hint = "pass a plain function as on_loop=, on_end= or on_model_call="
        elif isinstance(plugin, str):
            hint = f"plugins of installed packages are named in the policy: plugins = [{plugin!r}]"
        raise PluginError(f"plugin {label}: it implements no hook; {hint}")
    return hooks


def unusable_detector(detector: object) -> str | None:
    """What is wrong with what should be a detector."""
    if not isinstance(detector, Detector) or not isinstance(getattr(detector, "name", None), str):
        kind = f"the class {detector.__name__}" if inspect.isclass(detector) else type(detector).__name__
        return f"{kind}, not an instance with a name"
    ladder: object = detector.ladder
    if not isinstance(ladder, Ladder):
        return f"{detector.name} with a ladder that is a {type(ladder).__name__}; write Ladder(observe=3, ...)"
    return f"{detector.name}, which is a name of loopguard's own" if detector.name in DETECTORS else None


def _required_arguments(function: Callable[..., Any]) -> list[str]:
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


def _suggestion(hook: str) -> str:
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
