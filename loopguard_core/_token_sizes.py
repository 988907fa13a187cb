"""Token estimates of objects that come with every request, such as the tools on offer, each worked out once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from loopguard_core._estimate import estimate_tokens


class TokenSizes:
    """Estimates what objects come to, and knows it for as long as each of them lives.

    To describe a tool takes longer than to judge a round, and few agents change theirs. Nothing is kept alive here. An
    object that cannot be referred to weakly, such as a dict, is described each time: its id may be another one's soon.

    Args:
        text_of: What a model is told of an object. It is taken not to change.
    """

    def __init__(self, text_of: Callable[[Any], str]) -> None:
        self._text_of = text_of
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, things: Iterable[Any]) -> int:
        """Tokens of all of them together; see `estimate_tokens`."""
        return sum(map(self._of_one, things))

    def _of_one(self, thing: Any) -> int:
        key = id(thing)
        found = self._known.get(key)
        if found is not None and found[0]() is thing:
            return found[1]
        tokens = estimate_tokens(self._text_of(thing))
        with suppress(TypeError):
            self._known[key] = weakref.ref(thing, lambda gone: self._forget(key, gone)), tokens
        return tokens

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        found = self._known.get(key)
        if found is not None and found[0] is gone:  # else another object has that id by now
            del self._known[key]
