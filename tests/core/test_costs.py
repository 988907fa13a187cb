"""What hostile and large texts cost a round. Bounds a busy machine keeps, and what has no bound breaks by far."""

from __future__ import annotations

import random
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


def log(kilobytes: int, end: str = "", middle: str = "") -> str:
    """Lines of a log, one of them in the middle and one at the end."""
    lines = [f"worker-{n % 4} request done status 200 bytes {n % 7}00 #{n % 3}" for n in range(kilobytes * 20)]
    return "\n".join(["GET /api/health", *lines[: len(lines) // 2], middle, *lines[len(lines) // 2 :], end])


@pytest.mark.parametrize("place", ["end", "middle"])
@pytest.mark.parametrize("same", [True, False], ids=["same call", "other call"])
def test_large_results_that_differ_in_one_line(place: str, same: bool) -> None:
    texts = [log(100, **{place: f"queue {1000 + number} items"}) for number in range(ROUNDS)]
    assert spent(texts.__getitem__, "read_file", lambda number: {} if same else {"path": number}) < 20


def test_large_results_that_hold_the_same_characters_nearly() -> None:
    texts = [log(128, end=f"queue {1000 + number:06d} items") for number in range(ROUNDS)]
    assert spent(texts.__getitem__, "read_file", lambda number: {"path": number}) < 20


@pytest.mark.parametrize(
    ("now", "then", "streak"),
    [
        ({"middle": "request_id=a1b2c3d4e5"}, {"middle": "request_id=f5e4d3c2b1a0"}, 3),
        ({"end": "finished at 10:00:01"}, {"end": "finished at 10:02:33"}, 3),
        ({"middle": "8 failed"}, {"middle": "9 failed"}, 1),
        ({"end": "8 failed"}, {"end": "19 failed"}, 1),
        ({"middle": "8 failed", "end": "at 10:00:01"}, {"middle": "9 failed", "end": "at 10:02:33"}, 1),
        ({"middle": "took 5 ms", "end": "took 5 ms"}, {"middle": "took 1234 ms", "end": "took 77 ms"}, 3),
    ],
)
@pytest.mark.parametrize("noise", [False, True], ids=["held", "let go"])
def test_a_large_result_is_judged_as_a_small_one_is(now: Any, then: Any, streak: int, noise: bool) -> None:
    tail = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz ", k=40_000)) if noise else ""
    session = LoopGuard().session()
    for number in range(5):
        decision = session.begin_round([ToolCall("1", "read_file", {"path": "a"})])[0]
        session.record_result("1", f"{tail}\n{log(40, **(now if number % 2 else then))}\n{tail}")
    assert min(decision.streak, 3) == streak
