"""Errors. Only `LoopGuardStop` is ever raised inside a running agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loopguard_core._types import EndReason, Stop, Verdict


class LoopGuardError(Exception):
    """Base of the errors raised while something is being set up."""


class PolicyError(LoopGuardError, ValueError):
    """A policy that cannot be used. The text names file, key, value and fix."""


class PluginError(LoopGuardError, ValueError):
    """A plugin that cannot be registered. The text names plugin, hook and fix."""


class LoopGuardStop(Exception):  # noqa: N818  # the public name; a stop is no error
    """loopguard ended the run. Each adapter's own exception inherits this and its SDK's base.

    Attributes:
        stop: Why the run was ended.
    """

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop

    def __reduce__(self) -> tuple[Callable[..., LoopGuardStop], tuple[Stop], dict[str, Any]]:
        return type(self), (self.stop,), self.__dict__

    @property
    def reason(self) -> EndReason:
        """The reason `SessionEnd` carries."""
        return self.stop.reason

    @property
    def verdict(self) -> Verdict | None:
        """The detection that ended the run; None where a limit did."""
        return self.stop.verdict
