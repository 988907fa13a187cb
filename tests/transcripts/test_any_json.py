"""No reader raises anything but its declared error, whatever JSON it is given, and none claims what it cannot tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopguard_core import Policy
from loopguard_core.report import Reporter, page
from loopguard_core.transcripts import (
    READERS,
    AssistantMessage,
    Document,
    Reader,
    ToolResult,
    Transcript,
    TranscriptError,
    find_label,
    guard_for_replay,
    judge,
    parse_transcript,
    play,
)

KEYS = {
    "loopguard recordings": """
        role type session_id detector action streak round evidence reason message content tool_calls function is_error
        """,
    "OpenAI chat messages": """
        role content tool_calls function name arguments tool_call_id reasoning usage type text
        """,
    "OpenAI Responses items": """
        type role content call_id id name arguments output input items response request object data summary text
        environment error approval_request_id approve instructions usage incomplete_details previous_response_id
        """,
    "Anthropic messages": """
        role content type id name input tool_use_id is_error thinking stop_reason usage message system isSidechain
        """,
    "LangChain messages": """
        type data lc id kwargs content tool_calls invalid_tool_calls args tool_call_id status additional_kwargs role
        usage_metadata response_metadata values input output reasoning name text
        """,
}
VALUES = """
    user assistant tool system function_call function_call_output custom_tool_call shell_call mcp_call message
    mcp_approval_request mcp_approval_response computer_call reasoning response response.completed list container_auto
    tool_use tool_result thinking text ai human AIMessageChunk AIMessage constructor chat error remove 1
    loopguard session verdict end stop repeated_call
    """
WORDS = VALUES.split()
ROLES = ["user", "assistant", "tool", "system"]


def values(keys: list[str]) -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(WORDS)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=5),
        max_leaves=25,
    )


def documents(keys: list[str]) -> st.SearchStrategy[Any]:
    within = values(keys)
    entry = st.dictionaries(st.sampled_from(keys), within, min_size=1, max_size=6)
    typed = st.builds(lambda kind, more: {**more, "type": kind}, st.sampled_from(WORDS), entry)
    spoken = st.builds(lambda role, more: {**more, "role": role}, st.sampled_from(ROLES), entry)
    entries = st.lists(typed | spoken | entry, max_size=5)
    return entries | st.builds(lambda messages, more: {**more, "messages": messages}, entries, entry) | entry | within


DOCUMENTS = {name: documents(["messages", *keys.split()]) for name, keys in KEYS.items()}
ANY = documents(sorted({key for keys in KEYS.values() for key in keys.split()} | {"messages"}))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_reader_gives_a_transcript_or_its_declared_error(reader: Reader, data: st.DataObject) -> None:
    value = data.draw(DOCUMENTS[reader.NAME])
    lines = tuple(range(1, len(value) + 1)) if isinstance(value, list) and data.draw(st.booleans()) else None
    document = Document(value, lines)
    assert isinstance(reader.recognizes(document), bool)
    try:
        transcript = reader.read(document)
    except TranscriptError:
        return
    well_formed(transcript)


@settings(max_examples=200, deadline=None)
@given(value=ANY)
def test_any_json_is_read_and_played_or_refused_with_the_declared_error(value: Any) -> None:
    try:
        transcript = parse_transcript(json.dumps(value).encode())
    except TranscriptError:
        return
    well_formed(transcript)
    with guard_for_replay(Policy()) as guard:
        play(transcript, guard)


def well_formed(transcript: Transcript) -> None:
    assert transcript.id is None or isinstance(transcript.id, str)
    for message in transcript.messages:
        if isinstance(message, AssistantMessage):
            assert isinstance(message.content, str)
            assert isinstance(message.reasoning, str)
            assert all(isinstance(call.id, str) and call.id for call in message.calls)
            assert all(isinstance(call.name, str) for call in message.calls)
        elif isinstance(message, ToolResult):
            assert isinstance(message.call_id, str)
            assert message.is_error in (True, None)
        else:
            assert isinstance(message.content, str)


LABELS = st.dictionaries(
    st.sampled_from("loop kind expect id preset excused messages".split()),
    ANY
    | st.dictionaries(
        st.sampled_from("unit not_before_round by_round not_before_char by_char why".split()),
        st.sampled_from(["tool_round", "assistant_message", 0, 3, 10**4000, True, None, [], "x"]),
    )
    | st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(label=LABELS, value=ANY)
def test_any_label_is_one_or_refused_with_the_declared_error(label: Any, value: Any) -> None:
    try:
        found = find_label("no such file.json", Document({**label, "messages": value}))
        transcript = parse_transcript(json.dumps(value).encode())
    except TranscriptError:
        return
    if found is not None:
        with guard_for_replay(Policy()) as guard:
            assert isinstance(judge(found, transcript, play(transcript, guard)).reason, str)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=ANY)
def test_any_json_makes_a_page_or_is_refused_with_the_declared_error(value: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    with Reporter(Policy()) as reporter:
        try:
            story = reporter.story(file)
        except TranscriptError:
            return
        assert page([story]).rstrip().endswith("</html>")
