"""Fixtures for pytest, there as soon as loopguard is installed.

pytest imports this at every start, so it is a package of its own: inside the core it would bring all of that along,
before anything can measure what of it tests reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from loopguard_core.testing.recorder import Recorder


@pytest.fixture
def loopguard_recorder() -> Recorder:
    """A plugin that keeps every event: `LoopGuard(plugins=[loopguard_recorder])`."""
    from loopguard_core.testing.recorder import Recorder

    return Recorder()


@pytest.fixture
def assert_no_loop() -> Callable[..., None]:
    """`assert_no_loop(transcript, policy="default")`: the policy would have left the conversation alone."""
    from loopguard_core.testing.assertions import assert_no_loop

    return assert_no_loop
