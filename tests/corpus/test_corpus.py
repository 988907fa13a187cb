"""The labelled conversations that ship with the project: what is caught, and what is left alone, stays so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopguard_core.cli import main

CORPUS = Path(__file__).parents[2] / "corpus"
REFUSED_ON_REQUEST = {"h37_flake_rate_on_request"}
"""A user asked for ten equal runs: nothing in the calls shows it."""


@pytest.mark.parametrize(
    ("folder", "loops", "nagged"),
    [("reports", 49, 0), ("domains", 52, 4), ("apart", 28, 3)],
)
def test_loops_are_caught_and_healthy_runs_left_alone(
    capsys: pytest.CaptureFixture[str], folder: str, loops: int, nagged: int
) -> None:
    main(["score", "--format", "json", "--list", str(CORPUS / folder)])
    found = json.loads(capsys.readouterr().out)
    refused = {case["id"] for case in found["cases"] if not case["loop"] and not case["passed"] and not case["excused"]}
    assert refused <= REFUSED_ON_REQUEST
    assert found["total"]["caught"] >= loops
    assert found["total"]["nagged"] <= nagged
