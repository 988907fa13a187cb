"""What the guard adds to a round of a LlamaIndex agent. Run: `python benchmarks/llama_index_round.py`

A model object that answers in no time, the hardest case there is, streamed and not; and the real client of
`llama-index-llms-openai` against a scripted server in a process of its own, where it is installed. CPU time of this
process counts; repeats are interleaved, and the lower quartile is taken, because other load only ever adds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import multiprocessing.synchronize
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import LLM, ChatMessage, ChatResponse, LLMMetadata, TextBlock
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from loopguard_llama_index import guard_agent
from rich.console import Console
from rich.table import Table

from loopguard_core import LoopGuard
from loopguard_core.testing import ChatRequest, Reply, ScriptedCall, ScriptedServer

ROUNDS = 40
CHUNKS = 10


class Scripted(FunctionCallingLLM):
    """Asks for a new search in each of 40 rounds, then answers. Each response comes in eleven chunks."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True, model_name="scripted-1")

    def _answer(self, messages: Any, text: str) -> ChatResponse:
        done = sum(message.role.value == "assistant" for message in messages)
        call = ToolCallBlock(tool_call_id=f"c{done}", tool_name="search", tool_kwargs={"query": f"question {done}"})
        blocks: list[Any] = [TextBlock(text=text)] if text else []
        blocks += [call] if done < ROUNDS else []
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return ChatResponse(message=ChatMessage(role="assistant", blocks=blocks), raw={"usage": usage})

    @llm_chat_callback()
    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self._answer(messages, "I search.")

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        async def stream() -> Any:
            text = ""
            for number in range(CHUNKS):
                await asyncio.sleep(0)
                text += f"word {number} "
                said = ChatMessage(role="assistant", content=text)
                yield ChatResponse(message=said, delta=f"word {number} ", raw={})
            yield self._answer(messages, text)

        return stream()

    def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {"messages": chat_history, "tools": tools}

    def get_tool_calls_from_response(self, response: Any, error_on_no_tool_call: bool = True, **kwargs: Any) -> Any:
        return [
            ToolSelection(tool_id=block.tool_call_id, tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]

    def chat(self, messages: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    stream_chat = complete = stream_complete = acomplete = astream_complete = chat


async def search(query: str) -> str:
    """Search."""
    return f"result for {query}"


def persona(request: ChatRequest) -> Reply:
    """The scripted model again, as a server."""
    if request.number > ROUNDS:
        return Reply(text="done")
    return Reply(tool_calls=(ScriptedCall("search", {"query": f"question {request.number}"}),))


def serve(connection: Connection) -> None:
    """Run the server until the other side hangs up."""
    with ScriptedServer(persona) as server:
        connection.send(server.base_url)
        connection.recv()


def per_round(llm: LLM, streaming: bool, guard: LoopGuard | None) -> float:
    """Microseconds of CPU a round."""
    agent = FunctionAgent(tools=[search], llm=llm, streaming=streaming)
    if guard is not None:
        guard_agent(agent, guard)

    async def run() -> float:
        gc.collect()
        gc.disable()
        started = time.process_time()
        await agent.run("go", max_iterations=ROUNDS + 2)
        spent = time.process_time() - started
        gc.enable()
        return spent

    return asyncio.run(run()) / ROUNDS * 1e6


def measure(llm: LLM, streaming: bool, repeats: int) -> dict[str, float]:
    """The lower quartile of each variant."""
    guard = LoopGuard()
    variants: dict[str, Callable[[], LoopGuard | None]] = {"unguarded": lambda: None, "guard_agent": lambda: guard}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, given in variants.items():
            times[name].append(per_round(llm, streaming, given()))
    return {name: sorted(values)[len(values) // 4] for name, values in times.items()}


def real_client(base_url: str) -> LLM | None:
    """The real client, where it is installed."""
    try:
        from llama_index.llms.openai import OpenAI
    except ImportError:
        return None
    return OpenAI(model="gpt-4o-mini", api_base=base_url, api_key="none", reuse_client=False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=24)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = Table("round of a FunctionAgent", "variant", "µs CPU", "more", title="40 rounds, one call each")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    rounds: list[tuple[str, LLM, bool]] = [
        ("model in process", Scripted(), False),
        ("model in process, streamed in 11 chunks", Scripted(), True),
    ]
    client = real_client(ours.recv())
    if client is not None:
        rounds.append(("real client over loopback, streamed", client, True))
    for name, llm, streaming in rounds:
        figures = measure(llm, streaming, options.repeats)
        base = figures["unguarded"]
        for variant, value in figures.items():
            table.add_row(name, variant, f"{value:.0f}", f"{(value / base - 1) * 100:+.1f} %")
        table.add_section()
    ours.send(None)
    server.join(5)
    Console().print(table)


if __name__ == "__main__":
    main()
