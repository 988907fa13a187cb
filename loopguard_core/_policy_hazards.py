"""What a policy allows and nobody can want: rungs that never fire, settings that do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from loopguard_core._ladder import DETECTORS, RUNGS, Ladder, LadderSettings, split_row
from loopguard_core._policy_errors import dotted
from loopguard_core._policy_resolve import OFF
from loopguard_core._types import Action

if TYPE_CHECKING:
    from loopguard_core._policy import Policy


def find_hazards(policy: Policy) -> list[str]:
    """One line for each hazard, each beginning with the dotted key it is about.

    Args:
        policy: A valid policy.
    """
    return [*_without_effect(policy), *_money(policy), *_ladders(policy), *_tools(policy)]


def _without_effect(policy: Policy) -> Iterator[str]:
    if not any(policy.detector_enabled(name) for name in DETECTORS):
        yield "detectors: every detector this release has is switched off, so only limits are left"
    if policy.privacy.plain_fingerprints and policy.privacy.fingerprint_key is not None:
        yield "privacy.fingerprint_key: no effect, because privacy.plain_fingerprints is true"


def _money(policy: Policy) -> Iterator[str]:
    limits, key = policy.limits, policy.key
    if limits.reserve and limits.cost is None and limits.tokens is None:
        yield "limits.reserve: no effect without limits.cost or limits.tokens; keys reserve in any case"
    if limits.unpriced != "warn" and limits.cost is None and key is None:
        yield "limits.unpriced: no effect without limits.cost or [key], unless the code gives a session a key"
    if key is not None and key.limit is None and key.reset != "none":
        yield "key.reset: no effect without key.limit; set both here, or both with `loopguard key set`"


def _ladders(policy: Policy) -> Iterator[str]:
    escalates = False
    for label, named, ladder, default in _written_ladders(policy):
        escalates = escalates or ladder.escalate is not None
        yield from _ladder(label, named, ladder, default)
    if escalates and not policy.escalation.models:
        yield (
            "escalation.models: a ladder escalates, but no model is named here, so escalate does nothing unless the"
            " code gives one; name one for your SDK, or leave the rung out"
        )
    if escalates and policy.escalation.max == 0:
        yield "escalation.max: a ladder escalates, but 0 allows no escalated call"


def _written_ladders(policy: Policy) -> Iterator[tuple[str, LadderSettings, Ladder, Ladder]]:
    """Each ladder the policy may have a word about: where, what is written, what holds, what held without it."""
    for row, ladder in policy.ladders().items():
        # What goes for the detector is reported once, not again for each of its rows.
        if split_row(row)[1] is None or row in policy.detectors:
            named = policy.detectors[row].ladder if row in policy.detectors else LadderSettings()
            label = dotted(("detectors", row, "ladder"))
            if row == "repeated_call":
                label = label if named.named() else "ladder"
                named = policy.ladder.merged(named)
            yield label, named, ladder, policy.ladder_before(row)
    if policy.detector_enabled("repeated_call"):
        for name, ladder in policy.tool_ladders().items():
            named = policy.tools[name].ladder
            yield dotted(("tools", name, "ladder")), named, ladder, policy.ladder_for("repeated_call")


def _ladder(label: str, named: LadderSettings, ladder: Ladder, default: Ladder) -> Iterator[str]:
    if ladder == default:
        return
    if ladder == OFF:
        yield f"{label}: every rung is off, so this does nothing"
    for rung in RUNGS[:-1]:
        threshold = ladder.threshold(rung)
        # Steer and escalate act on the next model call, also beside a block, and a block stands beside them:
        # only the end of the run takes their place. Observing adds nothing to any stronger rung; that `block = 2`
        # takes the place of the default observe = 2 is meant, though.
        if rung is Action.OBSERVE and named.observe is None:
            continue
        for other in RUNGS[1:] if rung is Action.OBSERVE else RUNGS[-1:]:
            sooner = ladder.threshold(other)
            if threshold is not None and sooner is not None and sooner <= threshold:
                yield (
                    f"{label}: {rung} = {threshold} can never fire, because {other} = {sooner} comes no later;"
                    f" give {rung} a lower figure or switch it off with false"
                )
                break
    if ladder.block is not None and ladder.stop is None and (default.block is None or default.stop is not None):
        yield (
            f"{label}: block without stop: a model that ignores the refusal goes on until a limit ends the run;"
            " set stop, or cap [limits] turns"
        )


def _tools(policy: Policy) -> Iterator[str]:
    for name, settings in policy.tools.items():
        if settings.loop_key is False and (settings.ladder.named() or settings.normalize):
            what = "ladder" if settings.ladder.named() else "normalize"
            yield f"{dotted(('tools', name, what))}: no effect, because loop_key = false exempts the tool"
