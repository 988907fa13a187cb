"""loopguard itself, hand-driven; the preset is the first argument. No tool is declared to be anything."""

from __future__ import annotations

import itertools
import sys

from driver import Answer, main
from scenarios import Round

from loopguard_core import Action, LoopGuard, Policy, ToolCall

_STOPS = (Action.BLOCK, Action.STOP)
_TELLS = (Action.STEER, Action.ESCALATE)


class Guard:
    def __init__(self, preset: str) -> None:
        self._session = LoopGuard(Policy(preset=preset)).session()
        self._ids = itertools.count()

    def play(self, calls: Round) -> Answer:
        ids = [f"call_{next(self._ids)}" for _ in calls]
        decisions = self._session.begin_round(
            [ToolCall(id=one, name=call.tool, arguments=call.args) for one, call in zip(ids, calls, strict=True)]
        )
        actions = {decision.action for decision in decisions}
        if not actions.isdisjoint(_STOPS):
            return "stop"
        for one, call in zip(ids, calls, strict=True):
            self._session.record_result(one, call.result, is_error=call.failed)
        return None if actions.isdisjoint(_TELLS) else "told"


if __name__ == "__main__":
    main(lambda _: Guard(sys.argv[1]))
