"""loop-guardrail: the README's controller with its hard stop on; tools that read or change things declared."""

from __future__ import annotations

from collections.abc import Mapping

from driver import Answer, main
from loop_guardrail import ToolCallGuardrailConfig, ToolCallGuardrailController
from scenarios import Round


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        own = ToolCallGuardrailConfig()
        reads = {tool for tool, trait in traits.items() if trait in ("reads", "polls")}
        changes = {tool for tool, trait in traits.items() if trait in ("mutates", "runs")}
        self._controller = ToolCallGuardrailController(
            ToolCallGuardrailConfig(
                hard_stop_enabled=True,
                idempotent_tools=own.idempotent_tools | reads,
                mutating_tools=own.mutating_tools | changes,
            )
        )

    def play(self, calls: Round) -> Answer:
        actions = set()
        for call in calls:
            before = self._controller.before_call(call.tool, call.args)
            if before.should_halt:
                return "stop"
            actions.add(self._controller.after_call(call.tool, call.args, call.result, failed=call.failed).action)
        if actions & {"block", "halt"}:
            return "stop"
        return "told" if "warn" in actions else None


if __name__ == "__main__":
    main(Guard)
