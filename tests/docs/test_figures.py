"""Figures that pages repeat from the code are the code's."""

import re
from pathlib import Path

from loopguard_core._ladder import DEFAULT_LADDERS, RUNGS

PAGE = (Path(__file__).parents[2] / "docs" / "detectors.md").read_text(encoding="utf-8")


def rows():
    """Rows of the table of detectors: names, and for each rung what the table says of each name."""
    for line in re.findall(r"^\| `\w+[\w.]*`.*\|$", PAGE, flags=re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 2 + len(RUNGS) - 1:  # no model to escalate to is known by default
            names = re.findall(r"`([\w.]+)`", cells[0])
            detector = names[0].partition(".")[0]
            yield [name if not name.startswith(".") else detector + name for name in names], cells[2:]


def test_the_table_of_detectors_has_the_ladders_that_hold():
    shown = [rung for rung in RUNGS if rung.value != "escalate"]
    found = 0
    for names, cells in rows():
        for at, name in enumerate(names):
            for rung, cell in zip(shown, cells, strict=True):
                figures = [figure.strip() for figure in cell.split(",")]
                figure = figures[at] if len(figures) > 1 else figures[0]
                threshold = DEFAULT_LADDERS[name].threshold(rung)
                assert figure == ("-" if threshold is None else str(threshold)), f"{name}, {rung.value}"
            found += 1
    assert found >= 20
