"""Threads in which the async twins wait, so that no event loop does."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_WORKERS = 8


class Threads:
    """A few threads of a ledger's own: those of the event loop may all be busy with somebody's slow tools."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        _all.add(self)

    def start(self, work: Callable[[], object]) -> None:
        """Do `work` in a thread, and wait for nothing. It may not raise."""
        self._submit(work)

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread. It is finished even if the waiting task is cancelled."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(work)))

    async def acquire(self, work: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Do `work` in a thread; where nobody waits for its result any more, `undo` it there."""
        future = self._submit(work)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: _undo(done, undo))
            raise

    def close(self) -> None:
        """Let the threads end; a later use starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="loopguard-ledger")
            return self._pool.submit(work)

    def forget(self) -> None:
        """In a forked child the threads are gone, and the lock may be held by one of them."""
        self._pool = None
        self._lock = threading.Lock()


def _undo(done: Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())


_all: weakref.WeakSet[Threads] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for threads in list(_all):
        threads.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
