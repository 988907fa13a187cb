"""Plays a recorded conversation through a guard, in the order an adapter would have called it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loopguard_core._guard import LoopGuard
from loopguard_core._outcome import OWN_WORDS
from loopguard_core._policy import Policy
from loopguard_core._session import Session
from loopguard_core._types import Channel, EndReason, Stop, Verdict
from loopguard_core.transcripts._model import AssistantMessage, ToolResult, Transcript, UserMessage

_PIECE = 256
"""Characters fed at once: as a stream, so that one message may draw more than one verdict."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a policy says of a recorded conversation.

    Attributes:
        id: The conversation's id, where it has one.
        rounds: Assistant messages with tool calls.
        messages: Assistant messages.
        ended: Why the run would have ended.
        verdicts: Every detection, in order: one per identity and round, and those on text.
        stop: The first stop; None if the run would have gone through.
        stop_round: The round the run was in, or after, when that stop came; None without one.
        answered: Assistant messages there would have been when that stop came, the one it came in included: what would
            have been paid for. All of them without a stop.
        told: What the model would have been told before each assistant message, by its number; only where anything.
    """

    id: str | None
    rounds: int
    messages: int
    ended: EndReason
    verdicts: tuple[Verdict, ...] = ()
    stop: Stop | None = None
    stop_round: int | None = None
    answered: int = 0
    told: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


# What loopguard, or the program around the model, told it in the user's place is no user's word.
_NOT_THE_USER = (OWN_WORDS, "[system", "<system")


# What stands in place of the conversation so far once it was summarised, in the words of the usual programs.
_SUMMARY = re.compile(
    r"\A\W{0,3}(?:context|conversation|history|session)(?: (?:was|has been|history))?"
    r" (?:compact|summari[sz]|condens|truncat)"
    r"|\A\W{0,3}(?:compacted|summari[sz]ed) (?:context|conversation|history)"
    r"|\A\W{0,3}(?:\w+ )?summary of (?:the |our |your )?(?:earlier|previous|prior|conversation|session|work|progress)"
    r"|continued from a previous conversation|produced a summary of its thinking",
    re.IGNORECASE,
)
_HEAD = 400


def guard_for_replay(policy: Policy, *, plugins: Iterable[object] = ()) -> LoopGuard:
    """A guard that makes the same of a recording each time and everywhere.

    Its clock stands still, because a recording has no time: `limits.seconds` never ends a replay. Its fingerprints are
    plain, because they are compared across runs, and whoever has the recording has the arguments. It spends on no key:
    what a recording cost was counted when it was made.

    Args:
        policy: The policy; plugins it names are loaded, and what they answer counts.
        plugins: Further plugins.

    Raises:
        PluginError: A plugin the policy names cannot be used.
    """
    plain = {"plain_fingerprints": True, "fingerprint_key": None}
    privacy = policy.privacy.model_copy(update=plain)
    played = policy.model_copy(update={"privacy": privacy, "key": None})
    return LoopGuard(played, plugins=plugins, clock=lambda: 0.0)


def play(transcript: Transcript, guard: LoopGuard) -> Replayed:
    """Play a whole recording, also past a refusal or a stop: what was recorded is what happened.

    Args:
        transcript: The recording.
        guard: Usually one of `guard_for_replay`; it serves any number of recordings.
    """
    session = guard.session(framework_run_id=transcript.id)
    player = _Player(session)
    for message in transcript.messages:
        if isinstance(message, AssistantMessage):
            player.assistant(message)
        elif isinstance(message, ToolResult):
            session.record_result(message.call_id, message.output, message.is_error)
        elif _SUMMARY.search(message.content, 0, _HEAD):
            session.compacted()
        elif isinstance(message, UserMessage) and not message.content.lstrip().startswith(_NOT_THE_USER):
            session.user_turn()
    end = session.end()
    return Replayed(
        id=transcript.id,
        rounds=player.rounds,
        messages=player.messages,
        ended=end.reason,
        verdicts=tuple(player.verdicts),
        stop=session.stop,
        stop_round=player.stop_round,
        answered=player.messages if player.answered is None else player.answered,
        told=player.told,
    )


class _Player:
    """Plays assistant messages and gathers what the session says."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.rounds = 0
        self.messages = 0
        self.verdicts: list[Verdict] = []
        self.stop_round: int | None = None
        self.answered: int | None = None
        self.told: dict[int, tuple[str, ...]] = {}

    def assistant(self, message: AssistantMessage) -> None:
        """One model call and the round it asks for."""
        session = self._session
        directive = session.before_model_call(message.model)
        self._note_stop()
        self.messages += 1
        if directive.steer:
            self.told[self.messages] = directive.steer
        self._feed(message.reasoning, "reasoning")
        self._feed(message.content, "content")
        session.feed_text("", "content")  # an empty message is known to be empty
        # A recording knows whether calls follow, also where it does not say why the message ended.
        reason = message.finish_reason or ("tool_calls" if message.calls else "stop")
        self._take((session.end_message(reason),))
        session.after_model_call(message.model, message.usage)
        if message.calls:
            self.rounds += 1
            decisions = session.begin_round(message.calls)
            self._take(decision.verdict for decision in decisions if not decision.duplicate)

    def _feed(self, text: str, channel: Channel) -> None:
        for start in range(0, len(text), _PIECE):
            self._take((self._session.feed_text(text[start : start + _PIECE], channel),))

    def _take(self, verdicts: Iterable[Verdict | None]) -> None:
        self.verdicts.extend(verdict for verdict in verdicts if verdict is not None)
        self._note_stop()

    def _note_stop(self) -> None:
        if self.stop_round is None and self._session.stop is not None:
            self.stop_round, self.answered = self.rounds, self.messages
