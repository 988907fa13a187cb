"""What a context keeps of a run, so that it can go on in another process."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

from loopguard_core import LoopGuard


class Saved(dict[str, Any]):
    """A run's state as a dict of plain JSON that is as new as the moment somebody reads it.

    Nearly every round goes by without anybody reading it, and making it costs more than judging a round does. So a
    context gets this dict once, and whoever serialises the context, or reads from its store, makes it anew. A copy is
    a plain dict; only LlamaIndex's `edit_state`, which copies everything it keeps, gets the very same one back.

    Args:
        guard: Where a fault is noted; the state then is as it was when this was made.
        make: Gives the state as it is now; always with the same keys.
    """

    def __init__(self, guard: LoopGuard, make: Callable[[], dict[str, Any]]) -> None:
        super().__init__(make())  # what is read by those who go past all of the methods below, as some C code does
        self._guard = guard
        self._make = make

    def _now(self) -> dict[str, Any]:
        with self._guard.faults.contained("llama_index saving the session"):
            return self._make()
        return dict(super().items())

    def __getitem__(self, key: str) -> Any:
        return self._now()[key]

    def __iter__(self) -> Iterator[str]:  # without it `dict(saved)` takes a way past `__getitem__`
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """One part of it."""
        return self._now().get(key, default)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # nobody needs more of a view than that
        """All of it: what serialisers ask for."""
        return self._now().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # see above
        """The parts."""
        return self._now().values()

    def __deepcopy__(self, memo: object) -> Saved:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._now(),)
