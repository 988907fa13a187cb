"""agentloopguard-sdk: the README's session, all four detectors as they come; no tokens: the scripts cost nothing."""

from __future__ import annotations

from collections.abc import Mapping

import agentloopguard
from agentloopguard.exceptions import LoopDetectedError
from driver import Answer, main
from scenarios import Round


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        self._session = agentloopguard.LoopGuard().session()

    def play(self, calls: Round) -> Answer:
        try:
            for call in calls:
                step = {"tool_name": call.tool, "tool_args": call.args, "output": call.result, "model": "gpt-4o"}
                self._session.record(step | {"input_tokens": 0, "output_tokens": 0})
        except LoopDetectedError:
            return "stop"
        return None


if __name__ == "__main__":
    main(Guard)
