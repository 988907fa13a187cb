"""`loopguard replay --html`: the page is written beside what is printed, and what goes wrong is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from looping_recordings import loop, saved

from loopguard_core.cli import main


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "run.json", loop(7))


def test_the_page_is_written_and_the_rest_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--format", "json", "run.json"]) == 0
    plain = capsys.readouterr().out
    assert main(["replay", "--format", "json", "--html", "report.html", "run.json"]) == 0
    captured = capsys.readouterr()
    assert captured.out == plain
    assert captured.err == ""
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert "INV-2291" not in html
    assert "the policy found here" in html


def test_arguments_are_shown_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--preset", "strict", "--html", "report.html", "--show-arguments", "run.json"]) == 0
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "INV-2291" in html
    assert "hunter2" not in html
    assert "preset strict" in html


def test_a_file_that_cannot_be_read_is_named_and_the_page_is_about_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--html", "report.html", "run.json", "missing.json"]) == 2
    assert "missing.json: cannot be read" in capsys.readouterr().err
    assert "1 conversation, 1 with a verdict" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["nowhere/report.html", ".git", "x\0y"])
def test_a_page_that_cannot_be_written_is_an_error(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--format", "json", "--html", place, "run.json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ended"] == "doom_loop"
    assert "the report cannot be written" in captured.err


def test_arguments_without_a_page_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--show-arguments", "run.json"]) == 2
    assert "add --html FILE" in capsys.readouterr().err
