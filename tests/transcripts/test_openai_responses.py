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
    parse_transcript,
)

USER = {"role": "user", "content": "hi"}


def parsed(value: Any) -> Transcript:
    return parse_transcript(json.dumps(value).encode())


def lines(*values: Any) -> Transcript:
    return parse_transcript("\n".join(json.dumps(value) for value in values).encode())


def call(call_id: str, name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **more}


def output(call_id: str, text: Any = "seen", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text, **more}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def response(*items: Any, **more: Any) -> dict[str, Any]:
    return {"object": "response", "output": list(items), **more}


def shape(transcript: Transcript) -> list[Any]:
    """Of assistant messages text and ids of calls, of results the id, of users what they said."""
    rows: list[Any] = []
    for message in transcript.messages:
        if isinstance(message, AssistantMessage):
            rows.append((message.content, message.reasoning, [call.id for call in message.calls]))
        else:
            rows.append(message.call_id if isinstance(message, ToolResult) else message.content)
    return rows


# -- where a response begins and ends --------------------------------------------------------------------------------


def test_calls_up_to_the_next_result_are_one_round() -> None:
    items = [USER, thought("t"), said("go"), call("1"), call("2"), output("1"), output("2"), call("3"), output("3")]
    assert shape(parsed(items)) == ["hi", ("go", "t", ["1", "2"]), "1", "2", ("", "", ["3"]), "3"]


def test_a_message_after_calls_or_after_a_message_is_another_response() -> None:
    assert shape(parsed([call("1"), said("a"), said("b"), thought("t"), said("c"), call("2")])) == [
        ("", "", ["1"]),
        ("a", "", []),
        ("b", "", []),
        ("c", "t", ["2"]),
    ]


def test_reasoning_between_the_calls_of_a_response_splits_nothing_and_at_the_end_is_kept() -> None:
    assert shape(parsed([thought("a"), call("1"), thought("b"), call("2"), output("1"), thought("c")])) == [
        ("", "ab", ["1", "2"]),
        "1",
        ("", "c", []),
    ]


def test_a_response_object_is_one_response_whatever_is_in_it() -> None:
    assert shape(parsed(response(said("a"), thought("t"), said("b"), call("1"), said("c")))) == [("abc", "t", ["1"])]
    assert shape(lines(response(call("1")), response())) == [("", "", ["1"]), ("", "", [])]


def test_an_output_with_results_in_it_is_a_whole_run() -> None:
    run = {"input": "hi", "output": [call("1"), output("1"), call("2"), output("2"), said("done")]}
    assert shape(parsed(run)) == ["hi", ("", "", ["1"]), "1", ("", "", ["2"]), "2", ("done", "", [])]


# -- conversations of several requests ---------------------------------------------------------------------------------


EXPECTED = ["hi", ("", "", ["1", "2"]), "1", "2", ("", "", ["3"]), "3", ("done", "", []), "more", ("ok", "", [])]


def test_requests_that_send_all_of_it_again_are_read_once() -> None:
    first = [USER]
    second = [*first, call("1"), output("1"), call("2"), output("2")]  # results may stand between the calls
    third = [*second, call("3"), output("3")]
    fourth = [*third, {"role": "assistant", "content": "done"}, {"role": "user", "content": "more"}]
    said_each = ([thought("t"), call("1"), call("2")], [call("3")], [said("done")], [said("ok")])
    sent_each = (first, second, third, fourth)
    exchanges = [{"input": sent, "output": out} for sent, out in zip(sent_each, said_each, strict=True)]
    expected = [("", "t", ["1", "2"]) if row == ("", "", ["1", "2"]) else row for row in EXPECTED]
    assert shape(lines(*exchanges)) == shape(parsed(exchanges)) == expected


def test_requests_that_send_what_is_new_are_read_whole() -> None:
    exchanges = [
        {"input": "hi", "output": [call("1"), call("2")]},
        {"input": [output("1"), output("2")], "output": [call("3")], "previous_response_id": "r1"},
        {"input": [output("3")], "output": [said("done")], "previous_response_id": "r2"},
        {"input": "more", "output": [said("ok")], "previous_response_id": "r3"},
    ]
    assert shape(parsed(exchanges)) == EXPECTED


