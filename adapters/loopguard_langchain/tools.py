"""`guard_tools`: tools that ask the callback handler before they run, and so can be refused anywhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from pydantic import PrivateAttr

from loopguard_core import LoopGuard, PolicyLike, as_guard, current_session
from loopguard_langchain import _translate as translate
from loopguard_langchain._guarded import refusable
from loopguard_langchain._surfaces import GUARDED_TOOLS
from loopguard_langchain._watchers import Watchers


class _Guards:
    """The guards a tool asks. Copies of the tool ask the same ones."""

    def __init__(self, guards: tuple[LoopGuard, ...]) -> None:
        self.guards = guards

    def __deepcopy__(self, memo: Any) -> _Guards:
        return self

    def refusal(self, tool: BaseTool, callbacks: Callbacks, call_id: str | None) -> Any:
        """The answer to a call that must not run."""
        return self._first(tool, call_id, lambda guard: _refusal(guard, tool, callbacks, call_id))

    def last_words(self, tool: BaseTool, callbacks: Callbacks, call_id: str | None, error: Exception) -> Any:
        """The answer to a call that ended the run it was made in."""
        return self._first(
            tool, call_id, lambda guard: Watchers(guard, callbacks, tool.callbacks).last_words(call_id, error)
        )

    def _first(self, tool: BaseTool, call_id: str | None, say: Callable[[LoopGuard], str | None]) -> Any:
        for guard in self.guards:
            try:
                text = say(guard)
            except Exception as error:  # noqa: BLE001  # a fault of ours must not keep a tool from running
                guard.faults.note("guard_tools", error)
                continue
            if text is not None:
                return text if call_id is None else translate.refusal(call_id, tool.name, text)
        return None


def guard_tools(tools: Sequence[BaseTool | Callable[..., Any]], guard: LoopGuard | PolicyLike = None) -> list[BaseTool]:
    """Tools that can be refused: in hand-written loops, any `ToolNode`, `create_react_agent` and `AgentExecutor`.

    The decision comes from the `LoopGuardCallbackHandler` of the same guard that watches the run; with none, the tool
    runs and the log says so once. Make the guarded tools before the handler: it then knows what it can do.

    Args:
        tools: Tools, or functions to make tools of.
        guard: The handler's guard. Give a `LoopGuard`: what else it takes makes a guard no handler shares.

    Returns:
        Copies of the tools, each still an instance of its tool's class.

    Raises:
        PolicyError: The policy cannot be used.
        TypeError: `tools` is no list of tools and functions.
    """
    given = _checked(tools)
    shared = as_guard(guard)
    guarded = [_guarded(each if isinstance(each, BaseTool) else as_tool(each), shared) for each in given]
    if guarded:
        refusable(shared).names.update(each.name for each in guarded)
        shared.attach(GUARDED_TOOLS)
    return guarded


def _checked(tools: Any) -> list[BaseTool | Callable[..., Any]]:
    # A single tool can be iterated over, as every pydantic model can: over its fields.
    if isinstance(tools, BaseTool | str | Mapping) or not isinstance(tools, Iterable):
        raise TypeError(
            f"tools = {tools!r:.80}: must be a list of tools or functions, as in guard_tools([search], guard)"
        )
    given = list(tools)
    for place, each in enumerate(given):
        if isinstance(each, Mapping):
            raise TypeError(
                f"tools[{place}] = {each!r:.80}: a tool given as a dict runs at the provider and cannot be guarded;"
                " leave it out"
            )
        if not isinstance(each, BaseTool) and not callable(each):
            raise TypeError(f"tools[{place}] = {each!r:.80}: must be a tool, or a function to make one of")
    return given


def _guarded(tool: BaseTool, guard: LoopGuard) -> BaseTool:
    before = getattr(tool, "_loopguard", None)
    guards = before.guards if isinstance(before, _Guards) else ()
    if guard in guards:
        return tool
    proxy = copy.copy(tool)
    if not guards:
        # A class of its own, since `run` is looked up there; the instance stays as it is, with whatever it holds.
        object.__setattr__(proxy, "__class__", _guarded_class(type(tool)))
    private = {**(proxy.__pydantic_private__ or {}), "_loopguard": _Guards((*guards, guard))}
    object.__setattr__(proxy, "__pydantic_private__", private)
    return proxy


@lru_cache(maxsize=256)
def _guarded_class(kind: type[BaseTool]) -> type[BaseTool]:
    class Guarded(kind):  # type: ignore[valid-type, misc]  # known only at run time
        _loopguard: Any = PrivateAttr(default=None)

        # What was given is passed on as it is: a class of somebody's own may take less than `BaseTool.run` does.
        def run(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
            callbacks, call_id = _callbacks(args, kwargs), kwargs.get("tool_call_id")
            refused = self._loopguard.refusal(self, callbacks, call_id)
            if refused is not None:
                return refused
            try:
                return super().run(tool_input, *args, **kwargs)
            except Exception as error:
                words = self._loopguard.last_words(self, callbacks, call_id, error)
                if words is None:
                    raise
                return words

        async def arun(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
            callbacks, call_id = _callbacks(args, kwargs), kwargs.get("tool_call_id")
            refused = self._loopguard.refusal(self, callbacks, call_id)
            if refused is not None:
                return refused
            try:
                return await super().arun(tool_input, *args, **kwargs)
            except Exception as error:
                words = self._loopguard.last_words(self, callbacks, call_id, error)
                if words is None:
                    raise
                return words

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Guarded, name, getattr(kind, name))
    return Guarded


def _callbacks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callbacks:
    """What `BaseTool.run` was given as its fifth parameter."""
    given: Callbacks = kwargs.get("callbacks", args[3] if len(args) > 3 else None)
    return given


def _refusal(guard: LoopGuard, tool: BaseTool, callbacks: Callbacks, call_id: str | None) -> str | None:
    if not guard.enabled:
        return None
    watchers = Watchers(guard, callbacks, tool.callbacks)
    if watchers:
        return watchers.refusal(call_id, tool.name)
    session = current_session()
    if session is None or guard.live(session.id) is not session:  # else a middleware or a wrapper let it through
        text = (
            "A guarded tool ran where no LoopGuardCallbackHandler of its guard watches, so nothing can refuse it. "
            "Pass the handler in the config, or use `with loop_guard_callback(guard)`."
        )
        guard.faults.note("guard_tools", text=text)
    return None
