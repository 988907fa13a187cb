"""The runs of `loopguard demo`: one agent, one broken tool, with and without detection.

Nothing is staged around loopguard: the agent is LangChain's own, it speaks HTTP to its model through the real client,
and every figure comes from the events loopguard sends or from the conversation that is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import SecretStr

from loopguard_core import DoomLoopDetected, LoopGuard, Policy, PostModelCall, SessionEnd
from loopguard_core.testing import Persona, ScriptedServer, gives_up_when_refused, never_listens

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

TURNS = 40
"""The cap on every run, guarded or not. Without one the unguarded run would never end."""

PRICE = (Decimal(3), Decimal(15))
"""Dollars for a million input and output tokens of the scripted model."""

TOOL = "fetch_invoice"
_ARGUMENTS = {"invoice_id": "INV-2291"}
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
_GIVES_UP = "I could not read INV-2291: billing times out. I paid nothing."

# A graph step is far above what the capped runs need: it only ends the demo, should the cap ever fail.
_RECURSION_LIMIT = 10 * TURNS


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to run the agent.

    Attributes:
        name: Short, for the table and the curve.
        title: What happens in it, for its heading.
        detection: False leaves only the cap.
        persona: How the scripted model behaves; a real endpoint has no need of it.
    """

    name: str
    title: str
    detection: bool
    persona: Persona


SCENARIOS = (
    Scenario(
        "unguarded",
        f"Unguarded: detection is off, a cap ends the run after {TURNS} rounds",
        detection=False,
        persona=never_listens(TOOL, _ARGUMENTS),
    ),
    Scenario(
        "guarded, never listens",
        "Guarded, with a model that never listens",
        detection=True,
        persona=never_listens(TOOL, _ARGUMENTS),
    ),
    Scenario(
        "guarded, gives up",
        "Guarded, with a model that gives up when its call is refused",
        detection=True,
        persona=gives_up_when_refused(TOOL, _ARGUMENTS, _GIVES_UP),
    ),
)


REAL_SCENARIOS = (SCENARIOS[0], replace(SCENARIOS[1], name="guarded", title="Guarded"))
"""The runs with a model that behaves as it likes."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run had spent after one model call; None is unknown."""

    tokens: int | None
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run.

    Attributes:
        name: The scenario's.
        attempts: Tool calls the model asked for.
        executions: Tool calls that really ran.
        events: What was detected.
        ended: `SessionEnd.reason`.
        answer: The last message of the conversation.
        curve: What was spent after each model call, from the first to the last.
    """

    name: str
    attempts: int
    executions: int
    events: tuple[DoomLoopDetected, ...]
    ended: str
    answer: str
    curve: tuple[Spent, ...]

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


@contextmanager
def scripted_model(scenario: Scenario) -> Iterator[BaseChatModel]:
    """The scenario's model on loopback, behind the real client."""
    from langchain_openai import ChatOpenAI
    from openai import DefaultHttpxClient

    # An HTTP_PROXY in the environment would be asked for loopback too.
    client = DefaultHttpxClient(trust_env=False)
    options: dict[str, Any] = {"http_client": client, "openai_proxy": None}
    if "http_socket_options" in ChatOpenAI.model_fields:
        options["http_socket_options"] = ()  # or versions that have it warn about that proxy
    with ScriptedServer(scenario.persona, price_per_million=PRICE) as server, client:
        yield chat_model(server.base_url, "scripted-1", "unused", **options)


def chat_model(base_url: str, name: str, key: str, **options: Any) -> BaseChatModel:
    """A model behind an OpenAI-compatible endpoint."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=base_url, model=name, api_key=SecretStr(key), **options)


def run_agent(scenario: Scenario, model: BaseChatModel, watcher: Watcher) -> Run:
    """Let the agent work until it ends or is ended.

    Args:
        scenario: With or without detection.
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

    with _expected_warning(wanted=not scenario.detection):
        guard = LoopGuard(_policy(scenario.detection), on_loop=detected, on_end=watcher.end, on_model_call=calls.append)
    agent: Any = create_agent(
        model, tools=[fetch_invoice], system_prompt=_SYSTEM, middleware=[LoopGuardMiddleware(guard)]
    )
    state = agent.invoke({"messages": [{"role": "user", "content": _QUESTION}]}, {"recursion_limit": _RECURSION_LIMIT})
    messages = state["messages"]
    return Run(
        name=scenario.name,
        attempts=sum(len(message.tool_calls) for message in messages if isinstance(message, AIMessage)),
        executions=executions,
        events=tuple(events),
        ended=guard.last_end.reason if guard.last_end is not None else "error",
        answer=messages[-1].text,
        curve=tuple(Spent(call.total.total_tokens, call.total.cost) for call in calls),
    )


def _policy(detection: bool) -> Policy:
    limits = {"turns": TURNS}
    if detection:
        return Policy(limits=limits)
    names = {row.partition(".")[0] for row in Policy().ladders()}
    return Policy(limits=limits, detectors={name: {"enabled": False} for name in names})


@contextmanager
def _expected_warning(*, wanted: bool) -> Iterator[None]:
    """Keep the one warning out of the output that says what is meant here: no detector is left."""
    logger = logging.getLogger("loopguard")

    def keep(record: logging.LogRecord) -> bool:
        return not (wanted and record.getMessage().startswith("policy: detectors:"))

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
