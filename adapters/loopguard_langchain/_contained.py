"""Keeps faults of ours out of the runs that are watched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from loopguard_core import LoopGuard
from loopguard_langchain._stop import LoopGuardStop


class _Watching(Protocol):
    @property
    def guard(self) -> LoopGuard: ...


F = TypeVar("F", bound=Callable[..., Any])


def contained(method: F) -> F:
    """Let nothing but a stop out: a fault of ours must not end somebody's run. The answer is then None."""

    @functools.wraps(method)
    def safe(self: _Watching, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except LoopGuardStop:
            raise
        except Exception as error:  # noqa: BLE001  # see above
            self.guard.faults.note(f"{type(self).__name__}.{method.__name__}", error)
            return None

    return cast("F", safe)
