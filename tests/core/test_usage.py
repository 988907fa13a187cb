"""`Usage` takes whatever a provider says; what is no amount and no count is unknown."""

import json
from decimal import Context, Decimal, Inexact, localcontext
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
    ("cost", "amount"),
    [
        ("0." + "1" * 100_000, "0.111111111111111111"),
        (Decimal.from_float(0.1), "0.100000000000000006"),
        ("0.0000000000000000005", "0"),
        ("0.1" + "0" * 100, "0.1"),
        ("1e-999999", "0"),
        ("0e999999", "0"),
        ("-0", "0"),
        ("1E+15", "1E+15"),
        ("2.5e3", "2.5E+3"),
        ("999999999999999.99999999999999999951", "1000000000000000"),
        ("0.000000000000000001", "1E-18"),
    ],
    ids=range(11),
)
def test_eighteen_decimals_of_a_dollar_are_kept(cost: Any, amount: str) -> None:
    assert str(Usage(cost=cost).cost) == amount


def test_no_digits_of_a_cost_bloat_the_state_or_are_lost_with_it() -> None:
    guard = LoopGuard({"limits": {"cost": 1000}, "ladder": {"block": False}})
    live = guard.session()
    for number in range(3):
        live.before_model_call("m", 10, 10)
        live.after_model_call("m", Usage(1, 1, cost="0." + "1" * 100_000))  # type: ignore[arg-type]
        live.begin_round([ToolCall(str(number), "look", {})])
    state = live.save()
    assert len(json.dumps(state)) < 4_000
    assert {state["money"]["dearest"], state["spending"][-1][2]} == {"0.111111111111111111"}
    resumed = guard.session(state=json.loads(json.dumps(state)))
    assert resumed.save() == state
    assert resumed.usage.cost == live.usage.cost == Decimal("0.333333333333333333")
    assert not guard.faults.counts


def test_no_context_of_the_caller_s_loses_money() -> None:
    with localcontext(Context(prec=3, traps=[Inexact])):
        session = LoopGuard({"limits": {"cost": "1234.56", "reserve": True}}).session()
        for cost in ("1234", "0.557", "0.0029999"):
            session.after_model_call("m", Usage(1, 1, cost=cost))  # type: ignore[arg-type]
        assert session.usage.cost == Decimal("1234.5599999")
        assert session.after_model_call("m", Usage(1, 1, cost="0.0000001")) is not None  # type: ignore[arg-type]


def test_a_total_that_no_provider_means_is_still_an_amount() -> None:
    guard = LoopGuard({"limits": {"cost": 1}})
    session = guard.session()
    for _ in range(3):
        session.after_model_call("m", Usage(1, 1, cost=10**15))  # type: ignore[arg-type]
    assert guard.session(state=session.save()).usage.cost == 10**15
    assert not guard.faults.counts


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
