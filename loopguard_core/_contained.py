"""A fault of ours becomes a logged answer instead of the end of somebody's run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from loopguard_core._faults import Faults


class HasFaults(Protocol):
    """What the wrapped methods belong to."""

    lock: threading.RLock
    faults: Faults


P = ParamSpec("P")
S = TypeVar("S", bound=HasFaults)
T = TypeVar("T")


def contained(
    fallback: Callable[..., Any],
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """Run a method under its session's lock; if it raises, note the fault and give the fallback's answer."""

    def decorate(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        @functools.wraps(method)
        def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                with self.lock:
                    return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  # see above
                self.faults.note(method.__name__, error)
                answer: T = fallback(*args, **kwargs)
                return answer

        return run

    return decorate


def nothing(*_: Any, **__: Any) -> Any:
    """The answer of a method that has none to give."""
    return None
