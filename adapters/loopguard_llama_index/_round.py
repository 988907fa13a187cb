"""The calls of the running round, and what was decided about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.agent.workflow import ToolCallResult
from llama_index.core.tools import ToolSelection

from loopguard_core import Session, Verdict
from loopguard_core import ToolCall as Call
from loopguard_llama_index import _translate as translate

HANDOFF = "handoff"
"""The reserved name of the tool by which an `AgentWorkflow` changes agents."""

NOT_EXECUTED = "[loopguard] This call was not executed: the run was ended."


@dataclass(slots=True)
class Asked:
    """One call of the running round.

    Attributes:
        call: The call in the core's words; its id is unique in the round, which a provider's need not be.
        tool_id: The id LlamaIndex knows it by.
        refused: What takes the place of its result, if it must not run.
        started: Whether it was started.
        done: Whether its result was recorded.
    """

    call: Call
    tool_id: str
    refused: str | None = None
    started: bool = False
    done: bool = False


@dataclass(slots=True)
class Round:
    """One model response's calls.

    Attributes:
        calls: They, in order.
    """

    calls: list[Asked] = field(default_factory=list)

    @classmethod
    def of(cls, selections: Sequence[ToolSelection], *, handoffs: bool) -> Round:
        """The round a response asks for.

        Args:
            selections: The calls.
            handoffs: Whether the tool `handoff` hands over to another agent here; that is never refused.
        """
        asked: list[Asked] = []
        taken: set[str] = set()
        for number, selection in enumerate(selections):
            unique = selection.tool_id if selection.tool_id not in taken else f"{selection.tool_id}#{number}"
            taken.add(unique)
            refusable = not (handoffs and selection.tool_name == HANDOFF)
            call = Call(unique, selection.tool_name, selection.tool_kwargs, refusable=refusable)
            asked.append(Asked(call, selection.tool_id))
        return cls(asked)

    def judge(self, session: Session) -> list[Verdict]:
        """Let the session judge all calls before any of them runs.

        Returns:
            The verdicts, one for each thing that was found.
        """
        decisions = session.begin_round([asked.call for asked in self.calls])
        stopped = session.stop is not None
        for asked, decision in zip(self.calls, decisions, strict=True):
            if decision.blocked and (asked.call.refusable or stopped):
                asked.refused = decision.message or NOT_EXECUTED
        return [decision.verdict for decision in decisions if decision.verdict is not None and not decision.duplicate]

    def find(self, name: str, arguments: Any, tool_id: str | None = None) -> Asked | None:
        """The call that is being started; one that was not started before, if there is the choice.

        Args:
            name: The tool.
            arguments: Its arguments.
            tool_id: LlamaIndex's id of the call, where it is known.
        """
        same = [
            asked
            for asked in self.calls
            if asked.call.name == name
            and asked.call.arguments == arguments
            and (tool_id is None or asked.tool_id == tool_id)
        ]
        return next((asked for asked in same if not asked.started), same[0] if same else None)

    def find_by_name(self, name: str) -> Asked | None:
        """A call of that tool that was not started, where its arguments were changed since."""
        return next((asked for asked in self.calls if asked.call.name == name and not asked.started), None)

    @property
    def over(self) -> bool:
        """Whether every call that may run has returned."""
        return all(asked.done or asked.refused is not None for asked in self.calls)

    def refusals(self) -> Iterator[ToolCallResult]:
        """The results of a round in which nothing runs."""
        for asked in self.calls:
            yield translate.refusal(asked.tool_id, asked.call.name, asked.call.arguments, asked.refused or NOT_EXECUTED)

    def refused(self) -> dict[str, str]:
        """What takes the place of the results of refused calls, by LlamaIndex's ids."""
        return {asked.tool_id: asked.refused for asked in self.calls if asked.refused is not None}
