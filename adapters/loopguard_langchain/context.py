"""`loop_guard_callback`: a handler for everything that runs in a `with` block, without passing a config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from langchain_core.tracers.context import register_configure_hook

from loopguard_core import LoopGuard, PolicyLike
from loopguard_langchain._watchers import installed
from loopguard_langchain.callback import LoopGuardCallbackHandler, OnStop

# LangChain then adds it to whatever runs in the context, and passes it on to what runs inside of that.
register_configure_hook(installed, inheritable=True)


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
    token = installed.set(handler)
    try:
        with handler:
            yield handler
    finally:
        with suppress(ValueError):  # left in another context than it was entered in, as pytest's async fixtures are
            installed.reset(token)
