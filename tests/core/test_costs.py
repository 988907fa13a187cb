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


@pytest.mark.parametrize("unit", ["tool", "function", "x y ", "a/", "connect to ", "expected "])
def test_a_long_failure(unit: str) -> None:
    """Of a long one its ends tell what kind it is."""
    text = "Error: " + unit * (64_000 // len(unit))
    times = []
    for _ in range(3):
        session = LoopGuard().session()
        session.begin_round([ToolCall("1", "read_file", {})])
        began = time.process_time()
        session.record_result("1", text)
        times.append(time.process_time() - began)
    assert min(times) < 0.018


def test_what_varies_in_the_middle_of_a_long_failure_makes_it_no_other_kind() -> None:
    kinds = []
    for middle in ("permission denied", "429 too many requests"):
        session = LoopGuard().session()
        session.begin_round([ToolCall("1", "read_file", {})])
        session.record_result("1", f"Error: connection refused\n{'a line ' * 2000}{middle}{' of it' * 2000}")
        session.begin_round([ToolCall("2", "read_file", {"n": 1})])
        kinds.append(session.save()["history"]["known"][0][4][5][:2])
    assert kinds[0] == kinds[1]
    assert kinds[0][0] == "network"


@pytest.mark.parametrize("unit", ["<<a\n", "<<a", "<<-'a'\n", "`", "sh -c '", "echo "])
def test_a_hostile_command(unit: str) -> None:
    commands = [unit * (size // len(unit)) for size in (4096, 8192)]
    assert spent(lambda _: "x", "bash", lambda number: {"command": commands[number % 2], "n": number}) < 14
