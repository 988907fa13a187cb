"""Reads OpenAI Responses: input and output items, response objects, and conversations of several of them.

A file is a list of items (as `to_input_list` of the Agents SDK gives it, or an object with `items`), a response object,
an object with `input` and `output`, or several of these as a list or JSONL, one request a line; the recorded events of
a stream too, of which the ones that carry a finished response count.

- Of a response object it is known what belongs to it: all its calls are one round. In a plain list, the calls up to the
  next result, user's message or assistant's message are one round; a further assistant's message is a further response.
- Requests that send the conversation again are told apart from those that send only what is new: what follows the last
  thing the previous response said is new.
- Functions, custom tools, and the tools that the caller runs (shell, local shell, apply_patch, computer, MCP where it
  asks for approval) are calls, under the names the Agents SDK uses. What the provider ran on its own (web search, MCP,
  code interpreter, a shell in its container) is part of one model call, and no round.
- `reasoning` gives its text, or its summary. Encrypted reasoning and unknown items are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopguard_core.transcripts._envelope import glimpse, opened, read_each
from loopguard_core.transcripts._model import (
    Document,
    Message,
    SystemMessage,
    ToolResult,
    Transcript,
    TranscriptError,
    UserMessage,
)
from loopguard_core.transcripts._pieces import Pieces
from loopguard_core.transcripts._response_items import CALLS, RESULTS, RUN_BY_CALLER, Sent, call_id_of, call_of, is_item
from loopguard_core.transcripts._values import (
    Unanswered,
    identifier,
    joined,
    kind,
    reasoning_text,
    rows,
    table,
    text_or_none,
    tool_output,
    usage,
)

NAME = "OpenAI Responses items"

_FINISHED = frozenset({"response.completed", "response.incomplete", "response.failed"})
_LISTS = ("items", "output", "input")


def recognizes(document: Document) -> bool:
    """Whether this looks like items or responses of the Responses API, readable or not."""
    return any(_is_own(member) for member in glimpse(document))


def read(document: Document) -> Transcript:
    """Turn a parsed file into a transcript.

    Raises:
        TranscriptError: It holds something that is no item.
    """
    fields, entries = opened(document)  # some keep items under `messages`
    fields = fields or table(document.value)
    reader = _Reader(text_or_none(fields.get("model")))
    read_each(Document(_page(entries.value), entries.lines), reader.read, "item")
    return Transcript(identifier(fields.get("id")), reader.messages())


def _is_own(member: Mapping[str, Any]) -> bool:
    if member.get("object") == "response" or kind(member) in _FINISHED:
        return True
    if any(is_item(item) for key in _LISTS for item in rows(member.get(key))):
        return True
    if member.get("object") == "list" and any(is_item(item) for item in rows(member.get("data"))):
        return True
    return is_item(member)


def _page(value: Any) -> Any:
    """The items of a list as the API hands it out."""
    if isinstance(value, dict) and value.get("object") == "list" and isinstance(value.get("data"), list):
        return value["data"]
    return value


@dataclass(slots=True, eq=False)
class _Response(Pieces):
    """What one model call said, as far as it was read, and where."""

    number: int
    place: int
    whole: bool = False  # a response object: nothing but its end ends it


class _Reader:
    """Reads items and responses in order.

    Args:
        model: The model of responses that name none.
    """

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._read: list[Message | _Response] = []
        self._response: _Response | None = None  # the one that items still add to
        self._responses = 0
        self._thought: list[str] = []  # reasoning that belongs to whatever comes next
        self._unanswered = Unanswered()
        self._sent = Sent()
        self._instructions = ""

    def messages(self) -> tuple[Message, ...]:
        """Everything read."""
        self._close()
        return tuple(part.message() if isinstance(part, _Response) else part for part in self._read)

    def read(self, entry: Any) -> None:
        """Read an item, a response, or a request with its response, into `messages`.

        Raises:
            TranscriptError: It is none of them.
        """
        if not isinstance(entry, dict):
            raise TranscriptError("is not an item: it is no object")
        name = kind(entry)
        if name is not None and name.startswith("response."):
            if name in _FINISHED and isinstance(entry.get("response"), dict):
                self._exchange(entry["response"])
        elif name is None and any(key in entry for key in _LISTS):
            self._exchange(entry)
        elif name is None and isinstance(entry.get("response"), dict):
            self._exchange({**table(entry.get("request")), **entry["response"]})
        else:
            self._item(entry)

    # -- requests and responses ----------------------------------------------------------------------------------------

    def _exchange(self, record: Mapping[str, Any]) -> None:
        instructions = joined(record.get("instructions"))
        if instructions and instructions != self._instructions:
            self._instructions = instructions
            self._read.append(SystemMessage(instructions))
        sent = record.get("input")
        sent = _listed({"role": "user", "content": sent} if isinstance(sent, str) else sent)
        if not (record.get("previous_response_id") or record.get("conversation")):  # else the provider keeps the rest
            sent = self._sent.new(sent)
        for item in (*sent, *_listed(record.get("items"))):
            self._item(item)
        if record.get("output") is None:
            return
        said = _listed(record["output"])
        if record.get("object") != "response" and any(kind(item) in RUN_BY_CALLER for item in said):
            for item in said:  # not one response but a whole run
                self._item(item)
            return
        self._close()
        response = self._begin()
        response.whole = True
        response.model = text_or_none(record.get("model")) or self._model
        response.usage = usage(record.get("usage"), "input_tokens", "output_tokens")
        response.finish_reason = text_or_none(table(record.get("incomplete_details")).get("reason"))
        for item in said:
            self._item(item)
        self._close()
        self._sent.said(said)

    # -- items ---------------------------------------------------------------------------------------------------------

    def _item(self, item: Any) -> None:
        if not isinstance(item, dict):
            raise TranscriptError("is not an item: it is no object")
        if "tool_calls" in item:
            raise TranscriptError("has `tool_calls`, which belong to the chat form and not among items")
        name = kind(item)
        if name in CALLS:
            self._call(item)
        elif name in RESULTS:
            self._result(call_id_of(item), item.get("output"), failed=item.get("status") == "failed")
        elif name in ("mcp_call", "mcp_approval_response"):
            self._approval(item, denied=item.get("approve") is False)
        elif name == "reasoning":
            self._thought.append(reasoning_text(item))
        elif name == "message" or (name is None and "role" in item):
            self._message(item)
        elif name is None:
            raise TranscriptError("is not an item: it has neither `type` nor `role`")

    def _message(self, item: Mapping[str, Any]) -> None:
        role, text = item.get("role"), joined(item.get("content"))
        if role == "assistant":
            response = self._response
            if response is not None and not response.whole and (response.content or response.calls):
                self._close(keep_thought=True)
            self._current().content.append(text)
        elif role in ("user", "system", "developer"):
            self._close()
            self._read.append(UserMessage(text) if role == "user" else SystemMessage(text))

    def _call(self, item: Mapping[str, Any]) -> None:
        made = 0 if self._response is None else len(self._response.calls)
        number = self._responses + (self._response is None)
        call = call_of(item, f"call-{number}.{made + 1}")
        if call is not None:
            self._current().calls.append(call)

    def _result(self, call_id: str | None, output: Any, *, failed: bool = False) -> None:
        if self._response is not None and self._response.whole:
            return  # of a call the provider ran: results of the caller's own come with the next request
        self._close()
        answered = self._unanswered.take(call_id, None)
        self._read.append(ToolResult(call_id or answered or "", tool_output(output), True if failed else None))

    def _approval(self, item: Mapping[str, Any], *, denied: bool) -> None:
        """What came of an MCP call that had to be approved; where it ran, that comes with the next response."""
        request, error = identifier(item.get("approval_request_id")), item.get("error")
        if request is None or (item["type"] == "mcp_approval_response" and not denied):
            return
        output = item.get("reason" if denied else "output") if error is None else error
        result = ToolResult(request, output, None if error is None else True)
        if self._response is not None and self._response.whole:
            self._read.insert(self._response.place, result)  # it was there before the model went on
            self._response.place += 1
        else:
            self._close(keep_thought=True)
            self._read.append(result)

    # -- where a response begins and ends ------------------------------------------------------------------------------

    def _begin(self) -> _Response:
        self._responses += 1
        self._response = _Response(self._responses, len(self._read), model=self._model)
        self._read.append(self._response)
        return self._response

    def _current(self) -> _Response:
        response = self._response or self._begin()
        response.reasoning += self._thought
        self._thought.clear()
        return response

    def _close(self, *, keep_thought: bool = False) -> None:
        if self._thought and not keep_thought:
            self._current()
        if self._response is not None:
            self._unanswered = Unanswered(self._response.calls)
        self._response = None


def _listed(value: Any) -> list[Any]:
    """Items, or the one item that stands in place of a list of them.

    Raises:
        TranscriptError: It is neither.
    """
    if value is None:
        return []
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list):
        return value
    raise TranscriptError("has items that are no list")
