"""longguard: the README's loop around its circuit breaker, with the README's threshold.

Its steps have a thought: the call, named in a sentence, since empty ones all look alike to it.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping

from driver import Answer, main
from longguard import AgentStep, CircuitBreaker, GuardConfig
from scenarios import Round

logging.disable(logging.WARNING)


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        self._breaker = CircuitBreaker(GuardConfig(tool_repeat_threshold=3))
        self._steps = itertools.count(1)

    def play(self, calls: Round) -> Answer:
        actions = {
            self._breaker.check(
                AgentStep(
                    step_number=next(self._steps),
                    thought=f"Next I call {call.tool} with {json.dumps(call.args)}.",
                    action=call.tool,
                    action_input=call.args,
                    observation=call.result,
                    tokens_used=0,
                )
            ).action
            for call in calls
        }
        if "kill" in actions:
            return "stop"
        return "told" if "reflect" in actions else None


if __name__ == "__main__":
    main(Guard)
