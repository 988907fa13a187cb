"""The runs of `loopguard demo`: one agent, one broken tool, with and without detection."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopguard_core import Policy
from loopguard_core.testing import Persona, gives_up_when_refused, never_listens
from loopguard_langchain._billing_agent import ARGUMENTS, GIVES_UP, TOOL, TURNS, unguarded


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to run the agent.

    Attributes:
        name: Short, for the table and the curve.
        title: What happens in it, for its heading.
        detection: False leaves only the cap.
        persona: How the scripted model behaves; a real endpoint has no need of it.
    """

    name: str
    title: str
    detection: bool
    persona: Persona

    def policy(self) -> Policy:
        """What guards it."""
        return Policy(limits={"turns": TURNS}) if self.detection else unguarded()


SCENARIOS = (
    Scenario(
        "unguarded",
        f"Unguarded: detection is off, a cap ends the run after {TURNS} rounds",
        detection=False,
        persona=never_listens(TOOL, ARGUMENTS),
    ),
    Scenario(
        "guarded, never listens",
        "Guarded, with a model that never listens",
        detection=True,
        persona=never_listens(TOOL, ARGUMENTS),
    ),
    Scenario(
        "guarded, gives up",
        "Guarded, with a model that gives up when its call is refused",
        detection=True,
        persona=gives_up_when_refused(TOOL, ARGUMENTS, GIVES_UP),
    ),
)


REAL_SCENARIOS = (SCENARIOS[0], replace(SCENARIOS[1], name="guarded", title="Guarded"))
"""The runs with a model that behaves as it likes."""
