"""A billing agent on LlamaIndex whose tool is broken, guarded by loopguard. Copy what you need.

Needs `pip install llama-index-llms-openai`. Without options a scripted model plays it on this machine: no network, no
key. With a model of your own:

    OPENAI_API_KEY=... python examples/llama_index_billing.py --base-url https://api.openai.com/v1 --model gpt-4o-mini
"""

from __future__ import annotations

import argparse
import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI
from loopguard_llama_index import LoopDetectedEvent, guard_agent

from loopguard_core import DoomLoopDetected, LoopGuard, Policy, SessionEnd
from loopguard_core.testing import ScriptedServer, never_listens


def fetch_invoice(invoice_id: str) -> str:
    """Read an invoice from the billing service."""
    print(f"fetch_invoice({invoice_id!r}) runs: timed out")
    return f"Error: 504 Gateway Timeout. The billing service did not answer for {invoice_id}."


def on_loop(event: DoomLoopDetected) -> None:
    print(f"DoomLoopDetected: {event.action} (streak {event.streak})")


def on_end(event: SessionEnd) -> None:
    print(f"SessionEnd: {event.reason}")


guard = LoopGuard(Policy(limits={"turns": 40, "tokens": 200_000}), on_loop=on_loop, on_end=on_end)


async def run(base_url: str, model: str) -> None:
    llm = OpenAI(
        model=model,
        api_base=base_url,
        api_key=os.environ.get("OPENAI_API_KEY", "unused"),
        # While streaming, OpenAI reports usage only if it is asked to; without it a limit on tokens cannot hold.
        additional_kwargs={"stream_options": {"include_usage": True}},
    )
    agent = FunctionAgent(
        name="billing",
        system_prompt="You are a billing agent. Always read an invoice before you say anything about it.",
        tools=[fetch_invoice],
        llm=llm,
    )
    guard_agent(agent, guard)
    handler = agent.run("Is invoice INV-2291 due today?", max_iterations=60)
    async for event in handler.stream_events():
        if isinstance(event, LoopDetectedEvent):
            print(f"in the run's own stream: {event.detector}, {event.action}")
    print(f"Answer: {await handler}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A billing agent on LlamaIndex, guarded by loopguard.")
    parser.add_argument(
        "--base-url", help="OpenAI's endpoint, or a compatible one; without it a scripted model answers"
    )
    parser.add_argument("--model", default="gpt-4o-mini", help="the model's name there; one of OpenAI's")
    args = parser.parse_args()
    if args.base_url is not None:
        asyncio.run(run(args.base_url, args.model))
        return
    os.environ["NO_PROXY"] = "127.0.0.1"  # loopback is not to go through a proxy
    with ScriptedServer(never_listens("fetch_invoice", {"invoice_id": "INV-2291"})) as server:
        asyncio.run(run(server.base_url, args.model))


if __name__ == "__main__":
    main()
