"""`tool_call_wrapper`: refuses calls and ends runs from inside a `ToolNode`. Needs langgraph, not langchain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import AsyncToolCallWrapper, ToolCallRequest, ToolCallWrapper
from langgraph.types import Command

from loopguard_core import LoopGuard, PolicyLike, as_guard, inside
from loopguard_langchain import _translate as translate
from loopguard_langchain._contained import contained
from loopguard_langchain._guarded import refusable
from loopguard_langchain._stop import LoopGuardStop
from loopguard_langchain._surfaces import TOOL_CALL_WRAPPER
from loopguard_langchain._tool_runs import ToolRun, tool_runs
from loopguard_langchain.context import refusal_by, watching

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
        with gate.call(request) as refused:
            return execute(request) if refused is None else refused

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
        with gate.call(request) as refused:
            return await execute(request) if refused is None else refused

    return wrap


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

    @contextmanager
    def call(self, request: ToolCallRequest) -> Iterator[ToolMessage | None]:
        """Around one call: its answer if it must not run, else None. On leaving, the run ends if it is to."""
        call_id, name = request.tool_call["id"] or "", request.tool_call["name"]
        run, text = self._ask(request) or (None, None)
        refused = None if text is None else translate.refusal(call_id, name, text)
        if run is None or refused is not None:
            yield refused
        else:
            try:
                with inside(run.session):
                    yield None
            except GraphInterrupt:
                raise  # the call comes again when the graph is resumed
            except BaseException:
                self._answered(run, call_id)
                raise
        if run is not None:
            self._answered(run, call_id)
            self._raise(run, refused is not None)

    @contained
    def _ask(self, request: ToolCallRequest) -> tuple[ToolRun | None, str | None] | None:
        """The run, unless a handler looks after it, and the text in place of the result, if the call must not run."""
        if not self.guard.enabled:
            return None
        call = request.tool_call
        handlers, parent_run_id = watching(self.guard, request.runtime.config.get("callbacks"))
        if handlers:
            return None, refusal_by(handlers, parent_run_id, call["id"], call["name"])
        run = self._runs.of(request)
        return None if run is None else (run, run.session.refusal(call["id"], call["name"]))

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
