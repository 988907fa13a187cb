"""What the middleware adds to a round of `create_agent`. Run: `python benchmarks/langchain_round.py`

Two rounds are measured: one with a model object that answers in no time, the hardest case there is, and one through
the real `langchain-openai` client against a scripted server in a process of its own. CPU time of this process counts;
repeats are interleaved, and the lower quartile is taken, because other load only ever adds.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import multiprocessing.synchronize
import time
from collections.abc import Callable, Sequence
from typing import Any

from healthy_run import ROUNDS, asked_in, found_for, serve
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from loopguard_langchain import LoopGuardMiddleware
from rich.console import Console
from rich.table import Table

from loopguard_core import LoopGuard


class Passive(AgentMiddleware[Any, Any, Any]):
    """Hooks into the same places and does nothing: what LangChain itself charges for a middleware."""

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Pass on."""
        return handler(request)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Pass on."""
        return handler(request)


class Scripted(BaseChatModel):
    """Asks for a new search in each of 40 rounds, then answers."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """Tools do not matter here."""
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        done = sum(isinstance(message, AIMessage) for message in messages)
        calls = [{"name": "search", "args": asked_in(done), "id": f"c{done}"}] if done < ROUNDS else []
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        message = AIMessage(content="", tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])


@tool
def search(query: str) -> str:
    """Search."""
    return found_for(query)


def per_round(model: BaseChatModel, middleware: list[AgentMiddleware[Any, Any, Any]]) -> float:
    """Microseconds of CPU a round."""
    agent = create_agent(model, [search], middleware=middleware)
    gc.collect()
    gc.disable()
    started = time.process_time()
    agent.invoke({"messages": [("user", "go")]})
    spent = time.process_time() - started
    gc.enable()
    return spent / ROUNDS * 1e6


def measure(model: BaseChatModel, repeats: int) -> dict[str, float]:
    """The lower quartile of each variant."""
    guard = LoopGuard()
    variants: dict[str, Callable[[], list[AgentMiddleware[Any, Any, Any]]]] = {
        "no middleware": list,
        "a middleware that does nothing": lambda: [Passive()],
        "LoopGuardMiddleware": lambda: [LoopGuardMiddleware(guard)],
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, make in variants.items():
            times[name].append(per_round(model, make()))
    return {name: sorted(values)[len(values) // 4] for name, values in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=24)
    options = parser.parse_args()
    table = Table("round of create_agent", "variant", "µs CPU", "more than without", title="40 rounds, one call each")
    from langchain_openai import ChatOpenAI

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    client = ChatOpenAI(model="scripted-1", base_url=ours.recv(), api_key="none")
    for name, model in (("model in process", Scripted()), ("real client over loopback", client)):
        figures = measure(model, options.repeats)
        base = figures["no middleware"]
        for variant, value in figures.items():
            table.add_row(name, variant, f"{value:.0f}", f"{(value / base - 1) * 100:+.1f} %")
        table.add_section()
    ours.send(None)
    server.join(5)
    Console().print(table)


if __name__ == "__main__":
    main()
