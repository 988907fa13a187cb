"""Scripts about money: what a key lets through, a provider's own limit, a store that is down, room for the worst case.

Every surface that is told what a model call used knows what it cost: the provider reports it, and where a client drops
that (LangChain's does while it streams), `limits.unpriced` gives the same price.
"""

from __future__ import annotations

from decimal import Decimal

from loopguard_core._events import PostModelCall
from loopguard_core._key_limit import is_key_limit
from loopguard_core.testing.conformance._personas import DONE, call, differs
from loopguard_core.testing.conformance._record import Record
from loopguard_core.testing.conformance._script import Expected, Script
from loopguard_core.testing.conformance._scripts_loops import assert_closed, counting
from loopguard_core.testing.personas import ChatRequest, Reply

_RATE = Decimal(100)
"""Dollars a million tokens, sent and received alike: a call of 300 tokens costs 3 cents."""

_LIMIT = Decimal("0.3")
_MOST = 1_000
_ROOM = _RATE * _MOST / 1_000_000
"""What the most that may come back costs, and what every call must leave of the cap."""

_NAME = "conformance"
_NOT_CHECKED = "cannot be checked"


def _key_limit(record: Record, expected: Expected) -> None:
    calls, end = record.recorder.model_calls, record.end
    assert len(record.requests) == len(calls) == end.model_calls == record.ran("fetch")
    spent = _let_through(calls)
    assert (end.reason, end.verdict, end.usage.cost) == ("key_limit", None, spent)
    assert_closed(record.turns[0], expected, "key_limit")
    assert record.key is not None
    assert record.key.limit == _LIMIT
    assert (record.key.spent, record.key.reserved) == (spent, Decimal(0)), record.key


def _let_through(calls: list[PostModelCall]) -> Decimal:
    """What was spent. Each call had room for as much as the dearest before it, and behind the last there is none."""
    spent = dearest = Decimal(0)
    for event in calls:
        assert spent + dearest <= _LIMIT, f"a model call started with {spent} spent"
        assert spent < _LIMIT, f"a model call started with {spent} spent"
        cost = event.usage.cost
        assert cost, "what a call cost is known"
        spent, dearest = spent + cost, max(dearest, cost)
    assert spent + dearest > _LIMIT or spent == _LIMIT, f"ended with {spent} spent, though another call fits"
    assert len(calls) > 1
    return spent


def _unasked(expected: Expected) -> int:
    """Model calls of a run that is not to start: a surface that is first asked behind one is too late for it."""
    return 0 if "asks_first" in expected.features else 1


def _refused(record: Record, expected: Expected) -> None:
    assert len(record.requests) == 2, "nobody asks again"
    assert record.ran("fetch") == 1
    error = record.turns[0].error
    assert is_key_limit(error), f"what the model's client raised reaches the caller, not {error!r}"
    assert (record.end.reason, record.end.verdict, record.end.model_calls) == ("key_limit", None, 1)


def _not_started(record: Record, expected: Expected) -> None:
    assert len(record.requests) == _unasked(expected)
    assert len(record.executions) <= len(record.requests)
    assert record.end.reason == "key_limit"
    assert_closed(record.turns[0], expected, "key_limit")


def _allowed(record: Record, expected: Expected) -> None:
    assert record.ran("fetch") == 3
    assert (record.turns[0].error, record.turns[0].text) == (None, DONE)
    assert record.end.reason == "complete"
    said = [line for line in record.logged if _NOT_CHECKED in line]
    assert len(said) == 1, f"it is said once, not {len(said)} times"


def _reserved(record: Record, expected: Expected) -> None:
    spent = Decimal(0)
    for event in record.recorder.model_calls:
        assert spent + _ROOM < _LIMIT, f"a model call started with {spent} spent, which may cost more than {_ROOM}"
        assert event.usage.cost, "what a call cost is known"
        spent += event.usage.cost
    assert len(record.requests) == len(record.recorder.model_calls) > 1
    # What is sent is estimated from above, and grows; that it takes three times as much as the last is far too early.
    sent = _RATE * (record.recorder.model_calls[-1].usage.input_tokens or 0) / 1_000_000
    assert spent + _ROOM + 3 * sent > _LIMIT, f"ended with {spent} spent, though another call fits"
    assert (record.end.reason, record.end.usage.cost) == ("max_cost", spent)
    assert "may cost" in record.end.message


def _out_of_money(request: ChatRequest) -> Reply:
    if request.number == 1:
        return Reply(tool_calls=(call(),))
    metadata = {"limit_source": "openrouter_key_limit"}
    return Reply(status=402, error={"code": 402, "message": "Key limit exceeded", "metadata": metadata})


MONEY: tuple[Script, ...] = (
    Script(
        name="limit on a key",
        rule="A key lets exactly the model calls through that fit, and its store holds exactly what they cost.",
        persona=differs(60),
        tools={"fetch": counting},
        policy={"limits": {"unpriced": _RATE}},
        key={"name": _NAME, "limit": _LIMIT},
        price=(_RATE, _RATE),
        features=frozenset({"usage"}),
        needs=frozenset({"stop"}),
        check=_key_limit,
    ),
    Script(
        name="a key without money",
        rule="Where others have used the key up, no model call starts.",
        persona=differs(3),
        tools={"fetch": counting},
        key={"name": _NAME, "limit": _LIMIT},
        key_spent=_LIMIT,
        needs=frozenset({"stop"}),
        check=_not_started,
    ),
    Script(
        name="a provider's limit on a key",
        rule="A provider's 402 that names a limit on the key ends the session with `key_limit`; the caller gets the"
        " client's own error.",
        persona=_out_of_money,
        tools={"fetch": counting},
        features=frozenset({"model_errors"}),
        check=_refused,
    ),
    Script(
        name="a key's store that is down",
        rule='With `on_store_error = "deny"` no model call starts while the key cannot be checked.',
        persona=differs(3),
        tools={"fetch": counting},
        key={"name": _NAME, "limit": _LIMIT},
        store_down=True,
        needs=frozenset({"stop"}),
        check=_not_started,
    ),
    Script(
        name="a key's store that is down, allowed",
        rule='With `on_store_error = "allow"` the run goes on all the same, and it is said once.',
        persona=differs(3),
        tools={"fetch": counting},
        policy={"limits": {"unpriced": _RATE}},
        key={"name": _NAME, "limit": _LIMIT, "on_store_error": "allow"},
        store_down=True,
        price=(_RATE, _RATE),
        check=_allowed,
    ),
    Script(
        name="limit on cost with reserve",
        rule="With `limits.reserve` no model call starts whose worst case, all it may answer, does not fit in the cap.",
        persona=differs(60),
        tools={"fetch": counting},
        policy={"limits": {"cost": _LIMIT, "reserve": True, "unpriced": _RATE}},
        max_tokens=_MOST,
        price=(_RATE, _RATE),
        features=frozenset({"max_tokens", "usage"}),
        needs=frozenset({"stop"}),
        check=_reserved,
    ),
)
