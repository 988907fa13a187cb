"""What the model and the operator are told. Nothing here ever quotes arguments or results."""

from __future__ import annotations

from loopguard_core._advice import Advice
from loopguard_core._limits import Breach
from loopguard_core._outcome import OWN_WORDS, REFUSED
from loopguard_core._types import Action


def verdict(action: Action, fact: str, advice: Advice, spared: str | None = None) -> str:
    """What a verdict says: to the model where it acts, else to the operator.

    Args:
        action: What is done.
        fact: The finding as one clause.
        advice: What to say beside it, where the model is to act on it.
        spared: Why nothing is done about it, as a sentence.
    """
    if spared is not None:
        return f"{OWN_WORDS} {_sentence(fact)}. {spared}"
    if action is Action.STOP:
        return stopped(fact)
    if action is Action.BLOCK:
        return blocked(fact, advice)
    if action is Action.OBSERVE:
        return f"{OWN_WORDS} {_sentence(fact)}."
    return steered(fact, advice)


def shadowed(action: Action) -> str:
    """Why nothing is done in shadow mode."""
    return f"Shadow mode: outside it the action would be {action.value}."


def allowed(action: Action) -> str:
    """Why nothing is done about a call that an operator has allowed."""
    return f"This call was allowed: otherwise the action would be {action.value}."


def blocked(fact: str, advice: Advice) -> str:
    """In place of the refused call's result."""
    return f"{REFUSED}: {fact}. {advice.why} {advice.ways}"


def steered(fact: str, advice: Advice) -> str:
    """Before the next model call, after everything it has seen."""
    return f"{OWN_WORDS} {_sentence(fact)}. {advice.why} {advice.ways}"


def stopped(fact: str) -> str:
    """The end of a run, by detection."""
    return f"{OWN_WORDS} The run was ended: {fact}."


def not_executed() -> str:
    """In place of the result of a call that shares its round with the one that ended the run, or comes after it."""
    return f"{REFUSED}, because the run was ended."


_AGAIN = f"{REFUSED}, for the same reason as others of its round."


def not_executed_again() -> str:
    """In place of the result of one of many calls that were refused in one round."""
    return _AGAIN


def limit_reached(breach: Breach) -> str:
    """The end of a run, by a limit."""
    return f"{OWN_WORDS} The run was ended: the limit of {breach.limit} {breach.unit} was reached ({breach.used} used)."


def call_over_limit() -> str:
    """In place of the result of a call beyond `limits.tool_calls`."""
    return f"{REFUSED}: the tool calls allowed for this run are used up. Answer with what you have."


def inner_stop(message: str) -> str:
    """The end of an outer run, because a run inside it was ended."""
    return f"{OWN_WORDS} A nested run was ended. {message.removeprefix(OWN_WORDS).strip()}"


def custom_stop(reason: str) -> str:
    """The end of a run, by a plugin."""
    return f"{OWN_WORDS} The run was ended: {reason}"


def final_answer(message: str) -> str:
    """Asks for one last answer without tools (`on_stop.how = "answer"`)."""
    return (
        f"{message} No tool can be used any more. Answer the user now with what was found so far, "
        "and say plainly what is missing."
    )


def _sentence(fact: str) -> str:
    return fact[:1].upper() + fact[1:]
