"""runbound: `@runbound.tool` in a session of its own, reactions chosen so that it does act on a loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import runbound
from driver import Answer, main
from scenarios import Call, Round

runbound.init(on_anomaly="raise", on_loop="break")
_SESSIONS = itertools.count()


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        self._key = f"run:{next(_SESSIONS)}"
        self._traits = traits
        self._tools: dict[str, Callable[..., str]] = {}
        self._call: Call | None = None

    def _tool(self, name: str) -> Callable[..., str]:
        if name not in self._tools:
            trait = self._traits.get(name)

            @runbound.tool(name=name, polling=trait == "polls", idempotent=trait in ("reads", "polls"))
            def tool(**_: Any) -> str:
                assert self._call is not None
                if self._call.failed:
                    raise RuntimeError(self._call.result)
                return self._call.result

            self._tools[name] = tool
        return self._tools[name]

    def play(self, calls: Round) -> Answer:
        try:
            with runbound.session(self._key):
                for self._call in calls:
                    self._attempt(self._call)
        except runbound.ExecutionRefused:
            return "stop"
        return None

    def _attempt(self, call: Call) -> None:
        try:
            self._tool(call.tool)(**call.args)
        except runbound.ExecutionRefused:
            raise
        except RuntimeError:
            pass  # the tool's own


if __name__ == "__main__":
    main(Guard)
