from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loopguard_core._ladder import DEFAULT_LADDERS, DETECTORS, RUNGS, Ladder, LadderSettings, split_row
from loopguard_core._types import Action

thresholds = st.none() | st.integers(min_value=1, max_value=12)
ladders = st.builds(Ladder, thresholds, thresholds, thresholds, thresholds, thresholds)
rungs_written = st.dictionaries(st.sampled_from([rung.value for rung in RUNGS]), st.just(False) | st.integers(1, 12))


@pytest.mark.parametrize(
    ("streak", "action"),
    [
        (0, None),
        (1, None),
        (2, Action.OBSERVE),
        (3, Action.BLOCK),
        (5, Action.BLOCK),
        (6, Action.STOP),
        (9, Action.STOP),
    ],
)
def test_the_strongest_crossed_rung_is_the_action(streak: int, action: Action | None) -> None:
    assert Ladder(observe=2, block=3, stop=6).action(streak) is action


def test_a_stronger_rung_wins_also_where_its_threshold_is_lower() -> None:
    assert Ladder(observe=5, stop=2).action(5) is Action.STOP
    assert Ladder(observe=5, stop=2).crossed(5) == (Action.OBSERVE, Action.STOP)


def test_a_ladder_without_rungs_never_acts() -> None:
    assert Ladder().action(10**9) is None
    assert Ladder().crossed(10**9) == ()


@given(ladder=ladders, streak=st.integers(0, 15))
def test_action_is_the_last_of_crossed_and_crossed_is_every_threshold_reached(ladder: Ladder, streak: int) -> None:
    reached = tuple(rung for rung in RUNGS if (threshold := ladder.threshold(rung)) is not None and threshold <= streak)
    assert ladder.crossed(streak) == reached
    assert ladder.action(streak) is (reached[-1] if reached else None)


@given(ladder=ladders, streak=st.integers(0, 15))
def test_a_longer_streak_never_gets_a_weaker_action(ladder: Ladder, streak: int) -> None:
    assert set(ladder.crossed(streak)) <= set(ladder.crossed(streak + 1))


@given(ladder=ladders, written=rungs_written)
def test_merging_changes_the_named_rungs_and_no_other(ladder: Ladder, written: dict[str, Any]) -> None:
    merged = ladder.merged(LadderSettings(**written))
    for rung in RUNGS:
        expected = (written[rung] or None) if rung in written else ladder.threshold(rung)
        assert merged.threshold(rung) == expected


@given(first=rungs_written, second=rungs_written, ladder=ladders)
def test_merging_settings_first_is_the_same_as_merging_one_after_the_other(
    first: dict[str, Any], second: dict[str, Any], ladder: Ladder
) -> None:
    one, two = LadderSettings(**first), LadderSettings(**second)
    assert ladder.merged(one.merged(two)) == ladder.merged(one).merged(two)


def test_false_is_off_and_not_named_keeps_the_default() -> None:
    ladder = DEFAULT_LADDERS["repeated_call"].merged(LadderSettings(block=False))
    assert ladder == Ladder(observe=2, block=None, stop=6)


@pytest.mark.parametrize("value", [True, 0, -1, 1.0, 2.5, "3", "false", None, [3]])
def test_a_rung_is_a_whole_number_above_zero_or_false(value: Any) -> None:
    with pytest.raises(ValidationError, match="1 or more, or false to switch it off"):
        LadderSettings(block=value)


def test_a_rung_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValidationError, match="blok"):
        LadderSettings.model_validate({"blok": 3})


@given(written=rungs_written)
def test_a_dump_holds_what_is_named_and_reads_back(written: dict[str, Any]) -> None:
    settings = LadderSettings(**written)
    assert settings.model_dump() == written
    assert LadderSettings.model_validate_json(settings.model_dump_json()) == settings


def test_ladders_are_values() -> None:
    ladder = Ladder(observe=2, stop=6)
    assert ladder == Ladder(2, None, None, None, 6)
    assert hash(ladder) == hash(Ladder(2, None, None, None, 6))
    assert pickle.loads(pickle.dumps(ladder)) == copy.deepcopy(ladder) == ladder
    assert pickle.loads(pickle.dumps(ladder)).action(6) is Action.STOP


def test_the_table_of_the_design_is_the_default() -> None:
    def row(*cells: int | str) -> Ladder:
        observe, steer, block, stop = (None if cell == "-" else int(cell) for cell in cells)
        return Ladder(observe=observe, steer=steer, block=block, stop=stop)

    table = {
        "repeated_call": row(2, "-", 3, 6),
        "repeated_call.mutation": row(2, "-", 3, 4),
        "repeated_call.poll": row(6, 12, 30, "-"),
        "repeated_call.changing": row(6, 12, "-", "-"),
        "cycle": row(2, 3, 4, 6),
        "repeated_failure": row(2, 3, 5, 8),
        "repeated_failure.cross_tool": row(3, 5, "-", 10),
        "stagnation.same_result": row(3, 5, "-", "-"),
        "stagnation.near_identical": row(2, 3, 4, 7),
        "stagnation.pages": row(3, 6, "-", "-"),
        "stagnation.undo": row(2, 3, 4, "-"),
        "stagnation.rewrite": row(6, 8, "-", "-"),
        "rephrased_search": row(1, 2, "-", "-"),
        "text_repetition": row("-", 1, "-", 2),
        "text_repetition.near": row("-", 1, "-", "-"),
        "text_repetition.passage": row(1, "-", "-", "-"),
        "repeated_message": row(2, 3, "-", 5),
        "repeated_message.with_calls": row(3, 5, "-", "-"),
        "repeated_message.empty": row(2, 3, "-", 5),
    }
    assert table.items() <= DEFAULT_LADDERS.items()
    softer = {"cycle.poll", "repeated_call.check", "repeated_call.retry", "repeated_call.status"}
    for name in DEFAULT_LADDERS.keys() - table.keys() - softer:
        # Evidence of our own beside the table's is no proof: it never ends or refuses anything.
        assert (DEFAULT_LADDERS[name].block, DEFAULT_LADDERS[name].stop) == (None, None)


def test_detectors_stand_in_the_order_that_decides_ties() -> None:
    assert (
        *("repeated_call", "cycle", "repeated_failure", "stagnation"),
        *("rephrased_search", "text_repetition", "repeated_message"),
    ) == DETECTORS


def test_a_row_is_split_into_detector_and_kind_and_foreign_names_stay_whole() -> None:
    assert split_row("repeated_call.poll") == ("repeated_call", "poll")
    assert split_row("cycle") == ("cycle", None)
    assert split_row("acme.spiral") == ("acme.spiral", None)
