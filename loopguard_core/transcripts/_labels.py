"""Labels: what a policy is meant to say of a recorded conversation, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loopguard_core._types import Action, Verdict
from loopguard_core.transcripts._model import AssistantMessage, Document, Transcript, TranscriptError
from loopguard_core.transcripts._player import Replayed
from loopguard_core.transcripts._reading import read_document
from loopguard_core.transcripts._values import identifier, table, text_or_none

LABEL_SUFFIX = ".label.json"
"""`run.jsonl` may have its label in `run.label.json`: not every form has room for one."""

Unit = Literal["tool_round", "assistant_message"]
Result = Literal["caught", "early", "late", "missed", "left alone", "nagged", "false alarm"]

PASSED: frozenset[Result] = frozenset({"caught", "left alone", "nagged"})
"""The results that are right; being nagged is right too, but few healthy runs may be."""

FORCE = frozenset({Action.BLOCK, Action.STOP})
WARNING = FORCE | {Action.STEER, Action.ESCALATE}


@dataclass(frozen=True, slots=True)
class Label:
    """What is known of a recorded conversation.

    Attributes:
        loop: Whether it is a loop.
        kind: What kind of loop, or of healthy work; cases are counted by it.
        unit: What the rounds below count: rounds of tools, or assistant messages.
        not_before_round: A warning before this one is too early.
        by_round: A warning after this one is too late.
        not_before_char: In `not_before_round`, a warning on text before this character is too early.
        by_char: In `by_round`, a warning on text after this character is too late.
        why: Why it is expected.
        preset: The preset it is to be judged under.
        excused: Why it is shown and not counted; None counts it.
        id: A name for it.
    """

    loop: bool
    kind: str
    unit: Unit = "tool_round"
    not_before_round: int | None = None
    by_round: int | None = None
    not_before_char: int | None = None
    by_char: int | None = None
    why: str = ""
    preset: str | None = None
    excused: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """What of a recorded loop would not have run.

    Attributes:
        rounds: Rounds recorded after the first block or stop.
        calls: Calls recorded after it, and those it refused.
        rounds_after_stop: Rounds recorded after the first stop: these surely would not have run.
    """

    rounds: int = 0
    calls: int = 0
    rounds_after_stop: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a policy made of one labelled conversation.

    Attributes:
        result: How it came out.
        reason: The same in words.
        verdict: The one that decided it; None where there is none.
        nagging: Detectors that warned a healthy run without force.
        saved: What of a loop would not have run.
    """

    result: Result
    reason: str
    verdict: Verdict | None = None
    nagging: tuple[str, ...] = ()
    saved: Saved = Saved()

    @property
    def passed(self) -> bool:
        """Whether the policy was right."""
        return self.result in PASSED


def find_label(file: str, document: Document) -> Label | None:
    """The label of a recording: in the file beside it, else in its own object; None if it has none.

    Raises:
        TranscriptError: There is one, and it cannot be used.
    """
    beside = Path(file).with_suffix(LABEL_SUFFIX)
    if beside.is_file():
        return _label(read_document(beside).value, str(beside))
    value = document.value
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return _label(value, file) if isinstance(value, dict) and "loop" in value else None


def _label(value: Any, file: str) -> Label:
    fields = table(value)
    loop = fields.get("loop")
    if not isinstance(loop, bool):
        raise TranscriptError("has a label without `loop`: true or false", file=file)
    expect = fields.get("expect", {})
    if not isinstance(expect, dict):
        raise TranscriptError("has a label whose `expect` is no object", file=file)
    unit = expect.get("unit", "tool_round")
    if unit not in ("tool_round", "assistant_message"):
        raise TranscriptError("has a label whose `expect.unit` is neither tool_round nor assistant_message", file=file)
    return Label(
        loop=loop,
        kind=text_or_none(fields.get("kind")) or ("loop" if loop else "healthy"),
        unit=unit,
        not_before_round=_bound(expect, "not_before_round", file),
        by_round=_bound(expect, "by_round", file),
        not_before_char=_bound(expect, "not_before_char", file),
        by_char=_bound(expect, "by_char", file),
        why=text_or_none(expect.get("why")) or "",
        preset=_word(fields, "preset", file),
        excused=_word(fields, "excused", file),
        id=identifier(fields.get("id")),
    )


