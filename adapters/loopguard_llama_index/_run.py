"""One run as this adapter knows it: its session, the round that is running, and how it was told to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.agent.workflow import BaseWorkflowAgent, ToolCall, ToolCallResult
from llama_index.core.llms import LLM
from llama_index.core.tools import ToolSelection

from loopguard_core import LoopGuard, Session, Usage, Verdict
from loopguard_llama_index import _translate as translate
from loopguard_llama_index._round import Round
from loopguard_llama_index._saved import Saved
from loopguard_llama_index._stop import OnStop
from loopguard_llama_index._surfaces import ADAPTER, AGENT
from loopguard_llama_index.events import LoopDetectedEvent

STORE_KEY = "loopguard"
"""Where the session's state lies in `ctx.store`, as plain JSON."""

MOST_REFUSALS = 72
"""Refusals of one round that are saved: as many calls as a saved session knows."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What `guard_agent` was given.

    Attributes:
        guard: The guard.
        how: How a stop ends a run.
        escalate_llm: The stronger model, where one was given.
    """

    guard: LoopGuard
    how: OnStop
    escalate_llm: LLM | None = None

    def __deepcopy__(self, memo: object) -> Attached:
        """A copy of an agent is watched by the same guard."""
        return self

    @property
    def escalation_label(self) -> str | None:
        """What the stronger model is called in events; None where the policy names it."""
        if self.escalate_llm is None:
            return None
        return translate.model_name(self.escalate_llm) or type(self.escalate_llm).__name__

    def stronger(self, agent: BaseWorkflowAgent, name: str) -> LLM:
        """The stronger model: what was given, else the agent's own client with the model the policy names.

        Raises:
            TypeError: The agent's client has no model name that could be replaced.
        """
        if self.escalate_llm is not None:
            return self.escalate_llm
        if "model" not in type(agent.llm).model_fields:
            raise TypeError(f"{type(agent.llm).__name__} has no field `model`: pass escalate_llm= to guard_agent")
        return agent.llm.model_copy(update={"model": name})


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """One run.

    Attributes:
        attached: What guards it.
        agent_name: Name of the agent it starts with.
        parent: The session it is nested in.
        resumes: Whether it goes on with a saved one, which is found in the context.
        run_id: LlamaIndex's id of it, once that is known.
        waiting: Ids of calls that wait for a human.
        closing: What ends the run, decided before a model call; the next step closes it.
        turn_limit: Whether LlamaIndex's own limit ended it.
        round: The calls of the last response.
    """

    attached: Attached
    agent_name: str
    parent: Session | None = None
    resumes: bool = False
    run_id: str | None = None
    waiting: set[str] = field(default_factory=set)
    closing: bool = False
    turn_limit: bool = False
    round: Round = field(default_factory=Round)
    _session: Session | None = None
    _in_store: bool = False
    _refused_before: dict[str, str] = field(default_factory=dict)

    @property
    def guard(self) -> LoopGuard:
        """The guard."""
        return self.attached.guard

    @property
    def session(self) -> Session:
        """The session; a new one where none is known yet."""
        if self._session is None:
            self._session = self._open(None, None)
        return self._session

    @property
    def known(self) -> Session | None:
        """The session, if there is one yet."""
        return self._session

    async def resume(self, ctx: Any) -> None:
        """Find the session of a run that goes on from a saved context. Does nothing for any other run."""
        if not self.resumes or self._session is not None:
            return
        saved = await ctx.store.get(STORE_KEY, default=None)
        if self.known is not None:  # another step was faster
            return
        saved = saved if isinstance(saved, dict) else {}
        session_id, refused = saved.get("session"), saved.get("refused")
        self._session = self._open(session_id if isinstance(session_id, str) else None, saved.get("state"))
        self._refused_before = dict(refused) if isinstance(refused, dict) else {}
        self._session.continued()

    def _open(self, session_id: str | None, state: Any) -> Session:
        return self.guard.session(
            session_id,
            parent=self.parent,
            agent=self.agent_name,
            state=state,
            surface=AGENT,
            escalation_model=self.attached.escalation_label,
            framework_run_id=self.run_id,
        )

    async def save(self, ctx: Any, *, for_sure: bool = False) -> None:
        """Leave the session's state in the context, so that the run can go on in another process.

        Args:
            ctx: The context.
            for_sure: True where the run is about to be put away. Else a store that keeps the very object it was given,
                as the usual one does, is not written to again: that object is always up to date.
        """
        if self._in_store and not for_sure:
            return
        with self.guard.faults.contained("llama_index saving the session"):
            saved = Saved(self.guard, self._state)
            await ctx.store.set(STORE_KEY, saved)
            self._in_store = await ctx.store.get(STORE_KEY) is saved

    def _state(self) -> dict[str, Any]:
        refused = self.round.refused()
        return {
            "session": self.session.id,
            "state": self.session.save(),
            "refused": dict(list(refused.items())[:MOST_REFUSALS]),
        }

    # -- rounds ----------------------------------------------------------------------------------------------------

    def judge(self, calls: Sequence[ToolSelection], *, handoffs: bool) -> list[Verdict]:
        """Judge all calls of a response before any of them runs.

        Args:
            calls: The calls.
            handoffs: Whether the tool `handoff` hands over to another agent here.

        Returns:
            The verdicts, one for each thing that was found.
        """
        self._refused_before = {}
        self.round = Round.of(calls, handoffs=handoffs)
        return self.round.judge(self.session)

    def start(self, event: ToolCall) -> tuple[str, str | None]:
        """A call is about to run.

        Returns:
            The id its result is recorded under, and the text that takes its place if it must not run.
        """
        asked = self.round.find(event.tool_name, event.tool_kwargs, event.tool_id)
        if asked is None:  # the run was resumed in the middle of a round
            return event.tool_id, self._refused_before.get(event.tool_id)
        asked.started = True
        if asked.call.id in self.waiting:  # LlamaIndex starts a call that waited over again
            self.waiting.discard(asked.call.id)
            self.session.continued()
        return asked.call.id, asked.refused

    def waits(self, call_id: str) -> None:
        """A call waits for a human; it will be started again."""
        self.waiting.add(call_id)
        for asked in self.round.calls:
            if asked.call.id == call_id:
                asked.started = False
        self.session.pause()

    def returned(self, call_id: str, result: ToolCallResult) -> None:
        """A call returned."""
        self.session.record_result(call_id, translate.shown(result.tool_output), translate.failed(result.tool_output))
        self.waiting.discard(call_id)
        if self.waiting:
            self.session.pause()

    # -- what is read of it ----------------------------------------------------------------------------------------

    def usage(self, raw: Any) -> Usage:
        """What a model call used, by the provider's own response; unknown where that cannot be read."""
        with self.guard.faults.contained("llama_index reading usage"):
            return translate.usage_of(raw)
        return Usage()

    # -- what is said about it -------------------------------------------------------------------------------------

    def tell(self, ctx: Any, verdict: Verdict, agent_name: str | None) -> None:
        """Put a verdict into the run's own event stream."""
        with self.guard.faults.contained("llama_index LoopDetectedEvent"):
            ctx.write_event_to_stream(
                LoopDetectedEvent.of(verdict, agent_name=agent_name, session_id=self.session.id, run_id=self.run_id)
            )


def escalates(attached: Attached) -> bool:
    """Whether there is a stronger model."""
    return attached.escalate_llm is not None or ADAPTER in attached.guard.policy.escalation.models
