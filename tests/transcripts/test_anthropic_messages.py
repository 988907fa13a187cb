from __future__ import annotations

import json
from typing import Any

import pytest

from loopguard_core import ToolCall, Usage
from loopguard_core.transcripts import (
    AssistantMessage,
    SystemMessage,
    ToolResult,
    Transcript,
    TranscriptError,
    UserMessage,
    parse_transcript,
)


def parsed(value: Any) -> Transcript:
    return parse_transcript(json.dumps(value).encode())


def lines(*values: Any) -> Transcript:
    return parse_transcript("\n".join(json.dumps(value) for value in values).encode())


def use(call_id: str | None, name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"a": 1}, **more}


def result(call_id: str | None, content: Any = "seen", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def said(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks), **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_parallel_calls_are_one_round_and_their_results_come_in_one_message() -> None:
    transcript = parsed([said(text("go"), use("1"), use("2", "read")), user(result("1"), result("2", "words"))])
    calls = (ToolCall("1", "look", {"a": 1}), ToolCall("2", "read", {"a": 1}))
    assert transcript.messages == (
        AssistantMessage(content="go", calls=calls),
        ToolResult("1", "seen"),
        ToolResult("2", "words"),
    )


def test_text_after_results_is_a_user_speaking_and_loopguards_own_words_are_kept_apart() -> None:
    messages = [said(use("1")), user(result("1"), text("[loopguard] Try another way."), text("and "), text("hurry"))]
    assert parsed(messages).messages[1:] == (
        ToolResult("1", "seen"),
        UserMessage("[loopguard] Try another way."),
        UserMessage("and hurry"),
    )


def test_results_come_first_wherever_they_stand_in_the_message() -> None:
    messages = [said(use("1")), user(text("look"), result("1"), {"type": "image", "source": {}})]
    assert parsed(messages).messages[1:] == (ToolResult("1", "seen"), UserMessage("look"))


@pytest.mark.parametrize(("written", "read"), [(True, True), (False, None), (None, None), ("yes", None)])
def test_only_is_error_true_is_a_statement(written: Any, read: bool | None) -> None:
    transcript = parsed([said(use("1")), user(result("1", is_error=written))])
    assert transcript.messages[1] == ToolResult("1", "seen", read)


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("x", "x"),
        ([text("a"), text("b")], "ab"),
        ([], ""),
        (None, None),
        ([text("a"), {"type": "image", "source": {"data": "AA"}}],) * 2,
    ],
)
def test_a_result_of_text_is_text_and_a_picture_is_kept(content: Any, output: Any) -> None:
    assert parsed([said(use("1")), user(result("1", content))]).messages[1] == ToolResult("1", output)


def test_thinking_is_reasoning_and_hidden_thinking_is_none() -> None:
    hidden = {"type": "redacted_thinking", "data": "c2VjcmV0"}
    message = parsed([said({"type": "thinking", "thinking": "2 + 2", "signature": "s"}, hidden, text("4"))]).messages[0]
    assert message == AssistantMessage(content="4", reasoning="2 + 2")


def test_what_the_provider_ran_is_no_round() -> None:
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result"}]}
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    mcp = {"type": "mcp_tool_use", "id": "m1", "name": "echo", "server_name": "s", "input": {}}
    answered = {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": [text("no text of it")]}
    message = parsed([said(search, found, mcp, answered, text("found"))]).messages[0]
    assert message == AssistantMessage(content="found")


def test_system_stands_beside_the_messages_or_among_them() -> None:
    messages = [{"role": "user", "content": "hi"}]
    for system in ("Be brief.", [text("Be "), text("brief.")]):
        assert parsed({"system": system, "id": 7, "messages": messages}) == Transcript(
            "7", (SystemMessage("Be brief."), UserMessage("hi"))
        )
    assert parsed([{"role": "system", "content": "s"}, said(use("1"))]).messages[0] == SystemMessage("s")


def test_usage_counts_what_went_through_the_cache_as_input() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2, "output_tokens": 5}
    (message,) = parsed({"model": "m", "messages": [said(text("x"), stop_reason="end_turn", usage=usage)]}).messages
    assert message == AssistantMessage(
        content="x",
        finish_reason="end_turn",
        usage=Usage(input_tokens=42, output_tokens=5, cached_tokens=30),
        model="m",
    )


def test_pieces_of_one_response_are_one_round_also_with_results_logged_in_between() -> None:
    transcript = parsed(
        [
            said(text("go"), id="msg_1"),
            said(use("1"), id="msg_1"),
            user(result("1")),
            said(use("2"), id="msg_1", stop_reason="tool_use"),
            user(result("2")),
            said(use("3"), id="msg_2"),
        ]
    )
    first = (ToolCall("1", "look", {"a": 1}), ToolCall("2", "look", {"a": 1}))
    assert transcript.messages == (
        AssistantMessage(content="go", calls=first, finish_reason="tool_use"),
        ToolResult("1", "seen"),
        ToolResult("2", "seen"),
        AssistantMessage(calls=(ToolCall("3", "look", {"a": 1}),)),
    )


def test_a_session_log_is_opened_and_a_nested_agents_lines_are_passed_over() -> None:
    transcript = lines(
        {"type": "summary", "summary": "x"},
        {"type": "user", "message": {"role": "user", "content": "hi"}},
        {"type": "assistant", "isSidechain": True, "message": said(use("9"))},
        {"type": "assistant", "message": said(use("1"))},
        {"type": "system", "content": "hook ran"},
        {"type": "user", "message": {"content": [result("1")]}},
    )
    assert [type(message) for message in transcript.messages] == [UserMessage, AssistantMessage, ToolResult]


def test_calls_and_results_without_ids_find_each_other() -> None:
    transcript = parsed([said(use(None), use(None, "read")), user(result(None), result(None), result(None))])
    assert [m.call_id for m in transcript.messages[1:] if isinstance(m, ToolResult)] == ["call-1.1", "call-1.2", ""]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([said(use("1")), 5], "message 2 is not a message: it is no object"),
        ([said(use("1")), {"content": "x"}], "message 2 is not an Anthropic message: it has no `role`"),
        ([said(use("1")), {"role": "user", "content": 5}], "message 2 has content that is neither text nor a list"),
        ({"system": "s", "messages": [{"role": "user", "content": {}}]}, "message 1 has content"),
        ([said(use("1")), {"role": "tool", "content": "x"}], "message 1 holds a tool call or result as a part"),
        ([{**said(use("1")), "tool_calls": [{"id": "1"}]}], "message 1 holds a tool call or result as a part"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(TranscriptError) as raised:
        parsed(value)
    assert reason in str(raised.value)
