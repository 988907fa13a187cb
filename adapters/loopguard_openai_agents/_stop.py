"""The exception that ends a run of the Agents SDK, and the ways a run may be ended."""

from __future__ import annotations

from typing import Literal

from agents import AgentsException

from loopguard_core import LoopGuardStop as _CoreStop

OnStop = Literal["raise", "end", "answer"]
"""`raise` a `LoopGuardStop`; `end` with a closing message as the final output; `answer` once more, without tools."""


class LoopGuardStop(_CoreStop, AgentsException):
    """loopguard ended the run. `stop`, `reason` and `verdict` say why.

    The SDK fills `run_data` on every `AgentsException`: `run_data.new_items` is the history so far, each call answered.
    """


def checked(on_stop: OnStop | None, default: OnStop) -> OnStop:
    """The argument, or the policy's `on_stop.how`.

    Raises:
        ValueError: It is none of the three.
    """
    if on_stop not in (None, "raise", "end", "answer"):
        raise ValueError(f"on_stop must be 'raise', 'end' or 'answer', not {on_stop!r}")
    return on_stop or default
