"""Which session's tool is running here, so that an agent started inside a tool finds the run it is nested in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from loopguard_core._session import Session

_current: ContextVar[Session | None] = ContextVar("loopguard_session", default=None)


def current_session() -> Session | None:
    """The session whose tool is running in this thread or task; None outside one."""
    return _current.get()


@contextmanager
def inside(session: Session) -> Iterator[None]:
    """Mark that a tool of this session runs. Adapters put it around every tool they let through."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)