def test_the_same_words_again_are_new_where_the_provider_keeps_the_conversation() -> None:
    again = [{"input": "go on", "output": [said("ok")], "conversation": "c1"}] * 3
    assert shape(parsed(again)) == ["go on", ("ok", "", [])] * 3


def test_after_an_empty_response_only_what_was_added_is_new() -> None:
    assert shape(lines({"input": [USER], **response()}, {"input": [USER, USER], **response(said("ok"))})) == [
        "hi",
        ("", "", []),
        "hi",
        ("ok", "", []),
    ]


def test_instructions_are_said_once_and_what_a_stream_recorded_is_its_end() -> None:
    events = [
        {"type": "response.created", "response": response(instructions="s")},
        {"type": "response.output_text.delta", "delta": "o"},
        {"type": "response.completed", "response": response(said("ok"), instructions="s")},
        {"type": "response.completed", "response": response(said("ok"), instructions="s")},
    ]
    assert shape(lines(*events)) == ["s", ("ok", "", []), ("ok", "", [])]


def test_pages_items_and_request_with_response() -> None:
    page = {"object": "list", "data": [USER, call("1"), output("1")]}
    pair = {"request": {"input": "hi"}, "response": {"output": [call("1")]}}
    assert shape(parsed(page)) == shape(parsed({"items": page["data"]})) == ["hi", ("", "", ["1"]), "1"]
    assert parsed({"id": "s-1", "messages": page["data"]}) == Transcript("s-1", parsed(page).messages)
    assert shape(lines(pair, response(call("2")))) == ["hi", ("", "", ["1"]), ("", "", ["2"])]


# -- items -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (call("1", namespace="crm"), ToolCall("1", "crm.look", "{}")),
        ({"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "***"}, ToolCall("1", "patch", "***")),
        (
            {"type": "shell_call", "call_id": "1", "action": {"commands": ["ls"]}, "environment": {"type": "local"}},
            ToolCall("1", "shell", {"commands": ["ls"]}),
        ),
        (
            {"type": "local_shell_call", "call_id": "1", "id": "i", "action": {"type": "exec", "command": ["ls"]}},
            ToolCall("1", "local_shell", {"type": "exec", "command": ["ls"]}),
        ),
        (
            {"type": "apply_patch_call", "call_id": "1", "operation": {"type": "delete_file", "path": "a"}},
            ToolCall("1", "apply_patch", {"type": "delete_file", "path": "a"}),
        ),
        (
            {"type": "computer_call", "call_id": "1", "action": None, "actions": [{"type": "wait"}]},
            ToolCall("1", "computer", [{"type": "wait"}]),
        ),
        (
            {"type": "mcp_approval_request", "id": "1", "server_label": "s", "name": "pay", "arguments": "{}"},
            ToolCall("1", "pay", "{}"),
        ),
    ],
)
def test_every_call_the_caller_runs_is_a_call(item: dict[str, Any], expected: ToolCall) -> None:
    (message,) = parsed([item]).messages
    assert message == AssistantMessage(calls=(expected,))


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "1", "action": {"type": "search", "query": "x"}, "status": "completed"},
        {"type": "code_interpreter_call", "id": "1", "code": "1", "container_id": "c", "outputs": None},
        {"type": "mcp_call", "id": "1", "name": "x", "arguments": "{}", "output": "y", "server_label": "s"},
        {"type": "mcp_list_tools", "id": "1", "server_label": "s", "tools": []},
        {"type": "shell_call", "call_id": "1", "action": {}, "environment": {"type": "container_reference"}},
        {"type": "shell_call_output", "call_id": "1", "output": []},
        {"type": "item_reference", "id": "1"},
        {"type": "something_new", "input": {}, "output": []},
    ],
)
def test_what_the_provider_ran_and_unknown_items_are_no_round(item: dict[str, Any]) -> None:
    assert shape(parsed(response(item, said("ok")))) == [("ok", "", [])]


