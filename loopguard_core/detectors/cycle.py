"""`cycle`: the same rounds in the same order, lap after lap, with the same results.

A-B-A-B and longer, up to eight rounds a lap. A lap is told by what is in it, not by where it begins, and rounds in
between that are not part of it are passed over. A result that changed, or a change of the world, breaks a cycle. It
fires at the request that would complete a lap.

| kind | what it is |
|---|---|
| (none) | nothing new came up between the laps |
| `gapped` | other rounds between brought news: no proof of a loop |
| `interleaved` | one or two steps again and again, with news between |
| `figures` | three steps and more that only look, and nothing but figures moved, none of which counts down |
| `poll` | half of it and more asks for something that is not done yet |
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import xxhash

from loopguard_core._bounded import count, short_text
from loopguard_core._history import History
from loopguard_core._history_state import Request
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._protocol import REPEATS, Detector, Finding

MAX_PERIOD = 8
"""Rounds of the longest lap that is looked for. Source: section 5 of the design."""

_MAX_BEGINNINGS = 8
_FEW_STEPS = 2  # a check or two after each piece of work are a habit
_MANY_STEPS = 3  # so many things looked at in turn are a round of inspection
_ACTING = frozenset({"mutates", "delegates"})
_MOST_STEPS = 2  # to one of them that asks for something not done yet: a longer lap is work, and no waiting

Token = tuple[Request, ...]
Identities = tuple[str, ...]


class Cycle(Detector):
    """Counts the laps of the shortest cycle that the present request goes on with.

    Args:
        history: What the session has seen.
    """

    name: ClassVar[str] = "cycle"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["cycle"]
    wakes_on: ClassVar[int] = REPEATS

    def __init__(self, history: History) -> None:
        self._history = history
        self._began: OrderedDict[str, int] = OrderedDict()
        self._pardon = 0

    def describe(self, finding: Finding, tool: str | None) -> str:
        """How long the lap is, and how often it was run."""
        length = finding.evidence.get("period", 0)
        if length == 1:
            asked = f"`{tool}` was requested with the same arguments {finding.streak} times"
            return f"{asked}, other calls between, with the same result"
        steps = f"`{tool}` is part of the same {length} steps in the same order"
        found = "and nothing but figures changed" if finding.kind == "figures" else "with the same results"
        return f"{steps}, {finding.streak} times over, {found}"

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Look for the shortest cycle this round goes on with."""
        present = [call for call in calls if call.past is not None and not call.fresh and not call.past.polling]
        return [*self._found(calls, present, number, figures=False), *self._figures(calls, number)]

    def _figures(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Laps of looking at the same things, in which nothing but figures moved and nobody waited."""
        present = [
            call
            for call in calls
            if call.past is not None and not call.past.polling and call.traits.isdisjoint(_ACTING)
        ]
        return self._found(calls, present, number, figures=True)

    def _found(
        self, calls: Sequence[ObservedCall], present: Sequence[ObservedCall], number: int, *, figures: bool
    ) -> Sequence[Finding]:
        if not present:
            return ()
        asked = tuple(sorted(call.identity for call in present))[:MAX_PERIOD]
        if tuple(identity for identity, _ in (self._history.rounds[-1][1] if self._history.rounds else ())) == asked:
            return ()  # the same round again is `repeated_call`'s
        rounds = self._rounds(calls)
        tokens = [token for _, token in rounds]
        period, matched = _shortest([self._plain(token) for token in tokens] if figures else tokens, asked)
        if period == 0:
            self._pardon = min(self._pardon, 0)
            return ()
        if figures and (period < _MANY_STEPS or self._history.slept >= rounds[len(rounds) + 1 - matched][0]):
            return ()
        start = rounds[len(rounds) + 1 - matched][0]
        laps = matched // period - max(0, self._pardon)
        # What the first lap brings is new by nature; news behind it is what keeps this from being proof.
        lap_over = rounds[len(rounds) + period - matched][0]
        between = any(news for at, _, news in self._history.rounds if at > lap_over)
        lap = [tuple(identity for identity, _ in token) for _, token in rounds[len(rounds) + 1 - period :]] + [asked]
        if figures and any(self._counts_down(identity) for identities in lap for identity in identities):
            return ()
        about = _rotated(lap)
        kind = "figures" if figures else self._kind(period, lap, between)
        evidence = {"period": period, "laps": laps, "since_round": start, "rounds": number - start + 1}
        return [
            Finding(
                laps, self._since(about, start, laps), call.identity, kind, evidence, about=about, across=period > 1
            )
            for call in present
        ]

    def _plain(self, token: Token) -> Token:
        """A round without what tells results apart that differ in figures alone."""
        return tuple((name, 0) if self._only_figures(name) else (name, outcome) for name, outcome in token)

    def _only_figures(self, identity: str) -> bool:
        past = self._history.past(identity)
        return past is not None and past.figures

    def _counts_down(self, identity: str) -> bool:
        """Whether a number got lower with every lap: fourteen parts left, thirteen, twelve."""
        past = self._history.past(identity)
        return past is not None and past.figures and past.falling > 0

    def _rounds(self, calls: Sequence[ObservedCall]) -> list[tuple[int, Token]]:
        """The rounds that may be part of a cycle: what of each was asked for again since the world last changed."""
        times = Counter(call.identity for call in calls)
        valid = [(number, requests) for number, requests, _ in self._history.rounds if number >= self._history.epoch]
        for _, requests in valid:
            times.update(identity for identity, _ in requests)
        rounds = [
            (number, tuple(request for request in requests if times[request[0]] > 1)) for number, requests in valid
        ]
        return [(number, token) for number, token in rounds if token]

    def _kind(self, period: int, lap: Sequence[Identities], news: bool) -> str | None:
        members = [self._history.past(identity) for identities in lap for identity in identities]
        if sum(past is not None and past.polling for past in members) * _MOST_STEPS >= len(members):
            return "poll"
        if news:
            return "interleaved" if period <= _FEW_STEPS else "gapped"
        failures = [past.result.failure for past in members if past is not None and past.result is not None]
        known = [failure for failure in failures if failure is not None]
        return "transient" if known and all(failure.transient for failure in known) else None

    def _since(self, about: str, start: int, laps: int) -> int:
        if laps <= 2 or about not in self._began:  # two laps are where a cycle begins to be one
            self._began[about] = start
            self._began.move_to_end(about)
            if len(self._began) > _MAX_BEGINNINGS:
                self._began.popitem(last=False)
        return self._began[about]

    def user_turn(self) -> None:
        """Forget; the rounds themselves are forgotten by the history."""
        self._began.clear()
        self._pardon = 0

    def compacted(self) -> None:
        """Let one lap go uncounted, once a cycle: the model lost what it had seen."""
        if self._pardon == 0:
            self._pardon = 1

    def save(self) -> Any:
        """Where each cycle began."""
        return [[list(row) for row in self._began.items()], self._pardon]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            began, pardon = state
            self._began = OrderedDict((short_text(about), count(since)) for about, since in began[-_MAX_BEGINNINGS:])
            self._pardon = count(pardon)
        except TypeError as error:
            raise ValueError("not a saved state of cycle") from error


def _shortest(tokens: list[Token], asked: Identities) -> tuple[int, int]:
    """The smallest period with which the end of a sequence repeats, and how many rounds do.

    Args:
        tokens: What was requested in each round, with the outcome it had.
        asked: What is requested now. Its outcomes are to come, so it is compared by identity alone.

    Returns:
        Period and number of rounds, the present one included; (0, 0) if not even two laps are there.
    """
    last = len(tokens)
    for period in range(1, min(MAX_PERIOD, last) + 1):
        if tuple(identity for identity, _ in tokens[last - period]) != asked:
            continue
        matched = 1
        while last - matched - period >= 0 and tokens[last - matched] == tokens[last - matched - period]:
            matched += 1
        if matched >= period:
            return period, matched + period
    return 0, 0


def _rotated(lap: Sequence[Identities]) -> str:
    """One name for a lap, wherever it begins."""
    joined = ["+".join(identities) for identities in lap]
    smallest = min(joined[place:] + joined[:place] for place in range(len(joined)))
    return "~" + xxhash.xxh3_64_hexdigest("|".join(smallest).encode())
