"""`LoopGuardMiddleware`: every rung of the ladder inside `create_agent`.

All of it hangs on the model node: results are read from the history, the round is judged as soon as the model answered,
and a stop is written there as answers to every call plus a closing message. No node is added to the graph's loop, so a
round costs no extra superstep. Refused calls are turned away where they would run, after whatever a human approved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, NotRequired

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.middleware.types import (
    AgentState,
    ExtendedModelResponse,
    OmitFromInput,
    PrivateStateAttr,
    ToolCallRequest,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from loopguard_core import LoopGuard, PolicyLike, Stop, as_guard, inside
from loopguard_langchain import _rounds as rounds
from loopguard_langchain import _translate as translate
from loopguard_langchain._contained import contained
from loopguard_langchain._ending import Ending
from loopguard_langchain._invocations import Invocations, Run
from loopguard_langchain._model_call import ModelCall
from loopguard_langchain._stop import LoopGuardStop
from loopguard_langchain._stronger import StrongerModel
from loopguard_langchain._surfaces import MIDDLEWARE

ExitBehavior = Literal["end", "error"]


class LoopGuardState(AgentState[Any]):
    """What the middleware adds to the graph's state.

    Attributes:
        loopguard: After a stop: `reason`, `message` and `verdict`. Part of the agent's output; absent otherwise.
        loopguard_session: The run's counters, so that a checkpointed run goes on counting. Not part of the output.
        loopguard_run: The live session of this invocation; neither checkpointed nor part of the output.
    """

    loopguard: NotRequired[Annotated[dict[str, Any] | None, OmitFromInput]]
    loopguard_session: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]
    loopguard_run: NotRequired[Annotated[dict[str, Any], UntrackedValue, PrivateStateAttr]]


class LoopGuardMiddleware(AgentMiddleware[LoopGuardState, Any, Any]):
    """Detects loops in a `create_agent` run, steers, escalates, blocks single calls and ends the run cleanly.

    List it first: it then sees what all other middleware made of a call, and an error that reaches it ends the run.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.
        exit_behavior: What a stop does: `end` closes the conversation with a message, `error` raises
            `LoopGuardStop` once the history is complete. None takes the policy's `on_stop.how`, which may also be
            `answer`: one last model call without tools.
        escalate_model: The stronger model for escalated turns, as an object or a name for `init_chat_model`. None
            takes the policy's `escalation.models.langchain`.

    Raises:
        PolicyError: The policy cannot be used.
        TypeError: `escalate_model` is neither a chat model nor a name.
        ValueError: `exit_behavior` is neither of the two.
    """

    state_schema = LoopGuardState

    def __init__(
        self,
        guard: LoopGuard | PolicyLike = None,
        exit_behavior: ExitBehavior | None = None,
        escalate_model: str | BaseChatModel | None = None,
    ) -> None:
        super().__init__()
        if exit_behavior not in (None, "end", "error"):
            raise ValueError(f"exit_behavior must be 'end' or 'error', not {exit_behavior!r}")
        self.guard: LoopGuard = as_guard(guard)
        how = self.guard.policy.on_stop.how
        self._how = how if exit_behavior is None else {"end": "end", "error": "raise"}[exit_behavior]
        self._stronger = StrongerModel(escalate_model)
        self._invocations = Invocations(self.guard, self._stronger.label)
        self.guard.attach(MIDDLEWARE, escalation=escalate_model is not None)

    # -- the run -----------------------------------------------------------------------------------------------

    @contained
    def before_agent(self, state: LoopGuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """A new run: start its session, nested in the one whose tool started this agent."""
        if not self.guard.enabled:
            return None
        update = self._invocations.update(self._invocations.start(state, runtime))
        if state.get("loopguard") is not None:
            update["loopguard"] = None
        return update

    async def abefore_agent(self, state: LoopGuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Like `before_agent`."""
        return self.before_agent(state, runtime)

    @contained
    def after_agent(self, state: LoopGuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The run is over, and its history complete: end the session, and raise here if a stop is to raise."""
        if not self.guard.enabled:
            return None
        run = self._invocations.of(state, runtime)
        self._invocations.over(run)
        if run.session.stop is not None and self._how == "raise":
            raise LoopGuardStop(run.session.stop)
        return None

    async def aafter_agent(self, state: LoopGuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Like `after_agent`; waits for `async` hooks."""
        try:
            return self.after_agent(state, runtime)
        finally:
            await self.guard.adrain()

    # -- the model ---------------------------------------------------------------------------------------------

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ExtendedModelResponse[Any]:
        """Direct one model call, judge the round it asks for, and end the run if that is the verdict."""
        run = self._next_call(request)
        if run is None:
            return ExtendedModelResponse(handler(request))
        with self._invocations.leaving(run):
            call = self._call(run, request)
            while True:
                directive = run.session.before_model_call(*call.asked_for)
                if directive.stop is not None:
                    return self._closed(run, self._ending(call, directive.stop, call.kept).answered(handler))
                try:
                    with call.asking():
                        response: ModelResponse[Any] | None = handler(call.directed(directive))
                except BaseException as error:  # noqa: BLE001  # `lost` raises it unless there is another try
                    if not call.lost(directive, error):
                        continue
                    response = None
                for used in call.answered(response):
                    run.session.after_model_call(*used)
                if call.cut and not call.stopped:
                    continue
                outcome = self._judged(run, call, response)
                if not isinstance(outcome, Ending):
                    return outcome or _as_it_is(response)
                return self._closed(run, outcome.answered(handler))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ExtendedModelResponse[Any]:
        """Like `wrap_model_call`."""
        run = self._next_call(request)
        if run is None:
            return ExtendedModelResponse(await handler(request))
        with self._invocations.leaving(run):
            call = self._call(run, request)
            while True:
                directive = await run.session.abefore_model_call(*call.asked_for)
                if directive.stop is not None:
                    return self._closed(run, await self._ending(call, directive.stop, call.kept).aanswered(handler))
                try:
                    with call.asking():
                        response: ModelResponse[Any] | None = await handler(call.directed(directive))
                except BaseException as error:  # noqa: BLE001  # as in wrap_model_call
                    if not call.lost(directive, error):
                        continue
                    response = None
                for used in call.answered(response):
                    await run.session.aafter_model_call(*used)
                if call.cut and not call.stopped:
                    continue
                outcome = self._judged(run, call, response)
                await self.guard.adrain()
                if not isinstance(outcome, Ending):
                    return outcome or _as_it_is(response)
                return self._closed(run, await outcome.aanswered(handler))

    @contained
    def _next_call(self, request: ModelRequest[Any]) -> Run | None:
        """The run, with the results of its last round; None where the call is not ours to judge."""
        if not self.guard.enabled:
            return None
        run = self._invocations.of(request.state, request.runtime)
        with self.guard.faults.contained("reading results"):
            for result in translate.last_round(request.state["messages"])[1]:
                run.session.record_result(result.tool_call_id, translate.output_of(result), translate.failed(result))
        return run

    def _call(self, run: Run, request: ModelRequest[Any]) -> ModelCall:
        return ModelCall(self.guard, run.session, request, self._stronger.model, shows_stop=self._how != "answer")

    @contained
    def _judged(
        self, run: Run, call: ModelCall, response: ModelResponse[Any] | None
    ) -> ExtendedModelResponse[Any] | Ending | None:
        """What the model node gives, or how the run ends here."""
        stop = run.session.stop
        if stop is not None and call.last is not None:
            return self._ending(call, stop, call.kept)
        if response is None:  # cut, and then a plugin would not have it end; there is nothing left to ask for
            return self._extended(run, ModelResponse(result=[]), {}, call.kept)
        refused = self._judge(run, call, response)
        stop = run.session.stop
        if stop is not None and rounds.open_calls(response):
            return self._ending(call, stop, [*call.kept, *rounds.refused_round(response, refused)])
        return self._extended(run, response, refused, call.kept)

    def _judge(self, run: Run, call: ModelCall, response: ModelResponse[Any]) -> dict[str, str]:
        """Judge the round; what to say in place of each refused call's result, by id."""
        message = rounds.assistant_message(response)
        if message is None or response.structured_response is not None:  # a structured answer ends the run
            return {}
        calls = translate.calls_of(message)
        with self.guard.faults.contained("MCP annotations"):
            translate.annotate(calls, call.request.tools)
        decisions = run.session.begin_round(calls)
        with self.guard.faults.contained("reading results"):
            for answer in rounds.answers(response):  # the model node's own, such as to invalid structured output
                run.session.record_result(answer.tool_call_id, translate.output_of(answer), translate.failed(answer))
        refused = [(call, d.message or "") for call, d in zip(calls, decisions, strict=True) if d.blocked]
        run.refused = {call.id: [text, rounds.judged(call.name, call.arguments)] for call, text in refused}
        return {call.id: text for call, text in refused}

    # -- ending ------------------------------------------------------------------------------------------------

    def _ending(self, call: ModelCall, stop: Stop, before: list[BaseMessage]) -> Ending:
        return Ending(call, stop, before, asks=self._how == "answer")

    def _closed(self, run: Run, ending: Ending) -> ExtendedModelResponse[Any]:
        """Close the conversation.

        Raises:
            LoopGuardStop: It was closed before, and the graph runs on, as one with only structured output does.
        """
        if ending.said_nothing and rounds.is_closed(ending.call.request.state["messages"]):
            run.session.end()
            raise LoopGuardStop(ending.stop)
        update = {**(self._update(run) or {}), "loopguard": ending.stop.as_dict(), "jump_to": "end"}
        return ExtendedModelResponse(ModelResponse(result=ending.messages), Command(update=update))

    def _extended(
        self, run: Run, response: ModelResponse[Any], refused: dict[str, str], kept: list[BaseMessage]
    ) -> ExtendedModelResponse[Any]:
        message = rounds.assistant_message(response)
        more: list[BaseMessage] = []
        if refused and message is not None:  # no tool node turns away calls that could not be parsed
            broken = [call for call in message.invalid_tool_calls if call["id"] in refused]
            more = [translate.refusal(c["id"] or "", c["name"] or "", refused[c["id"] or ""]) for c in broken]
        if kept or more:
            response = ModelResponse([*kept, *response.result, *more], response.structured_response)
        update = self._update(run) if run.kept or self._invocations.waits(run) else None
        return ExtendedModelResponse(response, None if update is None else Command(update=update))

    @contained
    def _update(self, run: Run) -> dict[str, Any] | None:
        return self._invocations.update(run)

    # -- tools -------------------------------------------------------------------------------------------------

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Turn a refused call away; let any other run, so that an agent inside it finds its outer run."""
        asked = self._asked(request)
        if asked is None:
            return handler(request)
        run, refusal = asked
        if refusal is not None:
            return refusal
        with self._invocations.leaving(run), inside(run.session):
            result = handler(request)
        self._returned(run, result)
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Like `wrap_tool_call`."""
        asked = self._asked(request)
        if asked is None:
            return await handler(request)
        run, refusal = asked
        if refusal is not None:
            return refusal
        with self._invocations.leaving(run), inside(run.session):
            result = await handler(request)
        self._returned(run, result)
        return result

    @contained
    def _asked(self, request: ToolCallRequest) -> tuple[Run, ToolMessage | None] | None:
        """The run a tool is called in, and the answer to a call that is refused; None where nobody judges it."""
        if not self.guard.enabled:
            return None
        run = self._invocations.of(request.state, get_runtime())
        return run, rounds.refusal(run.refused, request)

    @contained
    def _returned(self, run: Run, result: ToolMessage | Command[Any]) -> None:
        if rounds.hands_over(result):
            self._invocations.over(run)


def _as_it_is(response: ModelResponse[Any] | None) -> ExtendedModelResponse[Any]:
    """What a model node gives that could not be judged."""
    return ExtendedModelResponse(ModelResponse(result=[]) if response is None else response)
