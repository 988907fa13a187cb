"""All scripts, in the order they are run."""

from __future__ import annotations

from loopguard_core.testing.conformance._script import Script
from loopguard_core.testing.conformance._scripts_control import CONTROL
from loopguard_core.testing.conformance._scripts_evidence import EVIDENCE
from loopguard_core.testing.conformance._scripts_loops import LOOPS
from loopguard_core.testing.conformance._scripts_money import MONEY
from loopguard_core.testing.conformance._scripts_outcomes import OUTCOMES
from loopguard_core.testing.conformance._scripts_rungs import RUNGS
from loopguard_core.testing.conformance._scripts_text import TEXT

SCRIPTS: tuple[Script, ...] = (*LOOPS, *EVIDENCE, *OUTCOMES, *TEXT, *RUNGS, *MONEY, *CONTROL)
