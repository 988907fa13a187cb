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

HUMAN = {"type": "human", "content": "hi"}
AI = {"type": "ai", "content": "hello"}
BOTH = (UserMessage("hi"), AssistantMessage("hello"))


def parsed(value: Any) -> Transcript:
    return parse_transcript(json.dumps(value).encode())


def lc(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": kwargs}


def ai(**fields: Any) -> AssistantMessage:
    (message,) = parsed([{"type": "ai", "content": "", **fields}]).messages
    assert isinstance(message, AssistantMessage)
    return message


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([HUMAN, AI], id="model_dump"),
        pytest.param([{"type": "human", "data": HUMAN}, {"type": "ai", "data": AI}], id="messages_to_dict"),
        pytest.param([lc("HumanMessage", content="hi"), lc("AIMessageChunk", content="hello")], id="dumpd"),
        pytest.param({"messages": [HUMAN, AI]}, id="state"),
        pytest.param({"messages": [[HUMAN, AI]]}, id="batch-of-one"),
        pytest.param({"values": {"messages": [HUMAN, AI]}, "next": []}, id="snapshot"),
        pytest.param({"input": {"messages": [HUMAN]}, "output": {"messages": [HUMAN, AI]}}, id="run-of-a-graph"),
        pytest.param({"input": [HUMAN], "output": AI}, id="run-of-a-model"),
        pytest.param({"input": "hi", "output": [AI]}, id="run-of-a-model-on-text"),
    ],
)
def test_every_way_of_dumping_is_the_same_conversation(value: Any) -> None:
    assert parsed(value).messages == BOTH
    if isinstance(value, list):
        assert parse_transcript("\n".join(map(json.dumps, value)).encode()).messages == BOTH


def test_the_id_is_the_states_own() -> None:
    assert parsed({"id": "run-7", "messages": [HUMAN]}).id == "run-7"
    assert parsed({"id": "run-7", "values": {"messages": [HUMAN]}}).id == "run-7"


def test_calls_with_invalid_json_belong_to_the_round() -> None:
    message = ai(
        tool_calls=[{"name": "look", "args": {"a": 1}, "id": "1", "type": "tool_call"}],
        invalid_tool_calls=[{"name": None, "args": "{bad", "id": None, "error": "x", "type": "invalid_tool_call"}],
    )
    assert message.calls == (ToolCall("1", "look", {"a": 1}), ToolCall("call-1.2", "", "{bad"))


def test_calls_of_old_dumps_and_of_blocks_are_found_and_none_counts_twice() -> None:
    old = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
    block = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    assert ai(additional_kwargs=old).calls == (ToolCall("1", "look", "{}"),)
    assert ai(additional_kwargs={"function_call": {"name": "look", "arguments": "{}"}}).calls[0].name == "look"
    assert ai(content=[block]).calls == (ToolCall("1", "look", {}),)
    new = [{"id": "1", "name": "look", "args": {}}]
    assert ai(content=[block], additional_kwargs=old, tool_calls=new).calls == (ToolCall("1", "look", {}),)


@pytest.mark.parametrize(("status", "failed"), [("error", True), ("success", None), (None, None)])
def test_only_status_error_is_a_statement(status: Any, failed: bool | None) -> None:
    tool = {"type": "tool", "content": "x", "tool_call_id": "1", "status": status}
    assert parsed([HUMAN, tool]).messages[1] == ToolResult("1", "x", failed)


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"content": [{"type": "reasoning", "reasoning": "r"}]}, "r"),
        ({"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]}]}, "r"),
        ({"content": [{"type": "thinking", "thinking": "r", "signature": "s"}]}, "r"),
        ({"additional_kwargs": {"reasoning_content": "r"}}, "r"),
        ({"additional_kwargs": {"reasoning": {"summary": [{"type": "summary_text", "text": "r"}]}}}, "r"),
        ({"content": [{"type": "reasoning"}]}, ""),
    ],
)
def test_reasoning_is_found_where_each_providers_package_puts_it(fields: dict[str, Any], reasoning: str) -> None:
    assert (ai(**fields).reasoning, ai(**fields).content) == (reasoning, "")


def test_text_of_blocks_is_joined_and_what_a_provider_ran_is_no_round() -> None:
    search = {"type": "server_tool_call", "name": "web_search", "args": {}, "id": "s"}
    message = ai(content=[{"type": "text", "text": "a"}, search, "b"])
    assert (message.content, message.calls) == ("ab", ())


def test_usage_model_and_finish_reason() -> None:
    message = ai(
        usage_metadata={
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "input_token_details": {"cache_read": 4},
            "output_token_details": {"reasoning": 2},
        },
        response_metadata={"model_name": "m", "finish_reason": "stop", "token_usage": {"cost": 0.25}},
    )
    usage = Usage(input_tokens=10, output_tokens=5, cached_tokens=4, reasoning_tokens=2, total_tokens=15, cost="0.25")  # type: ignore[arg-type]
    assert (message.usage, message.model, message.finish_reason) == (usage, "m", "stop")


def test_other_kinds_are_what_they_say_and_removals_are_passed_over() -> None:
    messages = [
        HUMAN,
        {"type": "system", "content": "s"},
        {"type": "chat", "role": "user", "content": "again"},
        {"type": "chat", "role": "assistant", "content": "yes"},
        {"type": "remove", "content": "", "id": "1"},
        {"type": "hologram", "content": "x"},
        {"type": "function", "name": "look", "content": "seen"},
    ]
    assert parsed(messages).messages[1:] == (
        SystemMessage("s"),
        UserMessage("again"),
        AssistantMessage("yes"),
        ToolResult("", "seen"),
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([HUMAN, 5], "message 2 is not a message: it is no object"),
        ([HUMAN, {"content": "x"}], "message 2 is not a LangChain message: it has no `type`"),
        ([HUMAN, {"type": "ai", "content": "", "tool_calls": "x"}], "message 2 has `tool_calls` that are no list"),
        ([HUMAN, {"type": "ai", "content": "", "tool_calls": [5]}], "message 2 has a tool call that is no object"),
        (
            [HUMAN, *[{"type": "AIMessageChunk", "content": "x", "id": "run-1"}] * 2],
            "message 3 is a piece of a streamed message; record whole messages",
        ),
        ([{"messages": [HUMAN]}, {"messages": [AI]}], "holds 2 conversations"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(TranscriptError) as raised:
        parsed(value)
    assert reason in str(raised.value)


def test_what_the_library_dumps_today_is_what_is_read() -> None:
    messages = pytest.importorskip("langchain_core.messages")
    load = pytest.importorskip("langchain_core.load")
    call = {"name": "look", "args": {"a": 1}, "id": "1", "type": "tool_call"}
    bad = {"name": "look", "args": "{bad", "id": "2", "error": None, "type": "invalid_tool_call"}
    run = [
        messages.SystemMessage("s"),
        messages.HumanMessage("hi"),
        messages.AIMessage("", tool_calls=[call], invalid_tool_calls=[bad]),
        messages.ToolMessage("no", tool_call_id="1", status="error"),
    ]
    expected = (
        SystemMessage("s"),
        UserMessage("hi"),
        AssistantMessage(calls=(ToolCall("1", "look", {"a": 1}), ToolCall("2", "look", "{bad"))),
        ToolResult("1", "no", True),
    )
    for dump in (messages.messages_to_dict(run), load.dumpd(run), [message.model_dump() for message in run]):
        assert parsed(dump).messages == expected
