"""The Agents SDK's items in the core's words, and back. Nothing here decides anything."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents import Agent, Handoff, ItemHelpers, Model, ModelResponse, TResponseInputItem
from agents import Usage as SdkUsage
from agents.agent_output import AgentOutputSchemaBase

from loopguard_core import Channel, ToolCall, Usage

_NAMES = {
    "function_call": None,  # None: the item has a name
    "custom_tool_call": None,
    "mcp_approval_request": None,
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "local_shell_call": "local_shell",
    "computer_call": "computer",
}
"""The calls the SDK runs on this side. What a provider runs on its own is part of one model call, and no round."""

_NEVER_REFUSED = frozenset({"local_shell_call", "computer_call"})
"""The SDK runs these whatever was decided about them."""

_SDK_FAILURE = re.compile(
    r"An error occurred while (?:running the tool|parsing tool arguments)\b"
    r"|Tool '[^']*' (?:not found\.|timed out after )"
    r"|Tool execution was not approved\."
)
"""What the SDK itself says in a tool's place."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a response.

    Attributes:
        item: The SDK's item.
        call: The same in the core's words.
        runs_anyway: True if it cannot be refused and does something; handing over to an agent does nothing yet.
        may_wait: Whether a human may be asked about it.
    """

    item: Any
    call: ToolCall
    runs_anyway: bool = False
    may_wait: bool = True


def requests_of(output: Iterable[Any], handoffs: Collection[str]) -> list[Request]:
    """Every call a response asks for, in order; those with invalid JSON keep it as raw text.

    Args:
        output: The response's items.
        handoffs: Names of the function calls that hand over; they cannot be refused.
    """
    requests = []
    for item in output:
        kind = _get(item, "type")
        if kind not in _NAMES:
            continue
        name, namespace = _NAMES[kind] or str(_get(item, "name") or ""), _get(item, "namespace")
        qualified = f"{namespace}.{name}" if namespace and namespace != name else name
        runs_anyway = kind in _NEVER_REFUSED
        call = ToolCall(
            id=str(_get(item, "call_id") or _get(item, "id") or ""),
            name=qualified,
            arguments=_arguments(item),
            refusable=not runs_anyway and not (kind == "function_call" and qualified in handoffs),
        )
        requests.append(Request(item, call, runs_anyway, call.refusable))
    return requests


def _arguments(item: Any) -> Any:
    for field in ("arguments", "input", "operation", "action", "actions"):
        value = _get(item, field)
        if value is not None:
            return _plain(value)
    return None


def refusal_name(item: Any) -> str | None:
    """The tool name the SDK files a refusal of this item under; None where the item has its own."""
    return _NAMES.get(_get(item, "type") or "")


def annotate(requests: Iterable[Request], hints: Mapping[str, Mapping[str, Any]]) -> None:
    """Put down what MCP servers say of the tools that were asked for."""
    for request in requests:
        request.call.annotations = hints.get(request.call.name)


def hints_of_servers(agent: Agent[Any]) -> dict[str, Mapping[str, Any]]:
    """What an agent's local MCP servers say of their tools, as the SDK listed them last."""
    listed = [(tool.name, tool.annotations) for server in agent.mcp_servers for tool in server.cached_tools or ()]
    return {name: hints for name, given in listed if (hints := _hints(given))}


def hints_of_tools(tools: Iterable[Any]) -> dict[str, Mapping[str, Any]]:
    """The same, as the SDK keeps it with the tools it made of theirs (since 0.24)."""
    known = [(tool_name(tool), getattr(tool, "mcp_annotations", None)) for tool in tools]
    return {name: hints for name, given in known if (hints := _hints(given))}


_HINTS = {"readOnlyHint": "read_only_hint", "destructiveHint": "destructive_hint", "idempotentHint": "idempotent_hint"}
"""As the protocol has them, and as the second version of its Python package calls them."""


def _hints(given: Any) -> dict[str, Any]:
    both = {name: (_get(given, name), _get(given, other)) for name, other in _HINTS.items()}
    return {name: old if isinstance(old, bool) else new for name, (old, new) in both.items() if old is not new}


def tool_name(tool: Any) -> str:
    """The name of a tool as calls have it; with the namespace, where there is one."""
    return str(getattr(tool, "qualified_name", tool.name))


def is_approval(item: Any) -> bool:
    """Whether a call is a hosted MCP server's question whether it may be made."""
    return bool(_get(item, "type") == "mcp_approval_request")


def handoff_names(agent: Agent[Any]) -> set[str]:
    """Names of the calls by which an agent hands over."""
    return {h.tool_name if isinstance(h, Handoff) else Handoff.default_tool_name(h) for h in agent.handoffs}


