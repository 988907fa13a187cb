"""Figures that pages repeat from the code are the code's."""

import re
from pathlib import Path

from loopguard_core import _history, _history_state
from loopguard_core._ladder import DEFAULT_LADDERS, RUNGS
from loopguard_core._types import Action
from loopguard_core.detectors import _observed, repeated_message

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "detectors.md").read_text(encoding="utf-8")
SAID = {"told": Action.STEER, "refused": Action.BLOCK, "ended": Action.STOP}
"""Words for rungs, in tables and sentences for people who have not met the ladder."""


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
    found = set()
    for names, cells in rows():
        for at, name in enumerate(names):
            for rung, cell in zip(shown, cells, strict=True):
                figures = [figure.strip() for figure in cell.split(",")]
                figure = figures[at] if len(figures) > 1 else figures[0]
                threshold = DEFAULT_LADDERS[name].threshold(rung)
                assert figure == ("-" if threshold is None else str(threshold)), f"{name}, {rung.value}"
            found.add(name)
    assert set(DEFAULT_LADDERS) <= found, f"not in the table: {set(DEFAULT_LADDERS) - found}"


def test_which_guard_says_the_ladders_that_hold():
    page = (DOCS / "which-guard.md").read_text(encoding="utf-8")
    found = 0
    for name, when in re.findall(r"^\| [^|]+ \| `([\w.]+)` \| ([^|]+) \|$", page, flags=re.MULTILINE):
        ladder = DEFAULT_LADDERS[name]
        for word, figure in re.findall(r"(told|refused|ended) (?:at|in) (?:the )?(\d+)", when):
            assert ladder.threshold(SAID[word]) == int(figure), f"{name}: {word} {figure}"
            found += 1
        for word in re.findall(r"never (refused|ended)", when):
            assert ladder.threshold(SAID[word]) is None, f"{name}: never {word}"
            found += 1
    assert found >= 20


def test_each_detector_s_section_says_the_ladder_that_holds():
    """The figures of its first paragraph; those of its other rows are in the examples below it."""
    sections = re.findall(r"^### `(\w+)`\n\n(.+?)\n\n", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == list(dict.fromkeys(row.partition(".")[0] for row in DEFAULT_LADDERS))
    words = {"observed": Action.OBSERVE, **SAID}
    for name, text in sections:
        for word, figure in re.findall(r"(observed|told|refused|ended) at (\d+)", text.lower().split(" several ")[0]):
            figures = {ladder.threshold(words[word]) for row, ladder in DEFAULT_LADDERS.items() if row.startswith(name)}
            assert int(figure) in figures, f"{name}: {word} at {figure}"


def test_privacy_says_how_much_is_held_in_memory():
    page = " ".join((DOCS / "privacy.md").read_text(encoding="utf-8").split())
    assert f"text of results, at most {_history.MAX_HELD // 1024} KB a session" in page
    assert f"the last calls of {_history_state.MAX_TOOLS} tools, at most {_observed._KEPT // 1024} KB each" in page
    assert f"the message that is being read at most {repeated_message.MAX_HELD // 1024} KB" in page


def test_no_page_says_that_nothing_but_hashes_is_kept():
    pages = [*DOCS.glob("*.md"), *DOCS.parent.glob("README*.md")]
    code = [*DOCS.parent.glob("loopguard_core/*.py"), *DOCS.parent.glob("adapters/*/*.py")]
    said = re.compile(
        r"only (?:a )?hash(?:es)?(?: of it)? (?:is|are) kept|keeps hashes|kept as hashes, and only|只保存哈希", re.I
    )
    allowed = "Of queries and results only hashes are kept"  # of those that searches are compared by
    for path in (*pages, *code):
        text = " ".join(path.read_text(encoding="utf-8").split()).replace(allowed, "")
        assert not said.search(text), path.name
