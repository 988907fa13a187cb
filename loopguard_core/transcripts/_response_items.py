"""The items of OpenAI's Responses API: which are calls, which are results, and which were sent before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopguard_core._types import ToolCall
from loopguard_core.transcripts._values import identifier, joined, kind, rows, table, text_or_none

CALLS = {
    "function_call": None,  # None: the item has a name
    "custom_tool_call": None,
    "mcp_approval_request": None,
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "local_shell_call": "local_shell",
    "computer_call": "computer",
}
"""The calls that the caller runs, under the names the Agents SDK gives them."""

RESULTS = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "local_shell_call_output",
        "computer_call_output",
    }
)
"""What they return."""

RUN_BY_CALLER = RESULTS - {"shell_call_output"}
"""Results that never stand in a response, because no provider makes them."""

_OTHERS = frozenset(
    {"reasoning", "mcp_call", "mcp_list_tools", "mcp_approval_response", "item_reference", "compaction"}
)
_OWN = RESULTS | _OTHERS | frozenset(CALLS)
_PARTS = frozenset({"input_text", "output_text", "input_image", "input_file"})
_ARGUMENTS = ("arguments", "input", "operation", "action", "actions")


def is_item(item: Mapping[str, Any]) -> bool:
    """Whether no other form has such a thing; a message of plain text says nothing."""
    return kind(item) in _OWN or any(kind(part) in _PARTS for part in rows(item.get("content")))


def call_id_of(item: Mapping[str, Any]) -> str | None:
    """The id that joins a call and its result."""
    return identifier(item.get("call_id")) or identifier(item.get("id"))


def call_of(item: Mapping[str, Any], otherwise: str) -> ToolCall | None:
    """An item of `CALLS` as a call; None if the provider ran it, in a container of its own.

    Args:
        item: The item.
        otherwise: The id of a call that has none.
    """
    environment = text_or_none(table(item.get("environment")).get("type")) or ""
    if environment.startswith("container"):
        return None
    name = CALLS[item["type"]] or text_or_none(item.get("name")) or ""
    namespace = text_or_none(item.get("namespace"))
    return ToolCall(
        call_id_of(item) or otherwise,
        f"{namespace}.{name}" if namespace and namespace != name else name,
        next((item[key] for key in _ARGUMENTS if item.get(key) is not None), None),
    )


class Sent:
    """Tells what of a request is new: some send the whole conversation each time, some only what came since."""

    def __init__(self) -> None:
        self._sent: list[Any] = []
        self._said: frozenset[tuple[str, str]] = frozenset()

    def new(self, sent: list[Any]) -> list[Any]:
        """Of what a request sends, that which was not there before the previous response, nor in it."""
        before, self._sent = self._sent, sent
        if not self._said:  # it said nothing that could be found again
            return sent[len(before) :] if sent[: len(before)] == before else sent
        again = [not self._said.isdisjoint(_keys(item)) for item in sent]
        if True not in again:
            return sent
        last = first = len(sent) - 1 - again[::-1].index(True)
        # Results may stand between the calls of the one response they answer.
        while first and (again[first - 1] or kind(sent[first - 1]) == "reasoning" or self._answers(sent[first - 1])):
            first -= 1
        return [item for place, item in enumerate(sent) if place > last or (place >= first and self._answers(item))]

    def said(self, items: list[Any]) -> None:
        """Remember what the response said."""
        self._said = frozenset(key for item in items for key in _keys(item))

    def _answers(self, item: Any) -> bool:
        return kind(item) in RESULTS and ("call", call_id_of(item) or "") in self._said


def _keys(item: Any) -> Iterator[tuple[str, str]]:
    """What an item is known by when it is sent again; messages may have lost their ids then, but not their text."""
    if kind(item) in CALLS:
        yield "call", call_id_of(item) or ""
    elif isinstance(item, dict) and item.get("role") == "assistant":
        yield "text", joined(item.get("content"))