# -- results -----------------------------------------------------------------------------------------------------------


def outputs_in(items: Sequence[Any], wanted: Collection[str]) -> dict[str, Any]:
    """What calls returned, as the model is about to see it.

    Args:
        items: The model's input.
        wanted: Ids of the calls.
    """
    found: dict[str, Any] = {}
    for item in reversed(items):
        if len(found) == len(wanted):
            break
        kind = _get(item, "type")
        if kind == "mcp_approval_response" and not _get(item, "approve"):
            call_id, output = _get(item, "approval_request_id"), _get(item, "reason")
        elif isinstance(kind, str) and kind.endswith("_output"):
            call_id, output = _get(item, "call_id"), _get(item, "output")
        else:
            continue
        if call_id in wanted and call_id not in found:
            found[call_id] = _text_or_plain(output)
    return found


def hosted_results(output: Iterable[Any]) -> Iterator[tuple[str, Any, bool | None]]:
    """What hosted MCP calls that were approved returned: it comes with the next response.

    Yields:
        The approval request's id, the output, and whether it failed.
    """
    for item in output:
        request_id = _get(item, "approval_request_id") if _get(item, "type") == "mcp_call" else None
        if request_id:
            error = _get(item, "error")
            yield request_id, _get(item, "output") if error is None else str(error), True if error else None


def ends_with_results(items: Sequence[Any]) -> Iterator[str]:
    """Ids of the results an input ends with, as that of a resumed run does."""
    for item in reversed(items):
        call_id = _get(item, "call_id")
        if not str(_get(item, "type")).endswith("_output") or not isinstance(call_id, str):
            return
        yield call_id


def failed(output: Any) -> bool | None:
    """True if these are the SDK's own words for a failure; None leaves it to the core."""
    return True if isinstance(output, str) and _SDK_FAILURE.match(output) else None


def _text_or_plain(output: Any) -> Any:
    """What the model sees: text parts are joined, anything else is kept."""
    if isinstance(output, list) and all(_get(part, "type") in ("input_text", "output_text") for part in output):
        return "".join(str(_get(part, "text") or "") for part in output)
    return _plain(output)


# -- responses ---------------------------------------------------------------------------------------------------------


def texts_of(output: Iterable[Any]) -> Iterator[tuple[Channel, str]]:
    """The text of a response, piece by piece; an empty piece where it says nothing, which is known then too."""
    silent = True
    for item in output:
        kind = _get(item, "type")
        if kind == "message":
            silent = False
            for part in _get(item, "content") or ():
                yield "content", str(_get(part, "text") or _get(part, "refusal") or "")
        elif kind == "reasoning":
            for part in (*(_get(item, "summary") or ()), *(_get(item, "content") or ())):
                yield "reasoning", str(_get(part, "text") or "")
        elif kind == "function_call":
            yield "arguments", str(_get(item, "arguments") or "")
    if silent:
        yield "content", ""


def said(output: Iterable[Any]) -> str:
    """What a response says, reasoning and calls left out."""
    return "".join(text for channel, text in texts_of(output) if channel == "content")


def usage_of(response: ModelResponse) -> Usage:
    """Tokens and, where the provider's own usage block was kept, its cost in dollars.

    The SDK writes zeros where a provider reported nothing; unknown is not zero.
    """
    usage: SdkUsage = response.usage
    cost: Any = _get(getattr(response, "raw_usage", None), "cost")
    if not (usage.input_tokens or usage.output_tokens or usage.total_tokens):
        return Usage(cost=cost)
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=getattr(usage.input_tokens_details, "cached_tokens", None),
        reasoning_tokens=getattr(usage.output_tokens_details, "reasoning_tokens", None),
        total_tokens=usage.total_tokens,
        cost=cost,
    )


def model_name(model: str | Model | None) -> str | None:
    """The name of a model, where it has one."""
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return name if isinstance(name, str) else None


def typed(output_type: Any) -> bool:
    """Whether an agent must give structured output, so that no text of ours can be its final output."""
    if isinstance(output_type, AgentOutputSchemaBase):
        return not output_type.is_plain_text()
    return output_type is not None and output_type is not str


# -- odds and ends -----------------------------------------------------------------------------------------------------


def as_list(items: str | list[TResponseInputItem]) -> list[TResponseInputItem]:
    """A run's input as a list of items."""
    return ItemHelpers.input_to_new_input_list(items)


def _get(item: Any, name: str) -> Any:
    """A field of an item, which is an object in a response and a mapping in an input."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    dump = getattr(value, "model_dump", None)
    try:
        return dump(mode="json", exclude_none=True) if callable(dump) else value
    except Exception:  # noqa: BLE001  # it holds something that JSON has no words for; the core takes any object
        return value
