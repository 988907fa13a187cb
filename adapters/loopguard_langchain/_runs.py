"""The tree of LangChain runs a callback handler sees, and which agent run each belongs to."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from loopguard_core import Session

ScopeKey = tuple[UUID, str]
"""The run of the tool (or the root) a scope lies in, and the LangGraph namespace of the agent in it."""


@dataclass(slots=True, eq=False)
class Scope:
    """One agent run.

    Attributes:
        outer: The scope it is nested in; None for the outermost.
        session: Its session; None until the first model call.
        adopted: True if a middleware looks after it.
    """

    outer: Scope | None = None
    session: Session | None = None
    adopted: bool = False

    @property
    def outer_session(self) -> Session | None:
        """The session of the nearest scope outside that has one."""
        scope = self.outer
        while scope is not None and scope.session is None:
            scope = scope.outer
        return None if scope is None else scope.session


@dataclass(slots=True)
class _Run:
    root: UUID
    key: ScopeKey


@dataclass(slots=True)
class _Root:
    thread_id: str | None
    scopes: dict[ScopeKey, Scope] = field(default_factory=dict)
    left: set[UUID] = field(default_factory=set)


class RunTree:
    """Follows runs from their parents, so that sub-agents, models inside tools and concurrent runs do not mix."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[UUID, _Run] = {}
        self._roots: dict[UUID, _Root] = {}

    def start(self, run_id: UUID, parent_id: UUID | None, metadata: dict[str, Any] | None, *, tool: bool) -> bool:
        """Note a run; True if it is a root."""
        with self._lock:
            parent = self._runs.get(parent_id) if parent_id is not None else None
            if parent is None:
                thread_id = (metadata or {}).get("thread_id")
                self._roots[run_id] = _Root(None if thread_id is None else str(thread_id))
                self._note(run_id, _Run(run_id, (run_id, "")), None)
                return True
            anchor = run_id if tool else parent.key[0]
            namespace = parent.key[1] if tool else _agent_namespace(metadata, parent.key[1])
            self._note(run_id, _Run(parent.root, (anchor, namespace)), parent)
            return False

    def _note(self, run_id: UUID, run: _Run, parent: _Run | None) -> None:
        root = self._roots[run.root]
        self._runs[run_id] = run
        root.left.add(run_id)
        if run.key not in root.scopes:
            root.scopes[run.key] = Scope(None if parent is None else root.scopes.get(parent.key))

    def scope(self, run_id: UUID | None) -> Scope | None:
        """The agent run a run belongs to; None for a run that was never seen to start."""
        with self._lock:
            run = self._runs.get(run_id) if run_id is not None else None
            return None if run is None else self._roots[run.root].scopes.get(run.key)

    def thread_id(self, run_id: UUID) -> str | None:
        """The checkpointed thread a run belongs to."""
        with self._lock:
            run = self._runs.get(run_id)
            return None if run is None else self._roots[run.root].thread_id

    def is_root(self, run_id: UUID) -> bool:
        """Whether a run is the outermost."""
        return run_id in self._roots

    def finish(self, run_id: UUID) -> list[Scope]:
        """Forget a run.

        Returns:
            The agent runs that are over with it, innermost first: those inside a tool, or all of a root's.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return []
            root = self._roots[run.root]
            if run.root == run_id:
                del self._roots[run_id]
                for known in root.left:
                    self._runs.pop(known, None)
                return list(root.scopes.values())[::-1]
            root.left.discard(run_id)
            inside = [key for key in root.scopes if key[0] == run_id]
            return [root.scopes.pop(key) for key in inside][::-1]


def _agent_namespace(metadata: dict[str, Any] | None, inherited: str) -> str:
    """The namespace of the agent a LangGraph node belongs to: the node's own, less its last part."""
    namespace = (metadata or {}).get("langgraph_checkpoint_ns")
    return namespace.rpartition("|")[0] if isinstance(namespace, str) else inherited
