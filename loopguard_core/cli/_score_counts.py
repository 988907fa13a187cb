"""What `loopguard score` found out, counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loopguard_core._ladder import DETECTORS
from loopguard_core.transcripts import Judgement, Label


@dataclass(frozen=True, slots=True)
class Scored:
    """One transcript and what the policy made of it.

    Attributes:
        file: The file as it was named.
        name: The case's name.
        label: What is known of it.
        judgement: How it came out.
        rounds: Rounds of tools in it.
        messages: Assistant messages in it.
    """

    file: str
    name: str
    label: Label
    judgement: Judgement
    rounds: int
    messages: int


@dataclass(slots=True)
class Ablation:
    """What changes without one detector.

    Attributes:
        detector: The one that was switched off.
        lost: Loops no longer caught in time.
        found: Loops caught in time only now: it had warned too early, or hidden another.
        alarms_gone: Healthy runs no longer blocked or stopped.
        alarms_new: Healthy runs blocked or stopped only now.
        nags_gone: Healthy runs no longer nagged.
    """

    detector: str
    lost: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    alarms_gone: list[str] = field(default_factory=list)
    alarms_new: list[str] = field(default_factory=list)
    nags_gone: list[str] = field(default_factory=list)

    def add(self, with_it: Scored, without_it: Scored) -> None:
        """Compare one case; excused ones are not counted."""
        before, after = with_it.judgement, without_it.judgement
        if with_it.label.excused:
            return
        if with_it.label.loop:
            changed = ((self.lost, before, after), (self.found, after, before))
        else:
            changed = ((self.alarms_new, before, after), (self.alarms_gone, after, before))
            if before.result == "nagged" and after.result == "left alone":
                self.nags_gone.append(with_it.name)
        for names, right, wrong in changed:
            if right.passed and not wrong.passed:
                names.append(with_it.name)


@dataclass(slots=True)
class Tally:
    """Cases counted.

    Attributes:
        loops: Loops.
        caught: Those caught in time.
        healthy: Healthy runs.
        alone: Those neither blocked nor stopped.
        nagged: Those of `alone` that were warned all the same.
        rounds_saved: Rounds of loops after the first block or stop.
        calls_saved: Calls of loops after it, and those it refused.
        rounds_after_stop: Rounds of loops after the first stop.
    """

    loops: int = 0
    caught: int = 0
    healthy: int = 0
    alone: int = 0
    nagged: int = 0
    rounds_saved: int = 0
    calls_saved: int = 0
    rounds_after_stop: int = 0

    def add(self, case: Scored) -> None:
        """Count one case."""
        judgement = case.judgement
        if case.label.loop:
            self.loops += 1
            self.caught += judgement.passed
            self.rounds_saved += judgement.saved.rounds
            self.calls_saved += judgement.saved.calls
            self.rounds_after_stop += judgement.saved.rounds_after_stop
        else:
            self.healthy += 1
            self.alone += judgement.passed
            self.nagged += judgement.result == "nagged"

    def row(self) -> dict[str, int]:
        """The figures as plain JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True)
class ByDetector:
    """What one detector did.

    Attributes:
        caught: Loops in which its warning was the first, in time.
        wrong_time: Loops in which its warning was the first, too early or too late.
        false_alarms: Healthy runs that it was the first to block or stop.
        nagged: Healthy runs that it warned.
    """

    caught: int = 0
    wrong_time: int = 0
    false_alarms: int = 0
    nagged: int = 0


@dataclass(slots=True)
class Report:
    """Everything one run of the command found out.

    Attributes:
        policy: What was judged, in words.
        cases: Every case, the excused ones too, in order.
        ablation: What each detector is good for, by its name.
        unread: Files and directories that could not be read or judged.
    """

    policy: str = ""
    cases: list[Scored] = field(default_factory=list)
    ablation: dict[str, Ablation] = field(default_factory=dict)
    unread: int = 0

    def counted(self) -> Iterator[Scored]:
        """The cases that count."""
        return (case for case in self.cases if not case.label.excused)

    def tally(self) -> Tally:
        """All of them counted."""
        total = Tally()
        for case in self.counted():
            total.add(case)
        return total

    def kinds(self) -> dict[str, Tally]:
        """Counted by kind: kinds of loops first."""
        tallies: dict[str, Tally] = {}
        for case in sorted(self.counted(), key=lambda case: (not case.label.loop, case.label.kind)):
            tallies.setdefault(case.label.kind, Tally()).add(case)
        return tallies

    def detectors(self) -> dict[str, ByDetector]:
        """Counted by the detector that decided, in the order of the detectors."""
        found: dict[str, ByDetector] = {}
        for case in self.counted():
            judgement = case.judgement
            for name in judgement.nagging:
                found.setdefault(name, ByDetector()).nagged += 1
            if judgement.verdict is None or judgement.result == "nagged":
                continue
            row = found.setdefault(judgement.verdict.detector, ByDetector())
            row.caught += judgement.result == "caught"
            row.wrong_time += judgement.result in ("early", "late")
            row.false_alarms += judgement.result == "false alarm"
        return {name: found[name] for name in sorted(found, key=_place)}

    def ablations(self) -> list[Ablation]:
        """What each detector that said anything is good for."""
        return [self.ablation[name] for name in sorted(self.ablation, key=_place)]

    def good(self, *, min_loops: float, max_soft: int) -> bool:
        """Whether the policy does what is asked of it."""
        total = self.tally()
        return (
            total.alone == total.healthy and total.nagged <= max_soft and total.caught >= min_loops * total.loops - 1e-9
        )


def _place(detector: str) -> tuple[int, str]:
    return (DETECTORS.index(detector) if detector in DETECTORS else len(DETECTORS), detector)
