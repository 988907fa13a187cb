"""The same through LlamaIndex's real OpenAI client, where it is installed."""

import asyncio
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import LLMMetadata
from loopguard_llama_index import guard_agent
from loopguard_llama_index_drivers import AgentDriver, WorkflowDriver
from loopguard_llama_index_kit import OWN, Counted, Stammers, Watched, assert_well_formed, go

from loopguard_core.testing import ChatRequest, Reply, ScriptedServer, never_listens
from loopguard_core.testing.conformance import Case, cases

openai = pytest.importorskip(
    "llama_index.llms.openai",
    reason="the real client is not installed: pip install llama-index-llms-openai (it needs openai 1 or 2)",
)


class Client(openai.OpenAI):
    """The client for a model it does not know by name."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True, model_name=self.model)


def client(base_url: str, model: str = "scripted-1", **options: Any) -> Client:
    return Client(model=model, api_base=base_url, api_key="none", max_retries=0, reuse_client=False, **options)


USAGE = {"stream_options": {"include_usage": True}}


class RealDriver(AgentDriver):
    """FunctionAgent."""

    def llm(self, agent: Any, model: str) -> Client:
        usage = USAGE if self.streaming else {}
        return client(agent.base_url, model, additional_kwargs=usage, max_tokens=agent.max_tokens)


class RealWorkflowDriver(RealDriver, WorkflowDriver):
    """AgentWorkflow."""

    agent = WorkflowDriver.agent


CASES = cases(
    RealDriver("OpenAI client, streaming"),
    RealDriver("OpenAI client", streaming=False),
    RealWorkflowDriver("OpenAI client, AgentWorkflow"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case) -> None:
    """Every script holds through the real client too."""
    case.run()


@pytest.mark.parametrize("streaming", [True, False])
async def test_usage_is_read_where_the_client_reports_it(streaming: bool) -> None:
    guard, tool = Watched(), Counted()
    with ScriptedServer(never_listens("lookup", {"key": "K-1"})) as server:
        llm = client(server.base_url, additional_kwargs=USAGE if streaming else {})
        agent = FunctionAgent(tools=[tool.tool], llm=llm, streaming=streaming)
        ran = await go(guard_agent(agent, guard))
        spent = sum(usage["total_tokens"] for usage in server.usage_log)
    assert len(tool.ran) == 2
    assert guard.last_end.usage.total_tokens == spent
    assert_well_formed(ran.history)


async def test_a_stream_reports_no_usage_unless_it_is_asked_to_and_is_estimated_where_that_counts() -> None:
    for policy, estimated in (({}, None), ({"limits": {"tokens": 200}}, True)):
        guard = Watched(policy)
        with ScriptedServer(never_listens("lookup", {"key": "K-1"})) as server:
            agent = FunctionAgent(tools=[Counted().tool], llm=client(server.base_url))
            await go(guard_agent(agent, guard))
        usage = guard.last_end.usage
        if estimated is None:
            assert usage.total_tokens is None, "unknown, and never taken for zero"
        else:
            assert usage.estimated
            assert usage.input_tokens + usage.output_tokens >= 200
            assert guard.reasons == ["max_tokens"]


async def test_a_cut_stream_is_closed_at_the_provider() -> None:
    guard = Watched(plugins=[Stammers()])

    def persona(request: ChatRequest) -> Reply:
        told = any(OWN in text for text in request.texts("user"))
        return Reply(text="I see now.") if told else Reply(text="again and " * 400_000)

    with ScriptedServer(persona) as server:
        agent = FunctionAgent(tools=[Counted().tool], llm=client(server.base_url, timeout=30))
        async with asyncio.timeout(60):
            ran = await go(guard_agent(agent, guard))
        assert ran.text == "I see now."
        requests = server.requests
    assert server.disconnects == 1, "the rest was never sent"
    assert len(requests) == 2
    assert requests[1]["messages"][-2]["content"].count("again") == 3
