"""The Responses API on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopguard_core.transcripts import (
    AssistantMessage,
    Document,
    Message,
    SystemMessage,
    ToolResult,
    TranscriptError,
    UserMessage,
    openai_responses,
)
from loopguard_gateway import _fields, _links
from loopguard_gateway._errors import bad_request
from loopguard_gateway._responses_stream import OWN_ID, ResponseReader, closed_response
from loopguard_gateway._wire import Asked, Closing, Reader, Said

name = "responses"
path = "/responses"
keeps = True

_OUTPUTS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "max_tool_calls")


def asked(body: Mapping[str, Any]) -> Asked:
    """Look into a request."""
    sent = body.get("input")
    if isinstance(sent, str):
        sent = [{"role": "user", "content": sent}]
    if sent is not None and not isinstance(sent, list):
        raise bad_request("`input` must be text or a list of items")
    if _fields.flag(body, "background"):
        raise bad_request("`background` is not possible here: what such a response costs is not known when it begins")
    if str(body.get("previous_response_id")).startswith(OWN_ID):
        raise bad_request(
            "`previous_response_id` names a response that this gateway wrote to end a run, which the provider does not"
            " know: send the conversation itself, or the id of the response before it"
        )
    conversation = body.get("conversation")
    kept = conversation.get("id") if isinstance(conversation, dict) else conversation
    return Asked(
        body,
        model=_text(body.get("model")),
        stream=_fields.flag(body, "stream"),
        output_tokens=_fields.number(body, "max_output_tokens"),
        choices=1,
        items=sent or [],
        after=_text(body.get("previous_response_id")) or _text(kept),
    )


def read(items: Sequence[Any]) -> Sequence[Message]:
    """Items in the core's form."""
    return openai_responses.read(Document({"messages": list(items)})).messages if items else ()


def links(items: Sequence[Any]) -> list[tuple[int, bytes]]:
    """A digest of each item; instructions and reasoning are left out, which clients may drop or change."""
    found: list[tuple[int, bytes]] = []
    for place, item in enumerate(items):
        link = _link(item)
        if link is not None:
            found.append((place, link))
    return found


def _link(item: Any) -> bytes | None:
    if not isinstance(item, dict) or item.get("type") == "reasoning":
        return None
    message = next(iter(read([item])), None)
    match message:
        case AssistantMessage():
            return _links.of_calls(message.calls) if message.calls else _links.of_text(message.content)
        case ToolResult():
            return _links.digest("result", message.call_id, message.output)
        case UserMessage():
            return _links.digest("user", item.get("content"))
        case SystemMessage() | None:
            return None


def said(body: Mapping[str, Any]) -> Said:
    """Read a response object."""
    if not isinstance(body.get("output"), list):
        raise TranscriptError("holds no output")
    # What it was asked with may stand in it too, and is none of what it says.
    own = {key: body.get(key) for key in ("output", "model", "usage", "incomplete_details")}
    messages = openai_responses.read(Document({**own, "object": "response"})).messages
    spoken = next((message for message in messages if isinstance(message, AssistantMessage)), AssistantMessage())
    usage = spoken.usage
    return Said(spoken, tuple(body["output"]), _text(body.get("id")), _text(body.get("model")), usage)


def results(response: Said, outputs: Mapping[str, str]) -> list[Any] | None:
    """The output, and a result for each of its calls; None where there are calls of a kind with other results."""
    asked_for = [item for item in response.items if isinstance(item, dict) and _text(item.get("call_id"))]
    if len(asked_for) != len(outputs) or not all(
        item.get("type") in _OUTPUTS and item["call_id"] in outputs for item in asked_for
    ):
        return None
    answers = [
        {"type": _OUTPUTS[item["type"]], "call_id": item["call_id"], "output": outputs[item["call_id"]]}
        for item in asked_for
    ]
    return [*_sendable(response.items), *answers]


def _sendable(items: Sequence[Any]) -> list[Any]:
    """A response's items as they may be sent back.

    Reasoning that was not kept and came without its encrypted form cannot be sent, and calls keep their ids only
    beside it.
    """
    if all(item.get("type") != "reasoning" or item.get("encrypted_content") for item in items):
        return list(items)
    return [
        {key: value for key, value in item.items() if key != "id"} for item in items if item.get("type") != "reasoning"
    ]


def continued(response: Said, text: str) -> list[Any]:
    """The output without its calls, with a further message."""
    calls = {call.id for call in response.message.calls}
    kept = [item for item in response.items if _text(item.get("call_id", item.get("id"))) not in calls]
    closing = {"role": "assistant", "content": text.strip()}
    return [*kept, *([closing] if text else [])]


def note(text: str) -> Any:
    """A user's message."""
    return {"role": "user", "content": text}


def rebuilt(request: Asked, added: Sequence[Any], *, tools: bool) -> dict[str, Any]:
    """The request with items added."""
    kept = {key: value for key, value in request.body.items() if tools or key not in _TOOL_FIELDS}
    return {**kept, "input": [*request.items, *added]}


def reporting(body: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001  # the same for all requests
    """Nothing: a stream of this API reports it in any case."""
    return None


def answer(closing: Closing) -> dict[str, Any]:
    """A response of the gateway's."""
    return closed_response(closing, [], closing.text)[0]


def reader() -> Reader:
    """For one streamed answer."""
    return ResponseReader(said)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
