"""The command behind the figures in `docs/text.md` runs, and finds what is there."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "text_files.py"


def test_ordinary_files_are_left_alone_and_loops_cut_from_them_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.py").write_text(SCRIPT.read_text(encoding="utf-8") + Path(__file__).read_text(encoding="utf-8"))
    (tmp_path / "two.txt").write_text("The same line again. " * 200)
    (tmp_path / "three.py").write_bytes(b"\xff" * 5_000)
    page = Path(__file__).parents[2] / "docs" / "text.md"
    (tmp_path / "four.md").write_text(page.read_text(encoding="utf-8"))
    monkeypatch.setattr(sys, "argv", ["text_files.py", str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr().out
    assert "3 files" in shown
    assert "nothing 2, observe 0, steer 0, cut 1" in shown
