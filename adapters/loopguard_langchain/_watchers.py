"""Finds the callback handlers that watch a run, for what runs its tools."""

from __future__ import annotations

from contextvars import ContextVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackManager, Callbacks

from loopguard_core import LoopGuard, LoopGuardStop
from loopguard_langchain.callback import LoopGuardCallbackHandler

installed: ContextVar[LoopGuardCallbackHandler | None] = ContextVar("loopguard_handler", default=None)
"""The one that `loop_guard_callback` put up."""


class Watchers:
    """The handlers of a guard that watch a run; false if there is none.

    Args:
        guard: The guard.
        given: What LangChain is given as callbacks: the run's own, and an object's.
    """

    def __init__(self, guard: LoopGuard, *given: Callbacks) -> None:
        found = [installed.get()]
        self._run_id: UUID | None = None
        for callbacks in given:
            if isinstance(callbacks, BaseCallbackManager):
                self._run_id = self._run_id or callbacks.parent_run_id
                callbacks = callbacks.handlers
            found += [each for each in callbacks or () if isinstance(each, LoopGuardCallbackHandler)]
        self._handlers = {id(each): each for each in found if each is not None and each.guard is guard}

    def __bool__(self) -> bool:
        return bool(self._handlers)

    def refusal(self, call_id: str | None, tool: str) -> str | None:
        """What to say in place of a call's result; None if it may run."""
        for handler in self._handlers.values():
            text = handler.refusal(self._run_id, call_id, tool)
            if text is not None:
                return text
        return None

    def last_words(self, call_id: str | None, error: BaseException) -> str | None:
        """What to say for a call in which a run was ended that took this one with it; None for any other error.

        The call then has an answer, and this run ends before its next model call.
        """
        if not ends_a_run(error):
            return None
        for handler in self._handlers.values():
            stop = handler.stopped(self._run_id, call_id)
            if stop is not None:
                return stop.message
        return None


def ends_a_run(error: BaseException) -> bool:
    """Whether an exception is how loopguard ends a run; LangGraph's is known by name, it need not be installed."""
    return isinstance(error, LoopGuardStop) or type(error).__name__ == "GraphDrained"
