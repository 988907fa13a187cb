"""A billing agent whose tool is broken, guarded by loopguard. Copy what you need.

Without options a scripted model plays it on this machine: no network, no key. With a model of your own:

    OPENAI_API_KEY=... python examples/billing_agent.py --base-url https://openrouter.ai/api/v1 --model NAME
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from loopguard_langchain import LoopGuardMiddleware
from pydantic import SecretStr

from loopguard_core import DoomLoopDetected, LoopGuard, Policy, PostModelCall, SessionEnd
from loopguard_core.testing import ScriptedServer, gives_up_when_refused


@tool
def fetch_invoice(invoice_id: str) -> str:
    """Read an invoice from the billing service.

    Args:
        invoice_id: The number on the invoice, for example INV-2291.
    """
    print(f"fetch_invoice({invoice_id!r}) runs: timed out")
    return f"Error: 504 Gateway Timeout. The billing service did not answer for {invoice_id}."


# Hooks are plain functions. This one may also return an Action to overrule the verdict.
def on_loop(event: DoomLoopDetected) -> None:
    print(f"DoomLoopDetected: {event.action} (streak {event.streak})")


def on_model_call(event: PostModelCall) -> None:
    print(f"model call {event.model_calls}: {event.total.total_tokens} tokens so far")


def on_end(event: SessionEnd) -> None:
    print(f"SessionEnd: {event.reason}")


# Detection works without any settings; the caps are yours to choose.
guard = LoopGuard(
    Policy(limits={"turns": 40, "tokens": 200_000}), on_loop=on_loop, on_model_call=on_model_call, on_end=on_end
)


def run(model: ChatOpenAI) -> None:
    agent = create_agent(
        model,
        tools=[fetch_invoice],
        system_prompt="You are a billing agent. Always read an invoice before you say anything about it.",
        middleware=[LoopGuardMiddleware(guard)],  # first, so that it sees what all others made of a call
    )
    state = agent.invoke({"messages": [{"role": "user", "content": "Is invoice INV-2291 due today?"}]})
    print(f"Answer: {state['messages'][-1].text}")
    if "loopguard" in state:  # only after a stop
        print(f"Stopped: {state['loopguard']['reason']}")


@contextmanager
def scripted_endpoint() -> Iterator[str]:
    """A model that repeats its call until loopguard refuses it, on loopback."""
    persona = gives_up_when_refused(
        "fetch_invoice", {"invoice_id": "INV-2291"}, "I could not read INV-2291: the billing service times out."
    )
    os.environ["NO_PROXY"] = "127.0.0.1"  # loopback is not to go through a proxy
    with ScriptedServer(persona) as server:
        yield server.base_url


def main() -> None:
    parser = argparse.ArgumentParser(description="A billing agent with a broken tool, guarded by loopguard.")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint; without it a scripted model answers")
    parser.add_argument("--model", default="scripted-1", help="the model's name at that endpoint")
    args = parser.parse_args()
    key = SecretStr(os.environ.get("OPENAI_API_KEY", "unused"))
    if args.base_url is not None:
        run(ChatOpenAI(base_url=args.base_url, model=args.model, api_key=key))
        return
    with scripted_endpoint() as base_url:
        run(ChatOpenAI(base_url=base_url, model=args.model, api_key=key))


if __name__ == "__main__":
    main()
