"""Ladders: from which streak on loopguard does what."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_serializer

from loopguard_core._types import Action

RUNGS: tuple[Action, ...] = (Action.OBSERVE, Action.STEER, Action.ESCALATE, Action.BLOCK, Action.STOP)
"""The rungs, weakest first."""

RANK = {action: rank for rank, action in enumerate(RUNGS)}
"""How strong each is."""


MOST = 10**15
"""The highest figure a policy may hold: more is a slip of the pen, and thousands of digits cannot be shown."""


def _rung(value: Any) -> int | Literal[False]:
    if value is False:
        return False
    # bool is an int in Python; `block = true` must not quietly become `block = 1`.
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST:
        return value
    raise ValueError("a rung is a whole number, 1 or more, or false to switch it off; leave it out to keep the default")


Rung = Annotated[
    int | Literal[False] | None,
    BeforeValidator(_rung),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": False}]}),
]


class LadderSettings(BaseModel):
    """A ladder as written in a policy: each rung a streak of 1 or more, or `false` to switch it off.

    A rung that is not named keeps what it had. It reads as None here, but None cannot be written:
    nobody could tell whether it means "the default" or "off".
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    observe: Rung = None
    """Report it: an event, nothing else."""
    steer: Rung = None
    """Tell the model before its next call."""
    escalate: Rung = None
    """Give the next model call to the stronger model of `[escalation]`."""
    block: Rung = None
    """Refuse the call, with a reason the model can act on."""
    stop: Rung = None
    """End the run."""

    def named(self) -> dict[str, int | Literal[False]]:
        """The rungs that are written down, weakest first."""
        return {rung.value: value for rung in RUNGS if (value := getattr(self, rung.value)) is not None}

    def merged(self, other: LadderSettings) -> LadderSettings:
        """These settings with the rungs of `other` written over them."""
        return LadderSettings(**{**self.named(), **other.named()})

    @model_serializer(mode="plain")
    def _only_what_is_named(self) -> dict[str, int | bool]:
        # Dumping None for a rung that was not named would make a dump that cannot be read back.
        return dict(self.named())


