"""The billing agent of `loopguard demo` and `loopguard bench`: one real agent, one tool that always times out.

Nothing is staged around loopguard: the agent is LangChain's own, it speaks HTTP to its model through the real client,
and every figure comes from the events loopguard sends or from the conversation that is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import SecretStr

from loopguard_core import DoomLoopDetected, LoopGuard, Policy, PostModelCall, SessionEnd
from loopguard_core.testing import Persona, ScriptedServer

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

TURNS = 40
"""The cap on every run, guarded or not. Without one an unguarded run might never end."""

PRICE = (Decimal(3), Decimal(15))
"""Dollars for a million input and output tokens of the scripted model."""

TOOL = "fetch_invoice"
ARGUMENTS = {"invoice_id": "INV-2291"}
GIVES_UP = "I could not read INV-2291: billing times out. I paid nothing."
_TIMED_OUT = (
    "Error: 504 Gateway Timeout. GET /v2/invoices/{}: the billing service gave no answer within 30 seconds. "
    "The invoice was not read. Upstream: billing-read-3, attempt 1 of 1, circuit closed."
)
_SYSTEM = (
    "You are the billing agent of a small company. You look up invoices, check the amount against the purchase "
    "order, and prepare payments. Always read the invoice before you say anything about it. Never guess an amount, a "
    "due date or a supplier. If something is missing, say what, and who can provide it. Amounts are in euros unless "
    "the invoice says otherwise. Answer in one short paragraph, without headings and without lists."
)
_QUESTION = "Invoice INV-2291 is due today. Read it and prepare the payment."

# A graph step is far above what the capped runs need: it only ends the run, should the cap ever fail.
_RECURSION_LIMIT = 10 * TURNS


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run had spent after one model call; None is unknown."""

    tokens: int | None
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run.

    Attributes:
        name: What it is called.
        attempts: Tool calls the model asked for.
        executions: Tool calls that really ran.
        events: What was detected.
        ended: `SessionEnd.reason`.
        answer: The last message of the conversation.
        curve: What was spent after each model call, from the first to the last.
        seconds: How long it took, by the wall clock.
    """

    name: str
    attempts: int
    executions: int
    events: tuple[DoomLoopDetected, ...]
    ended: str
    answer: str
    curve: tuple[Spent, ...]
    seconds: float = 0.0

    @property
    def model_calls(self) -> int:
        """Model calls."""
        return len(self.curve)

    @property
    def total(self) -> Spent:
        """What the whole run spent."""
        return self.curve[-1] if self.curve else Spent(0, Decimal(0))


class Watcher(Protocol):
    """Told what happens in a run while it happens."""

    def executed(self) -> None:
        """The tool ran, and timed out."""
        ...

    def loop(self, event: DoomLoopDetected) -> None:
        """A detector fired."""
        ...

    def end(self, event: SessionEnd) -> None:
        """The run is over."""
        ...


Endpoint = Callable[[str], "BaseChatModel"]
"""Gives the model with this name."""


@contextmanager
def scripted_endpoint(persona: Persona) -> Iterator[Endpoint]:
    """Models on loopback that do what the persona says, whatever their name, behind the real client."""
    from langchain_openai import ChatOpenAI
    from openai import DefaultHttpxClient

    # An HTTP_PROXY in the environment would be asked for loopback too.
    client = DefaultHttpxClient(trust_env=False)
    options: dict[str, Any] = {"http_client": client, "openai_proxy": None}
    if "http_socket_options" in ChatOpenAI.model_fields:
        options["http_socket_options"] = ()  # or versions that have it warn about that proxy
    with ScriptedServer(persona, price_per_million=PRICE) as server, client:
        yield lambda name: chat_model(server.base_url, name, "unused", **options)


def chat_model(base_url: str, name: str, key: str, **options: Any) -> BaseChatModel:
    """A model behind an OpenAI-compatible endpoint."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=base_url, model=name, api_key=SecretStr(key), **options)


def run_agent(name: str, policy: Policy, model: BaseChatModel, watcher: Watcher) -> Run:
    """Let the agent work until it ends or is ended.

    Args:
        name: What the run is called.
        policy: What guards it.
        model: The model it asks.
        watcher: Told what happens.
    """
    # Not at the top: these take seconds to import, and until then the demo can say what it is about to show.
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from loopguard_langchain.middleware import LoopGuardMiddleware

    executions = 0

    @tool
    def fetch_invoice(invoice_id: str) -> str:
        """Read an invoice from the billing service.

        Args:
            invoice_id: The number on the invoice, for example INV-2291.
        """
        nonlocal executions
        executions += 1
        watcher.executed()
        return _TIMED_OUT.format(invoice_id)

    calls: list[PostModelCall] = []
    events: list[DoomLoopDetected] = []

    def detected(event: DoomLoopDetected) -> None:
        events.append(event)
        watcher.loop(event)

    with _expected_warning():
        guard = LoopGuard(policy, on_loop=detected, on_end=watcher.end, on_model_call=calls.append)
    agent: Any = create_agent(
        model, tools=[fetch_invoice], system_prompt=_SYSTEM, middleware=[LoopGuardMiddleware(guard)]
    )
    started = time.perf_counter()
    state = agent.invoke({"messages": [{"role": "user", "content": _QUESTION}]}, {"recursion_limit": _RECURSION_LIMIT})
    seconds = time.perf_counter() - started
    messages = state["messages"]
    return Run(
        name=name,
        attempts=sum(len(message.tool_calls) for message in messages if isinstance(message, AIMessage)),
        executions=executions,
        events=tuple(events),
        ended=guard.last_end.reason if guard.last_end is not None else "error",
        answer=messages[-1].text,
        curve=tuple(Spent(call.total.total_tokens, call.total.cost) for call in calls),
        seconds=seconds,
    )


def unguarded() -> Policy:
    """No detection, only the cap."""
    names = {row.partition(".")[0] for row in Policy().ladders()}
    return Policy(limits={"turns": TURNS}, detectors={name: {"enabled": False} for name in names})


@contextmanager
def _expected_warning() -> Iterator[None]:
    """Keep the one warning out of the output that says what is meant here: no detector is left."""
    logger = logging.getLogger("loopguard")

    def keep(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("policy: detectors:")

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
