"""Drivers of the conformance suite: every kind of agent, through a client that asks the scripted server."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from loopguard_llama_index import LoopGuardMixin, guard_agent
from loopguard_llama_index._surfaces import AGENT
from loopguard_llama_index_clients import CodeClient, FunctionClient, ReActClient, shared, to_wire

from loopguard_core.testing.conformance import Agent, Conversation, ToolSpec, Turn
from loopguard_core.testing.conformance._driver import sent


def make_tool(spec: ToolSpec, driver: Any) -> FunctionTool:
    """A tool from its neutral description."""
    if spec.agent is not None:

        async def nested(query: str | None = None) -> str:
            return str(await driver.make(spec.agent).run(query, max_iterations=500))

        return FunctionTool.from_defaults(async_fn=nested, name=spec.name, description=spec.name)
    if spec.approval:

        async def approved(ctx: Context, query: str | None = None) -> str:
            question = InputRequiredEvent(prefix="approve?")
            await ctx.wait_for_event(HumanResponseEvent, waiter_event=question, waiter_id="approval")
            return str(spec.body(sent(locals())))

        return FunctionTool.from_defaults(async_fn=approved, name=spec.name, description=spec.name)
    return FunctionTool.from_defaults(fn=body_of(spec), name=spec.name, description=spec.name)


def body_of(spec: ToolSpec) -> Callable[..., str]:
    """What a tool does, as a function with parameters."""

    def body(
        query: str | None = None,
        n: int | None = None,
        reason: str | None = None,
        path: str | None = None,
        old_string: str | None = None,
        new_string: str | None = None,
    ) -> str:
        return str(spec.body(sent(locals())))

    body.__name__ = spec.name
    return body


class AgentConversation:
    """Turns on one context and one memory."""

    def __init__(self, driver: Any, agent: Agent) -> None:
        self.driver, self.agent = driver, agent
        self.workflow = driver.built(agent)
        self.memory = ChatMemoryBuffer.from_defaults(token_limit=10_000_000)
        self.ctx: Any = Context(self.workflow)
        self.handler: Any = None
        self.events: Any = None

    def send(self, text: str) -> Turn:
        async def start() -> Turn:
            self.handler = self.workflow.run(text, ctx=self.ctx, memory=self.memory, max_iterations=500)
            self.ctx = self.handler.ctx
            return await self._turn()

        return shared.run(start())

    async def _turn(self) -> Turn:
        self.events = self.handler.stream_events() if self.events is None else self.events
        async for event in self.events:
            if isinstance(event, InputRequiredEvent):
                return Turn(waiting=True)
        self.events = None
        try:
            return Turn(text=str(await self.handler))
        except Exception as error:  # noqa: BLE001
            return Turn(error=error)

    def approve(self) -> Turn:
        async def answer() -> Turn:
            if self.driver.resumes:  # put away and taken up again, as another process would
                saved = json.loads(json.dumps(self.handler.ctx.to_dict()))
                await self.handler.cancel_run()
                self.workflow = self.driver.make(self.agent)
                self.handler = self.workflow.run(ctx=Context.from_dict(self.workflow, saved))
                await self.handler.ctx.store.set("memory", self.memory)
                self.ctx, self.events = self.handler.ctx, None
                # A step that waits is started again first; an answer that comes before that is lost.
                self.events = self.handler.stream_events()
            self.handler.ctx.send_event(HumanResponseEvent(response="yes"))
            return await self._turn()

        return shared.run(answer())

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        return [to_wire(message) for message in self.memory.get_all()]


ALL = frozenset(
    {
        *("history", "usage", "cost", "unknown_tool", "invalid_json", "tool_errors", "nested", "approval"),
        *("on_stop", "raise", "fan_out", "tool_names", "sees_answers", "reads_text", "text"),
        *("asks_first", "model_errors", "max_tokens"),
    }
)
"""What an agent that calls functions can show."""


class AgentDriver:
    """One kind of agent under `guard_agent`."""

    surface = AGENT
    features: frozenset[str] = ALL
    executes_stopped_round = False
    resumes = False
    streaming = True

    def __init__(self, mode: str, *, streaming: bool = True, resumes: bool = False) -> None:
        self.mode, self.streaming, self.resumes = mode, streaming, resumes
        self._built: dict[int, Any] = {}

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        self._agent, self._one = agent, self.make(agent)
        return lambda: AgentConversation(self, agent)

    def built(self, agent: Agent) -> Any:
        """Conversations share one agent."""
        return self._one if agent is self._agent else self.make(agent)

    def make(self, agent: Agent) -> Any:
        strong = None if agent.strong_model is None else self.llm(agent, agent.strong_model)
        made = self.agent(agent, [make_tool(spec, self) for spec in agent.tools])
        assert guard_agent(made, agent.guard, strong, on_stop=agent.on_stop) is made
        return made

    def llm(self, agent: Agent, model: str) -> Any:
        return FunctionClient(base_url=agent.base_url, model=model, max_tokens=agent.max_tokens)

    def agent(self, agent: Agent, tools: list[FunctionTool]) -> Any:
        return FunctionAgent(tools=tools, llm=self.llm(agent, agent.model), streaming=self.streaming)


class ReActDriver(AgentDriver):
    """A model that writes one action a response; what it says holds the action, so it is never the same."""

    features = (ALL | {"asks_on"}) - {"invalid_json", "fan_out", "reads_text"}

    def llm(self, agent: Agent, model: str) -> Any:
        names = tuple(spec.name for spec in agent.tools)
        return ReActClient(base_url=agent.base_url, model=model, max_tokens=agent.max_tokens, tool_names=names)

    def agent(self, agent: Agent, tools: list[FunctionTool]) -> Any:
        return ReActAgent(tools=tools, llm=self.llm(agent, agent.model), streaming=self.streaming)


class CodeActDriver(AgentDriver):
    """A model that writes code. The calls inside it are its own affair: what is judged is the code."""

    features = ALL - {"invalid_json", "nested", "approval", "fan_out", "tool_names"}

    def llm(self, agent: Agent, model: str) -> Any:
        names = tuple(spec.name for spec in agent.tools)
        return CodeClient(base_url=agent.base_url, model=model, max_tokens=agent.max_tokens, tool_names=names)

    def agent(self, agent: Agent, tools: list[FunctionTool]) -> Any:
        functions = {spec.name: body_of(spec) for spec in agent.tools}

        async def execute(code: str) -> str:
            return str(eval(code, dict(functions)))

        described = [FunctionTool.from_defaults(fn=function) for function in functions.values()]
        return CodeActAgent(execute, tools=described, llm=self.llm(agent, agent.model), streaming=self.streaming)


class WorkflowDriver(AgentDriver):
    """An AgentWorkflow of two agents, of which the first does the work."""

    def agent(self, agent: Agent, tools: list[FunctionTool]) -> Any:
        llm = self.llm(agent, agent.model)
        first = FunctionAgent(name="worker", description="works", tools=tools, llm=llm, streaming=self.streaming)
        other = FunctionAgent(name="other", description="is never asked", llm=llm)
        return AgentWorkflow(agents=[first, other], root_agent="worker")


class Mixed(LoopGuardMixin, FunctionAgent):
    """An agent that is guarded from the start."""


class MixinDriver(AgentDriver):
    """LoopGuardMixin."""

    def make(self, agent: Agent) -> Any:
        return Mixed(
            tools=[make_tool(spec, self) for spec in agent.tools],
            llm=self.llm(agent, agent.model),
            guard=agent.guard,
            escalate_llm=None if agent.strong_model is None else self.llm(agent, agent.strong_model),
            on_stop=agent.on_stop,
        )


DRIVERS: list[Any] = [
    AgentDriver("FunctionAgent, streaming"),
    AgentDriver("FunctionAgent", streaming=False),
    AgentDriver("FunctionAgent, resumed elsewhere", resumes=True),
    ReActDriver("ReActAgent, streaming"),
    ReActDriver("ReActAgent", streaming=False),
    CodeActDriver("CodeActAgent, streaming"),
    CodeActDriver("CodeActAgent", streaming=False),
    WorkflowDriver("AgentWorkflow, streaming"),
    MixinDriver("LoopGuardMixin"),
]
