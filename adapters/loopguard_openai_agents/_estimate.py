"""How many tokens a model call uses, where no provider has said so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agents import Agent

from loopguard_core import estimate_tokens

_NO_TEXT = frozenset({"image_url", "file_data", "data", "encrypted_content", "id", "type", "status", "role"})


def tokens_sent(instructions: str | None, items: Sequence[Any], tools: Iterable[Any]) -> int:
    """About how many tokens a request has; see `estimate_tokens`. Pictures and files are not counted.

    Args:
        instructions: The system prompt.
        items: The input.
        tools: The tools on offer, and handoffs.
    """
    described = [_described(tool) for tool in tools]
    sent = "".join(_texts([instructions or "", items]))
    return estimate_tokens(sent) + (estimate_tokens(json.dumps(described, default=str)) if described else 0)


def tools_of(agent: Agent[Any]) -> list[Any]:
    """The tools of an agent as far as they are known without asking anybody."""
    return [*agent.tools, *(tool for server in agent.mcp_servers for tool in server.cached_tools or ())]


def _described(tool: Any) -> list[Any]:
    """What a provider is told of a tool of the SDK's, of a handoff, or of one of an MCP server."""
    name = getattr(tool, "name", None) or getattr(tool, "tool_name", "")
    description = getattr(tool, "description", None) or getattr(tool, "tool_description", "")
    fields = ("params_json_schema", "input_json_schema", "inputSchema", "input_schema")
    return [name, description, next((found for field in fields if (found := getattr(tool, field, None))), {})]


def _texts(sent: Any) -> Iterator[str]:
    """Every text in what is sent to a model. What pictures and files are encoded as is none."""
    if isinstance(sent, str):
        yield sent
    elif isinstance(sent, Mapping):
        for name, value in sent.items():
            if name not in _NO_TEXT:
                yield from _texts(value)
    elif isinstance(sent, Sequence) and not isinstance(sent, (bytes, bytearray)):
        for item in sent:
            yield from _texts(item)
