"""What a report tells of one recording: its responses with their calls and verdicts, and what each of them took."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loopguard_core._events import RoundJudged
from loopguard_core._hookspec import hookimpl
from loopguard_core._identity import parse_arguments
from loopguard_core._policy import Policy
from loopguard_core._types import ToolCall, Verdict
from loopguard_core.report._html import cut
from loopguard_core.report._spend import Spent, spending, together
from loopguard_core.transcripts import (
    AssistantMessage,
    Document,
    Replayed,
    Transcript,
    guard_for_replay,
    play,
    read_recording,
)
from loopguard_core.transcripts.recordings import LiveEnd, live_end, live_verdicts

MAX_CALLS = 12
"""Different calls of one round that are shown."""

_SHORT = 8
_MAX_ARGUMENTS = 240
_SECRET = re.compile(
    r"pass|secret|token|auth|credential|cookie|session|key|bearer|signature|pin$|cvv|ssn", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a round, or several of one identity.

    Attributes:
        tool: The tool's name.
        fingerprint: The first characters of its fingerprint; empty for an exempt call.
        times: How often the round has it.
        arguments: Its arguments, cut, without what looks secret; None unless asked for.
    """

    tool: str
    fingerprint: str
    times: int = 1
    arguments: str | None = None


@dataclass(slots=True)
class Step:
    """One model response.

    Attributes:
        message: Its number, from 1.
        round: Number of its round; None for a response without calls.
        calls: Its first calls.
        more_calls: How many others there are.
        verdicts: What the policy says of it.
        live: What was said of it while the session ran.
        told: What the model would have been told before it.
        user_spoke: Whether a user spoke since the round before.
    """

    message: int
    round: int | None = None
    calls: list[Call] = field(default_factory=list)
    more_calls: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    live: list[Verdict] = field(default_factory=list)
    told: tuple[str, ...] = ()
    user_spoke: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """One recording under a policy.

    Attributes:
        name: Name of its file.
        replayed: What the policy says of it.
        steps: Its responses, in order.
        spent: What each of them took.
        live_end: How it ended, where loopguard recorded it.
    """

    name: str
    replayed: Replayed
    steps: tuple[Step, ...]
    spent: tuple[Spent, ...]
    live_end: LiveEnd | None = None

    @property
    def without(self) -> Spent:
        """What the whole recording took."""
        return together(self.spent)

    @property
    def guarded(self) -> Spent:
        """What it took up to where the policy would have ended it; everything where it would not."""
        return together(self.spent[: self.replayed.answered])


class Reporter:
    """Plays recordings through a policy and keeps what a report shows.

    Args:
        policy: The policy.
        arguments: Whether calls are shown with their arguments: cut, and without what looks like a secret by its name.

    Attributes:
        guard: What recordings are played through.

    Raises:
        PluginError: A plugin the policy names cannot be used.
    """

    def __init__(self, policy: Policy, *, arguments: bool = False) -> None:
        self._arguments = arguments
        self._judged: list[RoundJudged] = []
        self._telling = False
        self.guard = guard_for_replay(policy, plugins=[self])

    @hookimpl
    def round_judged(self, event: RoundJudged) -> None:
        """Keep what was judged, healthy rounds too."""
        if self._telling:
            self._judged.append(event)

    def story(self, file: str | os.PathLike[str]) -> Story:
        """Play one file.

        Raises:
            TranscriptError: It cannot be read.
        """
        return self.tell(*read_recording(file), Path(file).name)

    def tell(self, document: Document, transcript: Transcript, name: str) -> Story:
        """Play one recording that was read.

        Args:
            document: Its file.
            transcript: What is in it.
            name: What the report calls it.
        """
        self._judged, self._telling = [], True
        replayed = play(transcript, self.guard)
        self._telling = False
        responses = [message for message in transcript.messages if isinstance(message, AssistantMessage)]
        steps = [Step(number, told=replayed.told.get(number, ())) for number in range(1, len(responses) + 1)]
        for event in self._judged:
            if 1 <= event.message_index <= len(steps):
                step = steps[event.message_index - 1]
                step.round, step.user_spoke = event.turn, event.user_spoke
                self._add_calls(step, event, responses[event.message_index - 1].calls)
        _distribute(replayed.verdicts, steps, "verdicts")
        _distribute(live_verdicts(document), steps, "live")
        spent = tuple(spending(transcript.messages))
        return Story(name, replayed, tuple(steps), spent, live_end(document))

    def _add_calls(self, step: Step, event: RoundJudged, asked: Sequence[ToolCall]) -> None:
        seen: dict[tuple[str, str], Call] = {}
        for judged, call in zip(event.calls, asked, strict=True):
            key = (judged.tool, (judged.fingerprint or "")[:_SHORT])
            if key in seen:
                seen[key] = replace(seen[key], times=seen[key].times + 1)
            elif len(seen) < MAX_CALLS:
                seen[key] = Call(*key, arguments=_shown_arguments(call.arguments) if self._arguments else None)
            else:
                step.more_calls += 1
        step.calls = list(seen.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.guard.close()


def _distribute(verdicts: Sequence[Verdict], steps: Sequence[Step], where: str) -> None:
    numbers: defaultdict[int, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        numbers[min(max(verdict.message_index, 1), len(steps))].append(verdict)
    for step in steps:
        setattr(step, where, numbers.get(step.message, []))


def _shown_arguments(arguments: Any) -> str:
    values = parse_arguments(arguments)
    text = values if isinstance(values, str) else json.dumps(_without_secrets(values), ensure_ascii=False, default=str)
    return cut(text, _MAX_ARGUMENTS)


def _without_secrets(value: Any, depth: int = 6) -> Any:
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {
            key: "(hidden)" if _SECRET.search(str(key)) else _without_secrets(part, depth - 1)
            for key, part in value.items()
        }
    return [_without_secrets(part, depth - 1) for part in value] if isinstance(value, list) else value
