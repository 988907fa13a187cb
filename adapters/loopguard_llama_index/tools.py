"""`guard_tool`: a tool that can be refused in any workflow, also in one of your own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from llama_index.core.tools import AsyncBaseTool, BaseTool, FunctionTool, ToolOutput, adapt_to_async_tool

from loopguard_core import LoopGuard, PolicyLike, as_guard, inside
from loopguard_core import LoopGuardStop as CoreStop
from loopguard_llama_index import _registry as registry
from loopguard_llama_index import _seams as seams
from loopguard_llama_index import _translate as translate
from loopguard_llama_index._contained import contained
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
        started = self._start(args, kwargs)
        if started is None:
            return self._kind.call(self._tool, *args, **kwargs)
        run, asked = started
        if asked.refused is not None:
            return self._refusal(asked)
        with self._during(run, asked) as outputs:
            outputs.append(self._kind.call(self._tool, *args, **kwargs))
        return outputs[0]

    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """`acall`, unless it is refused."""
        started = self._start(args, kwargs)
        if started is None:
            return await self._kind.acall(self._tool, *args, **kwargs)
        run, asked = started
        if asked.refused is not None:
            return self._refusal(asked)
        with self._during(run, asked) as outputs:
            outputs.append(await self._kind.acall(self._tool, *args, **kwargs))
        return outputs[0]

    # -- before ----------------------------------------------------------------------------------------------------

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Observed, Asked] | None:
        """What is known about this call; None if it is not ours to judge.

        Raises:
            LoopGuardStop: The run is to end.
        """
        if not self._guard.enabled or _running.get() is self:
            return None
        with contained(self._guard, "guard_tool"):
            run_id = seams.current_run_id()
            if run_id is None:
                text = "A guarded tool ran outside of a workflow run, so nothing can refuse it."
                self._guard.faults.note("guard_tool", text=text)
                return None
            if registry.guards(self._guard, run_id):
                return None
            run = watcher_of(self._guard).run(run_id)
            asked = run.start(self._name, self._arguments(args, kwargs))
            self._end_if_due(run)
            return run, asked
        return None

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the model gave them, as far as can be told."""
        given = {name: value for name, value in kwargs.items() if name != self._hidden}
        return given if not args else {"input": args[0] if len(args) == 1 else list(args), **given}

    def _refusal(self, asked: Asked) -> ToolOutput:
        arguments = asked.call.arguments
        return translate.refusal(asked.tool_id, self._name, arguments, asked.refused or "").tool_output

    # -- around and after ------------------------------------------------------------------------------------------

    @contextmanager
    def _during(self, run: Observed, asked: Asked) -> Iterator[list[ToolOutput]]:
        """While the tool runs: what it returned goes into the list."""
        outputs: list[ToolOutput] = []
        token = _running.set(self)
        try:
            with inside(run.watch()):
                yield outputs
        except (seams.WaitingForEvent, CoreStop):
            asked.started = False
            raise
        except Exception as error:
            with contained(self._guard, "recording a result"):
                run.returned(asked, error, True)
                self._end_if_due(run, error)
            raise
        finally:
            _running.reset(token)
        with contained(self._guard, "recording a result"):
            for output in outputs:
                run.returned(asked, translate.shown(output), translate.failed(output))
            self._end_if_due(run)

    def _end_if_due(self, run: Observed, cause: Exception | None = None) -> None:
        stop = run.stop_now()
        if stop is not None:
            run.raised = LoopGuardStop(stop)
            # LlamaIndex reports the end of a failed run only after whoever awaits it has gone on.
            run.watch().end(error=run.raised)
            raise run.raised from cause
