"""What holds for any text: chunks do not matter, the state is bounded, counters fold the same in any blocks."""

from __future__ import annotations

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core import Finding
from loopguard_core.detectors._text_fold import CounterFold
from loopguard_core.detectors._text_lag import GRID, REACH, LagTracker
from loopguard_core.detectors._text_periodic import RAW_KEPT
from loopguard_core.detectors.text_repetition import TextRepetition

# Runs of pieces that repeat, drift and change script, with lone surrogates and combining marks among them.
PIECES = st.sampled_from(
    [
        *("a", "ab", "no. ", "0", "12 ", "\n", "    ", "```\n", "| x | y |\n", "-----", "x=1;"),
        *("Wait 7, I check it again. ", "The plan is to read the file first. "),
        *(
            "第3步，再检查。",
            "第一步，",
            "はい、",
            "\u0661\u0662",
            "e\u0301",
            "\U0001f469\u200d\U0001f680 ",
            "\ud83d",
            "\udc00",
        ),
    ]
)
RUNS = st.tuples(PIECES, st.integers(1, 400)).map(lambda run: (run[0] * run[1])[:3000])
TEXTS = st.lists(RUNS | st.text(max_size=80), min_size=1, max_size=8).map("".join)


def findings(text: str, places: list[int]) -> list[Finding]:
    """What is found with the text cut at these places."""
    detector = TextRepetition()
    found = []
    for start, stop in zip([0, *places], [*places, len(text)], strict=True):
        found.append(detector.feed_text(text[start:stop], "content"))
    while (last := detector.end_message(None)) is not None:
        found.append(last)
    return [finding for finding in found if finding is not None]


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.data())
def test_the_verdict_is_a_function_of_the_text(text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=40)))
    every = list(range(4, len(text), 4))
    one, other = findings(text, places), findings(text, every)
    assert one[:1] == other[:1]
    # Of several that are only left over at the end of a message, the strongest is given.
    assert [finding for finding in one if finding.abort] == [finding for finding in other if finding.abort]


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_the_first_verdict_needs_nothing_that_comes_later(text: str) -> None:
    found = findings(text, [])
    for finding in found:
        if finding.abort and finding.char is not None:
            assert findings(text[: finding.char], [])[-1:] == [finding]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["7", "42", "第", "一", "二", "步", " a", "b", "３", "0", "第十", "٣"]), max_size=300).map(
        "".join
    )
)
def test_counters_fold_the_same_wherever_the_blocks_end(text: str) -> None:
    fold = CounterFold()
    blocks = [text[at : at + 7] for at in range(0, len(text), 7)]
    if any(block.isdecimal() for block in blocks):  # kept as they are, on purpose
        return
    whole = re.sub(r"\d+|(?<=第)[零〇一二三四五六七八九十百千两兩]+", "0", text)
    folded = "".join(map(fold.fold, blocks))
    # A mark at the very end may still owe its numeral; nothing else may differ.
    assert folded == whole


@settings(max_examples=30, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=12), st.integers(0, 99))
def test_the_state_is_bounded(runs: list[str], seed: int) -> None:
    rng = random.Random(seed)
    detector = TextRepetition()
    for run in runs * 4:
        detector.feed_text(run + "".join(chr(rng.randint(32, 0x2FFF)) for _ in range(500)), "content")
        for text in detector._running.values():
            assert text.waiting == sum(map(len, text.pieces))
            assert len(text._tracker.text) <= REACH + 4096
            assert len(text._tracker._anchors) <= (REACH + 4096) // GRID + 8
            assert len(text._periodic._raw) <= RAW_KEPT + 2048


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab ", min_size=1, max_size=40), st.integers(1, 300))
def test_the_lag_is_a_multiple_of_the_period(unit: str, copies: int) -> None:
    tracker = LagTracker()
    text = (unit * copies)[: 64 * 40]
    for at in range(0, len(text) // 64 * 64, 64):
        tracker.append(text[at : at + 64])
        if tracker.lag:
            assert (
                tracker.text[-tracker.run :] == tracker.text[-tracker.run - tracker.lag : -tracker.lag][: tracker.run]
            )
    period = (unit + unit).find(unit, 1)
    if len(text) // 64 * 64 >= 192 + 2 * period:
        assert tracker.lag % period == 0
        assert tracker.lag > 0
