"""The published runs of `loopguard bench models`, and scripted models that behave as they say.

The figures are those of OpenRouter's tutorial on agents stuck in a loop (openrouter.ai/blog/tutorials/
ai-agent-infinite-loop): six models, three runs each, the real calls of a tool that always fails, without and with its
detection. What is known of a run is when it gave up by itself, and how many calls got through the guard. Two runs got
past the guard by changing the argument slightly; 12 and 20 are what comes of 6 and 10 spellings, two calls of each
before the third is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopguard_core.testing import ChatRequest, Persona, Reply, ScriptedCall
from loopguard_core.testing.personas import MARK
from loopguard_langchain._billing_agent import ARGUMENTS, GIVES_UP, TOOL

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Published:
    """One published run.

    Attributes:
        model: Which of the six models, from 1.
        run: Which of its three runs, from 1.
        unguarded: Real calls without detection. 41 is a run that its cap of 40 steps ended: there, a step more begins
            before the cap is looked at.
        guarded: Real calls with the reference detection.
    """

    model: int
    run: int
    unguarded: int
    guarded: int


_UNGUARDED = ((6, 6, 6), (6, 5, 7), (5, 6, 5), (11, 41, 41), (17, 37, 21), (41, 12, 41))
_GUARDED = ((2, 2, 2), (2, 2, 2), (2, 2, 2), (2, 12, 2), (2, 2, 20), (2, 2, 2))

PUBLISHED = tuple(
    Published(model, run, *calls)
    for model, rows in enumerate(zip(_UNGUARDED, _GUARDED, strict=True), 1)
    for run, calls in enumerate(zip(*rows, strict=True), 1)
)
PUBLISHED_COST = {"unguarded": "$0.29", "reference": "$0.05"}
"""What all published runs cost."""

CAPPED = 41
"""What the published table has for a run that only its cap of 40 steps ended."""


def _id(text: str) -> Arguments:
    return {"invoice_id": text}


def _with(**extra: Any) -> Arguments:
    return {**ARGUMENTS, **extra}


@dataclass(frozen=True, slots=True)
class Change:
    """One way to change an argument slightly, as models do when a call is refused.

    Attributes:
        name: Short, for tables.
        cosmetic: Whether it asks for the same thing to the letter: only case, white space, punctuation or a field that
            the tool does not have.
        spellings: What is asked for instead, one after the other.
    """

    name: str
    cosmetic: bool
    spellings: tuple[Arguments, ...]


CHANGES = (
    Change("case", True, tuple(map(_id, ("inv-2291", "Inv-2291", "INv-2291", "iNV-2291", "inV-2291")))),
    Change("white space", True, tuple(map(_id, (" INV-2291", "INV-2291 ", "INV - 2291", "INV- 2291", "INV-2291\n")))),
    Change("punctuation", True, tuple(map(_id, ("INV_2291", "INV 2291", "#INV-2291", "INV/2291", '"INV-2291"')))),
    Change("hyphen dropped", True, tuple(map(_id, ("INV2291", "inv2291", "#INV2291", "INV2291.", "Inv2291")))),
    Change(
        "invented field",
        True,
        (_with(retry=True), _with(format="json"), _with(timeout=60), _with(force_refresh=True), _with(version="v2")),
    ),
    Change("invented counter", True, tuple(_with(attempt=number) for number in range(2, 7))),
    Change(
        "reworded id",
        False,
        tuple(map(_id, ("2291", "invoice 2291", "Invoice INV-2291", "INV-02291", "invoice number 2291"))),
    ),
    Change("numbered suffix", False, tuple(map(_id, (f"INV-2291-{number}" for number in range(1, 6))))),
)
"""Each kind by itself; six spellings with the first, so the reference lets 12 calls through."""

_TWELVE = (_id("inv-2291"), _id("INV 2291"), _id("INV2291"), _id("#INV-2291"), _with(retry=True))
_TWENTY = (
    _id("inv-2291"),
    _id("2291"),
    _id("invoice 2291"),
    _id("INV-2291-1"),
    _id("INV2291"),
    _id("INV-2291-2"),
    _with(force_refresh=True),
    _id("Invoice INV-2291"),
    _id("INV-02291"),
)
_RESPELT = {12: _TWELVE, 20: _TWENTY}

COSMETIC_RUNS = frozenset({(4, 2)})
"""Runs (model, run) that get past the reference with changes which are all cosmetic."""


def keeps_asking(patience: int | None = None, spellings: Sequence[Arguments] | None = ()) -> Persona:
    """A model that asks for the invoice again and again.

    Args:
        patience: It gives up after so many results; None never does.
        spellings: What it asks for after each refusal, one after the other; it gives up when they are used up. None
            takes no notice of refusals.
    """
    asked: list[Arguments] = [ARGUMENTS, *(spellings or ())]

    def answer(request: ChatRequest) -> Reply:
        texts = request.texts("tool")
        refused = sum(MARK in text for text in texts)
        results = len(texts) - refused
        at = 0 if spellings is None else refused
        if not request.may_call or at >= len(asked) or (patience is not None and results >= patience):
            return Reply(text=GIVES_UP)
        return Reply(tool_calls=(ScriptedCall(TOOL, asked[at]),))

    return answer


def persona(published: Published) -> Persona:
    """A model that behaves as a published run says.

    One that only the cap ended takes no notice of a refusal either, unless it answers it with another spelling; the
    others give up when they are refused.
    """
    patience = None if published.unguarded == CAPPED else published.unguarded
    spellings = _RESPELT.get(published.guarded, None if patience is None else ())
    return keeps_asking(patience, spellings)
