"""`guard_tool`: a tool that can be refused in any workflow, also in one of your own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

from llama_index.core.tools import AsyncBaseTool, BaseTool, FunctionTool, ToolOutput, adapt_to_async_tool

from loopguard_core import LoopGuard, PolicyLike, Stop, as_guard, inside
from loopguard_core import LoopGuardStop as CoreStop
from loopguard_llama_index import _registry as registry
from loopguard_llama_index import _seams as seams
from loopguard_llama_index import _translate as translate
from loopguard_llama_index._observed import Observed
from loopguard_llama_index._round import Asked
from loopguard_llama_index._stop import LoopGuardStop
from loopguard_llama_index._surfaces import TOOL
from loopguard_llama_index.handler import listen, watcher_of

_running: ContextVar[object] = ContextVar("loopguard_llama_index_tool", default=None)
"""The guarded tool that runs here: some tools do their work in the other one of `call` and `acall`."""


def guard_tool(tool: BaseTool | Callable[..., Any], guard: LoopGuard | PolicyLike = None) -> AsyncBaseTool:
    """A copy of a tool that is refused where it repeats itself, for workflows that call tools themselves.

    Rounds, usage and the end of a run are read from LlamaIndex's instrumentation. A refused call gives a `ToolOutput`
    with `is_error`; where a run is to end, the call raises `LoopGuardStop`, which ends a workflow of your own. In an
    agent `guard_agent` does all of this better; there such a tool does nothing of its own.

    Args:
        tool: The tool, or a function to make one of. It stays as it is.
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file. Give the
            tools of one workflow the same `LoopGuard`.

    Returns:
        The copy; of a `FunctionTool` it is one too.

    Raises:
        PolicyError: The policy cannot be used.
    """
    made = as_guard(guard)
    given = tool if isinstance(tool, BaseTool) else FunctionTool.from_defaults(tool)
    guarded = copy.copy(adapt_to_async_tool(given))
    listen(made).has_tools = True
    made.attach(TOOL)
    entry = _Entry(guarded, made)
    # On the instance, since a `FunctionTool` must stay one; LlamaIndex calls nothing else.
    object.__setattr__(guarded, "call", entry.call)
    object.__setattr__(guarded, "acall", entry.acall)
    return guarded


class _Entry:
    """The way into a guarded tool.

    Args:
        tool: The tool.
        guard: Its guard.
    """

    def __init__(self, tool: AsyncBaseTool, guard: LoopGuard) -> None:
        self._tool = tool
        self._kind = type(tool)
        self._name = tool.metadata.get_name()
        self._hidden = tool.ctx_param_name if isinstance(tool, FunctionTool) else None
        self._guard = guard

    def call(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """`call`, unless it is refused."""
        running = self._start(args, kwargs)
        if running is None:
            return self._kind.call(self._tool, *args, **kwargs)
        running.end_if_due()
        if running.refused is not None:
            return self._refusal(running)
        with running:
            running.output = self._kind.call(self._tool, *args, **kwargs)
        return running.output

    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """`acall`, unless it is refused."""
        running = self._start(args, kwargs)
        if running is None:
            return await self._kind.acall(self._tool, *args, **kwargs)
        await running.aend_if_due()
        if running.refused is not None:
            return self._refusal(running)
        async with running:
            running.output = await self._kind.acall(self._tool, *args, **kwargs)
        return running.output

    # -- before ----------------------------------------------------------------------------------------------------

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Execution | None:
        """The call; None if it is not ours to judge."""
        if not self._guard.enabled or _running.get() is self:
            return None
        with self._guard.faults.contained("llama_index guard_tool"):
            run_id = seams.current_run_id()
            if run_id is None:
                text = "A guarded tool ran outside of a workflow run, so nothing can refuse it."
                self._guard.faults.note("guard_tool", text=text)
                return None
            if registry.guards(self._guard, run_id):
                return None
            run = watcher_of(self._guard).run(run_id)
            return _Execution(self, self._guard, run, run.start(self._name, self._arguments(args, kwargs)))
        return None

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the model gave them, as far as can be told."""
        given = {name: value for name, value in kwargs.items() if name != self._hidden}
        return given if not args else {"input": args[0] if len(args) == 1 else list(args), **given}

    def _refusal(self, running: _Execution) -> ToolOutput:
        call, text = running.asked.call, running.refused or ""
        return translate.refusal(running.asked.tool_id, self._name, call.arguments, text).tool_output


class _Execution:
    """One call: around the tool, a context that records what it returned and ends the run if that is due.

    Args:
        entry: The tool's.
        guard: Its guard.
        run: The run it is made in.
        asked: The call.

    Attributes:
        asked: As given.
        output: What the tool returned.
    """

    def __init__(self, entry: _Entry, guard: LoopGuard, run: Observed, asked: Asked) -> None:
        self.asked = asked
        self.output: ToolOutput = translate.refusal("", "", {}, "").tool_output
        self._entry = entry
        self._guard = guard
        self._run = run
        self._stack = ExitStack()

    @property
    def refused(self) -> str | None:
        """What takes the place of its result."""
        return self.asked.refused

    def __enter__(self) -> None:
        self._stack.callback(_running.reset, _running.set(self._entry))
        self._stack.enter_context(inside(self._run.watch()))

    async def __aenter__(self) -> None:
        self.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._returned(error):
            self.end_if_due(error)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._returned(error):
            await self.aend_if_due(error)

    def _returned(self, error: BaseException | None) -> bool:
        """Note what came of it. False where the run cannot end behind it."""
        self._stack.close()
        if isinstance(error, (seams.WaitingForEvent, CoreStop)):
            self.asked.started = False
            return False
        if error is not None and not isinstance(error, Exception):
            return False
        with self._guard.faults.contained("llama_index recording a result"):
            output = translate.shown(self.output) if error is None else error
            self._run.returned(self.asked, output, translate.failed(self.output) if error is None else True)
        return True

    def end_if_due(self, cause: BaseException | None = None) -> None:
        """End the run if that is due.

        Raises:
            LoopGuardStop: It is.
        """
        with self._guard.faults.contained("llama_index ending a run"):
            self._end(self._run.stop_now(), cause)

    async def aend_if_due(self, cause: BaseException | None = None) -> None:
        """`end_if_due` for event loops."""
        with self._guard.faults.contained("llama_index ending a run"):
            self._end(await self._run.astop_now(), cause)

    def _end(self, stop: Stop | None, cause: BaseException | None) -> None:
        if stop is None:
            return
        run = self._run
        run.raised = LoopGuardStop(stop)
        # LlamaIndex reports the end of a failed run only after whoever awaits it has gone on.
        run.watch().end(error=run.raised)
        raise run.raised from cause
