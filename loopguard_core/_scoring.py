"""From the calls of a round to what is done about each: identity, detectors, ladder, overrides.

Where several detectors fire on one call the strongest action wins, ties in the order of the detectors; there is one
event per identity and round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from loopguard_core import _messages
from loopguard_core._advice import Advice, advice_for
from loopguard_core._allowed import Allowed
from loopguard_core._bounded import SHORT_ID, call_key
from loopguard_core._calls import Identifier
from loopguard_core._faults import Faults
from loopguard_core._history import History
from loopguard_core._history_state import ALL
from loopguard_core._identity import display_name
from loopguard_core._ladder import RANK, Ladder
from loopguard_core._policy import Policy
from loopguard_core._scored import Effect, ScoredRound, gathered
from loopguard_core._spending import Spending
from loopguard_core._traits import Nature
from loopguard_core._types import Action, Channel, ToolCall, Verdict
from loopguard_core.detectors import Detector, Finding, ObservedCall

P = ParamSpec("P")
T = TypeVar("T")

MAX_SHOWN = 32
"""Rounds named in the evidence of a verdict, the last ones."""

Judge = Callable[[Verdict, Action, ObservedCall | None], tuple[Action, bool]]
"""Gives a verdict and its proposed action to the plugins: the action that is taken, and whether it was overridden."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The strongest finding on one call, checked."""

    action: Action
    detector: Detector
    finding: Finding
    ladder: Ladder
    fact: str
    advice: Advice
    evidence: dict[str, Any]


