"""What `GuardedRunner` and the hooks add to a round of the OpenAI Agents SDK.

Run: `python benchmarks/openai_agents_round.py`. Two rounds are measured: one with a model object that answers in no
time, the hardest case there is, and one through the real client against a scripted server in a process of its own. CPU
time of this process counts; repeats are interleaved, and the lower quartile is taken, because other load only adds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import agents
from agents import (
    Agent,
    Model,
    ModelProvider,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunHooks,
    Runner,
    Usage,
    function_tool,
)
from healthy_run import ROUNDS, asked_in, found_for, serve
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from rich.console import Console
from rich.table import Table

from loopguard_core import LoopGuard

MAX_TURNS = 2 * ROUNDS


class Passive(RunHooks[Any]):
    """Hooks that do nothing: what the SDK itself charges for them."""


class Scripted(Model):
    """Asks for a new search in each of 40 rounds, then answers."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:  # noqa: A002  # the SDK's name
        """The next call, or the end."""
        done = 0 if isinstance(input, str) else sum(item.get("type") == "function_call" for item in input)
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        if done < ROUNDS:
            arguments = json.dumps(asked_in(done))
            asked = ResponseFunctionToolCall(
                type="function_call", name="search", arguments=arguments, call_id=f"c{done}", id=f"f{done}"
            )
            return ModelResponse(output=[asked], usage=usage, response_id=None)
        text = ResponseOutputText(type="output_text", text="done", annotations=[], logprobs=[])
        said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[said], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Nothing streams here."""
        raise NotImplementedError


class Provider(ModelProvider):
    """Finds one model under every name."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def get_model(self, model_name: str | None) -> Model:
        """That model."""
        return self._model


@function_tool
def search(query: str) -> str:
    """Search."""
    return found_for(query)


Run = Callable[[Agent[Any], RunConfig], Awaitable[Any]]


def variants(guard: LoopGuard) -> dict[str, Run]:
    """The ways to run an agent that are compared."""
    hooks, passive = LoopGuardHooks(guard), Passive()
    return {
        "Runner": lambda agent, config: Runner.run(agent, "go", run_config=config, max_turns=MAX_TURNS),
        "Runner, hooks that do nothing": lambda agent, config: Runner.run(
            agent, "go", hooks=passive, run_config=config, max_turns=MAX_TURNS
        ),
        "Runner, LoopGuardHooks": lambda agent, config: Runner.run(
            agent, "go", hooks=hooks, run_config=config, max_turns=MAX_TURNS
        ),
        "GuardedRunner": lambda agent, config: GuardedRunner.run(
            agent, "go", guard=guard, run_config=config, max_turns=MAX_TURNS
        ),
    }


async def measure(model: Model, repeats: int) -> dict[str, float]:
    """Microseconds of CPU a round: the lower quartile of each variant."""
    ways = variants(LoopGuard())
    agent = Agent(name="A", model="scripted-1", tools=[search])
    config = RunConfig(model_provider=Provider(model), tracing_disabled=True)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            gc.collect()
            gc.disable()
            started = time.process_time()
            await run(agent, config)
            times[name].append((time.process_time() - started) / ROUNDS * 1e6)
            gc.enable()
    return {name: sorted(values)[len(values) // 4] for name, values in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=24)
    options = parser.parse_args()
    agents.set_tracing_disabled(True)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    address = ours.recv()
    table = Table("round of Runner", "variant", "µs CPU", "more than without", title="40 rounds, one call each")

    async def compared() -> None:
        client = AsyncOpenAI(base_url=address, api_key="none")
        for name, model in (
            ("model in process", Scripted()),
            ("real client over loopback", OpenAIChatCompletionsModel("scripted-1", client)),
        ):
            figures = await measure(model, options.repeats)
            base = figures["Runner"]
            for variant, value in figures.items():
                table.add_row(name, variant, f"{value:.0f}", f"{(value / base - 1) * 100:+.1f} %")
            table.add_section()

    asyncio.run(compared())
    ours.send(None)
    server.join(5)
    Console().print(table)


if __name__ == "__main__":
    main()
