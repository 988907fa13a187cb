"""The runs of `loopguard bench models`: every model, several times, unguarded and under two guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal

from loopguard_core import Action, DoomLoopDetected, Policy, SessionEnd
from loopguard_core.testing import Persona
from loopguard_langchain._bench_personas import CHANGES, PUBLISHED, Published, keeps_asking, persona
from loopguard_langchain._billing_agent import TURNS, Endpoint, Run, run_agent, scripted_endpoint, unguarded

UNGUARDED, REFERENCE, DEFAULT = "unguarded", "reference", "default"
GUARDS = (UNGUARDED, REFERENCE, DEFAULT)
"""The columns: a cap alone; the reference's detection with the same cap; loopguard's default policy, same cap."""

_FORCE = (Action.BLOCK, Action.STOP)


def policy(guard: str) -> Policy:
    """What guards the runs of a column."""
    if guard == UNGUARDED:
        return unguarded()
    return Policy(preset="openrouter" if guard == REFERENCE else "default", limits={"turns": TURNS})


@dataclass(frozen=True, slots=True)
class Subject:
    """What is run under every guard.

    Attributes:
        model: Name of the model, or of what is scripted.
        run: Which of its runs, from 1.
        persona: How a scripted model behaves; None for a real one.
        published: The published figures it is modelled on, where there are any.
    """

    model: str
    run: int
    persona: Persona | None = None
    published: Published | None = None

    @property
    def requested(self) -> str:
        """The model's name as the endpoint knows it."""
        return self.model if self.persona is None else f"{self.model}, run {self.run}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run under one guard.

    Attributes:
        subject: What ran.
        guard: Under which guard.
        run: Its figures; None if the endpoint failed.
        error: What the endpoint said then.
    """

    subject: Subject
    guard: str
    run: Run | None
    error: str | None = None

    @property
    def caught(self) -> tuple[tuple[str, int], ...]:
        """The detectors that refused calls or ended the run, each with the round of its first refusal."""
        first: dict[str, int] = {}
        for event in self.run.events if self.run is not None else ():
            if event.action in _FORCE:
                first.setdefault(event.detector, event.round or event.turn)
        return tuple(first.items())


def published_subjects() -> list[Subject]:
    """Scripted models that behave as the published runs say."""
    return [Subject(f"model {row.model}", row.run, persona(row), row) for row in PUBLISHED]


def changed_subjects() -> list[Subject]:
    """One scripted model for each kind of change, which changes the argument whenever it is refused."""
    return [Subject(change.name, 1, keeps_asking(None, change.spellings)) for change in CHANGES]


def real_subjects(models: Sequence[str], runs: int) -> list[Subject]:
    """Models behind an endpoint of the user's."""
    return [Subject(name, run) for name in models for run in range(1, runs + 1)]


@contextmanager
def scripted(subjects: Sequence[Subject]) -> Iterator[Endpoint]:
    """An endpoint on loopback that plays the subjects that have a persona."""
    personas = {subject.requested: subject.persona for subject in subjects if subject.persona is not None}
    with scripted_endpoint(lambda request: personas[str(request.raw["model"])](request)) as endpoint:
        yield endpoint


def measure(endpoint: Endpoint, subjects: Sequence[Subject], guards: Sequence[str] = GUARDS) -> Iterator[Measured]:
    """Run every subject under every guard, one after the other.

    After a failure of its endpoint a model is left alone: what is wrong with a key or a name stays wrong.
    """
    from openai import OpenAIError

    failed: dict[str, str] = {}
    for subject in subjects:
        for guard in guards:
            run: Run | None = None
            if subject.model not in failed:
                try:
                    run = run_agent(guard, policy(guard), endpoint(subject.requested), _Unwatched())
                except OpenAIError as error:
                    failed[subject.model] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            yield Measured(subject, guard, run, failed.get(subject.model))


@dataclass(frozen=True, slots=True)
class Total:
    """What the runs of a column come to; unknown costs leave the sum unknown."""

    calls: int = 0
    cost: Decimal | None = Decimal(0)
    seconds: float = 0.0


def totals(measured: Sequence[Measured]) -> dict[str, Total]:
    """The sum of every column, failed runs left out."""
    sums: dict[str, Total] = {}
    for one in measured:
        if one.run is None:
            continue
        so_far, cost = sums.get(one.guard, Total()), one.run.total.cost
        sums[one.guard] = replace(
            so_far,
            calls=so_far.calls + one.run.executions,
            cost=None if so_far.cost is None or cost is None else so_far.cost + cost,
            seconds=so_far.seconds + one.run.seconds,
        )
    return sums


class _Unwatched:
    """A `Watcher` that says nothing."""

    def executed(self) -> None:
        """Nothing."""

    def loop(self, event: DoomLoopDetected) -> None:
        """Nothing."""

    def end(self, event: SessionEnd) -> None:
        """Nothing."""
