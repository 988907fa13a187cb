"""A hand-written agent loop on the plain `openai` client, guarded by loopguard. Copy what you need.

Without options a scripted model plays it on this machine: no network, no key. With a model of your own:

    OPENAI_API_KEY=... python examples/openai_hand_loop.py --base-url https://openrouter.ai/api/v1 --model NAME
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import openai

from loopguard_core import LoopGuard, ToolCall, Usage
from loopguard_core.testing import ScriptedServer, never_listens

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "fetch_invoice",
            "description": "Read an invoice.",
            "parameters": {"type": "object", "properties": {"invoice_id": {"type": "string"}}},
        },
    }
]


def fetch_invoice(arguments: str) -> str:
    """The broken tool."""
    print(f"fetch_invoice({arguments}) runs: timed out")
    return "Error: 504 Gateway Timeout"


def run(client: openai.OpenAI, model: str, guard: LoopGuard) -> str:
    messages: list[Any] = [{"role": "user", "content": "Is invoice INV-2291 due today?"}]
    with guard.session() as session:  # one run: its end is reported whatever happens
        while True:
            directive = session.before_model_call(model)
            if directive.stop is not None:
                return directive.stop.message
            steer = [{"role": "user", "content": text} for text in directive.steer]
            response = client.chat.completions.create(
                model=directive.model or model, messages=[*messages, *steer], tools=TOOLS
            )
            message = response.choices[0].message
            session.end_message(response.choices[0].finish_reason)
            used = response.usage
            session.after_model_call(
                response.model, Usage(used.prompt_tokens, used.completion_tokens) if used else None
            )
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            calls = [call for call in message.tool_calls if call.type == "function"]
            asked = [ToolCall(call.id, call.function.name, call.function.arguments) for call in calls]
            for call, decision in zip(calls, session.begin_round(asked), strict=True):
                if decision.blocked:
                    output = decision.message or ""
                else:
                    output = fetch_invoice(call.function.arguments)
                    session.record_result(call.id, output)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint; without it a scripted model answers")
    parser.add_argument("--model", default="scripted-1", help="the model's name at that endpoint")
    args = parser.parse_args()
    guard = LoopGuard(
        on_loop=lambda event: print(f"DoomLoopDetected: {event.action} (streak {event.streak})"),
        on_end=lambda event: print(f"SessionEnd: {event.reason}"),
    )
    key = os.environ.get("OPENAI_API_KEY", "unused")
    if args.base_url is not None:
        print(run(openai.OpenAI(base_url=args.base_url, api_key=key), args.model, guard))
        return
    os.environ["NO_PROXY"] = "127.0.0.1"  # loopback is not to go through a proxy
    with ScriptedServer(never_listens("fetch_invoice", {"invoice_id": "INV-2291"})) as server:
        print(run(openai.OpenAI(base_url=server.base_url, api_key=key), args.model, guard))


if __name__ == "__main__":
    main()
