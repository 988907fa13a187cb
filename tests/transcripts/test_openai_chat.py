from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopguard_core import ToolCall, Usage
from loopguard_core.transcripts import (
    AssistantMessage,
    SystemMessage,
    ToolResult,
    Transcript,
    TranscriptError,
    UserMessage,
    _reading,
    parse_transcript,
    read_transcript,
)

USER = {"role": "user", "content": "hi"}


def parsed(value: Any) -> Transcript:
    return parse_transcript(json.dumps(value).encode())


def lines(*values: Any) -> bytes:
    return "\n".join(json.dumps(value) for value in values).encode()


def call(name: str, arguments: Any = "{}", call_id: str | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return entry if call_id is None else {**entry, "id": call_id}


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def results(transcript: Transcript) -> list[tuple[str, Any]]:
    return [(message.call_id, message.output) for message in transcript.messages if isinstance(message, ToolResult)]


def only(transcript: Transcript) -> Any:
    (message,) = transcript.messages
    return message


# -- the three shapes of a file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(json.dumps({"messages": [USER, asks()]}).encode(), id="object"),
        pytest.param(json.dumps([USER, asks()], indent=1).encode(), id="list"),
        pytest.param(lines(USER, asks()), id="jsonl"),
        pytest.param(lines(USER, asks()).replace(b"\n", b"\r\n\r\n") + b"\n", id="jsonl-of-windows-with-blank-lines"),
        pytest.param(lines({"messages": [USER, asks()]}) + b"\n", id="jsonl-of-one-conversation"),
        pytest.param(json.dumps([{"messages": [USER, asks()]}]).encode(), id="list-of-one-conversation"),
        pytest.param(b"\xef\xbb\xbf" + lines(USER, asks()), id="byte-order-mark"),
    ],
)
def test_object_list_and_jsonl_give_the_same_messages(content: bytes) -> None:
    assert parse_transcript(content).messages == (UserMessage("hi"), AssistantMessage())


def test_a_jsonl_of_one_message_is_a_conversation() -> None:
    assert only(parse_transcript(lines(USER))) == UserMessage("hi")


def test_a_line_separator_inside_a_string_does_not_end_a_line() -> None:
    content = '{"role":"user","content":"a\u2028b"}\n{"role":"user","content":"c"}'.encode()
    assert parse_transcript(content).messages == (UserMessage("a\u2028b"), UserMessage("c"))


@pytest.mark.parametrize(("written", "read"), [("run-7", "run-7"), (7, "7"), (None, None), ("", None), ([1], None)])
def test_the_id_is_the_recordings_or_none(written: Any, read: str | None) -> None:
    assert parsed({"id": written, "messages": []}).id == read


# -- messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}, "b"], "ab"),
        ([{"type": "text", "text": 5}, 7, None], ""),
        ({"text": "no part"}, ""),
    ],
)
def test_content_is_text_null_or_parts_whose_text_is_joined(content: Any, text: str) -> None:
    assert only(parsed([{"role": "user", "content": content}])) == UserMessage(text)
    assert only(parsed([{"role": "assistant", "content": content}])).content == text


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert only(parsed([{"role": "assistant", "content": None, "refusal": "No."}])).content == "No."


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_from_content(key: str) -> None:
    message = only(parsed([{"role": "assistant", "content": "4", key: "2 + 2"}]))
    assert (message.reasoning, message.content) == ("2 + 2", "4")


def test_developer_is_system_and_unknown_roles_are_passed_over() -> None:
    roles = [{"role": role, "content": role} for role in ("system", "developer", "moderator")]
    assert parsed(roles).messages == (SystemMessage("system"), SystemMessage("developer"))


