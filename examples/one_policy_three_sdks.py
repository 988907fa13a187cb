"""One `loopguard.toml`, three agent SDKs: the same agent, the same loop, and what loopguard did, side by side.

Runs on this machine: a scripted model answers all three, so there is no network and no key.

    pip install '.[demo,openai-agents,llama-index]'
    python examples/one_policy_three_sdks.py
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, function_tool, set_tracing_disabled
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse, LLMMetadata, TextBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from loopguard_langchain import LoopGuardMiddleware
from loopguard_llama_index import guard_agent
from loopguard_openai_agents import GuardedRunner
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from loopguard_core import DoomLoopDetected, LoopGuard, SessionEnd
from loopguard_core.testing import ChatRequest, Reply, ScriptedCall, ScriptedServer

POLICY = Path(__file__).parent / "one_policy" / "loopguard.toml"
INVOICE = {"invoice_id": "INV-2291"}
QUESTION = "Is invoice INV-2291 paid? If it is, write it into the ledger."


def stubborn(request: ChatRequest) -> Reply:
    """A model that reads a broken invoice three times, and then writes one ledger entry again and again."""
    if not request.may_call:
        return Reply(text="I can say no more.")
    return Reply(tool_calls=(ScriptedCall("fetch_invoice" if request.number <= 3 else "ledger", INVOICE),))


@dataclass
class Column:
    """What happened in one SDK."""

    sdk: str
    rounds: dict[int, str] = field(default_factory=dict)
    ran: Counter[str] = field(default_factory=Counter)
    end: str = ""
    answer: str = ""

    def guard(self) -> LoopGuard:
        return LoopGuard.from_file(POLICY, on_loop=self.on_loop, on_end=self.on_end)

    def on_loop(self, event: DoomLoopDetected) -> None:
        self.rounds[event.round] = f"{event.tool}: {event.action} at {event.streak}"

    def on_end(self, event: SessionEnd) -> None:
        counts = f"{event.turns} rounds, {event.model_calls} model calls, {event.tool_calls} tool runs"
        self.end = f"{event.reason}: {counts}"

    def fetch_invoice(self, invoice_id: str) -> str:
        """Read an invoice from the billing service."""
        self.ran["fetch_invoice"] += 1
        return f"Error: 504 Gateway Timeout. The billing service did not answer for {invoice_id}."

    def ledger(self, invoice_id: str) -> str:
        """Write an invoice into the ledger."""
        self.ran["ledger"] += 1
        return f"entry for {invoice_id} written"


async def with_langchain(base_url: str) -> Column:
    column = Column("LangChain")
    agent = create_agent(
        ChatOpenAI(base_url=base_url, model="scripted-1", api_key=SecretStr("unused")),
        tools=[tool(column.fetch_invoice), tool(column.ledger)],
        middleware=[LoopGuardMiddleware(column.guard())],
    )
    state = await agent.ainvoke({"messages": [{"role": "user", "content": QUESTION}]})
    column.answer = state["messages"][-1].text
    return column


async def with_openai_agents(base_url: str) -> Column:
    column = Column("OpenAI Agents SDK")
    agent = Agent(
        name="billing",
        tools=[function_tool(column.fetch_invoice), function_tool(column.ledger)],
        model="scripted-1",
    )
    provider = OpenAIProvider(base_url=base_url, api_key="unused", use_responses=False)
    config = RunConfig(model_provider=provider)
    result = await GuardedRunner.run(agent, QUESTION, guard=column.guard(), run_config=config, max_turns=60)
    column.answer = str(result.final_output)
    return column


async def with_llama_index(base_url: str) -> Column:
    column = Column("LlamaIndex")
    agent = FunctionAgent(tools=[column.fetch_invoice, column.ledger], llm=Scripted(base_url=base_url), streaming=False)
    guard_agent(agent, column.guard())
    column.answer = str(await agent.run(QUESTION, max_iterations=60))
    return column


class Scripted(FunctionCallingLLM):
    """A client for the scripted model. With a model of your own, take LlamaIndex's `OpenAI` or any other."""

    base_url: str

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True, model_name="scripted-1")

    def _prepare_chat_with_tools(
        self,
        tools: Any,
        user_msg: Any = None,
        chat_history: Any = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **_: Any,
    ) -> Any:
        return {"messages": chat_history, "tools": [one.metadata.to_openai_tool() for one in tools]}

    async def achat(self, messages: Any, tools: Any = (), **_: Any) -> ChatResponse:
        body = {"messages": [_on_the_wire(message) for message in messages], "tools": list(tools)}
        answer = await asyncio.to_thread(_post, f"{self.base_url}/chat/completions", body)
        said = answer["choices"][0]["message"]
        blocks: list[Any] = [TextBlock(text=said["content"])] if said["content"] else []
        for call in said.get("tool_calls", ()):
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            blocks.append(ToolCallBlock(tool_call_id=call["id"], tool_name=name, tool_kwargs=arguments))
        return ChatResponse(message=ChatMessage(role="assistant", blocks=blocks), raw=answer)

    def get_tool_calls_from_response(self, response: ChatResponse, *_: Any, **__: Any) -> list[ToolSelection]:
        calls: list[Any] = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        return [ToolSelection(tool_id=c.tool_call_id, tool_name=c.tool_name, tool_kwargs=c.tool_kwargs) for c in calls]

    def chat(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    stream_chat = astream_chat = complete = stream_complete = acomplete = astream_complete = chat


def _on_the_wire(message: ChatMessage) -> dict[str, Any]:
    calls = [
        {
            "id": block.tool_call_id,
            "type": "function",
            "function": {"name": block.tool_name, "arguments": json.dumps(block.tool_kwargs)},
        }
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    wire = {"role": message.role.value, "content": message.content, **message.additional_kwargs}
    return {**wire, "tool_calls": calls} if calls else wire


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def table(columns: list[Column]) -> Table:
    """Round by round what loopguard did, and how it ended."""
    shown = Table("", *(column.sdk for column in columns), title=f"{POLICY.name}, three SDKs", show_lines=True)
    for number in range(1, 1 + max(max(column.rounds) for column in columns)):
        shown.add_row(f"round {number}", *(column.rounds.get(number, "left alone") for column in columns))
    ran = [", ".join(f"{name} {times} x" for name, times in sorted(column.ran.items())) for column in columns]
    shown.add_row("really ran", *ran)
    shown.add_row("SessionEnd", *(column.end for column in columns))
    shown.add_row("answer", *(column.answer.replace("[", r"\[") for column in columns))
    return shown


async def run_all(base_url: str) -> list[Column]:
    return [await run(base_url) for run in (with_langchain, with_openai_agents, with_llama_index)]


def main() -> int:
    set_tracing_disabled(True)
    os.environ["NO_PROXY"] = "127.0.0.1"  # loopback is not to go through a proxy
    with ScriptedServer(stubborn) as server:
        columns = asyncio.run(run_all(server.base_url))
    Console().print(table(columns))
    first, *others = ((column.rounds, column.ran, column.end, column.answer) for column in columns)
    same = all(other == first for other in others)
    print("The three columns are the same." if same else "The columns differ.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
