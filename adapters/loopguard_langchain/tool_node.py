"""`tool_call_wrapper`: refuses calls and ends runs from inside a `ToolNode`. Needs langgraph, not langchain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt.tool_node import AsyncToolCallWrapper, ToolCallRequest, ToolCallWrapper
from langgraph.types import Command

from loopguard_core import LoopGuard, PolicyLike, Session, as_guard, inside
from loopguard_core import LoopGuardStop as CoreStop
from loopguard_langchain import _translate as translate
from loopguard_langchain._contained import contained
from loopguard_langchain._guarded import refusable
from loopguard_langchain._stop import LoopGuardStop
from loopguard_langchain._surfaces import TOOL_CALL_WRAPPER
from loopguard_langchain._tool_runs import ToolRun, tool_runs
from loopguard_langchain._watchers import Watchers, ends_a_run

OnStop = Literal["drain", "raise"]
Answer = ToolMessage | Command[Any]


def tool_call_wrapper(guard: LoopGuard | PolicyLike = None, *, on_stop: OnStop = "drain") -> ToolCallWrapper:
    """For `ToolNode(tools, wrap_tool_call=...)`: observes, blocks and stops in any graph.

    With a `LoopGuardCallbackHandler` of the same guard on the run it asks that one, which also sees the ends of healthy
    runs, counts every model call, and whose own `on_stop` then holds. Alone it reads rounds, results and usage from the
    messages in the state.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file. Give the sync
            and the async wrapper of a node, and the handler, the same `LoopGuard`.
        on_stop: `drain` answers every call of the round and has LangGraph end the run with `GraphDrained`: the history
            is complete. `raise` raises `LoopGuardStop`, and leaves the round's calls unanswered.

    Raises:
        PolicyError: The policy cannot be used.
    """
    gate = _Gate(guard, on_stop)

    def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Answer]) -> Answer:
        call = gate.ask(request)
        if call.first is not None:
            call.first.before_model_call()
        with gate.around(call):
            if call.answer is None:
                call.answer = execute(request)
        answer: Answer = call.answer
        return answer

    return wrap


def async_tool_call_wrapper(guard: LoopGuard | PolicyLike = None, *, on_stop: OnStop = "drain") -> AsyncToolCallWrapper:
    """`tool_call_wrapper` for `ToolNode(tools, awrap_tool_call=...)`.

    Args:
        guard: See there.
        on_stop: See there.

    Raises:
        PolicyError: The policy cannot be used.
    """
    gate = _Gate(guard, on_stop)

    async def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Answer]]) -> Answer:
        call = gate.ask(request)
        if call.first is not None:
            await call.first.abefore_model_call()
        with gate.around(call):
            if call.answer is None:
                call.answer = await execute(request)
        answer: Answer = call.answer
        return answer

    return wrap


class _Call:
    """A call on its way through a wrapper.

    Attributes:
        id: Its id.
        name: Its tool.
        run: The run it belongs to; None where a handler looks after that, or nobody.
        first: The session, for the first call of a round. There is no seam before the next model call, so what it may
            use is asked for now: a limit that it would break ends the run after this round.
        watchers: The handlers that do.
        answer: What it returns.
    """

    def __init__(self, request: ToolCallRequest) -> None:
        self.id = request.tool_call["id"] or ""
        self.name = request.tool_call["name"]
        self.run: ToolRun | None = None
        self.first: Session | None = None
        self.watchers: Watchers | None = None
        self.answer: Any = None

    def said(self, text: str) -> ToolMessage:
        """Something said in place of its result."""
        return translate.refusal(self.id, self.name, text)


class _Gate:
    """What both wrappers do around a call."""

    def __init__(self, guard: LoopGuard | PolicyLike, on_stop: OnStop) -> None:
        if on_stop not in ("drain", "raise"):
            raise ValueError(f"on_stop must be 'drain' or 'raise', not {on_stop!r}")
        self.guard = as_guard(guard)
        self._on_stop = on_stop
        self._runs = tool_runs(self.guard)
        refusable(self.guard).every = True
        self.guard.attach(TOOL_CALL_WRAPPER)

    def ask(self, request: ToolCallRequest) -> _Call:
        """The call. It has its answer already if it must not run."""
        return self._asked(request) or _Call(request)

    @contextmanager
    def around(self, call: _Call) -> Iterator[None]:
        """Around one call; on leaving, the run ends if it is to."""
        run, refused = call.run, call.answer is not None
        try:
            with nullcontext() if run is None or refused else inside(run.session):
                yield
        except BaseException as error:
            call.answer = self._last_words(call, error) if isinstance(error, Exception) else None
            if call.answer is None:
                self._left(run, error)
                raise
        finally:
            if run is not None:
                self._answered(run, call.id)
        if run is not None:
            self._raise(run, refused)

    @contained
    def _asked(self, request: ToolCallRequest) -> _Call | None:
        if not self.guard.enabled:
            return None
        call = _Call(request)
        call.watchers = Watchers(self.guard, request.runtime.config.get("callbacks"))
        if call.watchers:
            text = call.watchers.refusal(call.id, call.name)
        else:
            call.run, first = self._runs.of(request)
            call.first = call.run.session if call.run is not None and first else None
            text = None if call.run is None else call.run.session.refusal(call.id, call.name)
        call.answer = None if text is None else call.said(text)
        return call

    @contained
    def _last_words(self, call: _Call, error: Exception) -> ToolMessage | None:
        """The answer to a call that ended this run from inside, so that the history is complete."""
        if call.run is None:
            text = None if call.watchers is None else call.watchers.last_words(call.id, error)
        else:
            stop = call.run.session.stop
            text = stop.message if stop is not None and ends_a_run(error) and self._drains(call.run) else None
        return None if text is None else call.said(text)

    @contained
    def _left(self, run: ToolRun | None, error: BaseException) -> None:
        """The run ends here by an exception, or waits for a human. Somebody above it may go on with it."""
        if run is None:
            return
        if isinstance(error, GraphInterrupt):
            run.session.pause()
            run.session.end()
        elif not isinstance(error, GraphBubbleUp) or isinstance(error, CoreStop):
            run.session.end(error=error, may_go_on=True)

    @contained
    def _answered(self, run: ToolRun, call_id: str) -> None:
        run.answered(call_id)
        if run.session.stop is not None and self._drains(run):
            run.control.request_drain(run.session.stop.message)

    def _raise(self, run: ToolRun, refused: bool) -> None:
        """End the run by an exception: at once if its round was refused, else after the last call of it."""
        stop = run.session.stop
        if stop is not None and not self._drains(run) and (refused or not run.open):
            run.session.end()
            raise LoopGuardStop(stop)

    def _drains(self, run: ToolRun) -> bool:
        return self._on_stop == "drain" and run.control is not None
