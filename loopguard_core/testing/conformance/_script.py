"""One thing every adapter must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from loopguard_core._surface import Capability, Surface
from loopguard_core._types import Action
from loopguard_core.testing.conformance._driver import ToolBody
from loopguard_core.testing.conformance._record import Record
from loopguard_core.testing.personas import Persona

USUAL, STRONG = "scripted-1", "scripted-strong"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a check may ask about the surface it judges.

    Attributes:
        surface: What it declares.
        drains: Whether a stop lets the round that caused it run once more.
        features: What else the driver can show.
    """

    surface: Surface
    drains: bool
    features: frozenset[str]

    @property
    def blocks(self) -> bool:
        """Whether single calls can be refused."""
        return "block" in self.surface.capabilities

    @property
    def steers(self) -> bool:
        """Whether the model can be told something before its next call."""
        return "steer" in self.surface.capabilities

    @property
    def stops(self) -> bool:
        """Whether a run can be ended. Where it cannot, what would have ended it is still reported."""
        return "stop" in self.surface.capabilities

    def performs(self, action: str) -> str:
        """What this surface does where the ladder asks for `action`, without a stronger model."""
        return self.surface.perform(Action(action), escalation=False).value

    def loop_executions(self, block: int = 3, stop: int = 6) -> int:
        """How often an identical call really runs under a ladder, on a model that never listens."""
        if self.blocks:
            return min(block, stop) - 1
        return stop if self.drains else stop - 1


Check = Callable[[Record, Expected], None]


@dataclass(frozen=True, slots=True)
class Script:
    """One thing every adapter must do.

    Attributes:
        name: Short, for test ids.
        rule: What must hold, in one sentence.
        persona: The scripted model.
        check: Asserts that it held.
        tools: What each tool returns; called with its arguments and how often it ran before.
        policy: The policy, as a mapping.
        key: The policy's `[key]` without its store, which is a new SQLite file for each case; None for no key.
        key_spent: US dollars that others have spent on it before.
        store_down: Whether that store cannot be opened.
        turns: What the user says, one a turn.
        then: What the user says after that, on surfaces that keep a history.
        needs: Capabilities without which the script makes no sense.
        features: Driver features without which it makes no sense.
        plugins: Makes the plugins, given the record.
        on_stop: The adapter's argument.
        escalation: Whether there is a stronger model.
        nested: Tools that run an agent: name to the persona and tools of that agent.
        approval: Names of tools that a human must approve.
        threads: How many conversations run at once with one guard and one agent.
        max_tokens: The most tokens the model is asked to answer with.
        price: Dollars per million input and output tokens the scripted provider reports; None reports no cost.
        environment: Variables set while the guard is made.
        well_formed: Whether the history must be complete after the run, on surfaces that promise it.
    """

    name: str
    rule: str
    persona: Persona
    check: Check
    tools: Mapping[str, Callable[[Mapping[str, Any], int], Any]] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    key: Mapping[str, Any] | None = None
    key_spent: Decimal = Decimal(0)
    store_down: bool = False
    turns: Sequence[str] = ("go",)
    then: str | None = None
    needs: frozenset[Capability] = frozenset()
    features: frozenset[str] = frozenset()
    plugins: Callable[[Record], Sequence[object]] = lambda record: ()
    on_stop: Literal["end", "answer", "raise"] | None = None
    escalation: bool = False
    nested: Mapping[str, tuple[Persona, Mapping[str, Callable[[Mapping[str, Any], int], Any]]]] = field(
        default_factory=dict
    )
    approval: frozenset[str] = frozenset()
    threads: int = 1
    max_tokens: int | None = None
    price: tuple[Decimal, Decimal] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    well_formed: bool = True


__all__ = ["STRONG", "USUAL", "Check", "Expected", "Script", "ToolBody"]
