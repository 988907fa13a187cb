"""What the guard adds to a round of a LlamaIndex agent. Run: `python benchmarks/llama_index_round.py`

A model object that answers in no time, the hardest case there is, and the real client of `llama-index-llms-openai`
against a scripted server in a process of its own, where it is installed (`pip install llama-index-llms-openai`); each
streamed and not. CPU time of this process counts; repeats are interleaved. Of the times the lower quartile is shown,
because other load only ever adds; what is added is the median of the ratios to the unguarded run just before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import multiprocessing
import statistics
import time
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

from healthy_run import ROUNDS, asked_in, found_for, serve
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import LLM, ChatMessage, ChatResponse, LLMMetadata, TextBlock
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from loopguard_llama_index import _seams as seams
from loopguard_llama_index import guard_agent
from rich.console import Console
from rich.table import Table

from loopguard_core import LoopGuard

CHUNKS = 10


class Scripted(FunctionCallingLLM):
    """Asks for a new search in each of 40 rounds, then answers. A streamed response comes in eleven chunks."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True, model_name="scripted-1")

    def _answer(self, messages: Any, text: str) -> ChatResponse:
        done = _rounds_in(messages)
        blocks: list[Any] = [TextBlock(text=text)]
        if done < ROUNDS:
            blocks.append(ToolCallBlock(tool_call_id=f"c{done}", tool_name="search", tool_kwargs=asked_in(done)))
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return ChatResponse(message=ChatMessage(role="assistant", blocks=blocks), raw={"usage": usage})

    @llm_chat_callback()
    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self._answer(messages, f"Step {_rounds_in(messages)} of the plan.")

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        async def stream() -> Any:
            text = ""
            for number in range(CHUNKS):
                await asyncio.sleep(0)
                delta = f"step {_rounds_in(messages)}, word {number}; "
                text += delta
                yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=delta, raw={})
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


def _rounds_in(messages: Any) -> int:
    return sum(message.role.value == "assistant" for message in messages)


async def search(query: str) -> str:
    """Search."""
    return found_for(query)


# -- hooks that do nothing: what LlamaIndex itself charges for being hooked into ---------------------------------------


async def take_step(self: Any, *args: Any) -> Any:
    """Pass on."""
    return await type(self).take_step(self, *args)


async def parse_agent_output(self: Any, ctx: Any, ev: Any) -> Any:
    """Pass on."""
    return await type(self).parse_agent_output(self, ctx, ev)


async def call_tool(self: Any, ctx: Any, ev: Any) -> Any:
    """Pass on."""
    return await type(self).call_tool(self, ctx, ev)


def passive(agent: FunctionAgent) -> None:
    """Hook in where `guard_agent` does."""
    for hook in (take_step, parse_agent_output, call_tool):
        seams.bind(agent, hook.__name__, hook)


# -- measuring ---------------------------------------------------------------------------------------------------------

Attach = Callable[[FunctionAgent], object]


async def per_round(llm: LLM, streaming: bool, attach: Attach) -> float:
    """Microseconds of CPU a round."""
    agent = FunctionAgent(tools=[search], llm=llm, streaming=streaming)
    attach(agent)
    gc.collect()
    gc.disable()
    started = time.process_time()
    await agent.run("go", max_iterations=ROUNDS + 2)
    spent = time.process_time() - started
    gc.enable()
    return spent / ROUNDS * 1e6


async def measure(llm: LLM, streaming: bool, guard: LoopGuard, repeats: int) -> dict[str, tuple[float, float]]:
    """The time of each variant, and its ratio to the first."""
    variants: dict[str, Attach] = {
        "unguarded": lambda _: None,
        "hooks that do nothing": passive,
        "guard_agent": lambda agent: guard_agent(agent, guard),
    }
    rows = [[await per_round(llm, streaming, attach) for attach in variants.values()] for _ in range(repeats)]
    return {
        name: (sorted(times)[len(times) // 4], statistics.median(row[at] / row[0] for row in rows))
        for at, (name, times) in enumerate(zip(variants, zip(*rows, strict=True), strict=True))
    }


@contextlib.asynccontextmanager
async def models(base_url: str) -> AsyncIterator[dict[str, LLM]]:
    """The models to measure with; the real client where it is installed."""
    llms: dict[str, LLM] = {"model in process": Scripted()}
    try:
        from httpx import AsyncClient
        from llama_index.llms.openai import OpenAI
    except ImportError:
        yield llms
        return
    async with AsyncClient() as http:
        client = OpenAI(model="gpt-4o-mini", api_base=base_url, api_key="none", async_http_client=http)
        yield {**llms, "real client over loopback": client}


async def compare(base_url: str, repeats: int) -> Table:
    """Measure everything.

    Raises:
        SystemExit: A detector fired, so it was no healthy run.
    """
    fired: list[str] = []
    guard = LoopGuard(on_loop=lambda event: fired.append(event.detector))
    table = Table("round of a FunctionAgent", "variant", "µs CPU", "more", title=f"{ROUNDS} rounds, one call each")
    async with models(base_url) as llms:
        for name, llm in llms.items():
            for streaming in (False, True):
                row = f"{name}, streamed" if streaming else name
                for variant, (spent, ratio) in (await measure(llm, streaming, guard, repeats)).items():
                    table.add_row(row, variant, f"{spent:.0f}", f"{(ratio - 1) * 100:+.1f} %")
                table.add_section()
    if fired:
        raise SystemExit(f"this was no healthy run: {', '.join(sorted(set(fired)))} fired")
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=24)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    table = asyncio.run(compare(ours.recv(), options.repeats))
    ours.send(None)
    server.join(5)
    Console().print(table)


if __name__ == "__main__":
    main()
