"""The tree of LangChain runs a callback handler sees, and which agent run each belongs to."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from langchain_core.messages import BaseMessage

from loopguard_core import LoopGuard, Session
from loopguard_langchain._conversations import Conversation, Conversations

Kind = Literal["chain", "model", "tool"]

MAX_CONVERSATIONS = 256
"""Conversations told apart in one run."""


@dataclass(slots=True, eq=False)
class Scope:
    """One agent run: a graph, the inside of a tool, or whatever was started outermost.

    Attributes:
        owner: The run whose end is its end.
        outer: The scope it lies in.
        thread_id: The checkpointed thread it belongs to.
        namespace: Where in that thread LangGraph keeps it.
        graph: True if it is a LangGraph graph.
        hosted: True if it lies in a graph whose own runs are not seen, as with a handler given to a model only.
        tool: True if it is the inside of a tool.
        caller: The session whose call the tool is.
        session: Its session; None until the first model call.
        main: The conversation `session` is about.
        claimed: True once `main` is settled: it asked for a tool.
        conversations: All that are known, `main` included.
        rounds: Rounds of `main` that this scope saw.
        adopted: True if a middleware looks after it.
        paused: True if it was interrupted.
    """

    owner: UUID
    outer: Scope | None = None
    thread_id: str | None = None
    namespace: str = ""
    graph: bool = False
    hosted: bool = False
    tool: bool = False
    caller: Session | None = None
    session: Session | None = None
    main: Conversation | None = None
    claimed: bool = False
    conversations: Conversations = field(default_factory=lambda: Conversations(MAX_CONVERSATIONS))
    rounds: int = 0
    adopted: bool = False
    paused: bool = False

    @property
    def by_hand(self) -> bool:
        """Whether it may be one step of a hand-written loop."""
        return self.outer is None and not self.graph and not self.tool

    @property
    def around(self) -> Session | None:
        """The session it is nested in."""
        scope: Scope | None = self
        while scope is not None:
            if scope.caller is not None:
                return scope.caller
            scope = scope.outer
            if scope is not None and scope.session is not None:
                return scope.session
        return None


@dataclass(slots=True)
class ModelCall:
    """A model call that runs.

    Attributes:
        conversation: What it belongs to.
        started: When it began.
        structured: True if its tool calls are only the shape of an answer: nothing runs them.
        sent: The messages that were sent.
        model: The model's name.
        heard: Whether text of it was read while it was streamed.
        received: What was streamed.
    """

    conversation: Conversation
    started: float
    structured: bool
    sent: Sequence[BaseMessage] = ()
    model: str | None = None
    heard: bool = False
    received: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """One LangChain run.

    Attributes:
        id: LangChain's id of it.
        scope: The agent run it belongs to.
        namespace: LangGraph's namespace; None outside LangGraph.
        thread_id: The checkpointed thread it runs in.
        node: True for a node of a graph or a task of its functional API.
        model_call: Set while a model call runs that is looked after.
        call_id: The id of the call a tool run answers.
        asking: The conversation that asked for it.
        inside: Marks, while a tool runs, whose tool it is.
    """

    id: UUID
    scope: Scope
    namespace: str | None
    thread_id: str | None
    _open: dict[UUID, Run]
    node: bool = False
    model_call: ModelCall | None = None
    call_id: str | None = None
    asking: Conversation | None = None
    inside: AbstractContextManager[None] | None = None


judging: ContextVar[LoopGuard | None] = ContextVar("loopguard_judging", default=None)
"""Whose middleware looks after the model calls made here: a handler on the model itself sees no run around them."""

_open_runs: WeakKeyDictionary[LoopGuard, WeakValueDictionary[UUID, Run]] = WeakKeyDictionary()
"""What all handlers of a guard follow. A run is followed by one of them, or every round of it would count twice."""


class RunTree:
    """Follows runs from their parents, so that sub-agents, models inside tools and concurrent runs do not mix.

    Args:
        guard: Whose runs they are.
    """

    def __init__(self, guard: LoopGuard) -> None:
        self._lock = threading.Lock()
        self._runs: dict[UUID, Run] = {}
        self._everywhere = _open_runs.setdefault(guard, WeakValueDictionary())

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, run_id: UUID | None) -> Run | None:
        """A run that has not ended; None if it was never seen to start."""
        return None if run_id is None else self._runs.get(run_id)

    def taken(self, run_id: UUID) -> bool:
        """Whether a run is followed already: by another handler of the guard, or by this one, attached twice."""
        return run_id in self._everywhere

    def start(self, run_id: UUID, parent_id: UUID | None, metadata: Mapping[str, Any] | None, kind: Kind) -> Run:
        """Note a run."""
        given = metadata or {}
        namespace: str | None = given.get("langgraph_checkpoint_ns")
        thread_id = None if given.get("thread_id") is None else str(given["thread_id"])
        with self._lock:
            parent = self._runs.get(parent_id) if parent_id is not None else None
            if parent is None:
                hosted = namespace is not None
                scope = Scope(run_id, None, thread_id, namespace or "", hosted=hosted, tool=kind == "tool")
                run = Run(run_id, scope, namespace, thread_id, {})
            else:
                # A namespace its parent does not have makes it a node, and its parent the graph, unless that is a
                # node itself and this one of its tasks.
                node = namespace is not None and namespace != parent.namespace
                if node and not parent.node:
                    self._make_graph(parent)
                scope = Scope(run_id, parent.scope, tool=True) if kind == "tool" else parent.scope
                run = Run(run_id, scope, namespace, thread_id, parent._open, node)  # noqa: SLF001
            self._runs[run_id] = run._open[run_id] = self._everywhere[run_id] = run  # noqa: SLF001
            return run

    def graph(self, run_id: UUID | None) -> Scope | None:
        """The scope of a run that is a graph."""
        with self._lock:
            run = self._runs.get(run_id) if run_id is not None else None
            return None if run is None else self._make_graph(run)

    def _make_graph(self, run: Run) -> Scope:
        if run.scope.owner != run.id:
            run.scope = Scope(run.id, run.scope, run.thread_id, run.namespace or "")
        run.scope.graph = True
        return run.scope

    def finish(self, run: Run) -> list[Scope]:
        """Forget a run and, with an outermost one, every run in it whose end was never reported.

        Returns:
            The scopes that are over, innermost first.
        """
        with self._lock:
            runs = run._open  # noqa: SLF001
            outermost = next(iter(runs), None) == run.id
            over = list(runs.values())[::-1] if outermost else [run]
            for known in over:
                runs.pop(known.id, None)
                self._runs.pop(known.id, None)
                self._everywhere.pop(known.id, None)
            return [known.scope for known in over if known.scope.owner == known.id]


def drain(reason: str) -> None:
    """Have the graph that runs here finish its round and then end."""
    with suppress(
        ImportError, RuntimeError, AttributeError
    ):  # no LangGraph, no graph: the next model call ends the run
        from langgraph.runtime import get_runtime

        control = get_runtime().control
        if control is not None:
            control.request_drain(reason)
