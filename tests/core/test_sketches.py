"""What is kept of texts that are gone: hashes to compare the next ones by, never closer than they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core._outcome import Result
from loopguard_core._sketch import (
    ANY,
    Look,
    another_page,
    fell,
    lines_in,
    numbers_in,
    restored_hashes,
    saved_lines,
    saved_numbers,
)

few = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def page(number: int, lines: int = 12) -> str:
    """One of 26 pages that have no line in common."""
    return "\n".join(
        f"{chr(97 + number % 26)}{chr(97 + line // 26)}{chr(97 + line % 26)} entry {number}, a long one"
        for line in range(lines)
    )


# -- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        ("14 parts left", "13 parts left", 1),
        ("at 3, 14 left", "at 3, 13 left", 2),
        ("14 left", "14 left", 0),
        ("14 left", "15 left", 0),
        ("140 left", "119 left", 0),
        ("140 left", "120 left", 1),
        ("credits: 14, 5 jobs", "credits: 13, 5 jobs", 0),
        ("$14 and 9", "$13 and 8", 1),
        ("no number", "none", 0),
    ],
)
def test_which_numbers_fell_is_told_by_their_hashes_too(before: str, after: str, places: int) -> None:
    earlier, later = numbers_in(before), numbers_in(after)
    assert fell(later, earlier) == places
    saved = saved_numbers(earlier)
    assert fell(later, restored_hashes(saved)) == places


def test_what_is_not_known_may_have_fallen() -> None:
    assert fell((1,), None) == fell(None, (1,)) == fell("abc", (1,)) == ANY


@few
@given(st.lists(st.integers(0, 999_999), max_size=16), st.lists(st.integers(0, 999_999), max_size=16))
def test_no_number_that_fell_is_missed_by_its_hash(before: list[int], after: list[int]) -> None:
    exact = fell(tuple(after), tuple(before))
    assert fell(tuple(after), saved_numbers(tuple(before))) & exact == exact


# -- lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [12, 60])
def test_another_page_is_told_by_hashes_of_lines_too(lines: int) -> None:
    one, other = lines_in(page(1, lines)), lines_in(page(2, lines))
    for before, after, another in ((one, other, True), (one, one, False), (one, lines_in(page(27, lines)), False)):
        assert another_page(after, before) is another
        assert another_page(after, restored_hashes(saved_lines(before))) is another


def test_a_short_text_is_no_page() -> None:
    short, long = lines_in("a\nb\nc\nd"), lines_in(page(1))
    assert not another_page(short, long)
    assert not another_page(long, short)
    assert not another_page(long, restored_hashes(saved_lines(short)))


def test_what_is_not_known_may_be_another_page() -> None:
    assert another_page(None, lines_in(page(1)))
    assert another_page(lines_in(page(1)), None)


# -- looks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "A line\nand more", "x" * 50_000, "\ud800 odd"])
def test_a_look_is_small_and_goes_on(text: str) -> None:
    look = Look.of(text)
    assert Look.restored(look.save()) == look
    assert len(look.save()) <= 64


@pytest.mark.parametrize("state", [5, None, "", "a.b", "." * 7, "x" * 65])
def test_what_is_no_look_is_not_taken_up(state: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        Look.restored(state)


@pytest.mark.parametrize(
    "sketch", [5, [], [1, 2, 3, 4], ["ab", None, None, None], ["xyz", None, None, None], [None] * 5]
)
def test_a_damaged_sketch_is_not_taken_up(sketch: Any) -> None:
    state = Result("a text of some length", False, None).save()
    with pytest.raises(ValueError, match=r"."):
        Result.restored([*state, sketch])


def test_a_state_of_an_earlier_version_has_no_sketch() -> None:
    state = Result("a text of some length", False, None).save()
    assert len(state) == 6
    assert Result.restored(state).look is None
