"""A loopguard plugin: appends one line of JSON to a file for each loop, and for each run that a loop ended.

The file is `acme-alerts.jsonl`, or what `ACME_ALERTS_FILE` names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from loopguard_core import Action, DoomLoopDetected, SessionEnd, hookimpl

__all__ = ["AcmeAlerts"]


class AcmeAlerts:
    """Named by the entry point; loopguard makes one instance for each guard whose policy lists the plugin.

    Args:
        path: The file; None takes it from the environment.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(os.environ.get("ACME_ALERTS_FILE", "acme-alerts.jsonl"))

    # A hook that raises is logged under the plugin's name and the run goes on: a full disk here stops no agent.
    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> None:
        """Alert on every loop that is acted on. Returning an `Action` instead would overrule the verdict."""
        if event.action is not Action.OBSERVE:
            self._append({"alert": "loop", "action": event.action, "tool": event.tool, "streak": event.streak}, event)

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        """Alert on runs that detection ended, not on those that met a limit or were done."""
        if event.verdict is not None:
            self._append({"alert": "run ended", "reason": event.reason, "model_calls": event.model_calls}, event)

    def _append(self, alert: dict[str, Any], event: DoomLoopDetected | SessionEnd) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**alert, "session": event.session_id, "agent": event.agent}) + "\n")
