"""`LoopGuardCallbackHandler`: observes and stops, with langchain-core alone.

A round is a model response. What its tools returned is read from the next request, so unknown tools and models with
handlers of their own are covered too. A callback cannot answer a call in a tool's place: rungs between observe and stop
fall to observe here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from loopguard_core import LoopGuard, PolicyLike, Session, Stop, as_guard, current_session
from loopguard_langchain import _translate as translate
from loopguard_langchain._runs import RunTree, Scope
from loopguard_langchain._stop import LoopGuardStop
from loopguard_langchain._surfaces import CALLBACK

OnStop = Literal["raise", "drain"]

_INTERRUPTS = frozenset({"GraphInterrupt", "NodeInterrupt"})
_TURN_LIMITS = frozenset({"GraphRecursionError"})


class LoopGuardCallbackHandler(BaseCallbackHandler):
    """Watches every agent run it is attached to.

    Pass it in the config: `agent.invoke(..., {"callbacks": [LoopGuardCallbackHandler(guard)]})`. List it last, since
    handlers after one that raises miss the event. One object serves any number of runs at once.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        on_stop: `raise` ends the run before the looping round executes, and leaves that round's calls unanswered in a
            checkpointed history. `drain` lets LangGraph finish the round and then ends the run with a complete
            history: the looping calls run once more. Outside LangGraph `drain` raises.

    Raises:
        PolicyError: The policy cannot be used.
    """

    raise_error = True  # else LangChain logs our stop and goes on
    run_inline = True  # else async runs hop through a thread for every event, at fifteen times the cost

    def __init__(self, guard: LoopGuard | PolicyLike = None, *, on_stop: OnStop = "raise") -> None:
        super().__init__()
        if on_stop not in ("raise", "drain"):
            raise ValueError(f"on_stop must be 'raise' or 'drain', not {on_stop!r}")
        self.guard = as_guard(guard)
        self._on_stop = on_stop
        self._tree = RunTree()
        self._lock = threading.Lock()
        self._started: dict[UUID, float] = {}
        self._paused: dict[str, Session] = {}
        self._loose: dict[int, Session] = {}
        self.guard.attach(CALLBACK)

    def adopt(self, run_id: UUID | None, session: Session) -> None:
        """Leave the agent run that `run_id` is part of to a middleware of the same guard, and only see to its end."""
        scope = self._tree.scope(run_id)
        if scope is not None:
            scope.session, scope.adopted = session, True

    # -- runs --------------------------------------------------------------------------------------------------

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note where a run belongs; a root that resumes an interrupted thread goes on with its session."""
        if not self._tree.start(run_id, parent_run_id, metadata, tool=False):
            return
        thread_id = self._tree.thread_id(run_id)
        with self._lock:
            paused = self._paused.pop(thread_id, None) if thread_id is not None else None
        if paused is None:
            return
        scope = self._tree.scope(run_id)
        if scope is not None and _resumes(inputs):
            scope.session = paused
        else:
            paused.end("cancelled")

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A root that ends, ends its sessions."""
        self._finish(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Like `on_chain_end`; an interrupt is a pause, and LangGraph's own turn limit is `max_turns`."""
        if type(error).__name__ in _INTERRUPTS and not self._tree.is_root(run_id):
            self._pause(run_id)
        self._finish(run_id, error)

    def _pause(self, run_id: UUID) -> None:
        scope = self._tree.scope(run_id)
        if scope is None or scope.session is None:
            return
        scope.session.pause()
        thread_id = self._tree.thread_id(run_id)
        if thread_id is not None and not scope.adopted and scope.outer is None:
            with self._lock:
                self._paused[thread_id] = scope.session

    def _finish(self, run_id: UUID, error: BaseException | None) -> None:
        for scope in self._tree.finish(run_id):
            if scope.session is None:
                continue
            reason: Literal["max_turns"] | None = "max_turns" if type(error).__name__ in _TURN_LIMITS else None
            interrupted = type(error).__name__ in _INTERRUPTS
            scope.session.end(reason, None if interrupted else error)

    # -- model calls -------------------------------------------------------------------------------------------

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Read the results of the last round; stop here if a limit leaves no room for the call."""
        self._tree.start(run_id, parent_run_id, metadata, tool=False)
        scope = self._tree.scope(run_id)
        if scope is None or scope.adopted:
            return
        history = messages[0] if messages else []
        session = self._session(scope, run_id, history, metadata or {}, loose=parent_run_id is None)
        _, results = translate.last_round(history)
        for result in results:
            session.record_result(result.tool_call_id, translate.output_of(result), translate.failed(result))
        if _user_spoke(history):
            session.user_turn()
        stop = session.before_model_call((metadata or {}).get("ls_model_name")).stop
        if stop is not None:
            self._abandon(run_id, scope)
            raise LoopGuardStop(stop)
        self._started[run_id] = time.perf_counter()

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Count the call and judge the round it asks for, before any tool runs."""
        started = self._started.pop(run_id, None)
        scope = self._tree.scope(run_id)
        loose = self._tree.is_root(run_id)
        self._tree.finish(run_id)
        session = None if scope is None or scope.adopted else scope.session
        message = _message_of(response)
        if session is None or message is None:
            return
        session.end_message(translate.finish_reason_of(message))
        session.after_model_call(
            translate.model_of(message),
            translate.usage_of(message),
            None if started is None else time.perf_counter() - started,
        )
        session.begin_round(translate.calls_of(message))
        stop = session.stop
        if stop is not None and (self._on_stop == "raise" or loose):
            if loose:
                session.end()
            raise LoopGuardStop(stop)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Nothing is counted for a failed call."""
        self._started.pop(run_id, None)
        scope = self._tree.scope(run_id)
        self._tree.finish(run_id)
        if scope is not None and not scope.adopted and scope.session is not None:
            scope.session.model_call_failed(error)

    # -- tools -------------------------------------------------------------------------------------------------

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool is a place where another agent may run. In a run that is to end, it is where `drain` takes hold."""
        scope = self._tree.scope(parent_run_id)
        self._tree.start(run_id, parent_run_id, metadata, tool=True)
        session = None if scope is None or scope.adopted else scope.session
        if session is not None and session.stop is not None:
            _drain(session.stop)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Agents inside the tool are over."""
        self._finish(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Agents inside the tool are over; an interrupt is no failure."""
        if type(error).__name__ in _INTERRUPTS:
            self._pause(run_id)
        self._finish(run_id, error)

    # -- sessions ----------------------------------------------------------------------------------------------

    def _session(
        self, scope: Scope, run_id: UUID, history: Sequence[BaseMessage], metadata: dict[str, Any], *, loose: bool
    ) -> Session:
        if scope.session is None and loose:
            scope.session = self._loose_session(history)
        if scope.session is None:
            scope.session = self.guard.session(
                parent=scope.outer_session or current_session(),
                agent=metadata.get("lc_agent_name"),
                surface=CALLBACK,
                framework_run_id=self._tree.thread_id(run_id) or str(run_id),
            )
        return scope.session

    def _loose_session(self, history: Sequence[BaseMessage]) -> Session:
        """For a hand-written loop without a run of its own: one session a thread, until a conversation starts anew."""
        thread = threading.get_ident()
        with self._lock:
            session = self._loose.get(thread)
            fresh = not any(isinstance(message, AIMessage) for message in history)
            if session is None or session.ended is not None or fresh:
                if session is not None:
                    session.end()
                session = self._loose[thread] = self.guard.session(parent=current_session(), surface=CALLBACK)
            return session

    def close(self) -> None:
        """End the sessions of hand-written loops, which have no end of their own."""
        with self._lock:
            loose, self._loose = list(self._loose.values()), {}
        for session in loose:
            session.end()

    def _abandon(self, run_id: UUID, scope: Scope) -> None:
        """The call does not start, so nothing will report its end."""
        loose = self._tree.is_root(run_id)
        self._tree.finish(run_id)
        if loose and scope.session is not None:
            scope.session.end()


def _message_of(response: LLMResult) -> AIMessage | None:
    generation = response.generations[0][0] if response.generations and response.generations[0] else None
    if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
        return generation.message
    return None


def _user_spoke(history: Sequence[BaseMessage]) -> bool:
    """Whether the request ends with something a user said after an earlier answer."""
    last = history[-1] if history else None
    return isinstance(last, HumanMessage) and last.name != "loopguard" and len(history) > 1


def _resumes(inputs: Any) -> bool:
    return inputs is None or type(inputs).__name__ == "Command"


def _drain(stop: Stop) -> None:
    """Let LangGraph finish this round and then end the run; outside LangGraph, end it now."""
    try:
        from langgraph.runtime import get_runtime

        control = get_runtime().control
    except (ImportError, RuntimeError):
        control = None
    if control is None:
        raise LoopGuardStop(stop)
    control.request_drain(stop.message)
