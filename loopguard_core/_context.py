"""Which session's tool is running here, so that an agent started inside a tool finds the run it is nested in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from loopguard_core._session import Session


class _Mark:
    """One tool that runs, and the one it runs in."""

    __slots__ = ("around", "left", "session")

    def __init__(self, session: Session, around: _Mark | None) -> None:
        self.session = session
        self.around = around
        self.left = False


_current: ContextVar[_Mark | None] = ContextVar("loopguard_session", default=None)


def current_session() -> Session | None:
    """The session whose tool is running in this thread or task; None outside one."""
    mark = _current.get()
    return None if mark is None else mark.session


@contextmanager
def inside(session: Session) -> Iterator[None]:
    """Mark that a tool of this session runs. Adapters put it around every tool they let through."""
    mark = _Mark(session, _current.get())
    _current.set(mark)
    try:
        yield
    finally:
        # Two guards on one run are told of a tool's end in the order of its start, so the outer mark may go first.
        mark.left = True
        innermost = _current.get()
        while innermost is not None and innermost.left:
            innermost = innermost.around
        _current.set(innermost)
