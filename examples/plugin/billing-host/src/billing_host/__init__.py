"""A hand-written agent loop, without any SDK, that loopguard watches and a plugin reports on.

The order of the calls on the session is all there is to it: before and after the model, before and after the tools.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from loopguard_core import LoopGuard, LoopGuardError, Session, ToolCall, Usage

__all__ = ["main", "run"]


def ask_model(number: int) -> list[ToolCall]:
    """Stands for the request to a model; this one asks for the same call for ever."""
    return [ToolCall(id=f"call-{number}", name="fetch_invoice", arguments={"invoice_id": "INV-2291"})]


def fetch_invoice(invoice_id: str) -> str:
    """Stands for a tool; this one never gets an answer."""
    return f"Error: 504 Gateway Timeout. The billing service did not answer for {invoice_id}."


def run(session: Session) -> None:
    """The loop of an agent: ask the model, run what it asks for, until it asks for nothing or is stopped."""
    while True:
        directive = session.before_model_call("billing-model")
        if directive.stop is not None:
            print(directive.stop.message)
            return
        # A real agent would send directive.steer along, and ask directive.model where one is named.
        calls = ask_model(session.model_calls + 1)
        session.after_model_call("billing-model", Usage(input_tokens=900, output_tokens=20))
        if not calls:
            return
        for call, decision in zip(calls, session.begin_round(calls), strict=True):
            if decision.blocked:  # the model gets decision.message in place of a result
                output = decision.message or ""
                print(f"round {session.turns}: {call.name} refused")
            else:
                output = fetch_invoice(**call.arguments)
                print(f"round {session.turns}: {call.name} ran")
            session.record_result(call.id, output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent once under the policy in a file, and say which plugins were loaded."""
    parser = argparse.ArgumentParser(prog="billing-host", description=__doc__)
    parser.add_argument("--policy", default="loopguard.toml", help="default: %(default)s in this directory")
    args = parser.parse_args(argv)
    try:
        guard = LoopGuard.from_file(args.policy)
    except LoopGuardError as error:  # no such file, or a plugin that is not installed: the text says which
        parser.exit(2, f"billing-host: {error}\n")
    for plugin in guard.registered_plugins:
        print(f"plugin {plugin.name} ({plugin.origin}): {', '.join(plugin.hooks)}")
    # Leaving the block ends the session, waits for hooks that run in the background, and closes the guard.
    with guard, guard.session("billing-1", agent="billing") as session:
        run(session)
    if session.ended is not None:
        print(f"SessionEnd: {session.ended.reason}")
    return 0
