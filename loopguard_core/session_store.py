"""Saved sessions by their id, so that a run that another worker resumes goes on counting.

    store = open_session_store("redis://host/0")
    session = guard.session("run-1", state=store.load("run-1"))  # a run nobody saved starts afresh
    ...
    store.save(session)

What `Session.save` gives is plain JSON of at most 32 KB, so any other place will do as well: a checkpoint, a row of a
database. Of two workers that save one run the last one wins: a run is to be on one worker at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from loopguard_core._closing import Closing
from loopguard_core._errors import LoopGuardError
from loopguard_core._session import Session

DEFAULT_TTL = 7 * 86_400.0
"""Seconds a session is kept after it was last saved: longer than a run waits for a human."""

MAX_IN_MEMORY = 10_000
"""Sessions a store in memory keeps; then those saved longest ago go."""


class SessionStore(Closing):
    """Keeps what `Session.save` gives, by the session's id. Made by `open_session_store`; usable from any thread.

    Args:
        texts: Where it is kept.
        ttl: Seconds a session is kept after it was last saved.
    """

    def __init__(self, texts: _Texts, *, ttl: float = DEFAULT_TTL) -> None:
        self._texts = texts
        self._milliseconds = max(1, int(ttl * 1000))

    def save(self, session: Session) -> None:
        """Keep the session's state, in place of an earlier one.

        Raises:
            LedgerError: The store cannot be used.
        """
        self._texts.put(_name(session.id), json.dumps(session.save(), separators=(",", ":")), self._milliseconds)

    def load(self, session_id: str) -> Any:
        """What to give to `LoopGuard.session(state=...)`.

        Returns:
            The state; None where there is none. What is no JSON any more is given as it is, so that the session says
            that what was spent is lost.

        Raises:
            LedgerError: The store cannot be used.
        """
        text = self._texts.get(_name(session_id))
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return text

    def delete(self, session_id: str) -> bool:
        """Forget a session; False if there was none.

        Raises:
            LedgerError: The store cannot be used.
        """
        return self._texts.drop(_name(session_id))

    async def asave(self, session: Session) -> None:
        """`save` for event loops."""
        await asyncio.to_thread(self.save, session)

    async def aload(self, session_id: str) -> Any:
        """`load` for event loops."""
        return await asyncio.to_thread(self.load, session_id)

    def close(self) -> None:
        """Close the connections; a later use opens new ones."""
        self._texts.close()


def open_session_store(url: str = "memory://", *, ttl: float = DEFAULT_TTL) -> SessionStore:
    """Open the store at an address. Nothing is connected to before the first use.

    Args:
        url: `redis://[user:password@]host[:port]/0`, `rediss://` or `unix://`, as for the ledger of keys, `?prefix=`
            included; or `memory://`, gone with the process.
        ttl: Seconds a session is kept after it was last saved.

    Raises:
        LoopGuardError: The address cannot be used, or the redis library is not installed.
    """
    scheme = url.partition("://")[0]
    if scheme in ("redis", "rediss", "unix"):
        from loopguard_core.keys._redis import RedisTexts

        return SessionStore(RedisTexts(url, "session"), ttl=ttl)
    if url != "memory://":  # of the address, which may hold a password, nothing is shown
        raise LoopGuardError("store: no address of a session store; write redis://HOST/0 or memory://")
    return SessionStore(_Memory(), ttl=ttl)


class _Texts(Protocol):
    def put(self, name: str, text: str, milliseconds: int) -> None: ...

    def get(self, name: str) -> str | None: ...

    def drop(self, name: str) -> bool: ...

    def close(self) -> None: ...


class _Memory:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, str]] = {}

    def put(self, name: str, text: str, milliseconds: int) -> None:
        with self._lock:
            self._kept.pop(name, None)  # so that the order is that of the last save
            self._kept[name] = (self._clock() + milliseconds / 1000, text)
            while len(self._kept) > MAX_IN_MEMORY:
                del self._kept[next(iter(self._kept))]

    def get(self, name: str) -> str | None:
        with self._lock:
            until, text = self._kept.get(name, (0.0, ""))
            return text if self._clock() < until else None

    def drop(self, name: str) -> bool:
        with self._lock:
            return self._kept.pop(name, None) is not None

    def close(self) -> None:
        pass


def _name(session_id: str) -> str:
    """Ids may be long, may hold anything, and may say who somebody is."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
