"""Transcripts, reports and what there is for tests. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, assert_type

from loopguard_core import Decision, LoopGuard, Policy, Session, Stop, Surface, ToolCall, Verdict
from loopguard_core.report import Reporter, Step, Story, page
from loopguard_core.testing import (
    ChatRequest,
    Persona,
    Recorder,
    Reply,
    ScriptedCall,
    ScriptedServer,
    assert_no_loop,
    gives_up_when_refused,
    never_listens,
    script,
)
from loopguard_core.testing.conformance import (
    FEATURES,
    SCRIPTS,
    Agent,
    Case,
    Conversation,
    Driver,
    Record,
    Script,
    ToolSpec,
    Turn,
    cases,
    table,
    unanswered_calls,
)
from loopguard_core.transcripts import (
    LABEL_SUFFIX,
    PASSED,
    READERS,
    AssistantMessage,
    Document,
    Judgement,
    Label,
    Message,
    Reader,
    Replayed,
    Saved,
    SystemMessage,
    ToolResult,
    Transcript,
    TranscriptError,
    UserMessage,
    find_label,
    guard_for_replay,
    is_user_turn,
    judge,
    parse_transcript,
    play,
    read_recording,
    read_transcript,
    recall,
    speak,
)


def replay(path: str) -> Replayed | None:
    try:
        document, transcript = read_recording(path)
    except TranscriptError as error:
        assert_type(error.line, int | None)
        return None
    assert_type(document, Document)
    assert_type(read_transcript(path), Transcript)
    assert_type(parse_transcript(b"[]"), Transcript)
    messages: tuple[Message, ...] = transcript.messages
    for message in messages:
        match message:
            case AssistantMessage():
                assert_type(message.calls, tuple[ToolCall, ...])
            case ToolResult():
                assert_type(message.is_error, bool | None)
            case SystemMessage() | UserMessage():
                assert_type(message.content, str)
    reader: Reader = READERS[0]
    assert_type(reader.NAME, str)
    with guard_for_replay(Policy()) as guard:
        replayed = play(transcript, guard)
    assert_type(replayed, Replayed)
    assert_type(replayed.verdicts, tuple[Verdict, ...])
    assert_type(replayed.stop, Stop | None)
    label = find_label(path, document)
    assert_type(label, Label | None)
    if label is not None:
        judgement = judge(label, transcript, replayed)
        assert_type(judgement, Judgement)
        assert_type(judgement.passed, bool)
        assert_type(judgement.saved, Saved)
        assert judgement.result in PASSED
        assert LABEL_SUFFIX
    return replayed


def take_up(session: Session, messages: Sequence[Message], answer: AssistantMessage) -> bool:
    for message in messages:
        assert_type(is_user_turn(message), bool)
        assert_type(recall(session, message), list[Decision])
    assert_type(list(speak(session, answer)), list[Verdict])
    assert_type(answer.finish, str)
    return session.stop is not None


def report(path: str) -> str:
    with Reporter(Policy()) as reporter:
        story = reporter.story(path)
    assert_type(story, Story)
    assert_type(story.steps, tuple[Step, ...])
    assert_type(page([story]), str)
    return page([story])


def persona(request: ChatRequest) -> Reply:
    if request.may_call:
        return Reply(tool_calls=(ScriptedCall("look", {"at": 1}),))
    return Reply("done")


def scripted() -> None:
    personas: list[Persona] = [
        persona,
        never_listens("look", {"at": 1}),
        gives_up_when_refused("look", {"at": 1}),
        script([Reply("done")]),
    ]
    with ScriptedServer(personas[0], price_per_million=(Decimal(1), Decimal(2))) as server:
        assert_type(server, ScriptedServer)
        assert_type(server.base_url, str)
        assert_type(server.requests, list[dict[str, Any]])
    recorder = Recorder()
    LoopGuard(plugins=[recorder])
    assert_type(recorder.ladder(), list[str])
    assert_no_loop([{"role": "user", "content": "hello"}], policy="strict")


class Talk:
    def send(self, text: str) -> Turn:
        return Turn(text)

    def approve(self) -> Turn:
        return Turn(waiting=False)

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        return None


class Mine:
    surface = Surface("my agents", "mine", frozenset({"observe", "stop"}))
    mode = "sync"
    features: frozenset[str] = frozenset(FEATURES)
    executes_stopped_round = False

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        tools: Sequence[ToolSpec] = agent.tools
        assert tools
        return Talk


def conforming() -> None:
    driver: Driver = Mine()
    found = cases(driver)
    assert_type(found, list[Case])
    assert_type(found[0].run(), Record)
    assert_type(found[0].script, Script)
    assert_type(table(driver, scripts=SCRIPTS), dict[str, dict[str, str]])
    assert unanswered_calls([]) == []
