"""The conformance suite for adapters: scripts written once, run through every surface of every SDK.

A *script* says what a scripted model asks for, what each tool returns, and what must then be true. A *driver* attaches
loopguard to an agent of one SDK and runs it; the model is a real client talking to a `ScriptedServer` on loopback. To
check an adapter of your own, write a driver and run every case:

```python
import pytest
from loopguard_core.testing.conformance import Case, cases

@pytest.mark.parametrize("case", cases(MyDriver()), ids=str)
def test_conformance(case: Case) -> None:
    case.run()
```

`cases` leaves out what the driver's surface declares it cannot do; `table` says what was left out and why.
"""

from __future__ import annotations

from loopguard_core.testing.conformance._cases import Case, cases, table
from loopguard_core.testing.conformance._driver import FEATURES, Agent, Conversation, Driver, ToolSpec, Turn
from loopguard_core.testing.conformance._record import Record, unanswered_calls
from loopguard_core.testing.conformance._script import Script
from loopguard_core.testing.conformance._scripts import SCRIPTS

__all__ = [
    "FEATURES",
    "SCRIPTS",
    "Agent",
    "Case",
    "Conversation",
    "Driver",
    "Record",
    "Script",
    "ToolSpec",
    "Turn",
    "cases",
    "table",
    "unanswered_calls",
]
