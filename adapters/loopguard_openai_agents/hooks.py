"""`LoopGuardHooks`: one object that sees every round whole, refuses any of its calls, and ends the run.

A round is judged in `on_llm_end`, before the SDK starts any tool. What its tools returned is read from the next model
call's input, which also shows tools that do not exist, failures and what a human refused. A stop is raised before the
next model call, when every call of the round has its answer: history and memory then stay usable.
"""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    AgentHookContext,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    Tool,
    TResponseInputItem,
)
from agents.items import ToolApprovalItem
from agents.lifecycle import RunHooksBase
from agents.tool_context import ToolContext

from loopguard_core import LoopGuard, PolicyLike, Stop, as_guard, current_session
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents import _words as words
from loopguard_openai_agents._estimate import tokens_sent, tools_of
from loopguard_openai_agents._run import Run, over
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import LoopGuardStop
from loopguard_openai_agents._surfaces import HOOKS
from loopguard_openai_agents._translate import Request
from loopguard_openai_agents._version import check_version


class LoopGuardHooks(RunHooks[Any]):
    """Watches every run it is passed to: `Runner.run(agent, input, hooks=LoopGuardHooks(guard))`.

    One object serves any number of runs at once. Hooks can only raise: whatever `on_stop.how` says, a stop here is a
    `LoopGuardStop`. Pass the object to `agent.as_tool(..., hooks=...)` too, since the SDK does not hand it on.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        hooks: Hooks of your own. They are called after ours, and what they raise reaches you.

    Raises:
        PolicyError: The policy cannot be used.
        LoopGuardError: The installed openai-agents is too old to refuse a call.
        TypeError: `hooks` are no `RunHooks`.
    """

    def __init__(self, guard: LoopGuard | PolicyLike = None, hooks: RunHooks[Any] | None = None) -> None:
        check_version()
        if hooks is not None and not isinstance(hooks, RunHooksBase):
            raise TypeError(f"hooks must be a RunHooks object, not {type(hooks).__name__}")
        self.guard: LoopGuard = as_guard(guard)
        self.hooks: RunHooks[Any] = RunHooks() if hooks is None else hooks
        self._attach()

    def _attach(self) -> None:
        self.guard.attach(HOOKS)

    # -- model calls -----------------------------------------------------------------------------------------------

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        """Record what the last round returned; stop here, or put before the model what it is to be told."""
        if self.guard.enabled:
            with self.guard.faults.contained("openai_agents on_llm_start"):
                await self._direct(self._run_of(context, agent, input_items), agent, system_prompt, input_items)
        await self.hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def _direct(
        self, run: Run, agent: Agent[Any], system_prompt: str | None, input_items: list[TResponseInputItem]
    ) -> None:
        run.agent = agent
        with self.guard.faults.contained("openai_agents reading results"):
            run.record_results(input_items)
        if not run.closing:
            sent = most = None
            if run.session.money is not None:
                with self.guard.faults.contained("openai_agents estimating tokens"):
                    sent = tokens_sent(system_prompt, input_items, tools_of(agent))
                    most = agent.model_settings.resolve(run.settings).max_tokens
            directive = await run.session.abefore_model_call(translate.model_name(agent.model), sent, most)
            if directive.stop is not None:
                raise await self._stopped(run, directive.stop)
            # The SDK sends this very list; what is added to it is seen once and kept nowhere.
            input_items.extend(words.note(text) for text in directive.steer)
        registry.note_items(run, input_items)
        run.begin_call()

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Count the call, and refuse what is to be refused before any tool starts."""
        if self.guard.enabled:
            with self.guard.faults.contained("openai_agents on_llm_end"):
                run = self._run_of_response(context)
                if run is not None:
                    await self._judge(run, context, agent, response)
        await self.hooks.on_llm_end(context, agent, response)

    async def _judge(
        self, run: Run, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        run.end_message(response)
        name = run.answered_by or translate.model_name(agent.model)
        await run.session.aafter_model_call(name, run.usage(response), run.seconds)
        if run.closing:
            return
        requests = translate.requests_of(response.output, translate.handoff_names(agent))
        if requests and agent.mcp_servers:
            with self.guard.faults.contained("openai_agents MCP annotations"):
                translate.annotate(requests, translate.hints_of_servers(agent))
        for request, decision in run.judge(requests):
            if decision.blocked and request.call.refusable:
                text = decision.message or "[loopguard] This call was not executed."
                with self.guard.faults.contained("openai_agents reject_tool"):
                    _reject(context, agent, request, text)
                    run.round.refused[request.call.id] = text
        stop = run.session.stop
        if stop is not None and any(request.runs_anyway for request in requests):
            # Nothing else keeps such a call from running. The SDK drops the whole round from the history.
            raise await self._stopped(run, stop)

    # -- tools -----------------------------------------------------------------------------------------------------

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        """Make sure that no refused call starts."""
        if self.guard.enabled:
            with self.guard.faults.contained("openai_agents on_tool_start"):
                run = self._run_of_tool(context)
                if run is not None:
                    call_id = _call_id(context)
                    run.round.started.add(call_id)
                    if call_id in run.round.refused:
                        raise await self._stopped(run, _not_refused(tool))
        await self.hooks.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        """Keep the result, in case the next input does not show it."""
        if self.guard.enabled:
            with self.guard.faults.contained("openai_agents on_tool_end"):
                run = self._run_of_call(context)
                if run is not None:
                    run.round.returned[_call_id(context)] = result
        await self.hooks.on_tool_end(context, agent, tool, result)

    # -- agents ----------------------------------------------------------------------------------------------------

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Agent[Any]) -> None:
        """Pass on."""
        await self.hooks.on_agent_start(context, agent)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Agent[Any], output: Any) -> None:
        """A final output: the run is complete."""
        await self.hooks.on_agent_end(context, agent, output)
        if self.guard.enabled:
            with self.guard.faults.contained("openai_agents on_agent_end"):
                run = self._run_of_end(context, agent)
                if run is not None:
                    run.finished = True
                    await self._over(run)

    async def on_handoff(self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]) -> None:
        """Pass on. A handoff is a call of its round, and the run goes on."""
        await self.hooks.on_handoff(context=context, from_agent=from_agent, to_agent=to_agent)

    # -- runs ------------------------------------------------------------------------------------------------------

    def _run_of(self, context: RunContextWrapper[Any], agent: Agent[Any], input_items: list[TResponseInputItem]) -> Run:
        """The run of a model call: a known one, a resumed one, or a new one."""
        run = registry.of_context(context)
        if run is None or over(run):
            run = (
                registry.loose(context.usage, agent, inside=isinstance(context, ToolContext))
                or registry.resumed(self.guard, translate.ends_with_results(input_items))
                or self._new_run(context, agent)
            )
            registry.bind(run, context)
            registry.watch(run, context)
        return run

    def _new_run(self, context: RunContextWrapper[Any], agent: Agent[Any]) -> Run:
        outer = self._outer(context)
        parent = current_session() if outer is None else outer.session
        return Run(self.guard, self.guard.session(parent=parent, agent=agent.name, surface=HOOKS))

    def _outer(self, context: RunContextWrapper[Any]) -> Run | None:
        """The run whose tool started this one: a nested run's own context names that call."""
        if not isinstance(context, ToolContext):
            return None
        return registry.of_call(context.usage, context.tool_call_id, context.tool_call)

    def _run_of_response(self, context: RunContextWrapper[Any]) -> Run | None:
        return registry.of_context(context)

    def _run_of_call(self, context: RunContextWrapper[Any]) -> Run | None:
        return registry.of_call(context.usage, _call_id(context), getattr(context, "tool_call", None))

    def _run_of_tool(self, context: RunContextWrapper[Any]) -> Run | None:
        """The run of a call that starts: a known one, or a resumed one."""
        run, call_id = self._run_of_call(context), _call_id(context)
        if run is None and call_id:
            # A resumed run shows up with the tool a human approved, under objects nobody has seen.
            run = registry.resumed(self.guard, [call_id])
            if run is not None:
                registry.goes_on(run, context.usage)
        return run

    def _run_of_end(self, context: RunContextWrapper[Any], agent: Agent[Any]) -> Run | None:
        return registry.ending(context.usage, agent)

    async def _stopped(self, run: Run, stop: Stop) -> LoopGuardStop:
        """The exception that ends a run, which is over with it."""
        error = LoopGuardStop(stop)
        await self._over(run, error)
        return error

    async def _over(self, run: Run, error: LoopGuardStop | None = None) -> None:
        """The run is over, and nobody else tells."""
        run.session.end(error=error)
        await self.guard.adrain()


def _call_id(context: RunContextWrapper[Any]) -> str:
    """The id of the call a tool runs for.

    Some kinds of tools get the context of their run. That of a run inside a tool names the call around that run.
    """
    return context.tool_call_id if isinstance(context, ToolContext) and registry.of_context(context) is None else ""


def _reject(context: RunContextWrapper[Any], agent: Agent[Any], request: Request, text: str) -> None:
    item = ToolApprovalItem(
        agent=agent, raw_item=request.item, tool_name=translate.refusal_name(request.item) or request.item.name
    )
    context.reject_tool(item, rejection_message=text)


def _not_refused(tool: Tool) -> Stop:
    return Stop(
        "error",
        None,
        f"[loopguard] The run was ended: openai-agents was about to run a call of `{tool.name[:64]}` that had been "
        "refused. Please report this with the installed version.",
    )
