"""What the pages of the docs take for granted: models, tools, agents, recordings. A scripted model plays every part."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from loopguard_core import LoopGuard
from loopguard_core.testing import ScriptedServer

ROOT = Path(__file__).parents[2]
STUBBORN = {"docs/langchain.md", "docs/migrating.md"}
"""Pages whose model never listens; on all others it gives up when it is refused."""
QUESTION = "Is invoice INV-2291 due today?"
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "fetch_invoice", "arguments": '{"invoice_id":"INV-2291"}'},
}


def fetch_invoice(invoice_id: str) -> str:
    """Read an invoice."""
    return f"Error: 504 Gateway Timeout. The billing service did not answer for {invoice_id}."


def files(folder: Path) -> None:
    """Files that pages name: a policy, recordings, labelled conversations."""
    (folder / "loopguard.toml").write_text('preset = "default"\n', encoding="utf-8")
    for name in ("try.toml", "mine.toml"):
        shutil.copyfile(folder / "loopguard.toml", folder / name)
    corpus = folder / "corpus" / "reports"
    corpus.mkdir(parents=True)
    for name in ("field-l01-identical-success-x10", "field-f23-double-check", "own-01-supervisor-delegates"):
        shutil.copyfile(ROOT / "corpus" / "reports" / f"{name}.json", corpus / f"{name}.json")
    runs = folder / "runs"
    runs.mkdir()
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "due on 2026-12-01"},
        {"role": "assistant", "content": "It is due tomorrow."},
    ]
    for file in (folder / "run.json", folder / "conversation.json", runs / "one.json"):
        file.write_text(json.dumps({"messages": messages}), encoding="utf-8")


def names(page: str, server: ScriptedServer) -> dict[str, Any]:
    """What is defined before the first block of a page; `before_block(names)`, if there, runs before each."""
    return _PAGES.get(page, lambda _: {})(server)


def _readme(_: ScriptedServer) -> dict[str, Any]:
    return {"fetch_invoice": fetch_invoice}


def _keys(_: ScriptedServer) -> dict[str, Any]:
    return {"call_the_model": lambda: "an answer"}


def _session(_: ScriptedServer) -> dict[str, Any]:
    from loopguard_core import session_store

    opened = session_store.open_session_store

    def in_memory(_address: str) -> Any:  # where the page has an address of a Redis server
        return opened("memory://")

    session_store.open_session_store = in_memory
    return {"restore": lambda: setattr(session_store, "open_session_store", opened)}


def _langchain(server: ScriptedServer) -> dict[str, Any]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI
    from langgraph.errors import GraphDrained
    from langgraph.graph.state import CompiledStateGraph
    from loopguard_langchain import LoopGuardStop

    model = ChatOpenAI(base_url=server.base_url, api_key="unused", model="scripted-1", stream_usage=True)
    inputs = {"messages": [("user", QUESTION)]}

    class Graph:
        """An agent or a graph whose `...` is the question, and that ends as its page says."""

        def __init__(self, graph: Any) -> None:
            self._graph = graph

        def invoke(self, given: Any, *rest: Any) -> Any:
            try:
                return self._graph.invoke(inputs if given is ... else given, *rest)
            except (LoopGuardStop, GraphDrained) as stop:
                return stop

    def my_loop(model: Any, tools: Any) -> Any:
        return model.bind_tools(tools).invoke(QUESTION).content

    def before_block(names: dict[str, Any]) -> None:
        if isinstance(names.get("agent"), CompiledStateGraph):
            names["agent"] = Graph(names["agent"])

    plain = create_agent(model, [fetch_invoice])
    return {
        "model": model,
        "tools": [fetch_invoice],
        "graph": Graph(plain),
        "build_graph": lambda model, tools: Graph(create_agent(model, tools)),
        "inputs": inputs,
        "my_loop": my_loop,
        "before_block": before_block,
    }


def _openai_agents(server: ScriptedServer) -> dict[str, Any]:
    from agents import Agent, OpenAIChatCompletionsModel, RunHooks, Runner, function_tool
    from loopguard_openai_agents import LoopGuardModel
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=server.base_url, api_key="unused")
    model = OpenAIChatCompletionsModel("scripted-1", client)
    agent = Agent(name="billing", model=LoopGuardModel(model, LoopGuard()), tools=[function_tool(fetch_invoice)])
    return {"agent": agent, "Runner": Runner, "my_own_hooks": RunHooks(), "unguarded_model": model}


def _llama_index(server: ScriptedServer) -> dict[str, Any]:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.tools import FunctionTool
    from loopguard_llama_index import LoopGuardMixin

    class Agent(FunctionAgent):
        """A `FunctionAgent` whose `tools=[...]` are real ones."""

        def __init__(self, **given: Any) -> None:
            given["tools"] = [fetch_invoice if tool is ... else tool for tool in given.get("tools", [])]
            super().__init__(**given)

    return {
        "FunctionAgent": Agent,
        "LoopGuardMixin": LoopGuardMixin,
        "ClassVar": ClassVar,
        "llm": _scripted_llm()(base_url=server.base_url, model="scripted-1"),
        "tools": [FunctionTool.from_defaults(fetch_invoice)],
    }


def _tutorial(server: ScriptedServer) -> dict[str, Any]:
    return {"llm": _scripted_llm()(base_url=server.base_url, model="scripted-1")}


def _migrating(server: ScriptedServer) -> dict[str, Any]:
    from llama_index.core.agent.workflow import FunctionAgent

    langchain, agents = _langchain(server), _openai_agents(server)
    agents["agent"].model = agents["unguarded_model"]
    llm = _scripted_llm()(base_url=server.base_url, model="scripted-1")
    return {
        "model": langchain["model"],
        "agent": agents["agent"],
        "llama_agent": FunctionAgent(tools=[fetch_invoice], llm=llm),
        "fetch_invoice": fetch_invoice,
        "server": server,
    }


def _scripted_llm() -> Any:
    """The tests' own LLM over HTTP: the client for OpenAI is a package that loopguard does not need."""
    file = ROOT / "tests" / "llama_index" / "_clients.py"
    spec = importlib.util.spec_from_file_location("loopguard_docs_llama_index_clients", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module.FunctionClient


def _gateway(_: ScriptedServer) -> dict[str, Any]:
    return {"openai": pytest.importorskip("openai")}


def _testing(_: ScriptedServer) -> dict[str, Any]:
    from hand_loop_driver import HandLoopDriver

    return {"MyDriver": HandLoopDriver}


_PAGES = {
    "README.md": _readme,
    "README.zh-CN.md": _readme,
    "docs/index.md": _readme,
    "docs/tutorial.md": _tutorial,
    "docs/migrating.md": _migrating,
    "docs/keys.md": _keys,
    "docs/session.md": _session,
    "docs/langchain.md": _langchain,
    "docs/openai-agents.md": _openai_agents,
    "docs/llama-index.md": _llama_index,
    "docs/gateway.md": _gateway,
    "docs/testing.md": _testing,
}