def test_finish_reason_usage_and_model_are_read_where_recorded() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
        "cost": 0.1,
    }
    message = {"role": "assistant", "content": "x", "finish_reason": "stop", "usage": usage}
    first, second = parsed({"model": "m-1", "messages": [message, {**message, "model": "m-2"}]}).messages
    assert isinstance(first, AssistantMessage)
    assert isinstance(second, AssistantMessage)
    assert first.usage == Usage(10, 5, 4, 3, 15, Decimal("0.1"))
    assert (first.finish_reason, first.model, second.model) == ("stop", "m-1", "m-2")


@pytest.mark.parametrize("odd", [-1, True, "12", 1.5, 10**400, None, [], {}])
def test_counts_that_are_none_are_unknown_and_not_zero(odd: Any) -> None:
    cost = "NaN" if odd in ("12", 1.5) else odd  # of dollars these two are some
    usage = {"prompt_tokens": odd, "prompt_tokens_details": odd, "cost": cost}
    assert only(parsed([{"role": "assistant", "usage": usage}])).usage == Usage()


# -- calls and results -----------------------------------------------------------------------------------------


def test_arguments_stay_as_recorded_valid_or_not() -> None:
    message = only(parsed([asks(call("a", '{"x": 1', "1"), call("b", {"x": 1}, "2"), call("c", None, "3"))]))
    assert message.calls == (ToolCall("1", "a", '{"x": 1'), ToolCall("2", "b", {"x": 1}), ToolCall("3", "c", None))


def test_custom_tools_and_flat_calls_are_calls_too() -> None:
    custom = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    flat = {"id": "2", "name": "grep", "args": {"q": "x"}}
    assert only(parsed([asks(custom, flat)])).calls == (
        ToolCall("1", "patch", "*** Begin"),
        ToolCall("2", "grep", {"q": "x"}),
    )


def test_the_old_function_call_and_its_result_belong_together() -> None:
    messages = [
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "seen"},
    ]
    transcript = parsed(messages)
    assert transcript.messages[0] == AssistantMessage(calls=(ToolCall("call-1.1", "look", "{}"),))
    assert results(transcript) == [("call-1.1", "seen")]


def test_a_result_without_id_answers_the_next_unanswered_call() -> None:
    messages = [
        asks(call("a", call_id="1"), call("b", call_id="2"), call("")),
        {"role": "tool", "tool_call_id": "2", "content": "of b"},
        {"role": "tool", "content": "of a"},
        {"role": "tool", "content": "of c"},
        {"role": "tool", "content": "of none"},
    ]
    assert results(parsed(messages)) == [("2", "of b"), ("1", "of a"), ("call-1.3", "of c"), ("", "of none")]


def test_a_result_without_id_prefers_a_call_of_the_tool_it_names() -> None:
    messages = [
        asks(call("a"), call("b"), call("b")),
        {"role": "tool", "name": "b", "content": "first b"},
        {"role": "tool", "name": "b", "content": "second b"},
        {"role": "tool", "name": "b", "content": "then in order"},
    ]
    assert [call_id for call_id, _ in results(parsed(messages))] == ["call-1.2", "call-1.3", "call-1.1"]


def test_ids_that_come_again_in_another_round_are_left_alone() -> None:
    round_ = [asks(call("a", call_id="call_0")), {"role": "tool", "tool_call_id": "call_0", "content": "x"}]
    assert results(parsed(round_ * 3)) == [("call_0", "x")] * 3


def test_a_result_of_text_parts_is_text_and_one_with_a_picture_keeps_the_picture() -> None:
    text = {"type": "text", "text": "a"}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        asks(call("a")),
        {"role": "tool", "content": [text, text]},
        {"role": "tool", "content": [text, picture]},
    ]
    assert [output for _, output in results(parsed(messages))] == ["aa", [text, picture]]


def test_reasoning_in_parts_of_the_content_is_reasoning() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "2 + 2"}]}, {"type": "text", "text": "4"}]
    messages = [{"role": "assistant", "content": parts}, {"role": "tool", "content": "x"}]
    message = parsed(messages).messages[0]
    assert message == AssistantMessage(content="4", reasoning="2 + 2")


