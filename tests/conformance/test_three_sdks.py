"""One `loopguard.toml`, three SDKs: the same scripts, and what happens is the same line by line."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

pytest.importorskip("langchain_openai")
pytest.importorskip("agents")
pytest.importorskip("llama_index.core")

from sdk_drivers import SDKS, streaming  # needs the SDKs

from loopguard_core.testing.conformance import SCRIPTS, Case, Script

POLICY = Path(__file__).parents[2] / "examples" / "one_policy" / "loopguard.toml"
DRIVERS = streaming()
SHARED = frozenset.intersection(*(driver.features for driver in DRIVERS.values()))


def _comparable(script: Script) -> bool:
    """Whether the file can take the place of the script's policy, and one conversation is all there is."""
    own = script.policy or script.key or script.environment or script.escalation
    waits = script.approval  # what a wait for a human is, each SDK sees in its own way
    clients = "model_errors" in script.features  # and what a client raises, each words in its own way
    return not own and not waits and not clients and script.threads == 1 and script.features <= SHARED


@pytest.mark.parametrize("script", filter(_comparable, SCRIPTS), ids=lambda script: script.name.replace(" ", "-"))
def test_the_same_file_does_the_same_in_every_sdk(script: Script) -> None:
    found = {sdk: Case(script, DRIVERS[sdk]).run(POLICY).lines() for sdk in SDKS}
    first, *others = SDKS
    for other in others:
        difference = list(difflib.unified_diff(found[first], found[other], first, other, lineterm="", n=0))
        assert not difference, "\n".join(difference)


def test_enough_is_compared() -> None:
    assert sum(map(_comparable, SCRIPTS)) >= 30
