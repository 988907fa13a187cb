"""Scripted models the scripts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loopguard_core.testing.personas import MARK, ChatRequest, Persona, Reply, ScriptedCall

QUERY: Mapping[str, Any] = {"query": "INV-2291"}
DONE = "done"


def call(tool: str = "fetch", arguments: Mapping[str, Any] | str = QUERY) -> ScriptedCall:
    """One call."""
    return ScriptedCall(tool, arguments)


def deaf(*calls: ScriptedCall) -> Persona:
    """Asks for the same calls for ever, unless no tool may be called."""
    wanted = Reply(tool_calls=calls or (call(),))
    return lambda request: wanted if request.may_call else Reply(text=DONE)


def listening(*calls: ScriptedCall) -> Persona:
    """Asks for the same calls until a tool message carries loopguard's words, then answers."""
    ask = deaf(*calls)
    return lambda request: Reply(text=DONE) if any(MARK in text for text in request.texts("tool")) else ask(request)


def for_rounds(rounds: int, round_of: Callable[[int], tuple[ScriptedCall, ...]], text: str | None = None) -> Persona:
    """Asks for `round_of(number)` in each of some rounds, perhaps with some words beside it, then answers."""

    def persona(request: ChatRequest) -> Reply:
        if request.number > rounds or not request.may_call:
            return Reply(text=DONE)
        return Reply(text=text, tool_calls=round_of(request.number))

    return persona


def repeats(rounds: int) -> Persona:
    """Asks for the same call in each of some rounds, then answers."""
    return for_rounds(rounds, lambda number: (call(),))


def differs(rounds: int) -> Persona:
    """Asks for another call in each of some rounds, then answers."""
    return for_rounds(rounds, lambda number: (call(arguments={"n": number}),))


def user_text(request: ChatRequest) -> str:
    """What the user said last."""
    said = [text for text in request.texts("user") if MARK not in text]
    return said[-1] if said else ""


def unless_thanked(persona: Persona) -> Persona:
    """Looks once more and then answers a user who says thanks; else as the other persona."""

    def thanked(request: ChatRequest) -> Reply:
        if user_text(request) != "thanks":
            return persona(request)
        looks = request.messages[-1].get("role") == "user" and request.may_call
        return Reply(tool_calls=(call(),)) if looks else Reply(text="you are welcome")

    return thanked
