"""The run that the benchmarks of the adapters measure: 40 rounds, each of which looks up something else.

A healthy one, because that is what a guard meets nearly always: no detector fires, and nobody is told anything.
Near-equal searches would measure how a loop is reported.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from loopguard_core.testing import ChatRequest, Reply, ScriptedCall, ScriptedServer

SUBJECTS = (
    "amber bamboo barley basalt beeswax bronze cashmere cedar chalk cinnamon clay cobalt cocoa copper coral cork "
    "cotton ebony felt flax glass gold granite hemp hops indigo iron ivory jade jute lacquer lead linen maize marble "
    "mercury mica nickel nutmeg oak"
).split()
ROUNDS = len(SUBJECTS)


def asked_in(number: int) -> dict[str, str]:
    """The arguments of the call in that round, from 0."""
    return {"query": f"exports of {SUBJECTS[number]}"}


def found_for(query: str) -> str:
    """What the search returns."""
    subject = query.rpartition(" ")[2]
    return f"{subject.capitalize()}: 3 pages, the first of which is about trade in {subject} since {1700 + len(query)}"


def persona(request: ChatRequest) -> Reply:
    """The model, as a server."""
    if request.number > ROUNDS:
        return Reply(text="done")
    return Reply(tool_calls=(ScriptedCall("search", asked_in(request.number - 1)),))


def serve(connection: Connection) -> None:
    """Run the server in a process of its own until the other side hangs up."""
    with ScriptedServer(persona) as server:
        connection.send(server.base_url)
        connection.recv()
