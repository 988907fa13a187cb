"""Plays a recorded conversation through a guard, in the order an adapter would have called it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from loopguard_core._guard import LoopGuard
from loopguard_core._policy import Policy
from loopguard_core._session import Session
from loopguard_core._types import EndReason, Stop, Verdict
from loopguard_core.transcripts._model import AssistantMessage, ToolResult, Transcript
from loopguard_core.transcripts._telling import is_summary, is_user_turn, speak


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

    Where several agents speak by name, each is a run of its own, as the adapters make them: that four of them read one
    file is no loop.

    Args:
        transcript: The recording.
        guard: Usually one of `guard_for_replay`; it serves any number of recordings.
    """
    player = _Player(transcript, guard)
    for message in transcript.messages:
        if isinstance(message, AssistantMessage):
            player.assistant(message)
        elif isinstance(message, ToolResult):
            player.result(message)
        elif is_summary(message):
            player.compacted()
        elif is_user_turn(message):
            player.user_turn()
    return player.replayed()


class _Run:
    """What one agent has done so far.

    Attributes:
        session: Its session.
        rounds: The number in the recording of each of its rounds.
        messages: The same of its messages.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.rounds = [0]
        self.messages = [0]

    def placed(self, verdict: Verdict) -> Verdict:
        """A verdict with the recording's numbers."""
        evidence = dict(verdict.evidence)
        if isinstance(at := evidence.get("at_rounds"), list):
            evidence["at_rounds"] = [self._round(number) for number in at]
        if verdict.channel is None and isinstance(since := evidence.get("since_round"), int):
            evidence["since_round"] = self._round(since)
        message = self.messages[min(verdict.message_index, len(self.messages) - 1)]
        return replace(verdict, round=self._round(verdict.round), message_index=message, evidence=evidence)

    def _round(self, number: int) -> int:
        return self.rounds[min(number, len(self.rounds) - 1)]


class _Player:
    """Plays messages and gathers what the sessions say."""

    def __init__(self, transcript: Transcript, guard: LoopGuard) -> None:
        self._guard = guard
        self._id = transcript.id
        speakers = {message.agent for message in transcript.messages if isinstance(message, AssistantMessage)}
        self._apart = len(speakers - {None}) > 1
        self._runs: dict[str | None, _Run] = {}
        self._asked: dict[str, _Run] = {}
        self._rounds = self._messages = 0
        self._verdicts: list[Verdict] = []
        self._stop: Stop | None = None
        self._stop_round: int | None = None
        self._answered: int | None = None
        self._told: dict[int, tuple[str, ...]] = {}

    def _run(self, agent: str | None) -> _Run:
        agent = agent if self._apart else None
        run = self._runs.get(agent)
        if run is None:
            run = self._runs[agent] = _Run(self._guard.session(agent=agent, framework_run_id=self._id))
        return run

    def assistant(self, message: AssistantMessage) -> None:
        """One model call and the round it asks for."""
        run = self._run(message.agent)
        session = run.session
        directive = session.before_model_call(message.model)
        self._note_stop(run)
        self._messages += 1
        run.messages.append(self._messages)
        if directive.steer:
            self._told[self._messages] = directive.steer
        self._take(run, speak(session, message))
        session.after_model_call(message.model, message.usage)
        if message.calls:
            self._rounds += 1
            run.rounds.append(self._rounds)
            self._asked.update((call.id, run) for call in message.calls)
            decisions = session.begin_round(message.calls)
            self._take(run, (decision.verdict for decision in decisions if not decision.duplicate))

    def result(self, message: ToolResult) -> None:
        """What a call returned, to the agent that made it."""
        run = self._asked.get(message.call_id) or self._run(None)
        run.session.record_result(message.call_id, message.output, message.is_error)

    def user_turn(self) -> None:
        """A user spoke to all of them."""
        for run in self._runs.values():
            run.session.user_turn()

    def compacted(self) -> None:
        """A summary stands in place of what was said."""
        for run in self._runs.values():
            run.session.compacted()

    def replayed(self) -> Replayed:
        """What came of it."""
        if not self._runs:
            self._run(None)  # an empty recording is a run, too
        ends = [run.session.end() for run in self._runs.values()]
        stopped = [end for end in ends if end.reason != "complete"]
        return Replayed(
            id=self._id,
            rounds=self._rounds,
            messages=self._messages,
            ended=(stopped or ends)[0].reason,
            verdicts=tuple(self._verdicts),
            stop=self._stop,
            stop_round=self._stop_round,
            answered=self._messages if self._answered is None else self._answered,
            told=self._told,
        )

    def _take(self, run: _Run, verdicts: Iterable[Verdict | None]) -> None:
        self._verdicts.extend(run.placed(verdict) for verdict in verdicts if verdict is not None)
        self._note_stop(run)

    def _note_stop(self, run: _Run) -> None:
        if self._stop_round is None and run.session.stop is not None:
            self._stop, self._stop_round, self._answered = run.session.stop, self._rounds, self._messages