# -- what cannot be read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b'[\n{"role":\n oops}]', "line 3: is not JSON: Expecting value"),
        (lines(USER, USER) + b'\n{"role": "us', "line 3: is not JSON"),
        (b'[{"role": "user",\n "content": "\xff"}]', "line 2: is not UTF-8"),
        (json.dumps([USER]).encode("utf-16"), "is UTF-16"),
        (b"[" * 100_000, "is nested too deeply"),
        (lines(USER) + b"\n" + b"[" * 100_000, "line 2: is nested too deeply"),
        (b"[" + b"9" * 10_000 + b"]", "holds a number with too many digits"),
        (
            b"42",
            "(loopguard recordings, LangChain messages, OpenAI Responses items, Anthropic messages, OpenAI chat",
        ),
        (b"{}", "is not a recorded conversation"),
        (b'[{"type": "robot", "data": {}}]', "is not a recorded conversation"),
        (b'{"messages": {}}', "`messages` is not a list"),
        (b'{"messages": [1]}', "message 1 is not a message"),
        (json.dumps([USER, {"type": "event"}]).encode(), "message 2 is not a chat message: it has no `role`"),
        (lines(USER, {"type": "event"}), "line 2: this is not a chat message: it has no `role`"),
        (
            lines({"messages": []}, {"messages": []}),
            "holds 2 conversations, one a line; put each into a file of its own",
        ),
        (b'[{"messages": []}, {"messages": []}]', "holds 2 conversations; put each into a file of its own"),
        (lines({"version": 1}, {"messages": []}), "line 2: holds a conversation and other things beside it"),
        (b'[{"role": "assistant", "tool_calls": {"a": 1}}]', "message 1 has `tool_calls` that are no list"),
        (b'[{"role": "assistant", "tool_calls": ["a"]}]', "message 1 has a tool call that is no object"),
        (
            b'[{"role": "user", "content": [{"type": "tool-result", "content": "x"}]}]',
            "message 1 holds a tool call or result as a part of its content",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason_and_the_line(content: bytes, reason: str) -> None:
    with pytest.raises(TranscriptError) as raised:
        parse_transcript(content)
    assert reason in str(raised.value)


def test_errors_of_a_file_begin_with_its_name_and_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(lines(USER) + b"\n{")
    with pytest.raises(TranscriptError) as raised:
        read_transcript(path)
    assert str(raised.value).startswith(f"{path}:2: is not JSON")
    with pytest.raises(TranscriptError) as raised:
        read_transcript(tmp_path / "none.json")
    assert str(raised.value) == f"{tmp_path / 'none.json'}: cannot be read (No such file or directory)"
    with pytest.raises(TranscriptError, match="cannot be read"):
        read_transcript("nul\0byte")


def test_a_file_beyond_all_measure_is_refused_unparsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reading, "MAX_BYTES", 10)
    path = tmp_path / "huge.json"
    path.write_bytes(lines(USER))
    with pytest.raises(TranscriptError, match="is larger than"):
        read_transcript(path)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["user", "assistant"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "role", "content", "tool_calls", "function", "name", "messages", "usage", "type", "text"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "function", "system"])},
    optional=dict.fromkeys(
        ("content", "tool_calls", "function_call", "tool_call_id", "name", "usage", "reasoning", "refusal"), json_values
    ),
)


@given(value=json_values | st.lists(messages, max_size=4))
def test_any_json_is_a_transcript_or_a_transcript_error(value: Any) -> None:
    try:
        transcript = parsed(value)
    except TranscriptError:
        return
    assert all(
        isinstance(message.calls, tuple) for message in transcript.messages if isinstance(message, AssistantMessage)
    )


@given(content=st.binary(max_size=60))
def test_any_bytes_are_a_transcript_or_a_transcript_error(content: bytes) -> None:
    with contextlib.suppress(TranscriptError):
        parse_transcript(content)
