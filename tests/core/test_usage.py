"""`Usage` takes whatever a provider says; what is no amount and no count is unknown."""

from decimal import Decimal
from typing import Any

import pytest

from loopguard_core import LoopGuard, ToolCall, Usage


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no text of mine")


TEXTS = ["n/a", "free", "", "-0.01", "1e999999"]
NUMBERS = [-1, 10**16, 10**5000, float("nan"), float("-inf"), Decimal("NaN"), Decimal("-1")]
OTHERS = [None, True, False, {"usd": 1}, [1], b"1", Rude()]


@pytest.mark.parametrize("cost", [*TEXTS, *NUMBERS, *OTHERS], ids=range(19))
def test_what_is_no_amount_is_an_unknown_cost(cost: Any) -> None:
    assert Usage(cost=cost).cost is None


@pytest.mark.parametrize(
    ("cost", "amount"), [("0.1", "0.1"), (0.1, "0.1"), (0, "0"), ("1e-7", "1E-7"), (Decimal("0.30"), "0.30")]
)
def test_an_amount_is_taken_as_it_is_written(cost: Any, amount: str) -> None:
    assert str(Usage(cost=cost).cost) == amount


@pytest.mark.parametrize(
    "tokens", ["5", -1, 2.5, 2**53 + 1, 10**5000, float("nan"), True, [5], {"n": 5}, -(2**60)], ids=range(10)
)
def test_what_is_no_count_is_an_unknown_number_of_tokens(tokens: Any) -> None:
    usage = Usage(tokens, tokens, tokens, tokens, tokens)
    assert (usage.input_tokens, usage.cached_tokens, usage.total_tokens) == (None, None, None)


def test_a_hostile_cost_makes_no_endless_text() -> None:
    found: list[Any] = []
    guard = LoopGuard({"limits": {"cost": 1000}}, on_loop=found.append)
    with guard.session() as session:
        for number in range(4):
            session.after_model_call("m", Usage(1, 1, cost="1e999999"))  # type: ignore[arg-type]
            session.begin_round([ToolCall(str(number), "look", {})])
        assert len(str(session.save())) < 10_000
    assert len(found) == 3
    assert all(len(str(event)) < 5_000 for event in found)
