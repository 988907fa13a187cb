"""The runs that are going on, and which one a step belongs to."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from workflows.errors import WorkflowCancelledByUser
from workflows.handler import WorkflowHandler

from loopguard_core import EndReason, LoopGuard, Session
from loopguard_llama_index import _seams as seams
from loopguard_llama_index._run import Run

_runs: dict[str, Run] = {}
"""By LlamaIndex's id of the run, which every step and every tool can read; a run is taken out when it is over."""

_latest: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
"""The run that goes on with a session, by the session's id: after a resume an older one has nothing to say any more."""

_sessions: weakref.WeakKeyDictionary[WorkflowHandler, Run] = weakref.WeakKeyDictionary()

_starting: ContextVar[Run | None] = ContextVar("loopguard_llama_index_starting", default=None)


@contextmanager
def starting(run: Run) -> Iterator[None]:
    """Around LlamaIndex's own `run`: event loops with eager tasks take the first steps in there."""
    token = _starting.set(run)
    try:
        yield
    finally:
        _starting.reset(token)


def started(run: Run, handler: WorkflowHandler) -> None:
    """LlamaIndex started it: note its id, and notice when it is over."""
    _note(run, handler.run_id)
    _sessions[handler] = run
    seams.when_done(handler, lambda error: _over(run, error))


def _note(run: Run, run_id: str) -> None:
    run.run_id = run_id
    _runs[run_id] = run


async def current(ctx: Any) -> Run | None:
    """The guarded run this step belongs to; None outside one."""
    run_id = seams.current_run_id()
    if run_id is None:
        return None
    run = _runs.get(run_id)
    if run is None:
        run = _starting.get()
        if run is None or run.run_id is not None:
            return None
        _note(run, run_id)
    if run.known is None:
        with run.guard.faults.contained("llama_index the run's session"):
            await run.resume(ctx)
            _latest[run.session.id] = run
    return run


def guards(guard: LoopGuard, run_id: str) -> bool:
    """Whether the hooks on an agent watch that run for this guard."""
    run = _runs.get(run_id)
    return run is not None and run.guard is guard


def session_of(handler: WorkflowHandler) -> Session | None:
    """The session of a run, for its figures and its verdict; None for a run that is not guarded.

    Args:
        handler: What `run` returned.
    """
    run = _sessions.get(handler)
    return None if run is None else run.known


async def closed(run: Run) -> None:
    """The run comes to its end in a step of ours: the one place where `async` hooks can be waited for."""
    with run.guard.faults.contained("llama_index the end of a run"):
        run.session.end("max_turns" if run.turn_limit else None)
        await run.guard.adrain()


def _over(run: Run, error: BaseException | None) -> None:
    """The run is over, in whatever way."""
    if run.run_id is not None:
        _runs.pop(run.run_id, None)
    with run.guard.faults.contained("llama_index the end of a run"):
        session = run.known if run.resumes else run.session
        if session is None or _latest.get(session.id, run) is not run:
            return
        reason, cause = _reason(run, error)
        session.end(reason, cause)


def _reason(run: Run, error: BaseException | None) -> tuple[EndReason | None, BaseException | None]:
    if run.turn_limit:
        return "max_turns", error
    if isinstance(error, (WorkflowCancelledByUser, asyncio.CancelledError)):
        # Cancelling what waits for a human is how a run is put away, to go on from its saved context.
        return ("paused", None) if run.waiting else ("cancelled", None)
    return None, error
