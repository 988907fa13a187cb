"""`loop_guard_callback`: a handler for everything that runs in a `with` block, without passing a config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackManager, Callbacks
from langchain_core.tracers.context import register_configure_hook

from loopguard_core import LoopGuard, PolicyLike
from loopguard_langchain.callback import LoopGuardCallbackHandler, OnStop

_installed: ContextVar[LoopGuardCallbackHandler | None] = ContextVar("loopguard_handler", default=None)

# LangChain then adds it to whatever runs in the context, and passes it on to what runs inside of that.
register_configure_hook(_installed, inheritable=True)


@contextmanager
def loop_guard_callback(
    guard: LoopGuard | PolicyLike = None, *, on_stop: OnStop = "raise"
) -> Iterator[LoopGuardCallbackHandler]:
    """Watch every LangChain run in a block: hand-written loops, raw graphs, sync and async.

    The end of the block ends the sessions of hand-written loops. Threads that are started without the context (a bare
    `ThreadPoolExecutor`) are not watched. Of nested blocks the innermost is in force.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        on_stop: See `LoopGuardCallbackHandler`.

    Yields:
        The handler. Passing it on in a config too counts nothing twice.

    Raises:
        PolicyError: The policy cannot be used.
    """
    handler = LoopGuardCallbackHandler(guard, on_stop=on_stop)
    token = _installed.set(handler)
    try:
        with handler:
            yield handler
    finally:
        with suppress(ValueError):  # left in another context than it was entered in, as pytest's async fixtures are
            _installed.reset(token)


def watching(guard: LoopGuard, *given: Callbacks) -> tuple[list[LoopGuardCallbackHandler], UUID | None]:
    """The handlers of a guard that watch a run, and the run they know.

    Args:
        guard: The guard.
        given: What LangChain is given as callbacks: its own, and an object's.
    """
    handlers = [_installed.get()]
    parent_run_id: UUID | None = None
    for callbacks in given:
        if isinstance(callbacks, BaseCallbackManager):
            handlers += [each for each in callbacks.handlers if isinstance(each, LoopGuardCallbackHandler)]
            parent_run_id = parent_run_id or callbacks.parent_run_id
        else:
            handlers += [each for each in callbacks or () if isinstance(each, LoopGuardCallbackHandler)]
    found = {id(each): each for each in handlers if each is not None and each.guard is guard}
    return list(found.values()), parent_run_id


def refusal_by(
    handlers: list[LoopGuardCallbackHandler], parent_run_id: UUID | None, call_id: str | None, tool: str
) -> str | None:
    """What the first handler that knows of a refused call says; None if the call may run."""
    for handler in handlers:
        text = handler.refusal(parent_run_id, call_id, tool)
        if text is not None:
            return text
    return None
