"""From what a policy says to what holds for one tool and one detector, fast enough to ask on every call."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from loopguard_core._ladder import DEFAULT_LADDERS, FOLLOWING_ROWS, RUNGS, Ladder, LadderSettings
from loopguard_core._policy_parts import DetectorSettings, ToolSettings
from loopguard_core._types import Action

K = TypeVar("K")
T = TypeVar("T")

OFF = Ladder()
"""Every rung off: the default of a detector this package does not know."""

# Names of tools come from the model: neither many of them nor long ones may fill the memory.
MAX_CACHED = 1024
MAX_CACHED_NAME = 256

_WILDCARDS = re.compile(r"[*?\[]")

_NOTHING = LadderSettings()


class Resolver:
    """Answers for one policy, remembered.

    Args:
        ladder: The policy's `ladder`: rungs of `repeated_call`.
        detectors: The policy's `[detectors]`.
        tools: The policy's `[tools]`, in the order they are written.
        retries: The policy's `text.retries`: after so many cuts the next one ends the run.
        preset: What its preset makes of rows of the table; everything the policy says is written over it.
    """

    def __init__(
        self,
        ladder: LadderSettings,
        detectors: Mapping[str, DetectorSettings],
        tools: Mapping[str, ToolSettings],
        *,
        retries: int = 1,
        preset: Mapping[str, LadderSettings] = MappingProxyType({}),
    ) -> None:
        self._ladder = ladder
        self._detectors = detectors
        self._exact = tools
        self._retries = retries
        self._preset = preset
        # Shorter patterns first, so that longer ones are written over them; among equals the later one wins.
        self._patterns = [
            (re.compile(fnmatch.translate(pattern)).match, tools[pattern])
            for pattern in sorted(tools, key=len)
            if _WILDCARDS.search(pattern)
        ]
        self._tools: dict[str, ToolSettings] = {}
        self._ladders: dict[tuple[str, str | None, str | None], Ladder] = {}

    def tool(self, name: str) -> ToolSettings:
        """See `Policy.tool`."""
        return self._tools.get(name) or _remember(self._tools, name, name, lambda: self._tool(name))

    def ladder(self, detector: str, tool: str | None, kind: str | None, default: Ladder = OFF) -> Ladder:
        """See `Policy.ladder_for`."""
        key = (detector, tool, kind)
        return self._ladders.get(key) or _remember(
            self._ladders, key, tool or "", lambda: self._resolved(detector, tool, kind, default)
        )

    def _tool(self, name: str) -> ToolSettings:
        settings = ToolSettings()
        for matches, pattern_settings in self._patterns:
            if matches(name):
                settings = settings.merged(pattern_settings)
        exact = self._exact.get(name)
        return settings.merged(exact) if exact is not None else settings

    def base(self, row: str, default: Ladder = OFF) -> Ladder:
        """A row, or a detector without rows, before the policy's own tables have a word."""
        ladder = DEFAULT_LADDERS.get(row, default)
        if row == "text_repetition":
            ladder = ladder.merged(LadderSettings(stop=self._retries + 1))
        return ladder.merged(self._preset.get(row, _NOTHING))

    def _resolved(self, detector: str, tool: str | None, kind: str | None, default: Ladder) -> Ladder:
        row = f"{detector}.{kind}" if kind else detector
        general = self._settings(detector).ladder
        if detector == "repeated_call":
            general = self._ladder.merged(general)
        has_own = row != detector and row in DEFAULT_LADDERS
        own = self._settings(row) if has_own or row in FOLLOWING_ROWS else DetectorSettings()
        if not own.enabled and row != detector:
            return OFF
        base = self.base(row if has_own else detector, default)
        if has_own:
            ladder = base.merged(_for_row(row, base, general)).merged(own.ladder)
        else:
            ladder = base.merged(general)
            if row in FOLLOWING_ROWS:
                preset = self._preset.get(row, _NOTHING)
                ladder = ladder.merged(preset).merged(_switched_off(general)).merged(own.ladder)
        return ladder if tool is None else ladder.merged(_for_proof(row, base, self.tool(tool).ladder))

    def _settings(self, detector: str) -> DetectorSettings:
        return self._detectors.get(detector) or DetectorSettings()


def _for_row(row: str, default: Ladder, general: LadderSettings) -> LadderSettings:
    """What a detector's own ladder means for one of its rows.

    `block = 3` is written with ordinary repeats in mind. Taken over by the row of polls, which may ask 30 times,
    it would end healthy runs. So a row keeps its figures, and only `false` goes for every row. Two exceptions:
    mutations are never judged later than ordinary calls, and where the detector has nothing but rows, its figures
    move the rungs that are on.
    """
    named: dict[str, int | bool] = {}
    for rung in RUNGS:
        value = general.named().get(rung.value)
        before = default.threshold(rung)
        if value is None:
            continue
        if value is False:
            named[rung.value] = False
        elif row == "repeated_call.mutation":
            named[rung.value] = value if before is None else min(before, value)
        elif row.partition(".")[0] not in DEFAULT_LADDERS and before is not None:
            named[rung.value] = value
    return LadderSettings.model_validate(named)


def _for_proof(row: str, default: Ladder, written: LadderSettings) -> LadderSettings:
    """What a tool's ladder means for one row.

    Whoever writes `block = 3` for a tool thinks of calls that repeat and bring nothing. Evidence that is no proof, such
    as thirty names looked up one by one with the same answer, must not block or stop a healthy run by it: so a rung of
    force is taken only by rows that have such force themselves. A row that refuses may be told to end the run, as polls
    may; one that only ends the run refuses nothing, because that call alone is not what it is about.
    """
    if row == "repeated_call.changing":  # a call whose result is new every time is no repeat at all
        return _switched_off(written)
    if default.block is not None:
        return written
    taken = (Action.OBSERVE, Action.STEER) if default.stop is None else tuple(r for r in RUNGS if r != Action.BLOCK)
    return LadderSettings(**{rung: value for rung, value in written.named().items() if value is False or rung in taken})


def _switched_off(ladder: LadderSettings) -> LadderSettings:
    return LadderSettings.model_validate({rung: value for rung, value in ladder.named().items() if value is False})


def _remember(cache: dict[K, T], key: K, name: str, make: Callable[[], T]) -> T:
    value = make()
    if len(name) <= MAX_CACHED_NAME:
        if len(cache) >= MAX_CACHED:
            # Simple, and right for any order of names; a real agent has far fewer tools than this.
            cache.clear()
        cache[key] = value
    return value
