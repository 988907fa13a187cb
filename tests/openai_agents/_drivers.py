"""Drivers of the conformance suite: `GuardedRunner` and `LoopGuardHooks`, through the real client."""

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agents import Agent as SdkAgent
from agents import (
    FunctionTool,
    ModelProvider,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.models.chatcmpl_converter import Converter
from loopguard_openai_agents import (
    GuardedRunner,
    LoopGuardHooks,
    guard_run_config,
    loop_guard_tool_guardrail,
    loop_guard_tool_output_guardrail,
)
from loopguard_openai_agents._surfaces import (
    GUARDRAIL,
    HOOKS,
    MODEL,
    MODEL_WITH_GUARDRAIL,
    RUNNER,
    RUNNER_WITH_MODEL_OBJECT,
)
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from loopguard_core import LoopGuard, Surface
from loopguard_core.testing.conformance import Agent, Conversation, Driver, ToolSpec, Turn
from loopguard_core.testing.conformance._driver import PARAMETERS, sent

Mode = Literal["run", "run_sync", "run_streamed"]

MODES: tuple[Mode, ...] = ("run", "run_sync", "run_streamed")

NOT_FOUND = "return_error_to_model"

SHARED = frozenset(
    {
        *("history", "usage", "cost", "unknown_tool", "invalid_json", "nested", "raise"),
        *("fan_out", "tool_names", "sees_answers", "reads_text", "tool_errors"),
        *("asks_first", "max_tokens"),
    }
)
"""What both ways to attach can show."""


class _Loop:
    """One event loop for all async runs: a client keeps connections that belong to its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()


_shared = _Loop()


class Chat(ModelProvider):
    """Chat Completions models at one address."""

    def __init__(self, base_url: str) -> None:
        http = DefaultAsyncHttpxClient(verify=False)  # loopback: reading certificates takes longer than a whole run
        self._client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http)

    def get_model(self, model_name: str | None) -> OpenAIChatCompletionsModel:
        return OpenAIChatCompletionsModel(model_name or "", self._client)


@dataclass
class Query:
    """Arguments of an agent inside a tool."""

    query: str


def make_tool(spec: ToolSpec, driver: Any) -> FunctionTool:
    """A tool from its neutral description."""
    if spec.agent is not None:
        return driver.nested(spec)

    def body(
        query: str | None = None,
        n: int | None = None,
        reason: str | None = None,
        path: str | None = None,
        old_string: str | None = None,
        new_string: str | None = None,
    ) -> str:
        return str(spec.body(sent(locals())))

    return function_tool(
        body,
        name_override=spec.name,
        description_override=spec.name,
        strict_mode=False,
        needs_approval=spec.approval,
    )


class SdkConversation:
    """One SQLite session in memory."""

    def __init__(self, driver: Any, agent: Agent) -> None:
        self._driver, self._agent = driver, agent
        self._session = SQLiteSession("conversation")
        self._result: Any = None

    def send(self, text: str) -> Turn:
        return self._turn(text)

    def approve(self) -> Turn:
        state = self._result.to_state()
        for item in state.get_interruptions():
            state.approve(item)
        return self._turn(state)

    def _turn(self, given: Any) -> Turn:
        try:
            self._result = self._driver.run(self._agent, given, self._session)
        except Exception as error:  # noqa: BLE001
            return Turn(error=error)
        if self._result.interruptions:
            return Turn(waiting=True)
        return Turn(text=str(self._result.final_output))

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        items = asyncio.run(self._session.get_items())
        return [dict(message) for message in Converter.items_to_messages(items)]


class _SdkDriver:
    executes_stopped_round = False
    surface: Surface
    features: frozenset[str]

    def __init__(self, mode: Mode) -> None:
        self.mode = mode

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return lambda: SdkConversation(self, agent)

    def sdk_agent(self, agent: Agent) -> SdkAgent:
        return SdkAgent(
            name="agent",
            model=agent.model,
            tools=[make_tool(spec, self) for spec in agent.tools],
            model_settings=ModelSettings(include_usage=True, preserve_raw_usage=True, max_tokens=agent.max_tokens),
        )

    def config(self, agent: Agent, config: RunConfig) -> RunConfig:
        return config

    def run(self, agent: Agent, given: Any, session: SQLiteSession) -> Any:
        runner, options = self.options(agent)
        config = self.config(agent, RunConfig(model_provider=Chat(agent.base_url), tool_not_found_behavior=NOT_FOUND))
        options = {"session": session, "max_turns": 500, "run_config": config, **options}
        built = self.sdk_agent(agent)
        if self.mode == "run_sync":
            return runner.run_sync(built, given, **options)

        async def main() -> Any:
            if self.mode == "run":
                return await runner.run(built, given, **options)
            result = runner.run_streamed(built, given, **options)
            async for _ in result.stream_events():
                pass
            return result

        return asyncio.run_coroutine_threadsafe(main(), _shared.loop).result(60)


class RunnerDriver(_SdkDriver):
    """GuardedRunner."""

    surface = RUNNER
    features = SHARED | {"approval", "on_stop", "text", "model_errors"}

    def options(self, agent: Agent) -> tuple[Any, dict[str, Any]]:
        return GuardedRunner, {
            "guard": agent.guard,
            "on_stop": agent.on_stop,
            "escalate_model": agent.strong_model,
        }

    def nested(self, spec: ToolSpec) -> FunctionTool:
        """An agent that a tool of its own starts."""
        inner = spec.agent
        built, config = self.sdk_agent(inner), RunConfig(model_provider=Chat(inner.base_url))

        async def invoke(_: Any, arguments: str) -> str:
            text = str(json.loads(arguments).get("query"))
            result = await GuardedRunner.run(built, text, guard=inner.guard, run_config=config, max_turns=500)
            return str(result.final_output)

        return FunctionTool(spec.name, spec.name, dict(PARAMETERS), invoke, strict_json_schema=False)


class ModelObjectDriver(RunnerDriver):
    """GuardedRunner with a model that is no name, so that nothing stands in front of it."""

    surface = RUNNER_WITH_MODEL_OBJECT

    def sdk_agent(self, agent: Agent) -> SdkAgent:
        built = super().sdk_agent(agent)
        built.model = Chat(agent.base_url).get_model(agent.model)
        return built


class HooksDriver(_SdkDriver):
    """LoopGuardHooks in the SDK's own Runner."""

    surface = HOOKS
    features = SHARED

    def options(self, agent: Agent) -> tuple[Any, dict[str, Any]]:
        return Runner, {"hooks": LoopGuardHooks(agent.guard)}

    def nested(self, spec: ToolSpec) -> FunctionTool:
        """An agent as a tool, as the SDK makes one."""
        return self.sdk_agent(spec.agent).as_tool(
            spec.name,
            spec.name,
            hooks=LoopGuardHooks(spec.agent.guard),
            parameters=Query,
            input_builder=lambda given: given["params"]["query"],
            max_turns=500,
        )


class ModelDriver(_SdkDriver):
    """Models wrapped by `guard_run_config`, in the SDK's own Runner."""

    surface = MODEL
    features = (SHARED | {"on_stop", "text", "model_errors"}) - {"nested"}

    def options(self, agent: Agent) -> tuple[Any, dict[str, Any]]:
        return Runner, {}

    def config(self, agent: Agent, config: RunConfig) -> RunConfig:
        return guard_run_config(agent.guard, config, escalate_model=agent.strong_model, on_stop=agent.on_stop)


def with_guardrails(tools: Sequence[Any], guard: LoopGuard) -> list[Any]:
    """The tools, each with a guardrail before and after it."""
    return [
        replace(
            tool,
            tool_input_guardrails=[loop_guard_tool_guardrail(guard)],
            tool_output_guardrails=[loop_guard_tool_output_guardrail(guard)],
        )
        for tool in tools
    ]


class ModelWithGuardrailDriver(ModelDriver):
    """The same, with a guardrail on each tool."""

    surface = MODEL_WITH_GUARDRAIL

    def sdk_agent(self, agent: Agent) -> SdkAgent:
        built = super().sdk_agent(agent)
        built.tools = with_guardrails(built.tools, agent.guard)
        return built


class GuardrailConversation(SdkConversation):
    """A run that only guardrails see is over when nothing holds it any more. The SDK drops the round of a stop."""

    def history(self) -> None:
        self._result = None
        gc.collect()
        self._agent.guard.close()


class GuardrailDriver(_SdkDriver):
    """Guardrails on the tools, and nothing else."""

    surface = GUARDRAIL
    features = frozenset({"invalid_json", "raise", "tool_names", "tool_errors"})
    cannot = frozenset({"limit on turns"})
    """It sees the round behind the limit, and refuses that: one model call too many."""

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return lambda: GuardrailConversation(self, agent)

    def options(self, agent: Agent) -> tuple[Any, dict[str, Any]]:
        return Runner, {}

    def sdk_agent(self, agent: Agent) -> SdkAgent:
        built = super().sdk_agent(agent)
        built.tools = with_guardrails(built.tools, agent.guard)
        return built


DRIVERS: list[Driver] = [
    *(RunnerDriver(mode) for mode in MODES),
    ModelObjectDriver("run"),
    ModelObjectDriver("run_streamed"),
    HooksDriver("run"),
    HooksDriver("run_streamed"),
    ModelDriver("run"),
    ModelDriver("run_streamed"),
    ModelWithGuardrailDriver("run"),
    ModelWithGuardrailDriver("run_streamed"),
    GuardrailDriver("run"),
    GuardrailDriver("run_streamed"),
]
