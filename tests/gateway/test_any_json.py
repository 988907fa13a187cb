"""What the gateway reads of requests, answers and streams: any JSON is understood or refused as declared."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopguard_gateway import _chat, _responses
from loopguard_gateway._errors import Refused
from loopguard_gateway._links import chain
from loopguard_gateway._sse import Events
from loopguard_gateway._tokens import sent_tokens
from loopguard_gateway._wire import Closing, Said, Wire

from loopguard_core import Usage
from loopguard_core.transcripts import TranscriptError

KEYS = {
    _chat: """
        model messages stream max_tokens max_completion_tokens n tools tool_choice stream_options include_usage choices
        index delta message role content reasoning refusal tool_calls tool_call_id id type function name arguments
        function_call finish_reason usage prompt_tokens completion_tokens cost
        """.split(),
    _responses: """
        model input stream background previous_response_id conversation max_output_tokens output response item items
        delta sequence_number type role content id call_id name arguments output text summary encrypted_content
        incomplete_details reason usage input_tokens output_tokens instructions metadata object
        """.split(),
}
WORDS = """
    user assistant tool system developer function custom function_call function_call_output custom_tool_call reasoning
    message output_text response response.created response.completed response.output_item.done stop tool_calls
    response.output_text.delta response.function_call_arguments.delta web_search_call mcp_call mcp_approval_request
    shell_call computer_call c1 {"a":1} {bad
    """.split()
WIRES = pytest.mark.parametrize("wire", KEYS, ids=lambda wire: wire.name)


def values(wire: Wire) -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers(-2, 9) | st.integers() | st.floats() | st.text(max_size=3)
    return st.recursive(
        scalars | st.sampled_from(WORDS) | st.sampled_from(WORDS),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS[wire]), inner, max_size=5),
        max_leaves=20,
    )


def objects(wire: Wire) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(KEYS[wire]), values(wire), max_size=6)


def items(wire: Wire) -> st.SearchStrategy[list[Any]]:
    typed = st.builds(lambda kind, more: {**more, "type": kind}, st.sampled_from(WORDS), objects(wire))
    spoken = st.builds(lambda role, more: {**more, "role": role}, st.sampled_from(WORDS[:5]), objects(wire))
    return st.lists(typed | spoken | objects(wire) | values(wire), max_size=4)


def understood(wire: Wire, said: Said) -> None:
    """It can be kept, answered on the model's behalf, and closed."""
    request = wire.asked({"messages": [], "input": []})
    outputs = {call.id: "refused" for call in said.message.calls}
    added = wire.results(said, outputs)
    json.dumps([added, wire.continued(said, "closed"), wire.rebuilt(request, added or [], tools=True)], default=str)
    with contextlib.suppress(TranscriptError):
        wire.links(said.items)
    json.dumps(wire.answer(Closing("closed", request, said, usage=said.usage or Usage())), default=str)


@WIRES
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_request(wire: Wire, data: st.DataObject) -> None:
    field = "messages" if wire is _chat else "input"
    body = {**data.draw(objects(wire)), field: data.draw(items(wire) | values(wire))}
    assert sent_tokens(len(json.dumps(body)), body) >= 0
    try:
        asked = wire.asked(body)
    except Refused:
        return
    assert isinstance(asked.items, list)
    assert asked.output_tokens is None or asked.output_tokens > 0
    try:
        wire.read(asked.items)
        links = wire.links(asked.items)
    except TranscriptError:
        return
    assert chain(b"", [link for _, link in links])
    wire.answer(Closing("closed", asked))


@WIRES
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_answer(wire: Wire, data: st.DataObject) -> None:
    body = data.draw(objects(wire))
    if wire is _chat:
        body = {**body, "choices": [{"message": {**data.draw(objects(wire)), "tool_calls": data.draw(items(wire))}}]}
    else:
        body = {**body, "output": data.draw(items(wire))}
    try:
        said = wire.said(body)
    except TranscriptError:
        return
    understood(wire, said)


@WIRES
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_stream(wire: Wire, data: st.DataObject) -> None:
    reader = wire.reader()
    for event in data.draw(st.lists(objects(wire), max_size=4)):
        if wire is _chat:
            event = {**event, "choices": [{"index": 0, "delta": data.draw(objects(wire))}]}
        else:
            event = {**event, "type": data.draw(st.sampled_from(WORDS))}
        piece = reader.read(event)
        assert all(isinstance(text, str) for _, text in piece.texts)
    asked = wire.asked({"messages": [], "input": []})
    assert reader.close(Closing("closed", asked))
    assert reader.error({"message": "x"})
    try:
        said = reader.said()
    except TranscriptError:
        return
    understood(wire, said)
    assert reader.close(Closing("closed", asked, said, whole=False))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"data: ", b"\n\n", b"\r\n\r\n", b"{}", b"data:{\n"])))
def test_events_are_cut_anywhere_and_no_byte_is_lost(pieces: list[bytes]) -> None:
    events = Events()
    found = [event for piece in pieces for event in events.feed(piece)]
    for event in found:
        assert event.json() is None or isinstance(event.json(), dict)
    assert b"".join(event.raw for event in found) + events.rest() == b"".join(pieces)
