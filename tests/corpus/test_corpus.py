"""The labelled conversations that ship with the project: what is caught, and what is left alone, stays so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopguard_core.cli import main

CORPUS = Path(__file__).parents[2] / "corpus"
KNOWN = {"ok-08-text-adventure-long", "quote-watched-until-limit"}
"""A third match struck in a game after two that broke, a price that stands still for three looks: a third equal result
is what the default ladder refuses."""


@pytest.mark.parametrize(
    ("folder", "loops", "nagged"),
    [
        *(("reports", 49, 0), ("domains", 55, 3), ("apart", 34, 4)),
        *(
            ("third", 22, 5),
            ("retold", 89, 0),
            ("restyled", 48, 1),
            ("twins", 31, 2),
            ("products", 37, 1),
            ("blind", 36, 1),
        ),
    ],
)
def test_loops_are_caught_and_healthy_runs_left_alone(
    capsys: pytest.CaptureFixture[str], folder: str, loops: int, nagged: int
) -> None:
    main(["score", "--format", "json", "--list", str(CORPUS / folder)])
    found = json.loads(capsys.readouterr().out)
    refused = {case["id"] for case in found["cases"] if not case["loop"] and not case["passed"] and not case["excused"]}
    assert refused <= KNOWN
    assert found["total"]["caught"] >= loops
    assert found["total"]["nagged"] <= nagged
