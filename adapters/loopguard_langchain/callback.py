"""`LoopGuardCallbackHandler`: observes and stops, with langchain-core alone.

A round is a model response. What its tools returned is read from the next request, so unknown tools and models with
handlers of their own are covered too. A callback cannot answer a call in a tool's place: rungs between observe and stop
fall to observe here, unless the tools ask it (`guard_tools`, `tool_call_wrapper`).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from loopguard_core import Channel, LoopGuard, PolicyLike, Session, Stop, as_guard, inside
from loopguard_langchain import _text as text
from loopguard_langchain._contained import contained
from loopguard_langchain._conversations import response_of
from loopguard_langchain._guarded import refusable
from loopguard_langchain._model_runs import ModelRuns
from loopguard_langchain._runs import Run, RunTree, drain, judging
from loopguard_langchain._sessions import Sessions
from loopguard_langchain._stop import LoopGuardStop

if TYPE_CHECKING:
    from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent, GraphResumeEvent
else:
    try:  # its subclasses are told when a graph is interrupted and when it resumes
        from langgraph.callbacks import GraphCallbackHandler
    except ImportError:  # langchain-core alone
        from langchain_core.callbacks import BaseCallbackHandler as GraphCallbackHandler

OnStop = Literal["raise", "drain"]
Messages = list[list[BaseMessage]]


class LoopGuardCallbackHandler(GraphCallbackHandler):
    """Watches every agent run it is attached to.

    Pass it in the config: `agent.invoke(..., {"callbacks": [LoopGuardCallbackHandler(guard)]})`. List it last, since
    handlers after one that raises miss the event. One object serves any number of runs at once.

    A loop written by hand has no run of its own. Its model calls are told apart by the messages they were sent, and its
    session ends with a response that asks for no tool, with a stop, or with `close` (the end of a `with` block).

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        on_stop: `raise` ends the run before the looping round executes; LangGraph drops that response, so that what it
            checkpointed is complete. `drain` lets LangGraph finish the round and then ends the run: the looping calls
            run once more. Outside LangGraph it raises. Either way an agent that is a tool of another one leaves that
            one's call unanswered.

    Raises:
        PolicyError: The policy cannot be used.
    """

    raise_error = True  # else LangChain logs our stop and goes on
    run_inline = True  # else async runs hop through a thread for every event, at fifteen times the cost

    def __init__(self, guard: LoopGuard | PolicyLike = None, *, on_stop: OnStop = "raise") -> None:
        super().__init__()
        if on_stop not in ("raise", "drain"):
            raise ValueError(f"on_stop must be 'raise' or 'drain', not {on_stop!r}")
        self.guard: LoopGuard = as_guard(guard)
        self._tree = RunTree(self.guard)
        self._sessions = Sessions(self.guard, self._tree)
        self._models = ModelRuns(self.guard, self._sessions, drains=on_stop == "drain")
        self.guard.attach(refusable(self.guard).surface)

    @property
    def ignore_chain(self) -> bool:
        """Switched off, it costs nothing."""
        return not self.guard.enabled

    ignore_llm = ignore_chat_model = ignore_agent = ignore_retriever = ignore_chain
    ignore_retry = ignore_custom_event = True

    def adopt(self, run_id: UUID | None, session: Session) -> None:
        """Leave the agent run that `run_id` is part of to a middleware of the same guard, and only see to its end."""
        run = self._tree.get(run_id)
        if run is not None:
            self._sessions.adopt(run.scope, session)

    @contained
    def refusal(self, parent_run_id: UUID | None, call_id: str | None, tool: str) -> str | None:
        """What a tool called in this run is to say in place of its result; None if it may run."""
        run = self._tree.get(parent_run_id)
        session = self._sessions.asking(run, call_id)
        refused = None if session is None else session.refusal(call_id, tool)
        stop = None if refused is None else self.stopped(parent_run_id, call_id)
        if stop is not None and run is not None and self._models.lets_finish(run.scope):
            drain(stop.message)  # elsewhere done as a tool starts, which a refused one never does
        return refused

    @contained
    def stopped(self, parent_run_id: UUID | None, call_id: str | None) -> Stop | None:
        """Why the run that a tool was called in is to end; None if it goes on."""
        session = self._sessions.asking(self._tree.get(parent_run_id), call_id)
        return None if session is None else session.stop

    def close(self, error: BaseException | None = None) -> None:
        """End the sessions of hand-written loops; `error` is what ended them, if something did."""
        self._sessions.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(error)

    # -- runs --------------------------------------------------------------------------------------------------

    @contained
    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Note where a run belongs."""
        if self._tree.taken(run_id):
            return
        self._tree.start(run_id, parent_run_id, kwargs.get("metadata"), "chain")

    @contained
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A run that ends, ends its sessions."""
        self._over(self._tree.get(run_id), None)

    @contained
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Like `on_chain_end`."""
        self._over(self._tree.get(run_id), error)

    # A retriever may ask a model. (Arguments are given by position; only their names differ.)
    on_retriever_start = on_chain_start  # type: ignore[assignment]
    on_retriever_end = on_chain_end  # type: ignore[assignment]
    on_retriever_error = on_chain_error

    @contained
    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """The graph is about to end, because it waits for a human."""
        scope = self._tree.graph(event.run_id)
        if scope is not None:
            scope.paused, scope.namespace = True, "|".join(event.checkpoint_ns)

    @contained
    def on_resume(self, event: GraphResumeEvent) -> None:
        """The graph goes on with the session it was interrupted in."""
        scope = self._tree.graph(event.run_id)
        if scope is not None:
            self._sessions.resume(scope, "|".join(event.checkpoint_ns))

    def _over(self, run: Run | None, error: BaseException | None) -> None:
        for scope in () if run is None else self._tree.finish(run):
            self._sessions.over(scope, error)

    # -- model calls -------------------------------------------------------------------------------------------

    @contained
    def on_chat_model_start(
        self, serialized: Any, messages: Messages, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Read the results of the last round; end the run here if a limit leaves no room for the call."""
        if self._tree.taken(run_id):
            return
        metadata = kwargs.get("metadata") or {}
        run = self._tree.start(run_id, parent_run_id, metadata, "model")
        scope = run.scope
        if scope.owner == run_id and judging.get() is self.guard:
            scope.adopted = True
        if scope.adopted:
            return
        stop = self._models.begin(run, messages[0] if messages else [], metadata, kwargs)
        if stop is not None:
            error = LoopGuardStop(stop)
            self._failed(run, error)
            raise error

    @contained
    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        """Read a piece of a stream, and close the stream where what it says ends the run."""
        run = self._tree.get(run_id)
        if run is not None and run.model_call is not None:
            message = getattr(chunk, "message", None)
            self._read(run, text.texts_of(message) if isinstance(message, BaseMessage) else text.texts_of_token(token))

    @contained
    def on_stream_event(self, event: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Like `on_llm_new_token`, of LangChain's third kind of stream."""
        run = self._tree.get(run_id)
        if run is not None and run.model_call is not None:
            self._read(run, text.texts_of_event(event))

    def _read(self, run: Run, pieces: Iterable[tuple[Channel, str]]) -> None:
        stop = None if run.model_call is None else self._models.read(run, run.model_call, pieces)
        if stop is not None:
            error = LoopGuardStop(stop)
            self._over(run, error)
            raise error

    @contained
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Count the call and judge the round it asks for, before any tool runs."""
        run = self._tree.get(run_id)
        if run is None:
            return
        error: LoopGuardStop | None = None
        try:
            call = run.model_call
            stop = None if call is None else self._models.answered(run.scope, call, response_of(response))
            error = None if stop is None else LoopGuardStop(stop)
        finally:  # whatever could not be read, the run is over
            self._over(run, error)
        if error is not None:
            raise error

    @contained
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Nothing is counted for a failed call."""
        run = self._tree.get(run_id)
        if run is not None:
            self._failed(run, error)

    def _failed(self, run: Run, error: BaseException) -> None:
        try:
            self._models.failed(run, error)
        finally:
            self._over(run, error)

    # -- tools -------------------------------------------------------------------------------------------------

    @contained
    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """A tool is a place where another agent may run. In a run that is to end, it is where `drain` takes hold."""
        if self._tree.taken(run_id):
            return
        run = self._tree.start(run_id, parent_run_id, kwargs.get("metadata"), "tool")
        outer = run.scope.outer
        if outer is not None and outer.adopted:
            return
        caller = self._sessions.tool_starts(run, kwargs.get("tool_call_id"))
        if caller is None:
            return
        if caller.stop is not None and outer is not None and self._models.lets_finish(outer):
            drain(caller.stop.message)
        run.inside = inside(caller)
        run.inside.__enter__()

    @contained
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Agents inside the tool are over."""
        self._leave(run_id, output, None)

    @contained
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Agents inside the tool are over."""
        self._leave(run_id, error, error)

    def _leave(self, run_id: UUID, result: Any, error: BaseException | None) -> None:
        run = self._tree.get(run_id)
        if run is None:
            return
        try:
            if run.asking is not None and run.call_id is not None:
                run.asking.results[run.call_id] = getattr(result, "content", result)
            if run.inside is not None:
                run.inside.__exit__(None, None, None)
        finally:
            self._over(run, error)
