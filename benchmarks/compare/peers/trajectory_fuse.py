"""trajectory-fuse: the README's wrapper of tools; tools that poll are allowed to repeat, as it advises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from driver import Answer, main
from scenarios import Call, Round
from trajectory_fuse import AgentFuse, DeadlockDetected, fuse_namespace

POLLS = 100
"""The README's own figure for a tool that polls."""


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        self._guarded = fuse_namespace(AgentFuse())
        self._traits = traits
        self._tools: dict[str, Callable[..., str]] = {}
        self._call: Call | None = None

    def _tool(self, name: str) -> Callable[..., str]:
        if name not in self._tools:
            options: dict[str, Any] = {"allow_repeats": POLLS} if self._traits.get(name) == "polls" else {}

            @self._guarded(name=name, **options)
            def tool(**_: Any) -> str:
                assert self._call is not None
                if self._call.failed:
                    raise RuntimeError(self._call.result)
                return self._call.result

            self._tools[name] = tool
        return self._tools[name]

    def play(self, calls: Round) -> Answer:
        for self._call in calls:
            try:
                self._tool(self._call.tool)(**self._call.args)
            except DeadlockDetected:
                return "stop"
            except RuntimeError:
                pass  # the tool's own
        return None


if __name__ == "__main__":
    main(Guard)
