"""LangChain's messages in the core's words. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from loopguard_core import ToolCall, Usage


def calls_of(message: AIMessage) -> list[ToolCall]:
    """Every call the message asks for, those with invalid JSON included (their arguments are raw text)."""
    calls = [ToolCall(id=call["id"] or "", name=call["name"], arguments=call["args"]) for call in message.tool_calls]
    calls += [
        ToolCall(id=call["id"] or "", name=call["name"] or "", arguments=call["args"] or "")
        for call in message.invalid_tool_calls
    ]
    return calls


def annotate(calls: Iterable[ToolCall], tools: Iterable[Any]) -> None:
    """Put down what MCP servers say of the tools that were asked for; `langchain-mcp-adapters` keeps it as metadata."""
    known = {tool.name: tool.metadata for tool in tools if getattr(tool, "metadata", None)}
    for call in calls if known else ():
        hints = {hint: known[call.name].get(hint) for hint in _HINTS} if call.name in known else {}
        call.annotations = {hint: value for hint, value in hints.items() if isinstance(value, bool)} or None


_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint")


def usage_of(message: BaseMessage) -> Usage:
    """Tokens and, where the provider's own usage block survived, its cost in dollars."""
    given = _table(message.response_metadata)
    cost = _table(given.get("token_usage") or given.get("usage")).get("cost")
    return tokens_of(getattr(message, "usage_metadata", None), cost)


def tokens_of(reported: Any, cost: Any = None) -> Usage:
    """The same of a `usage_metadata` by itself, with a cost from elsewhere."""
    tokens = _table(reported)
    return Usage(
        input_tokens=tokens.get("input_tokens"),
        output_tokens=tokens.get("output_tokens"),
        cached_tokens=_table(tokens.get("input_token_details")).get("cache_read"),
        reasoning_tokens=_table(tokens.get("output_token_details")).get("reasoning"),
        total_tokens=tokens.get("total_tokens"),
        cost=cost,
    )


def _table(value: Any) -> dict[str, Any]:
    """A part of what a provider reports; empty where it is no object. Nothing else about it is taken for granted."""
    return value if isinstance(value, dict) else {}


def model_of(message: BaseMessage) -> str | None:
    """The model that answered, as its provider names it."""
    name = message.response_metadata.get("model_name") or message.response_metadata.get("model")
    return name if isinstance(name, str) else None


def finish_reason_of(message: BaseMessage) -> str | None:
    """Why the provider ended the message."""
    reason = message.response_metadata.get("finish_reason") or message.response_metadata.get("stop_reason")
    return reason if isinstance(reason, str) else None


def model_name(model: object) -> str | None:
    """The name of a chat model object, where it has one."""
    for attribute in ("model_name", "model"):
        name = getattr(model, attribute, None)
        if isinstance(name, str):
            return name
    return None


_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")


def max_tokens(model: object, settings: Mapping[str, Any]) -> int | None:
    """The most a model may say, where its user set that; what it could say at most is no figure to plan with.

    Args:
        model: The chat model.
        settings: What goes with the one request.
    """
    for given in (settings.get, lambda name: getattr(model, name, None)):
        for name in _MAX_TOKENS:
            most = given(name)
            if type(most) is int and most > 0:
                return most
    return None


def last_round(messages: Sequence[BaseMessage]) -> tuple[AIMessage | None, list[ToolMessage]]:
    """The last assistant message and the tool messages after it."""
    results: list[ToolMessage] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message, results[::-1]
        if isinstance(message, ToolMessage):
            results.append(message)
    return None, results[::-1]


def output_of(message: ToolMessage) -> Any:
    """What a tool returned, as the model sees it: text blocks are joined, anything else is kept."""
    content = message.content
    if isinstance(content, list) and all(isinstance(block, dict) and block.get("type") == "text" for block in content):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content


def failed(message: ToolMessage) -> bool | None:
    """True if the SDK says the call failed; None leaves it to the core."""
    return True if message.status == "error" else None


def refusal(call_id: str, name: str, text: str) -> ToolMessage:
    """The answer to a call that did not run."""
    return ToolMessage(content=text, tool_call_id=call_id, name=name, status="error")


def open_calls(message: AIMessage, answered: Iterable[ToolMessage]) -> list[tuple[str, str]]:
    """Id and name of the calls that have no answer yet."""
    done = {answer.tool_call_id for answer in answered}
    return [(call.id, call.name) for call in calls_of(message) if call.id not in done]
