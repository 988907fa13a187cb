"""Detectors: one small state machine a file, all behind the protocol in `_protocol`."""

from loopguard_core.detectors._protocol import Detector, Finding, LadderLookup, ObservedCall
from loopguard_core.detectors.repeated_call import RepeatedCall

__all__ = ["Detector", "Finding", "LadderLookup", "ObservedCall", "RepeatedCall"]
