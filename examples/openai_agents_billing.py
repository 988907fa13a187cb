"""A billing agent on the OpenAI Agents SDK whose tool is broken, guarded by loopguard. Copy what you need.

Without options a scripted model plays it on this machine: no network, no key. With a model of your own:

    OPENAI_API_KEY=... python examples/openai_agents_billing.py --base-url https://openrouter.ai/api/v1 --model NAME
"""

from __future__ import annotations

import argparse
import asyncio
import os

from agents import Agent, OpenAIProvider, RunConfig, function_tool, set_tracing_disabled
from loopguard_openai_agents import GuardedRunner

from loopguard_core import DoomLoopDetected, LoopGuard, Policy, SessionEnd
from loopguard_core.testing import ScriptedServer, never_listens


@function_tool
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
    agent = Agent(
        name="billing",
        instructions="You are a billing agent. Always read an invoice before you say anything about it.",
        tools=[fetch_invoice],
        model=model,
    )
    key = os.environ.get("OPENAI_API_KEY", "unused")
    config = RunConfig(model_provider=OpenAIProvider(base_url=base_url, api_key=key, use_responses=False))
    result = await GuardedRunner.run(
        agent, "Is invoice INV-2291 due today?", guard=guard, run_config=config, max_turns=60
    )
    print(f"Answer: {result.final_output}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A billing agent on the OpenAI Agents SDK, guarded by loopguard.")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint; without it a scripted model answers")
    parser.add_argument("--model", default="scripted-1", help="the model's name at that endpoint")
    args = parser.parse_args()
    set_tracing_disabled(True)
    if args.base_url is not None:
        asyncio.run(run(args.base_url, args.model))
        return
    os.environ["NO_PROXY"] = "127.0.0.1"  # loopback is not to go through a proxy
    with ScriptedServer(never_listens("fetch_invoice", {"invoice_id": "INV-2291"})) as server:
        asyncio.run(run(server.base_url, args.model))


if __name__ == "__main__":
    main()
