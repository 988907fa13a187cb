"""The three SDKs through the gateway, with no adapter installed: nothing but a base URL and a key."""

import importlib.util
import sys
from pathlib import Path

import httpx
import openai
import pytest
from loopguard_gateway_kit import MODEL, calls, chat, responses

from loopguard_core.keys import open_ledger
from loopguard_core.testing import Reply, never_listens

ARGUMENTS = {"invoice_id": "A-1"}
LOOPS = chat(never_listens("fetch_invoice", ARGUMENTS))
FOREVER = responses(lambda _: calls(ARGUMENTS, tool="fetch_invoice"))
ENDED = "[loopguard] The run was ended"


def two_steps(request):
    """A healthy run: one call, one answer."""
    return calls(ARGUMENTS, tool="fetch_invoice") if request.number == 1 else Reply(text="It is due on Friday.")


def two_items(items):
    done = any(item.get("type") == "function_call_output" for item in items)
    return Reply(text="It is due on Friday.") if done else calls(ARGUMENTS, tool="fetch_invoice")


class Tool:
    """The broken tool, and how often it ran."""

    def __init__(self):
        self.ran = 0

    def fetch_invoice(self, invoice_id: str) -> str:
        """Read an invoice."""
        self.ran += 1
        return "Error: 504 Gateway Timeout"


BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def checked(provider, served, answer, tool):
    assert answer.startswith(ENDED)
    assert tool.ran == 2
    assert len(provider.requests) == 6
    served.settled()


# -- LangChain ---------------------------------------------------------------------------------------------------------


def langchain_agent(served, stream, tool, **options):
    pytest.importorskip("langchain")
    integration = pytest.importorskip("langchain_openai")
    from langchain.agents import create_agent
    from langchain_core.tools import StructuredTool

    model = integration.ChatOpenAI(
        model=MODEL, base_url=served.base_url, api_key=served.key, streaming=stream, stream_usage=True, **options
    )
    agent = create_agent(model, tools=[StructuredTool.from_function(tool.fetch_invoice)])
    result = agent.invoke({"messages": [("user", "Is A-1 due?")]}, {"recursion_limit": 60})
    return result["messages"][-1].text


@BOTH
def test_langchain(gateway, stream):
    provider, served = gateway(LOOPS)
    tool = Tool()
    checked(provider, served, langchain_agent(served, stream, tool), tool)


@BOTH
def test_langchain_over_responses(gateway, stream):
    provider, served = gateway(FOREVER)
    tool = Tool()
    checked(provider, served, langchain_agent(served, stream, tool, use_responses_api=True), tool)


def test_an_adapter_and_the_gateway_side_by_side(gateway):
    """The adapter acts first; its refusals are no results to the gateway, which ends the run where it does."""
    pytest.importorskip("langchain")
    integration = pytest.importorskip("langchain_openai")
    from langchain.agents import create_agent
    from langchain_core.tools import StructuredTool
    from loopguard_langchain import LoopGuardMiddleware

    provider, served = gateway(LOOPS, "observe")
    tool = Tool()
    model = integration.ChatOpenAI(model=MODEL, base_url=served.base_url, api_key=served.key)
    tools = [StructuredTool.from_function(tool.fetch_invoice)]
    agent = create_agent(model, tools=tools, middleware=[LoopGuardMiddleware("default")])
    result = agent.invoke({"messages": [("user", "Is A-1 due?")]}, {"recursion_limit": 60})
    assert result["loopguard"]["reason"] == "doom_loop"
    assert (tool.ran, len(provider.requests)) == (2, 6)
    assert served.metric('loopguard_gateway_verdicts_total{action="observe"') >= 4
    assert served.status().spent > 0


@BOTH
def test_langchain_below_the_limit(gateway, stream):
    provider, served = gateway(chat(two_steps))
    assert langchain_agent(served, stream, Tool()) == "It is due on Friday."
    assert len(provider.requests) == 2


@BOTH
def test_langchain_above_the_limit(gateway, stream):
    _, served = gateway(LOOPS, limit="0")
    with pytest.raises(openai.APIStatusError) as raised:
        langchain_agent(served, stream, Tool())
    assert raised.value.status_code == 402


# -- OpenAI Agents SDK -------------------------------------------------------------------------------------------------


