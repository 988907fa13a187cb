"""`loopguard adapters`, and the table in the docs made from it."""

import pathlib

import pytest

from loopguard_core.cli import main

DOC = pathlib.Path(__file__).parents[2] / "docs" / "adapters.md"


def test_the_table_in_the_docs_is_what_the_surfaces_declare(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("langchain")
    pytest.importorskip("agents")
    assert main(["adapters", "--format", "markdown"]) == 0
    generated = capsys.readouterr().out
    assert "LoopGuardMiddleware" in generated
    assert generated in DOC.read_text(encoding="utf-8")


def test_the_command_prints_every_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters"]) == 0
    assert "langchain" in capsys.readouterr().out
