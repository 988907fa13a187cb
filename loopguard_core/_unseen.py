"""Ending sessions whose run is gone without a word: an exception outside our hooks, a reader that left a stream.

That a run is gone is noticed when the object that lived as long as it did is collected. Hooks must not run there, in
the middle of whatever code was running, so the end is put in a queue and done by a thread of our own, one a process.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

_calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # reentrant: put() is safe during collection
_start = threading.Lock()
_thread: threading.Thread | None = None


def when_gone(owner: object, call: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
    """Make a call, soon and on a daemon thread, once `owner` is collected.

    Args:
        owner: What is waited for.
        call: What is done then. Hooks may run in it.
        failed: Told what the call raised, `SystemExit` included: it must not end the thread all other ends wait for.
    """
    _ensure_thread()  # now, because starting a thread takes locks that collection must not take
    weakref.finalize(owner, _calls.put, partial(_contained, call, failed)).atexit = False


def drain(timeout: float | None) -> None:
    """Wait, at most `timeout` seconds, for the calls that are due."""
    if _thread is not None:
        done = threading.Event()
        _calls.put(done.set)
        done.wait(timeout)


def _contained(call: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001  # see `when_gone`
        with suppress(BaseException):
            failed(error)


def _serve() -> None:
    while True:
        _calls.get()()


def _ensure_thread() -> None:
    global _thread  # one a process
    if _thread is None:
        with _start:
            if _thread is None:
                _thread = threading.Thread(target=_serve, name="loopguard-unseen", daemon=True)
                _thread.start()


def _after_fork() -> None:
    global _calls, _start, _thread  # a child has none of its parent's threads
    _calls, _start, _thread = queue.SimpleQueue(), threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
