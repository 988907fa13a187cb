"""`guard_agent`: guards a finished agent or workflow, in place."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent
from llama_index.core.llms import LLM

from loopguard_core import LoopGuard, PolicyLike, as_guard
from loopguard_llama_index import _hooks as hooks
from loopguard_llama_index import _seams as seams
from loopguard_llama_index._run import Attached, escalates
from loopguard_llama_index._stop import OnStop, checked
from loopguard_llama_index._surfaces import AGENT

W = TypeVar("W", bound=AgentWorkflow | BaseWorkflowAgent)


def guard_agent(
    agent_or_workflow: W,
    guard: LoopGuard | PolicyLike = None,
    escalate_llm: LLM | None = None,
    *,
    on_stop: OnStop | None = None,
) -> W:
    """Guard every run of an agent or of a whole workflow.

    A workflow's agents need no guard of their own. Guarding the same object again replaces what it was guarded with.
    One guard serves any number of agents, and any number of runs at once.

    Args:
        agent_or_workflow: A `FunctionAgent`, `ReActAgent`, `CodeActAgent`, `AgentWorkflow`, or a subclass of one.
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        escalate_llm: The stronger model for escalated turns; None takes the policy's `escalation.models.llama_index`,
            as the agent's own client with that model's name.
        on_stop: How a stop ends a run: `end` with a closing message, `answer` once more without tools, or `raise` a
            `LoopGuardStop`; None takes the policy's `on_stop.how`.

    Returns:
        The same object.

    Raises:
        TypeError: It is neither an agent nor an `AgentWorkflow`, or `escalate_llm` is no LLM.
        LoopGuardError: The installed llama-index-core lacks what this hooks into.
        PolicyError: The policy cannot be used.
        ValueError: `on_stop` is none of the three.
    """
    if not isinstance(agent_or_workflow, (AgentWorkflow, BaseWorkflowAgent)):
        raise TypeError(
            f"guard_agent takes an agent or an AgentWorkflow, not {type(agent_or_workflow).__name__}: for a workflow "
            "of your own see guard_tool and LoopGuardEventHandler"
        )
    if escalate_llm is not None and not isinstance(escalate_llm, LLM):
        raise TypeError(
            f"escalate_llm must be an LLM, such as OpenAI(model='gpt-5'), not {escalate_llm!r}: a model's name goes "
            "into the policy's escalation.models.llama_index"
        )
    seams.check(agent_or_workflow)
    made = as_guard(guard)
    attached = Attached(made, checked(on_stop, made.policy.on_stop.how), escalate_llm)
    made.attach(AGENT, escalation=escalates(attached))
    hooks.install(agent_or_workflow, attached)
    return agent_or_workflow


def unguard(agent_or_workflow: W) -> W:
    """Leave an agent or a workflow as it was before `guard_agent`. Runs that are going on are not guarded any more.

    Args:
        agent_or_workflow: The object; one that is not guarded stays as it is.

    Returns:
        The same object.
    """
    hooks.uninstall(agent_or_workflow)
    return agent_or_workflow


class LoopGuardMixin:
    """Makes a class whose agents are guarded from the start: `class MyAgent(LoopGuardMixin, FunctionAgent)`.

    Also for subclasses of `AgentWorkflow`. The constructor takes `guard`, `escalate_llm` and `on_stop`, as
    `guard_agent` does.

    Attributes:
        loopguard: What guards agents that are given no `guard`.
    """

    loopguard: ClassVar[LoopGuard | PolicyLike] = None

    def __init__(
        self,
        *args: Any,
        guard: LoopGuard | PolicyLike = None,
        escalate_llm: LLM | None = None,
        on_stop: OnStop | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        given = type(self).loopguard if guard is None else guard
        guard_agent(self, given, escalate_llm, on_stop=on_stop)  # type: ignore[type-var]  # what it is mixed into
