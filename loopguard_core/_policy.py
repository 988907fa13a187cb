"""The policy: everything loopguard is told, checked once and then only read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from loopguard_core._errors import PolicyError
from loopguard_core._ladder import DEFAULT_LADDERS, DETECTORS, RUNGS, Ladder, LadderSettings, split_row
from loopguard_core._policy_errors import policy_error, shown
from loopguard_core._policy_hazards import find_hazards
from loopguard_core._policy_parts import (
    DetectorName,
    DetectorSettings,
    EscalationSettings,
    Flag,
    KeySettings,
    Limits,
    OnStopSettings,
    PrivacySettings,
    Settings,
    Text,
    TextSettings,
    ToolSettings,
)
from loopguard_core._policy_resolve import OFF, Resolver
from loopguard_core._presets import PRESET_LADDERS, PRESETS, PresetName, check_preset, under
from loopguard_core._types import Action

__all__ = ["DetectorSettings", "Limits", "Policy", "ToolSettings"]


class Policy(Settings):
    """What loopguard looks for, what it does about it, and which caps hold.

    `Policy()` is the default. Tables may be given as mappings or as the models of this package:
    `Policy(preset="openrouter", limits={"turns": 40})`. Every value is checked, here and in files alike; treat the
    result as read-only. The keys are those of the policy file.

    Raises:
        PolicyError: A key is unknown or a value impossible. The text has one line for each problem, with the key,
            the value and the fix.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(title="loopguard policy")

    preset: Annotated[PresetName, BeforeValidator(check_preset)] = "default"
    """What everything not written here starts from."""
    enabled: Flag = True
    """False switches loopguard off: nothing is detected, no limit holds."""
    shadow: Flag = False
    """True reports every verdict with what it would have done, and does nothing."""
    outcomes: Literal["aware", "ignore"] = "aware"
    """`aware` counts a repeat only if its result did not change; `ignore` looks at arguments alone."""
    fingerprints: Literal["xxh3_128", "sha256"] = "xxh3_128"
    """Algorithm of the fingerprints that identify calls."""
    ladder: LadderSettings = LadderSettings()
    """Rungs of `repeated_call`; `[detectors.repeated_call]` beats them rung by rung."""
    plugins: tuple[Text, ...] = ()
    """Entry points to load. None by default."""
    detectors: dict[DetectorName, DetectorSettings] = Field(default_factory=dict)
    """Settings by detector; a row of its table by `detector.kind`, for example `repeated_call.poll`."""
    limits: Limits = Limits()
    """Hard caps on one session. None by default."""
    tools: dict[Text, ToolSettings] = Field(default_factory=dict)
    """Settings by tool name or pattern (`*`, `?`, `[...]`; case counts)."""
    text: TextSettings = TextSettings()
    """What of the streamed text is checked."""
    escalation: EscalationSettings = EscalationSettings()
    """The stronger model for the rung `escalate`."""
    on_stop: OnStopSettings = OnStopSettings()
    """How a run ends."""
    key: KeySettings | None = None
    """A spending limit on a key. None by default."""
    privacy: PrivacySettings = PrivacySettings()
    """What may leave the process."""

    def __init__(self, /, **written: Any) -> None:
        try:
            super().__init__(**written)
        except ValidationError as error:
            raise policy_error(error, model=type(self), source="Policy(...)") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML file; in a `pyproject.toml`, its table `[tool.loopguard]`.

        Raises:
            PolicyError: The file cannot be read, or what it says cannot be used.
        """
        from loopguard_core._policy_file import read_policy_file

        return cls.from_mapping(*read_policy_file(path))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], source: str = "policy mapping") -> Self:
        """Make a policy of what was parsed elsewhere.

        Args:
            mapping: Keys and tables as in the policy file.
            source: Where it came from; errors begin with it.

        Raises:
            PolicyError: A key is unknown or a value impossible.
        """
        if not isinstance(mapping, Mapping):
            raise PolicyError(f"{source}: a policy is a table of keys, not {type(mapping).__name__}")
        for key in mapping:
            if not isinstance(key, str):
                raise PolicyError(f"{source}: {shown(key)}: a key must be text")
        policy = cls.__new__(cls)
        try:
            BaseModel.__init__(policy, **mapping)
        except ValidationError as error:
            raise policy_error(error, model=cls, source=source) from None
        return policy

    @model_validator(mode="before")
    @classmethod
    def _lay_preset_under(cls, written: Any) -> Any:
        if isinstance(written, Mapping):
            preset = written.get("preset", "default")
            if isinstance(preset, str) and preset in PRESETS:  # any other is reported under its own key
                return under(PRESETS[preset], written)
        return written

    # The cache lies in a cached property and not in a private attribute: those take part in comparisons.
    @cached_property
    def _resolver(self) -> Resolver:
        preset = PRESET_LADDERS.get(self.preset, {})
        return Resolver(self.ladder, self.detectors, self.tools, retries=self.text.retries, preset=preset)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields replaced. As everywhere in pydantic, `update` is not checked."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("_resolver", None)  # it holds answers for the fields as they were
        return copy

    def tool(self, name: str) -> ToolSettings:
        """What holds for one tool: every pattern that matches, longer ones over shorter, its exact name over all.

        Settings are replaced one by one, ladders merged rung by rung. Answers are remembered, so this is cheap.
        """
        return self._resolver.tool(name)

    def ladder_for(
        self, detector: str, tool: str | None = None, kind: str | None = None, default: Ladder = OFF
    ) -> Ladder:
        """The ladder for one piece of evidence. Answers are remembered, so this is cheap.

        The row of `DEFAULT_LADDERS` as the preset has it, then the detector's ladder from the policy, then the row's
        own (`[detectors."repeated_call.poll"]`), then the tool's. Each names only the rungs it changes. A row for one
        kind keeps its figures when the detector's ladder changes, because they count something else; rungs
        switched off there are off for every row. A tool's ladder gives block and stop only to rows that have them by
        default, because the others are no proof (see `_policy_resolve`).

        Args:
            detector: Name of the detector.
            tool: Name of the tool the evidence is about; None for text and messages.
            kind: The row, for example `poll`. A kind without a row of its own uses the detector's.
            default: The ladder of a detector that is not in `DEFAULT_LADDERS`, because it comes from a plugin.
        """
        return self._resolver.ladder(detector, tool, kind, default)

    def detector_enabled(self, name: str) -> bool:
        """Whether the policy wants this detector. Says nothing about whether this release has it."""
        settings = self.detectors.get(name)
        return settings is None or settings.enabled

    def ladder_before(self, row: str) -> Ladder:
        """The ladder of a detector or row as the preset has it: before this policy's own ladders."""
        return self._resolver.base(row)

    def ladders(self) -> dict[str, Ladder]:
        """The ladder of each detector, and row, that this release or a plugin has and the policy leaves on."""
        rows = list(DEFAULT_LADDERS)
        named = dict.fromkeys((*PRESET_LADDERS.get(self.preset, ()), *self.detectors))
        rows += [name for name in named if name not in DETECTORS and name not in DEFAULT_LADDERS]
        split = {row: split_row(row) for row in rows}
        return {
            row: self.ladder_for(detector, None, kind)
            for row, (detector, kind) in split.items()
            if self.detector_enabled(detector)
        }

    def tool_ladders(self) -> dict[str, Ladder]:
        """The ladder of `repeated_call` for each tool, or pattern, whose settings name a rung."""
        named = (name for name, settings in self.tools.items() if settings.ladder.named())
        return {name: self.ladder_for("repeated_call", name) for name in named}

    def lowest_rung(self, detector: str) -> int:
        """The smallest streak at which anything happens, for any tool: below it a detector need not report."""
        named = [value for settings in self.tools.values() for value in settings.ladder.named().values()]
        return min([self.ladder_for(detector).lowest, *(value for value in named if value is not False)])

    def rungs_in_use(self) -> tuple[Action, ...]:
        """The rungs that are on in some ladder, weakest first. In shadow mode loopguard only observes."""
        if self.shadow:
            return (Action.OBSERVE,)
        ladders = [*self.ladders().values(), *self.tool_ladders().values()]
        return tuple(rung for rung in RUNGS if any(ladder.threshold(rung) is not None for ladder in ladders))

    def hazards(self) -> list[str]:
        """What is allowed and still hardly meant: rungs that never fire, settings without effect. One line each."""
        return find_hazards(self)