def test_an_approved_mcp_call_has_its_result_before_the_response_it_came_with() -> None:
    request = {"type": "mcp_approval_request", "id": "r1", "name": "pay", "arguments": "{}", "server_label": "s"}
    granted = {"type": "mcp_approval_response", "approval_request_id": "r1", "approve": True}
    ran = {"type": "mcp_call", "id": "m", "approval_request_id": "r1", "name": "pay", "output": "paid", "error": None}
    flat = parsed([request, granted, ran, said("done")])
    assert flat == lines(response(request), {"input": [granted], **response(ran, said("done"))})
    assert flat.messages[1] == ToolResult("r1", "paid")
    failed = parsed([request, granted, {**ran, "output": None, "error": "no funds"}]).messages
    assert failed[1] == ToolResult("r1", "no funds", True)
    denied = parsed([request, {**granted, "approve": False, "reason": "too much"}]).messages
    assert denied[1] == ToolResult("r1", "too much")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("x", "x"),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "ab"),
        ([{"type": "input_image", "image_url": "u"}],) * 2,
        ({"type": "computer_screenshot", "image_url": "u"},) * 2,
    ],
)
def test_outputs_of_text_are_text_and_a_picture_is_kept(written: Any, read: Any) -> None:
    assert parsed([call("1"), output("1", written)]).messages[1] == ToolResult("1", read)


def test_a_failed_patch_and_a_result_without_id() -> None:
    items = [call("1"), {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"}]
    assert parsed(items).messages[1] == ToolResult("1", "no such file", True)


def test_reasoning_is_its_text_or_its_summary_and_nothing_where_it_is_encrypted() -> None:
    full = {**thought("short"), "content": [{"type": "reasoning_text", "text": "long"}]}
    assert shape(parsed([full, thought("s"), {"type": "reasoning", "summary": [], "encrypted_content": "x"}])) == [
        ("", "longs", [])
    ]


def test_usage_model_and_why_it_ended() -> None:
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
    ended = response(model="m", usage=usage, incomplete_details={"reason": "max_output_tokens"}, id="resp_1")
    assert parsed(ended) == Transcript(
        "resp_1",
        (AssistantMessage(usage=Usage(10, 5, 4, 2, 15), model="m", finish_reason="max_output_tokens"),),
    )


def test_system_and_developer_are_instructions() -> None:
    items = [{"role": "system", "content": "a"}, {"role": "developer", "type": "message", "content": "b"}, call("1")]
    assert parsed(items).messages[:2] == (SystemMessage("a"), SystemMessage("b"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([call("1"), 5], "item 2 is not an item: it is no object"),
        ([call("1"), {"text": "x"}], "item 2 is not an item: it has neither `type` nor `role`"),
        (
            [call("1"), {"role": "assistant", "tool_calls": []}],
            "item 2 has `tool_calls`, which belong to the chat form",
        ),
        ({"object": "response", "output": "x"}, "item 1 has items that are no list"),
        ({"output": [call("1"), 5]}, "item 1 is not an item: it is no object"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(TranscriptError) as raised:
        parsed(value)
    assert reason in str(raised.value)


def test_what_the_library_dumps_today_is_what_is_read() -> None:
    types = pytest.importorskip("openai.types.responses")
    fetch = types.ResponseFunctionToolCall(type="function_call", call_id="1", name="look", arguments="{}")
    parts = [types.ResponseOutputText(type="output_text", text="go", annotations=[])]
    spoken = types.ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=parts)
    made = types.Response(
        id="resp_1",
        created_at=0.0,
        model="m",
        object="response",
        output=[spoken, fetch],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    for dump in (made.model_dump(mode="json"), made.model_dump(mode="json", exclude_none=True)):
        assert parsed(dump) == Transcript(
            "resp_1", (AssistantMessage(content="go", calls=(ToolCall("1", "look", "{}"),), model="m"),)
        )
