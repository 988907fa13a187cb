"""The same conversation in every form gives the same transcript, and so the same verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transcript_forms as forms

from loopguard_core import Policy
from loopguard_core.transcripts import (
    READERS,
    AssistantMessage,
    SystemMessage,
    ToolResult,
    Transcript,
    UserMessage,
    guard_for_replay,
    parse_transcript,
    play,
    read_transcript,
)
from loopguard_core.transcripts._reading import _decoded, _document

DATA = Path(__file__).parents[1] / "data"
CASES = sorted((DATA / "cases").glob("*.json"))
SAMPLES = sorted((DATA / "transcripts").iterdir())
FORMS: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "Anthropic messages": forms.anthropic,
    "Responses items": forms.responses_items,
    "Responses, conversation sent again": lambda messages: forms.responses_exchanges(messages, resend=True),
    "Responses, only what is new": lambda messages: forms.responses_exchanges(messages, resend=False),
    "LangChain model_dump": forms.langchain_dump,
    "LangChain messages_to_dict": forms.langchain_dict,
    "LangChain dumpd": forms.langchain_constructors,
}
OF_READER = {
    "anthropic": "Anthropic messages",
    "langchain": "LangChain messages",
    "openai": "OpenAI chat messages",
    "responses": "OpenAI Responses items",
}


def read_as_json(messages: Any) -> Transcript:
    return parse_transcript(json.dumps(messages).encode())


def as_lines(messages: list[Any]) -> Transcript:
    return parse_transcript("".join(json.dumps(message) + "\n" for message in messages).encode())


def parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def said(transcript: Transcript) -> list[Any]:
    """Everything that counts, with arguments as values: one form has them as text, another as objects."""
    rows: list[Any] = []
    for message in transcript.messages:
        if isinstance(message, AssistantMessage):
            calls = [(call.id, call.name, parsed(call.arguments)) for call in message.calls]
            rows.append(("assistant", message.content, message.reasoning, calls))
        else:
            rows.append(message)
    return rows


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_form_gives_the_same_messages_rounds_and_verdicts(case: Path, form: str) -> None:
    messages = json.loads(case.read_bytes())["messages"]
    chat = read_as_json(messages)
    written = FORMS[form](messages)
    for other in (read_as_json(written), as_lines(written)):
        assert said(other) == said(chat)
        with guard_for_replay(Policy()) as guard:
            assert play(replace(other, id=None), guard) == play(chat, guard)


@pytest.mark.parametrize("form", FORMS)
def test_a_user_who_speaks_right_after_results_is_a_user_turn_in_every_form(form: str) -> None:
    case = DATA / "cases" / "field-f15-same-call-each-user-turn.json"
    messages = [m for m in json.loads(case.read_bytes())["messages"] if m["role"] != "assistant" or m.get("tool_calls")]
    chat = read_as_json(messages)
    assert said(read_as_json(FORMS[form](messages))) == said(chat)
    assert sum(isinstance(message, UserMessage) for message in chat.messages) > 1


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_samples_of_the_real_libraries_say_the_same(sample: Path) -> None:
    transcript = read_transcript(sample)
    said_by_chat = said(read_transcript(DATA / "transcripts" / "openai-chat.json"))
    without_system = [row for row in said(transcript) if not isinstance(row, SystemMessage)]
    expected = [row for row in said_by_chat if not isinstance(row, SystemMessage)]
    for row in (without_system, expected):  # some forms say that a call failed, others leave it to its output
        row[:] = [ToolResult(one.call_id, one.output) if isinstance(one, ToolResult) else one for one in row]
    assert without_system == expected
    with guard_for_replay(Policy()) as guard:
        replayed = play(transcript, guard)
    assert (replayed.rounds, replayed.messages) == (4, 5)
    blocked = [verdict for verdict in replayed.verdicts if verdict.action == "block"]
    assert (blocked[0].detector, blocked[0].round, blocked[0].call_id) == ("repeated_call", 3, "call_3")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_each_sample_is_recognized_by_its_own_reader_first_and_by_no_other_of_the_strict_ones(sample: Path) -> None:
    document = _document(_decoded(sample.read_bytes()))
    claimed = [reader.NAME for reader in READERS if reader.recognizes(document)]
    assert claimed[0] == OF_READER[sample.name.partition("-")[0]]
    assert [name for name in claimed if name != "OpenAI chat messages"] in ([], claimed[:1])


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_usage_and_model_come_from_wherever_the_form_has_them(sample: Path) -> None:
    first = next(m for m in read_transcript(sample).messages if isinstance(m, AssistantMessage))
    if sample.name in ("openai-chat.json", "responses-items.json"):
        assert first.usage is None  # not recorded there
        return
    assert first.model is not None
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (100, 12, 112)
    assert first.usage.cached_tokens == 64


def test_plain_text_alone_reads_the_same_whoever_wrote_it() -> None:
    part = [{"type": "text", "text": "hi"}]
    messages = [{"role": "user", "content": part}, {"role": "assistant", "content": part}]
    marked = [messages[0], {**messages[1], "stop_reason": "end_turn"}]
    assert (
        said(read_as_json(messages)) == said(read_as_json(marked)) == [UserMessage("hi"), ("assistant", "hi", "", [])]
    )
