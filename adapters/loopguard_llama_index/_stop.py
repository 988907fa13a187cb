"""The exception that ends a LlamaIndex run, and the ways a run may be ended."""

from __future__ import annotations

from typing import Literal

from llama_index.core.workflow import WorkflowRuntimeError

from loopguard_core import LoopGuardStop as _CoreStop

OnStop = Literal["end", "answer", "raise"]
"""`end` with a closing message; `answer` once more, without tools; `raise` a `LoopGuardStop`."""


class LoopGuardStop(_CoreStop, WorkflowRuntimeError):  # noqa: N818  # the public name; a stop is no error
    """loopguard ended the run. `stop`, `reason` and `verdict` say why.

    It inherits what LlamaIndex raises at its own limit, so that code which handles that one handles this one. By the
    time it is raised, memory holds every call with its answer and a closing message.
    """


def checked(on_stop: OnStop | None, default: OnStop) -> OnStop:
    """The argument, or the policy's `on_stop.how`.

    Raises:
        ValueError: It is none of the three.
    """
    if on_stop not in (None, "end", "answer", "raise"):
        raise ValueError(f"on_stop must be 'end', 'answer' or 'raise', not {on_stop!r}")
    return on_stop or default