@dataclass(frozen=True, slots=True)
class Ladder:
    """Streak thresholds, all decided. The strongest rung whose threshold the streak has reached is the action.

    Attributes:
        observe: Streak from which a loop is reported; None is off, as for every rung.
        steer: Streak from which the model is told.
        escalate: Streak from which a stronger model takes the next call.
        block: Streak from which the call is refused.
        stop: Streak from which the run is ended.
    """

    observe: int | None = None
    steer: int | None = None
    escalate: int | None = None
    block: int | None = None
    stop: int | None = None
    # Worked out once: `action` runs for every tool call, and nearly all of them are below every rung.
    _lowest: int = field(init=False, repr=False, compare=False)
    _strongest_first: tuple[tuple[int, Action], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        steps = tuple((threshold, rung) for rung in reversed(RUNGS) if (threshold := self.threshold(rung)) is not None)
        object.__setattr__(self, "_strongest_first", steps)
        object.__setattr__(self, "_lowest", min((threshold for threshold, _ in steps), default=sys.maxsize))

    def threshold(self, rung: Action) -> int | None:
        """The streak from which `rung` is crossed; None where it is off."""
        threshold: int | None = getattr(self, rung.value)
        return threshold

    @property
    def lowest(self) -> int:
        """The smallest streak at which anything happens; a very large number if every rung is off."""
        return self._lowest

    def action(self, streak: int) -> Action | None:
        """The strongest rung crossed at `streak`, or None."""
        if streak < self._lowest:
            return None
        for threshold, rung in self._strongest_first:
            if streak >= threshold:
                return rung
        return None

    def crossed(self, streak: int) -> tuple[Action, ...]:
        """Every rung crossed at `streak`, weakest first: effects add up."""
        if streak < self._lowest:
            return ()
        return tuple(rung for threshold, rung in reversed(self._strongest_first) if streak >= threshold)

    def merged(self, partial: LadderSettings) -> Ladder:
        """This ladder with the rungs named in `partial` written over it."""
        named = partial.named()
        if not named:
            return self
        return Ladder(
            **{
                rung.value: (named[rung.value] or None) if rung.value in named else self.threshold(rung)
                for rung in RUNGS
            }
        )


# Source: the table "Default ladders" in section 5 of the design. One line there is one line here, in its order;
# `detector.kind` is a row of its own for one kind of that detector's evidence.
# Rows the design has not: what other work or news lies between (`cycle.interleaved`, `cycle.gapped`,
# `repeated_failure.interleaved`), cycles of polls, arguments that are wrong in a new way each time, names that are not
# found, one message in new words, the same answer while a user speaks, rounds that bring nothing new, a check that goes
# on failing whatever is changed, plans without deeds, and searches that find the same. All of them
# but the last rung of polls only observe and steer, because they are no proof. Softer than what they stand in for are
# passing tests, states that nothing moves, and commands whose connection broke, which may be tried a third time.
# The table has no escalate column: escalation needs a model that only the user can name.
DEFAULT_LADDERS: Mapping[str, Ladder] = MappingProxyType(
    {
        "repeated_call": Ladder(observe=2, block=3, stop=6),
        "repeated_call.mutation": Ladder(observe=2, block=3, stop=4),
        "repeated_call.poll": Ladder(observe=6, steer=12, block=30),
        "repeated_call.retry": Ladder(observe=2, block=4, stop=6),
        "repeated_call.check": Ladder(observe=2, steer=3, block=6, stop=8),
        "repeated_call.status": Ladder(observe=3, steer=4, block=30),
        "repeated_call.picture": Ladder(observe=3, steer=5),
        "repeated_call.changing": Ladder(observe=6, steer=12),
        "cycle": Ladder(observe=2, steer=3, block=4, stop=6),
        "cycle.interleaved": Ladder(observe=3, steer=5),
        "cycle.gapped": Ladder(observe=2, steer=3),
        "cycle.figures": Ladder(observe=2, steer=3),
        "cycle.poll": Ladder(observe=6, steer=12, block=30),
        "repeated_failure": Ladder(observe=2, steer=3, block=5, stop=8),
        "repeated_failure.cross_tool": Ladder(observe=3, steer=5, stop=10),
        "repeated_failure.interleaved": Ladder(observe=3, steer=5),
        "repeated_failure.varied": Ladder(observe=2, steer=3),
        "repeated_failure.put_right": Ladder(observe=4, steer=12),
        "repeated_failure.not_found": Ladder(observe=3, steer=6),
        "stagnation.same_result": Ladder(observe=3, steer=5),
        "stagnation.near_identical": Ladder(observe=2, steer=3, block=4, stop=7),
        "stagnation.rephrased": Ladder(observe=2, steer=3),
        "stagnation.unmoved": Ladder(observe=5, steer=7),
        "stagnation.planning": Ladder(observe=3, steer=4),
        "stagnation.nothing_new": Ladder(observe=12, steer=20),
        "stagnation.pages": Ladder(observe=3, steer=6),
        "stagnation.undo": Ladder(observe=2, steer=3, block=4),
        "stagnation.rewrite": Ladder(observe=6, steer=8),
        "rephrased_search": Ladder(observe=1, steer=2),
        "rephrased_search.same_results": Ladder(observe=3, steer=5),
        "text_repetition": Ladder(steer=1, stop=2),
        "text_repetition.near": Ladder(steer=1),
        "text_repetition.passage": Ladder(observe=1),
        "repeated_message": Ladder(observe=2, steer=3, stop=5),
        "repeated_message.across_turns": Ladder(observe=2, steer=3),
        "repeated_message.reworded": Ladder(observe=3, steer=4),
        "repeated_message.with_calls": Ladder(observe=3, steer=5),
        "repeated_message.empty": Ladder(observe=2, steer=3, stop=5),
    }
)


FOLLOWING_ROWS: tuple[str, ...] = ("repeated_call.transient", "cycle.transient", "repeated_failure.transient")
"""Rows that are as their detector's until a policy names them, as preset `patient` does."""


def split_row(row: str) -> tuple[str, str | None]:
    """Detector and kind of a row of the table; a name that is no row is a detector's, dots and all."""
    if row not in DEFAULT_LADDERS and row not in FOLLOWING_ROWS:
        return row, None
    detector, _, kind = row.partition(".")
    return detector, kind or None


DETECTORS: tuple[str, ...] = tuple(dict.fromkeys(row.partition(".")[0] for row in DEFAULT_LADDERS))
"""The seven detectors of the design, in the order that decides ties."""
