"""All scripts, in the order they are run."""

from __future__ import annotations

from loopguard_core.testing.conformance._script import Script
from loopguard_core.testing.conformance._scripts_control import CONTROL
from loopguard_core.testing.conformance._scripts_loops import LOOPS

SCRIPTS: tuple[Script, ...] = (*LOOPS, *CONTROL)
