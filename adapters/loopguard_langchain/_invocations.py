"""Which session belongs to a node of the graph: this invocation's, or one that goes on from the graph's saved state."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.runtime import Runtime

from loopguard_core import EndReason, LoopGuard, LoopGuardStop, Session, current_session
from loopguard_langchain._surfaces import MIDDLEWARE
from loopguard_langchain.callback import LoopGuardCallbackHandler

MAX_RESUMED = 1_000
"""Resumed runs that are not written into a graph's state yet; those resumed longest ago go first."""


class Run(dict[str, Any]):
    """One invocation of the graph: it lives in the graph's state, and dies with it.

    It is a dict, and stays an empty one, because users may serialise what a graph streams.

    Attributes:
        session: The run's session.
        control: LangGraph's object for this invocation.
        key: What a resumed run is found by until it is written into the graph's state.
        kept: Whether the graph's state outlives this process, so that the counters must be in it.
        refused: Text and judged arguments of the calls of the running round that must not run, by id.
        steps: First and last step of the graph that was seen, and the most there may be.
    """

    __slots__ = ("__weakref__", "control", "kept", "key", "refused", "session", "steps")

    session: Session
    control: object
    key: str | int
    kept: bool
    refused: dict[str, list[Any]]
    steps: list[int]

    @classmethod
    def of(
        cls, session: Session, control: object, *, kept: bool, refused: dict[str, list[Any]], steps: list[int]
    ) -> Run:
        """A run. Not the constructor: LangGraph copies state with `type(value)(items)` to print it."""
        run = cls()
        run.session, run.control, run.key = session, control, ""
        run.kept, run.refused, run.steps = kept, refused, steps
        return run

    __hash__ = object.__hash__  # type: ignore[assignment]  # for the weak reference

    def __deepcopy__(self, memo: Any) -> Run:
        return self

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[()]]:
        return dict, ()


class Invocations:
    """Finds and makes runs.

    Args:
        guard: Holds the sessions.
        escalation_model: Name of the stronger model given in code; None leaves it to the policy.
    """

    def __init__(self, guard: LoopGuard, escalation_model: str | None) -> None:
        self._guard = guard
        self._escalation_model = escalation_model
        self._lock = threading.RLock()
        self._resumed: OrderedDict[str | int, Run] = OrderedDict()

    def start(self, state: Any, runtime: Runtime[Any]) -> Run:
        """A new run."""
        left = self._guard.live((state.get("loopguard_session") or {}).get("id", ""))
        if left is not None:  # it waited for a human who said something else
            left.end("cancelled")
        run = self._open({}, runtime)
        self._adopt(run)
        return run

    def of(self, state: Any, runtime: Runtime[Any]) -> Run:
        """The run: this invocation's, or, after a resume or a step back in history, one made from the saved state."""
        run = state.get("loopguard_run")
        if not isinstance(run, Run) or not hasattr(run, "session"):
            run = self._resume(state.get("loopguard_session") or {}, runtime)
        self._adopt(run)
        return run

    def _resume(self, saved: dict[str, Any], runtime: Runtime[Any]) -> Run:
        session_id = saved.get("id", "")
        with self._lock:  # several tools of a resumed round come here at once
            # By invocation, where a thread began without us: it has no session yet.
            key = session_id or id(runtime.control)
            before = self._resumed.get(key)  # gone only when the lock is free again: hooks may be told then
            if before is not None and before.control is runtime.control:
                return before
            live = self._guard.live(session_id)
            if live is not None and saved.get("mark") != _mark(live):  # the graph stands at an earlier point
                self._guard.discard(live.id)
                live = None
            if live is not None and live.ended is None:  # it waited where nobody saw it, as between two nodes
                live.continued()  # the time since then was no activity
                live.pause()
                live.end()
            run = self._open(saved, runtime)
            run.session.continued()
            # Until the next model node writes it into the graph's state, nothing else keeps it.
            self._resumed[key] = run
            self._resumed.move_to_end(key)
            run.key = key
            if len(self._resumed) > MAX_RESUMED:
                _, before = self._resumed.popitem(last=False)
            return run

    def _open(self, saved: dict[str, Any], runtime: Runtime[Any]) -> Run:
        info = runtime.execution_info
        thread_id = None if info is None else info.thread_id
        config = get_config()
        metadata = config.get("metadata") or {}
        session = self._guard.session(
            saved.get("id"),
            parent=current_session(),
            agent=metadata.get("lc_agent_name"),
            state=saved.get("state"),
            surface=MIDDLEWARE,
            escalation_model=self._escalation_model,
            framework_run_id=thread_id if info is None or info.run_id is None else info.run_id,
        )
        kept = thread_id is not None  # there is no checkpointing without a thread
        step = metadata.get("langgraph_step", 0)
        steps = [step, step, config.get("recursion_limit", sys.maxsize)]
        run = Run.of(session, runtime.control, kept=kept, refused=saved.get("blocked") or {}, steps=steps)
        self._guard.end_with(run, session, partial(_unseen_reason, steps, kept=kept))
        return run

    def _adopt(self, run: Run) -> None:
        """Note how far the graph is, and tell a callback handler of the same guard that this run is looked after."""
        config = get_config()
        run.steps[1] = (config.get("metadata") or {}).get("langgraph_step", 0)
        callbacks = config.get("callbacks")
        if not isinstance(callbacks, BaseCallbackManager):
            return
        for handler in callbacks.handlers:
            if isinstance(handler, LoopGuardCallbackHandler) and handler.guard is self._guard:
                handler.adopt(callbacks.parent_run_id, run.session)

    def update(self, run: Run) -> dict[str, Any]:
        """What goes into the graph's state: the run, and all of its session where the state is checkpointed."""
        self.forget(run)
        if not run.kept:
            return {"loopguard_run": run}
        session = run.session
        kept = {"id": session.id, "mark": _mark(session), "state": session.save(), "blocked": run.refused}
        return {"loopguard_run": run, "loopguard_session": kept}

    def waits(self, run: Run) -> bool:
        """Whether a resumed run still has to be written into the graph's state."""
        return self._resumed.get(run.key) is run

    def over(self, run: Run) -> None:
        """The run has come to its end."""
        run.session.end()
        self.forget(run)

    @contextmanager
    def leaving(self, run: Run) -> Iterator[None]:
        """Around whatever may end a run by an exception, or have it wait for a human."""
        try:
            yield
        except BaseException as error:
            with self._guard.faults.contained("the end of a run"):
                if isinstance(error, GraphInterrupt):
                    run.session.pause()
                    run.session.end()
                elif not isinstance(error, GraphBubbleUp) or isinstance(error, LoopGuardStop):
                    run.session.end(error=error, may_go_on=True)
                self.forget(run)
            raise

    def forget(self, run: Run) -> None:
        """The run is written there, or is over before it was."""
        with self._lock:
            if self._resumed.get(run.key) is run:
                del self._resumed[run.key]


def _mark(session: Session) -> list[int]:
    return [session.turns, session.model_calls]


def _unseen_reason(steps: list[int], *, kept: bool) -> EndReason:
    """Why a run ended that nobody saw end."""
    first, last, most = steps
    if last - first + 1 >= most:  # LangGraph's own turn limit
        return "max_turns"
    return "paused" if kept else "error"  # a checkpointed run can be gone on with
