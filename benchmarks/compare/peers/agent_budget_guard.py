"""agent-budget-guard-py: the README's steps and tools, all four detectors as they come.

No progress marker is reported: what progress is only an agent knows, and none is known of the scripts.
"""

from __future__ import annotations

from collections.abc import Mapping

import agentguard
from driver import Answer, main
from scenarios import Round


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        self._guard = agentguard.Guard()

    def play(self, calls: Round) -> Answer:
        try:
            with self._guard.step() as step:
                for call in calls:
                    with step.tool(call.tool, call.args):
                        pass
        except agentguard.LoopDetected:
            return "stop"
        return None


if __name__ == "__main__":
    main(Guard)
