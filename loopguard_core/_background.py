"""Where `async` hook implementations run: on the caller's event loop if there is one, else on a thread of our own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

from loopguard_core._faults import Faults


class Background:
    """Runs coroutines that nobody waits for, and lets those who want to wait do so.

    Args:
        faults: Where a coroutine that raised is noted.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._futures: set[concurrent.futures.Future[None]] = set()
        _all.add(self)

    def submit(self, coroutine: Coroutine[Any, Any, Any], label: str) -> None:
        """Start a coroutine. It runs on the running event loop, or, without one, on a daemon thread."""
        guarded = self._guarded(coroutine, label)
        try:
            task = asyncio.get_running_loop().create_task(guarded)
        except RuntimeError:
            future = asyncio.run_coroutine_threadsafe(self._survived(guarded, label), self._own_loop())
            with self._lock:
                self._futures.add(future)
            future.add_done_callback(self._forget_future)
        else:
            with self._lock:  # the loop holds tasks weakly
                self._tasks.add(task)
            task.add_done_callback(self._forget_task)

    async def adrain(self) -> None:
        """Wait for what was started on the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            mine = [task for task in self._tasks if task.get_loop() is loop and task is not asyncio.current_task()]
        if mine:
            await asyncio.gather(*mine, return_exceptions=True)

    def drain(self, timeout: float | None = 5.0) -> None:
        """Wait, at most `timeout` seconds, for what was started without an event loop."""
        with self._lock:
            futures = list(self._futures)
        if futures:
            concurrent.futures.wait(futures, timeout)

    @property
    def pending(self) -> bool:
        """Whether anything started on an event loop is still running."""
        return bool(self._tasks)

    async def _guarded(self, coroutine: Coroutine[Any, Any, Any], label: str) -> None:
        try:
            await coroutine
        except Exception as error:  # noqa: BLE001  # a plugin's fault must never become the run's
            self._faults.note(label, error)

    async def _survived(self, guarded: Coroutine[Any, Any, None], label: str) -> None:
        """On our own thread: `sys.exit()` in a hook would end the loop, and with it every hook that comes after."""
        try:
            await guarded
        except (SystemExit, KeyboardInterrupt) as error:
            self._faults.note(label, error)

    def forget(self) -> None:
        """In a forked child the thread is gone with what it ran, and the lock may be held by it."""
        self._lock = threading.Lock()
        self._loop, self._futures = None, set()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="loopguard-hooks", daemon=True).start()
                self._loop = loop
            return self._loop

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        with self._lock:
            self._tasks.discard(task)

    def _forget_future(self, future: concurrent.futures.Future[None]) -> None:
        with self._lock:
            self._futures.discard(future)


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for background in list(_all):
        background.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
