"""The detectors of this package, in the order that breaks ties, and how each is made for a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopguard_core._history import History
from loopguard_core._policy import Policy
from loopguard_core.detectors import Detector, RepeatedCall
from loopguard_core.detectors._retries import Retries
from loopguard_core.detectors.cycle import Cycle
from loopguard_core.detectors.repeated_failure import RepeatedFailure
from loopguard_core.detectors.repeated_message import RepeatedMessage
from loopguard_core.detectors.rephrased_search import RephrasedSearch
from loopguard_core.detectors.stagnation import Stagnation
from loopguard_core.detectors.text_repetition import TextRepetition

Make = Callable[[Policy, History, Retries], Detector]


def _repeated_call(policy: Policy, history: History, _: Retries) -> Detector:
    return RepeatedCall(policy.lowest_rung(RepeatedCall.name), history if policy.outcomes == "aware" else None)


def _rephrased_search(policy: Policy, history: History, retries: Retries) -> Detector:
    return RephrasedSearch(history, retries if policy.preset == "dsh" else None)


def _text_repetition(policy: Policy, _: History, retries: Retries) -> Detector:
    make = TextRepetition.dsh if policy.preset == "dsh" else TextRepetition
    return make(policy.text.min_chars, policy.text.channels, retries=retries if policy.preset == "dsh" else None)


BUILT_IN: Mapping[str, Make] = {
    "repeated_call": _repeated_call,
    "cycle": lambda _policy, history, _retries: Cycle(history),
    "repeated_failure": lambda _policy, history, _retries: RepeatedFailure(history),
    "stagnation": lambda _policy, history, _retries: Stagnation(history),
    "rephrased_search": _rephrased_search,
    "text_repetition": _text_repetition,
    "repeated_message": lambda _policy, history, _retries: RepeatedMessage(history),
}
"""By name. The retries are one session's; in preset `dsh` two detectors share them."""
