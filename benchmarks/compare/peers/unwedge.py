"""unwedge: the README's own agent loop, without a provider; stopping, which is opt-in, is on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

import unwedge
from driver import Answer, main
from scenarios import Round
from unwedge.adapters.generic import turn_from_command
from unwedge.turns import ToolClass

_CLASSES = {
    "reads": ToolClass.NAVIGATE,
    "polls": ToolClass.NAVIGATE,
    "mutates": ToolClass.EDIT,
    "runs": ToolClass.RUN,
}


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        provider = unwedge.make_provider("none")
        config = unwedge.GuardConfig.for_provider(provider, shadow=False, kill_enabled=True)
        self._guard = unwedge.Guard(goal="Do what the user asked.", provider=provider, config=config)
        self._traits = traits
        self._turns = itertools.count(1)

    def play(self, calls: Round) -> Answer:
        told = False
        for call in calls:
            command = f"{call.tool} {json.dumps(call.args)}"
            kind = _CLASSES.get(self._traits.get(call.tool, ""))
            turn = turn_from_command(next(self._turns), command, call.result, failed=call.failed, tool_class=kind)
            outcome = self._guard.on_turn(turn)
            action = outcome.decision.action.value
            if outcome.enforced and action == "kill":
                return "stop"
            told = told or bool(outcome.hint_text) or action == "escalate"
        return "told" if told else None


if __name__ == "__main__":
    main(Guard)