async def agents_answer(served, stream, tool, *, use_responses):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    function = agents.function_tool(tool.fetch_invoice)
    agent = agents.Agent(name="billing", tools=[function], model=MODEL)
    # A client of its own: the SDK's shared one stays with the event loop of the first test.
    client = openai.AsyncOpenAI(base_url=served.base_url, api_key=served.key, max_retries=0)
    provider = agents.OpenAIProvider(openai_client=client, use_responses=use_responses)
    config = agents.RunConfig(model_provider=provider)
    if not stream:
        return (await agents.Runner.run(agent, "Is A-1 due?", run_config=config, max_turns=30)).final_output
    result = agents.Runner.run_streamed(agent, "Is A-1 due?", run_config=config, max_turns=30)
    async for _ in result.stream_events():
        pass
    return result.final_output


@BOTH
@pytest.mark.parametrize("use_responses", [False, True], ids=["chat", "responses"])
async def test_agents_sdk(gateway, stream, use_responses):
    provider, served = gateway(FOREVER if use_responses else LOOPS)
    tool = Tool()
    checked(provider, served, await agents_answer(served, stream, tool, use_responses=use_responses), tool)


@BOTH
@pytest.mark.parametrize("use_responses", [False, True], ids=["chat", "responses"])
async def test_agents_sdk_below_the_limit(gateway, stream, use_responses):
    provider, served = gateway(responses(two_items) if use_responses else chat(two_steps))
    answer = await agents_answer(served, stream, Tool(), use_responses=use_responses)
    assert answer == "It is due on Friday."
    assert len(provider.requests) == 2


@BOTH
@pytest.mark.parametrize("use_responses", [False, True], ids=["chat", "responses"])
async def test_agents_sdk_above_the_limit(gateway, stream, use_responses):
    pytest.importorskip("agents")
    _, served = gateway(FOREVER if use_responses else LOOPS, limit="0")
    with pytest.raises(openai.APIStatusError) as raised:
        await agents_answer(served, stream, Tool(), use_responses=use_responses)
    assert raised.value.status_code == 402


# -- LlamaIndex --------------------------------------------------------------------------------------------------------


def llama_clients():
    pytest.importorskip("llama_index.core")
    name = "loopguard_llama_index_clients"
    if name not in sys.modules:
        path = Path(__file__).parents[1] / "llama_index" / "_clients.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


async def llama_answer(served, tool):
    clients = llama_clients()
    from llama_index.core.agent.workflow import FunctionAgent

    class Client(clients.FunctionClient):
        """The SDK's base class for models that call functions, on plain HTTP."""

        async def _answer(self, messages, **kwargs):
            body = {"model": self.model, **self._body(messages, **kwargs)}
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"{served.base_url}/chat/completions", json=body, headers=served.auth)
            answer.raise_for_status()
            raw = answer.json()
            return self._response(raw, raw["choices"][0]["message"])

    agent = FunctionAgent(
        tools=[tool.fetch_invoice], llm=Client(base_url=served.base_url, model=MODEL), streaming=False
    )
    return str(await agent.run("Is A-1 due?", max_iterations=30))


async def test_llama_index(gateway):
    provider, served = gateway(LOOPS)
    tool = Tool()
    checked(provider, served, await llama_answer(served, tool), tool)


async def test_llama_index_below_and_above_the_limit(gateway):
    provider, served = gateway(chat(two_steps))
    assert await llama_answer(served, Tool()) == "It is due on Friday."
    assert len(provider.requests) == 2
    with open_ledger(served.store) as ledger:
        ledger.set_limit("team", 0)
    with pytest.raises(Exception, match="402"):
        await llama_answer(served, Tool())


async def own_client_answer(served, stream, tool):
    llm = pytest.importorskip(
        "llama_index.llms.openai",
        reason="the real client is not installed: pip install llama-index-llms-openai (it needs openai 1 or 2)",
    )
    from llama_index.core.agent.workflow import FunctionAgent

    model = llm.OpenAI(model=MODEL, api_base=served.base_url, api_key=served.key, reuse_client=False, max_retries=0)
    agent = FunctionAgent(tools=[tool.fetch_invoice], llm=model, streaming=stream)
    return str(await agent.run("Is A-1 due?", max_iterations=30))


@BOTH
async def test_llama_index_with_its_own_openai_client(gateway, stream):
    provider, served = gateway(LOOPS)
    tool = Tool()
    checked(provider, served, await own_client_answer(served, stream, tool), tool)


@BOTH
async def test_llama_index_with_its_own_openai_client_below_and_above_the_limit(gateway, stream):
    provider, served = gateway(chat(two_steps))
    assert await own_client_answer(served, stream, Tool()) == "It is due on Friday."
    assert len(provider.requests) == 2
    with open_ledger(served.store) as ledger:
        ledger.set_limit("team", 0)
    with pytest.raises(Exception, match="402"):
        await own_client_answer(served, stream, Tool())
