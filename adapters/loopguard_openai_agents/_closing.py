"""The result of a run that was ended by a stop: its history, closed with a message or with one last answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from agents import (
    Agent,
    AgentHookContext,
    MessageOutputItem,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    RunItem,
    Runner,
    RunResult,
    TResponseInputItem,
)
from agents.exceptions import RunErrorDetails

from loopguard_core import Stop
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents import _words as words
from loopguard_openai_agents._request import without_tools
from loopguard_openai_agents._run import Run
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import OnStop
from loopguard_openai_agents.hooks import LoopGuardHooks

_RESULTS = frozenset({"tool_call_output_item", "handoff_output_item", "mcp_approval_response_item"})
"""Items of a history that answer what a response asked for."""


async def close(
    run: Run,
    stop: Stop,
    data: RunErrorDetails,
    *,
    how: OnStop,
    hooks: LoopGuardHooks,
    options: Mapping[str, Any],
    unsaved: Sequence[TResponseInputItem] = (),
) -> RunResult | None:
    """Close a run that was stopped.

    Args:
        run: The run.
        stop: Why it was ended.
        data: Its history, from the exception.
        how: Whether to end with a message of ours or with an answer.
        hooks: The hooks the run had.
        options: What `Runner.run` was given.
        unsaved: What goes into the SDK's session before the closing.

    Returns:
        A result like any other; None if the run can only raise.
    """
    if how == "raise":
        return None
    agent, written = data.last_agent, run.written
    closed: RunResult | None = None
    if how == "answer":
        with run.guard.faults.contained("openai_agents the last answer"):
            closed = await _answered(run, data, hooks, options)
    if closed is None:
        if translate.typed(agent.output_type):  # no text of ours is a valid final output
            return None
        text = words.closing_text(written, stop.message)
        with run.guard.faults.contained("openai_agents the closing message"):
            closed = _result(data, [words.message_item(agent, text)], [], text)
        if closed is None:
            return None
        context = AgentHookContext(context=data.context_wrapper.context, usage=data.context_wrapper.usage)
        await hooks.hooks.on_agent_end(context, agent, text)
        if agent.hooks is not None:
            await agent.hooks.on_end(context, agent, text)
    if options.get("session") is not None:  # it holds everything else already
        added = [item.to_input_item() for item in closed.new_items[len(data.new_items) :]]
        await options["session"].add_items([*unsaved, *added])
    registry.bind(run, closed.context_wrapper)  # a last answer had a context of its own
    return closed


def _result(
    data: RunErrorDetails, items: list[RunItem], responses: list[ModelResponse], final_output: Any, **fields: Any
) -> RunResult:
    """The run's history with something added."""
    return RunResult(
        input=data.input,
        new_items=[*data.new_items, *items],
        raw_responses=[*data.raw_responses, *responses],
        final_output=final_output,
        input_guardrail_results=data.input_guardrail_results,
        output_guardrail_results=fields.get("output_guardrail_results", data.output_guardrail_results),
        tool_input_guardrail_results=data.tool_input_guardrail_results,
        tool_output_guardrail_results=data.tool_output_guardrail_results,
        context_wrapper=data.context_wrapper,
        _last_agent=data.last_agent,
    )


# -- one last answer ---------------------------------------------------------------------------------------------------


async def _answered(
    run: Run, data: RunErrorDetails, hooks: LoopGuardHooks, options: Mapping[str, Any]
) -> RunResult | None:
    """Let the model answer from what was gathered, in a run of one call that offers no tools.

    Returns:
        None if there is no answer worth having.
    """
    text = run.session.final_answer()
    if text is None:
        return None
    agent = data.last_agent.clone(
        tools=[],
        mcp_servers=[],
        handoffs=[],
        input_guardrails=[],
        model_settings=without_tools(data.last_agent.model_settings),
    )
    chain, history = _conversation(data, options)
    said: list[RunItem] = [words.message_item(data.last_agent, run.written)] if run.written else []
    sent = [words.written(run.written)] if run.written else []
    run.closing = True
    answer = await Runner.run(
        agent,
        [*history, *sent, words.note(text)],
        context=data.context_wrapper.context,
        max_turns=1,
        hooks=_AnswerHooks(hooks),
        run_config=_quiet(options["run_config"]),
        **chain,
    )
    data.context_wrapper.usage.add(answer.context_wrapper.usage)
    if run.repeats or not answer.final_output:
        return None
    items: list[RunItem] = [
        MessageOutputItem(agent=data.last_agent, raw_item=item.raw_item)
        if isinstance(item, MessageOutputItem)
        else item
        for item in answer.new_items
    ]
    return _result(
        data,
        [*said, *items],
        answer.raw_responses,
        answer.final_output,
        output_guardrail_results=answer.output_guardrail_results,
    )


def _conversation(data: RunErrorDetails, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[TResponseInputItem]]:
    """How the last answer joins the conversation: options, and what of the history is to be sent.

    A conversation the server keeps lacks only what it was not sent yet: the results of the last round.
    """
    chain = {name: options[name] for name in ("conversation_id", "previous_response_id") if options.get(name)}
    if not chain and not options.get("auto_previous_response_id"):
        return {}, _result(data, [], [], None).to_input_list()
    if data.raw_responses and "conversation_id" not in chain:
        chain["previous_response_id"] = data.raw_responses[-1].response_id
    unsent: list[TResponseInputItem] = []
    for item in reversed(data.new_items):
        if item.type not in _RESULTS:
            break
        unsent.insert(0, item.to_input_item())
    return chain, unsent if data.raw_responses else translate.as_list(data.input)


def _quiet(config: RunConfig) -> RunConfig:
    """The run's own configuration, less what is about tools or about a first turn."""
    settings = None if config.model_settings is None else without_tools(config.model_settings)
    return dataclasses.replace(config, input_guardrails=None, model_settings=settings)


class _AnswerHooks(RunHooks[Any]):
    """The run's hooks, for the one call of the last answer: agents do not start again."""

    def __init__(self, hooks: LoopGuardHooks) -> None:
        self._hooks = hooks

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        await self._hooks.on_llm_end(context, agent, response)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Agent[Any], output: Any) -> None:
        await self._hooks.on_agent_end(context, agent, output)