def _bound(expect: Mapping[str, Any], name: str, file: str) -> int | None:
    value = expect.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise TranscriptError(f"has a label whose `expect.{name}` is no whole number", file=file)


def _word(fields: Mapping[str, Any], name: str, file: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value or None
    raise TranscriptError(f"has a label whose `{name}` is no text", file=file)


def judge(label: Label, transcript: Transcript, replayed: Replayed) -> Judgement:
    """Say whether a replayed conversation came out as its label wants.

    A loop is caught in time if its first warning (steer, escalate, block or stop) lies within the label's bounds. A
    healthy run is left alone if nothing was blocked or stopped; milder warnings are nagging. `observe` is free.
    """
    forced = [verdict for verdict in replayed.verdicts if verdict.action in FORCE]
    warned = [verdict for verdict in replayed.verdicts if verdict.action in WARNING]
    if label.loop:
        return _judge_loop(label, warned, _saved(transcript, replayed, forced))
    if forced:
        return Judgement("false alarm", _told(forced[0], "round", forced[0].round), forced[0])
    if warned:
        nagging = tuple(dict.fromkeys(verdict.detector for verdict in warned))
        first = _told(warned[0], "round", warned[0].round)
        more = f", and {len(warned) - 1} more" if len(warned) > 1 else ""
        return Judgement("nagged", first + more, warned[0], nagging)
    return Judgement("left alone", "")


def _judge_loop(label: Label, warned: list[Verdict], saved: Saved) -> Judgement:
    by = "" if label.by_round is None else f" by {_unit_name(label)} {label.by_round}"
    if not warned:
        return Judgement("missed", f"no warning, expected{by}" if by else "no warning")
    first = warned[0]
    at = first.round if label.unit == "tool_round" else first.message_index
    told = _told(first, _unit_name(label), at)
    result: Result = "caught"
    if label.not_before_round is not None and at < label.not_before_round:
        result, told = "early", f"{told}, not before {label.not_before_round}"
    elif label.by_round is not None and at > label.by_round:
        result, told = "late", f"{told}, expected{by}"
    elif first.char is not None:
        if label.by_char is not None and at == label.by_round and first.char > label.by_char:
            result, told = "late", f"{told}, expected by character {label.by_char}"
        elif label.not_before_char is not None and at == label.not_before_round and first.char < label.not_before_char:
            result, told = "early", f"{told}, not before character {label.not_before_char}"
    return Judgement(result, told, first, saved=saved)


def _unit_name(label: Label) -> str:
    return "round" if label.unit == "tool_round" else "message"


def _told(verdict: Verdict, unit: str, at: int) -> str:
    char = "" if verdict.char is None else f", character {verdict.char}"
    return f"{verdict.action} by {verdict.detector} at {unit} {at}{char}"


def _saved(transcript: Transcript, replayed: Replayed, forced: list[Verdict]) -> Saved:
    if not forced:
        return Saved()
    sizes = [len(m.calls) for m in transcript.messages if isinstance(m, AssistantMessage) and m.calls]
    first = forced[0]
    refused = 0
    if first.channel is None and first.call_id is not None:
        # A stop ends the run before anything of its round executes; a block refuses the one call.
        in_round = [verdict for verdict in forced if verdict.round == first.round and verdict.call_id is not None]
        stopped = any(verdict.action is Action.STOP for verdict in in_round)
        refused = sizes[first.round - 1] if stopped and 0 < first.round <= len(sizes) else len(in_round)
    stop = next((verdict.round for verdict in forced if verdict.action is Action.STOP), replayed.rounds)
    return Saved(
        rounds=replayed.rounds - first.round,
        calls=sum(sizes[first.round :]) + refused,
        rounds_after_stop=replayed.rounds - stop,
    )
