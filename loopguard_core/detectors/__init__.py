"""Detectors: one small state machine a file, all behind the protocol in `_protocol`."""

from loopguard_core.detectors._protocol import Detector, Finding, ObservedCall
from loopguard_core.detectors.repeated_call import RepeatedCall

__all__ = ["Detector", "Finding", "ObservedCall", "RepeatedCall"]
