"""Runs that are saved and resumed before every round are told what a run is told that goes on, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from scripted_rounds import Run, actions, first_at, only

Step = tuple[str, Any, Any]


def both(steps: list[Step], policy: Any = None) -> tuple[list[str | None], list[str | None]]:
    """What is done in a run, and in one that is resumed before every round."""
    live, resumed = Run(policy), Run(policy, resumed=True)
    return actions(live(*step) for step in steps), actions(resumed(*step) for step in steps)


def looks(figure: Callable[[int], str]) -> list[Step]:
    return [
        step
        for lap in range(14)
        for step in (("arm_home", {}, "at home"), ("plan_grasp", {}, "planned"), ("inspect_bin", {}, figure(lap)))
    ]


def test_what_is_left_goes_on_falling() -> None:
    live, resumed = both(looks(lambda lap: f"{14 - lap} parts left in the bin"), only("cycle"))
    assert live == resumed
    assert "steer" not in resumed


def test_what_only_wavers_is_told_at_the_same_round() -> None:
    figures = (91774, 55682, 62054, 64739, 14693, 54748, 31021, 80114, 70012, 12345, 23456, 34567, 45678, 56789)
    live, resumed = both(looks(lambda lap: f"frame {figures[lap]}"), only("cycle"))
    assert first_at(live)["steer"] == first_at(resumed)["steer"]


def page(number: int) -> str:
    words = random.Random(number)
    return "\n".join(
        " ".join(words.choice("alpha bravo delta echo golf hotel".split()) for _ in range(9)) for _ in range(8)
    )


def test_one_page_after_the_other_is_work() -> None:
    live, resumed = both([("read_output", {}, page(number)) for number in range(20)])
    assert live == resumed
    assert resumed[2:] == [None] * 18


def test_the_same_arguments_and_always_another_short_result() -> None:
    live, resumed = both([("take_look", {}, f"seen: {word}") for word in "abcdefghijklmnop"])
    assert live == resumed
    assert first_at(resumed)["steer"] == 12


def test_searches_that_find_something_new_are_work() -> None:
    def found(number: int) -> str:
        return "\n".join(f"https://example.test/{number}/{entry} page about it" for entry in range(4))

    names = ["berlin", "hamburg", "munich", "cologne", "bremen", "dresden"]
    queries = [{"query": f"population figures official statistics office city of {name}"} for name in names]
    live, resumed = both([("web_search", query, found(number)) for number, query in enumerate(queries)])
    assert live == resumed
    assert "steer" not in resumed


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("add_note", lambda n: {"title": "Totals", "text": f"x{'!' * n}"}, lambda _: "saved"),
        ("fetch_page", lambda n: {"cursor": n * 7919}, lambda n: f"Rows 1 to 20 of 400, request_id=a1b2c3d4e{n}"),
        (
            "list_files",
            lambda n: {"folder": f"d{n * n}"},
            lambda n: "\n".join("alpha.txt bravo.txt gamma.txt delta.txt".split()),
        ),
        (
            "lookup",
            lambda n: {"name": ("Anna Meyer", "anna meyer", "Meyer, Anna", "ANNA MEYER")[n % 4]},
            lambda _: "none",
        ),
    ],
    ids=["marks", "ids", "same", "spelling"],
)
def test_what_hashes_can_tell_is_told_alike(tool: str, arguments: Any, result: Any) -> None:
    live, resumed = both([(tool, arguments(number), result(number)) for number in range(9)])
    assert live == resumed
    assert {"observe", "steer"} & set(live)


def test_of_arguments_that_are_gone_only_equal_ones_are_told() -> None:
    """Their words are not saved, in no form: a message in new words is told live, and not to a run that is resumed."""
    texts = [
        "Dear Ann, your order 5 was delayed by the storm and will arrive on Friday.",
        "Hello Ann, order 5 was delayed by the storm; it will arrive on Friday!",
        "Hi Ann, unfortunately the storm delayed your order 5, it will arrive on Friday.",
    ]
    live, resumed = both([("send_email", {"to": "ann@x.test", "body": text}, "sent") for text in texts])
    assert "steer" in live
    assert set(resumed) == {None}
