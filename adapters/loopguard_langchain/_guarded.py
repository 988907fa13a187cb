"""Which tools of a guard's runs can be refused, so that a handler of that guard counts on it.

What runs the tools registers here; it may come before the handler or after it, and neither knows the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from loopguard_core import LoopGuard, Surface, ToolCall
from loopguard_langchain._surfaces import CALLBACK, GUARDED_TOOLS


@dataclass(slots=True)
class Refusable:
    """The tools of one guard's runs that ask before they run.

    Attributes:
        names: By name.
        every: True if all of them do.
    """

    names: set[str] = field(default_factory=set)
    every: bool = False

    @property
    def surface(self) -> Surface:
        """What a handler of that guard can do."""
        return GUARDED_TOOLS if self.every or self.names else CALLBACK

    def mark(self, calls: Iterable[ToolCall]) -> None:
        """Say of each call whether something can refuse it. What LangChain could not parse is never run at all."""
        for call in calls:
            call.refusable = isinstance(call.arguments, dict) and (self.every or call.name in self.names)


_refusable: WeakKeyDictionary[LoopGuard, Refusable] = WeakKeyDictionary()


def refusable(guard: LoopGuard) -> Refusable:
    """What of this guard's runs can be refused; it grows as tools are registered."""
    return _refusable.setdefault(guard, Refusable())
