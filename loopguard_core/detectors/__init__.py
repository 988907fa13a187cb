"""Detectors: one small state machine a file, all behind the protocol in `_protocol`."""

from loopguard_core.detectors._observed import ObservedCall, Past
from loopguard_core.detectors._protocol import Detector, Finding
from loopguard_core.detectors.repeated_call import RepeatedCall

__all__ = ["Detector", "Finding", "ObservedCall", "Past", "RepeatedCall"]