class Scorer:
    """Scores the rounds of one session.

    Args:
        policy: Ladders, switches, shadow mode.
        identifier: Works out identities.
        detectors: In the order that breaks ties.
        faults: Where a detector that raises is noted; it is left out from then on.
        can_do: Cuts an action to what the surface can do.
        key: Keys fingerprints that leave the process; None for plain ones.
        allowed: Calls that are observed only.
        history: What the session has seen; None where only arguments count.

    Attributes:
        spending: What the last model calls used.
    """

    def __init__(
        self,
        policy: Policy,
        identifier: Identifier,
        detectors: Sequence[Detector],
        faults: Faults,
        can_do: Callable[[Action], Action],
        key: bytes | None,
        allowed: Allowed,
        history: History | None = None,
    ) -> None:
        self._policy = policy
        self._allowed = allowed
        self.spending = Spending()
        self._identifier = identifier
        self.history = history
        self._use(detectors)
        self.own_detectors = all(type(d).__module__.startswith("loopguard_core.") for d in detectors)
        self._faults = faults
        self._can_do = can_do
        self.key = key

    def _use(self, detectors: Sequence[Detector]) -> None:
        self.detectors = tuple(detectors)
        # Only what has something to do is called: this runs in every round, and for every piece of text.
        self._feeds = tuple(d for d in detectors if type(d).feed_text is not Detector.feed_text)
        self._ends = tuple(d for d in detectors if type(d).end_message is not Detector.end_message)
        begin = [d for d in detectors if type(d).begin_round is not Detector.begin_round]
        close = [d for d in detectors if type(d).close_round is not Detector.close_round]
        self._begin = [tuple(d for d in begin if not d.wakes_on or d.wakes_on & cues) for cues in range(ALL + 1)]
        self._close = [tuple(d for d in close if not d.wakes_on or d.wakes_on & cues) for cues in range(ALL + 1)]

    def score(self, calls: Sequence[ToolCall], number: int, message_index: int, judge: Judge) -> ScoredRound:
        """Score a round."""
        first = self._observe(calls[0])
        if len(calls) == 1 and first is not None:  # by far the most common round
            scored = ScoredRound([first], None)
        else:
            scored = gathered(calls, [first, *(self._observe(call) for call in calls[1:])])
        followed = scored.followed
        best = self._strongest(followed, number)
        if not best:
            return scored
        effects: list[Effect] = []
        for call in followed:
            if call.identity in best:
                verdict, wanted = self._decide(call, best[call.identity], number, message_index, judge)
                effects.extend(wanted)
                for row in scored.calls:
                    if row.observed is call:
                        row.verdict = verdict
        scored.effects, scored.fired = effects, True
        return scored

    def _observe(self, call: ToolCall) -> ObservedCall | None:
        """A call as detectors see it; None if it is exempt or cannot be followed."""
        observed = None
        try:
            observed = self._identifier.observe(call)
            if observed is not None and (type(call.id) is not str or len(call.id) > SHORT_ID):
                observed.call_id = call_key(call.id)
        except Exception as error:  # noqa: BLE001  # one odd call must not keep its siblings from being judged
            self._faults.note("identity", error)
            if observed is not None:
                observed.call_id = ""
        return observed

    def _strongest(self, followed: list[ObservedCall], number: int) -> dict[str, _Best] | None:
        best: dict[str, _Best] | None = None
        history = self.history
        if history is None:
            cues = ALL
        else:
            if self._identifier.waited:
                history.waiting = history.slept = number
                self._identifier.waited = False
            cues = history.begin(followed, number)
        for detector in self._begin[cues]:
            try:  # what `contained` does, without its cost in rounds in which nothing is found
                findings = detector.begin_round(followed, number)
                if not findings:
                    continue
                rated = self._rate(detector, findings, followed)
            except Exception as error:  # noqa: BLE001  # see `contained`
                self._leave_out(detector, error)
                continue
            best = {} if best is None else best
            for identity, found in rated:
                before = best.get(identity)
                if before is None or RANK[found.action] > RANK[before.action]:
                    best[identity] = found
        return best

    def _rate(
        self, detector: Detector, findings: Sequence[Finding], calls: Sequence[ObservedCall]
    ) -> list[tuple[str, _Best]]:
        rated: list[tuple[str, _Best]] = []
        distinct = {call.identity: call for call in calls}
        for finding in findings:
            call = distinct.get(finding.identity or "")
            found = None if call is None else self._rung(detector, finding, call.tool)
            if call is not None and found is not None:
                rated.append((call.identity, found))
        return rated

    def _rung(self, detector: Detector, finding: Finding, tool: str | None) -> _Best | None:
        """What the ladder makes of a finding; a finding that makes no sense raises here, where it is contained."""
        ladder = self._policy.ladder_for(detector.name, tool, finding.kind, detector.ladder)
        action = ladder.action(finding.streak)
        if action is None:
            return None
        shown = None if tool is None else display_name(tool)
        fact = detector.describe(finding, shown)
        if not isinstance(fact, str):
            raise TypeError(f"describe returned {type(fact).__name__}, not a text")
        advice = advice_for(detector.name, finding.advice or finding.kind)
        evidence = dict(finding.evidence)
        if finding.kind:  # which ladder it was
            evidence["row"] = f"{detector.name}.{finding.kind}"
        return _Best(action, detector, finding, ladder, fact, advice, evidence)

    def nature_of(self, tool: str) -> Nature:
        """What is known of a tool by its name."""
        return self._identifier.nature(tool)

    def fingerprint(self, call: ObservedCall) -> str:
        """What names a call's identity outside the process."""
        return self._identifier.fingerprint(call, self.key)

    def perform(self, action: Action, refusable: bool = True) -> Action:
        """The action, or the next weaker one that can be done here to such a call."""
        return self._can_do(action if refusable or action is not Action.BLOCK else Action.STEER)

    @property
    def reads_text(self) -> bool:
        """Whether any detector reads text."""
        return bool(self._feeds or self._ends)

    def feed(
        self, text: str, channel: Channel, number: int, message_index: int, judge: Judge
    ) -> tuple[Verdict | None, list[Effect]]:
        """Let detectors read a piece of the running message; the strongest finding counts."""
        best = self._heard(self._feeds, lambda detector: detector.feed_text(text, channel))
        return (None, []) if best is None else self._decide(None, best, number, message_index, judge, channel)

    def end_message(
        self, reason: str | None, number: int, message_index: int, judge: Judge
    ) -> tuple[Verdict | None, list[Effect]]:
        """Let detectors judge a message that is complete; the strongest finding counts."""
        best = self._heard(self._ends, lambda detector: detector.end_message(reason))
        return (None, []) if best is None else self._decide(None, best, number, message_index, judge, None)

    def _heard(self, detectors: Sequence[Detector], step: Callable[[Detector], Finding | None]) -> _Best | None:
        best: _Best | None = None
        for detector in detectors:
            try:  # as in `_strongest`
                finding = step(detector)
                found = None if finding is None else self._rung(detector, finding, None)
            except Exception as error:  # noqa: BLE001  # see `contained`
                self._leave_out(detector, error)
                continue
            if found is not None and (best is None or RANK[found.action] > RANK[best.action]):
                best = found
        return best

    def _decide(
        self,
        call: ObservedCall | None,
        best: _Best,
        number: int,
        message_index: int,
        judge: Judge,
        channel: Channel | None = None,
    ) -> tuple[Verdict, list[Effect]]:
        finding, name, shadow = best.finding, best.detector.name, self._policy.shadow
        refusable = call is None or call.refusable
        tool = None if call is None else display_name(call.tool)
        fingerprint = None if call is None else self._identifier.fingerprint(call, self.key)
        allowed = not shadow and self._allowed.spares(fingerprint, refusal=RANK[best.action] >= RANK[Action.BLOCK])
        action = Action.OBSERVE if shadow or allowed else self.perform(best.action, refusable)
        spared = _messages.shadowed(best.action) if shadow else _messages.allowed(best.action) if allowed else None
        proposed = Verdict(
            detector=name,
            action=action,
            streak=finding.streak,
            fingerprint=fingerprint,
            tool=tool,
            call_id=None if call is None else call.call_id,
            round=number,
            message_index=message_index,
            channel=channel,
            char=finding.char,
            abort=finding.abort and not shadow,
            evidence=best.evidence if call is None else {**best.evidence, **self._rounds(call, finding, number)},
            message=_messages.verdict(action, best.fact, best.advice, spared),
        )
        taken, overridden = judge(proposed, best.action, call)
        if shadow:
            return proposed, []
        verdict = proposed
        if taken is not action:
            message = _messages.verdict(taken, best.fact, best.advice)
            # Who lets the model go on lets its stream go on too.
            abort = proposed.abort and taken is not Action.OBSERVE
            verdict = replace(proposed, action=taken, message=message, abort=abort)
        rungs = (taken,) if overridden or allowed else best.ladder.crossed(finding.streak)
        wanted = {self.perform(rung, refusable) for rung in rungs}
        about = finding.about or finding.identity or name
        effects = [
            Effect(rung, name, about, finding.since, _messages.steered(best.fact, best.advice))
            for rung in (Action.STEER, Action.ESCALATE)
            if rung in wanted and taken is not Action.STOP
        ]
        return verdict, effects

    def _rounds(self, call: ObservedCall, finding: Finding, number: int) -> dict[str, Any]:
        """Which rounds the evidence is, and what asking again has cost."""
        if self.history is None:
            return {}
        if finding.about is None:
            rounds = self.history.rounds_of(finding.since, identity=call.identity)
        else:
            rounds = self.history.rounds_of(finding.since, tool=None if finding.across else call.tool_key)
        if not rounds:
            return {}
        rounds.append(number)
        return {"at_rounds": rounds[-MAX_SHOWN:], **self.spending.wasted(rounds)}

    def close(self, calls: Sequence[ObservedCall], number: int) -> None:
        """Take note of what a round brought.

        Args:
            calls: Its distinct calls, each with its outcome.
            number: The round.
        """
        cues = ALL if self.history is None else self.history.close(calls, number)
        for detector in self._close[cues]:
            try:  # as in `_strongest`
                detector.close_round(calls)
            except Exception as error:  # noqa: BLE001  # see `contained`
                self._leave_out(detector, error)

    def save(self) -> dict[str, Any]:
        """The state of each detector; one that cannot say its own is left out."""
        return {detector.name: self.contained(detector, detector.save) for detector in self.detectors}

    def contained(self, detector: Detector, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run one step of a detector; one that raises is noted and left out of this session from then on."""
        try:
            return step(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # a detector's fault must never become the run's
            self._leave_out(detector, error)
            return None

    def _leave_out(self, detector: Detector, error: Exception) -> None:
        self._faults.note(f"detector {detector.name}", error, text="It is switched off for this run.")
        self._use([other for other in self.detectors if other is not detector])
