"""What hostile and large texts cost a round. Bounds a busy machine keeps, and what has no bound breaks by far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from loopguard_core import LoopGuard, ToolCall

ROUNDS = 12


def spent(
    result: Callable[[int], Any], tool: str = "read_file", arguments: Callable[[int], Any] = lambda _: {}
) -> float:
    """Milliseconds of this process a round, of a few rounds of one call; the better of two: the machine is shared."""
    times = []
    for _ in range(2):
        session = LoopGuard().session()
        began = time.process_time()
        for number in range(ROUNDS):
            session.begin_round([ToolCall("1", tool, arguments(number))])
            session.record_result("1", result(number))
        times.append((time.process_time() - began) / ROUNDS * 1e3)
    return min(times)


@pytest.mark.parametrize("unit", ["1", "1,", "1.", "$1", "tokens ", "tokens a ", "credits: ", "1 "])
def test_a_number_that_fell_in_a_text_of_numbers(unit: str) -> None:
    assert spent(lambda number: f"{20 - number} " + unit * (2040 // len(unit))) < 15
