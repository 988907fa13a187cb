"""What runs cost: caps on cost to the exact call, prices and estimates, keys across guards and processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_tools import in_processes

from loopguard_core import (
    Action,
    DoomLoopDetected,
    LoopGuard,
    PostModelCall,
    Session,
    SessionEnd,
    Stop,
    ToolCall,
    Usage,
    _prices,
    estimate_tokens,
    is_key_limit,
)
from loopguard_core.keys import LedgerValueError, open_ledger

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")

GPT = "openai:gpt-4o-2024-08-06"  # $2.50 and $10 a million tokens since it came out
USED = Usage(input_tokens=1000, output_tokens=100)
PRICE = Decimal("0.0035")


@pytest.fixture
def listed() -> None:
    pytest.importorskip("genai_prices", reason="needs the price list: pip install 'loopguard-core[prices]'")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'budget.db'}"


def with_key(url: str, limit: Any = None, /, **more: Any) -> dict[str, Any]:
    limits = more.pop("limits", {})
    key = {"name": "team", "store": url, **({} if limit is None else {"limit": limit}), **more}
    return {"key": key, "limits": limits}


def standing(url: str, key: str = "team") -> tuple[Decimal, Decimal]:
    with open_ledger(url) as ledger:
        status = ledger.status(key)
    return status.spent, status.reserved


def calls_until_the_end(session: Session, usage: Usage, model: str | None = None, **about: Any) -> tuple[int, Stop]:
    for number in range(1000):
        stop = session.before_model_call(model, **about).stop
        if stop is not None:
            return number, stop
        session.after_model_call(model, usage)
    raise AssertionError("never ended")


# -- what a call costs ---------------------------------------------------------------------------------------------


class TestCost:
    def test_a_reported_cost_stops_at_the_exact_call(self) -> None:
        session = LoopGuard({"limits": {"cost": "0.30"}}).session()
        calls, stop = calls_until_the_end(session, Usage(cost="0.1"))
        assert (calls, stop.reason, session.usage.cost) == (3, "max_cost", Decimal("0.3"))
        assert session.end().reason == "max_cost"

    def test_a_cost_from_the_price_list_stops_at_the_exact_call(self, listed: None) -> None:
        costs: list[Decimal | None] = []
        guard = LoopGuard({"limits": {"cost": 4 * PRICE}}, on_model_call=lambda event: costs.append(event.usage.cost))
        session = guard.session()
        calls, stop = calls_until_the_end(session, USED, GPT)
        assert (calls, stop.reason, costs) == (4, "max_cost", [PRICE] * 4)
        usage = session.end().usage
        assert (usage.cost, usage.estimated) == (4 * PRICE, False)  # the tokens were reported
        assert not guard.faults.counts

    def test_what_the_provider_reports_beats_the_price_list(self, listed: None) -> None:
        session = LoopGuard({"limits": {"cost": 1}}).session()
        session.after_model_call(GPT, Usage(input_tokens=1000, output_tokens=100, cost="0.5"))
        assert session.usage.cost == Decimal("0.5")

    def test_without_a_cap_or_key_nobody_asks_for_a_price(self) -> None:
        session = LoopGuard().session()
        session.after_model_call(GPT, USED)
        assert session.usage.cost is None
        assert session.money is None

    def test_a_nested_run_is_priced_for_the_run_around_it(self, listed: None) -> None:
        outer = LoopGuard({"limits": {"cost": 2 * PRICE}}).session()
        inner = LoopGuard().session(parent=outer)
        calls, stop = calls_until_the_end(inner, USED, GPT)
        assert (calls, stop.reason) == (2, "max_cost")
        assert outer.usage.cost == 2 * PRICE

    def test_the_list_is_loaded_when_a_guard_is_made_and_never_without_a_reason(self, listed: None) -> None:
        script = (
            "import sys, loopguard_core as lg; lg.LoopGuard().session().after_model_call('gpt-4o', lg.Usage(1, 1));"
            " assert 'genai_prices' not in sys.modules; lg.LoopGuard({'limits': {'cost': 1}});"
            " assert 'genai_prices' in sys.modules"
        )
        subprocess.run([sys.executable, "-c", script], check=True)

    async def test_a_list_that_is_still_loading_stops_no_event_loop(
        self, listed: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is awaited for: the loop goes on, here to the callback that lets the loading end."""
        monkeypatch.setattr(_prices, "_calculate", None)
        loading = threading.Lock()
        monkeypatch.setattr(_prices, "_lock", loading)
        released: list[str] = []

        def release(by: str) -> None:
            if not released:
                released.append(by)
                loading.release()

        loading.acquire()
        too_late = threading.Timer(5, release, ["a thread, because the event loop stood still"])
        too_late.start()
        session = LoopGuard({"limits": {"cost": 5, "reserve": True}}).session()
        asyncio.get_running_loop().call_soon(release, "the event loop")
        assert (await session.abefore_model_call(GPT, 1000, 1000)).stop is None
        too_late.cancel()
        assert released == ["the event loop"]

    def test_on_an_event_loop_the_list_is_loaded_elsewhere(self, listed: None) -> None:
        """The import takes half a second; in a loop that runs it goes on in a thread."""
        script = """
import asyncio, sys, threading, loopguard_core as lg
by = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "genai_prices":
            by.append(threading.current_thread())
sys.meta_path.insert(0, Finder())
async def main():
    session = lg.LoopGuard({"limits": {"cost": 1}}).session()
    await session.abefore_model_call("gpt-4o")
    await session.aafter_model_call("gpt-4o", lg.Usage(1000, 1000))
    assert session.usage.cost, session.usage
asyncio.run(main())
assert by and threading.main_thread() not in by, by
"""
        subprocess.run([sys.executable, "-c", script], check=True)


class TestUnknownCost:
    def test_it_is_said_once_for_all_runs_and_is_not_zero(self, caplog: pytest.LogCaptureFixture) -> None:
        guard = LoopGuard({"limits": {"cost": 1}})
        with caplog.at_level(logging.WARNING, "loopguard"):
            for session in (guard.session(), guard.session()):
                session.after_model_call("my-model", Usage(10, 10))
                session.after_model_call("my-model", Usage(10, 10))
                assert session.end().usage.cost is None
        (record,) = caplog.records
        assert "(my-model)" in record.getMessage()
        assert "unknown, not zero" in record.getMessage()

    def test_denied_no_call_starts_after_one(self) -> None:
        session = LoopGuard({"limits": {"cost": 1, "unpriced": "deny"}}).session()
        calls, stop = calls_until_the_end(session, Usage(10, 10), "my-model")
        assert (calls, stop.reason) == (1, "max_cost")
        assert stop.message.startswith("[loopguard] The run was ended: the cost of a model call is not known")
        assert session.end().reason == "max_cost"

    def test_denied_it_stays_after_a_resume_and_reaches_the_run_around(self) -> None:
        guard = LoopGuard({"limits": {"cost": 1, "unpriced": "deny"}})
        outer = guard.session()
        guard.session(parent=outer).after_model_call("my-model", Usage(10, 10))
        again = guard.session(state=json.loads(json.dumps(outer.save())))
        for session in (outer, again):
            stop = session.before_model_call().stop
            assert stop is not None
            assert stop.reason == "max_cost"

    def test_denied_on_a_key_alone(self, url: str) -> None:
        session = LoopGuard(with_key(url, 1, limits={"unpriced": "deny"})).session()
        calls, stop = calls_until_the_end(session, Usage(10, 10), "my-model")
        assert (calls, stop.reason) == (1, "key_limit")

    @pytest.mark.parametrize("usage", [Usage(100, 100), Usage(total_tokens=200)])
    def test_a_price_per_million_tokens_stands_in(self, usage: Usage) -> None:
        session = LoopGuard({"limits": {"cost": "0.01", "unpriced": 15}}).session()
        calls, _ = calls_until_the_end(session, usage, "my-model")
        assert (calls, session.usage.cost) == (4, Decimal("0.012"))

    def test_a_price_of_nothing_is_a_known_price(self) -> None:
        guard = LoopGuard({"limits": {"cost": 1, "unpriced": 0}})
        session = guard.session()
        session.after_model_call("local-model", Usage(10, 10))
        assert session.usage.cost == 0
        assert not guard.faults.counts

    def test_the_listed_price_comes_first(self, listed: None) -> None:
        session = LoopGuard({"limits": {"cost": 1, "unpriced": 500}}).session()
        session.after_model_call(GPT, USED)
        assert session.usage.cost == PRICE


class TestEstimates:
    def test_a_text_has_about_so_many_tokens(self) -> None:
        assert estimate_tokens("") == 0
        assert estimate_tokens("abcdef") == 2
        assert estimate_tokens("循環検出") == 4
        assert estimate_tokens("\ud800") == 1  # no valid text, and no exception

    def test_a_stream_without_usage_is_estimated_and_marked(self) -> None:
        events: list[PostModelCall] = []
        guard = LoopGuard({"limits": {"cost": 1, "unpriced": 10}}, on_model_call=events.append)
        session = guard.session()
        session.before_model_call("my-model", input_tokens=900)
        for _ in range(10):
            session.feed_text("thirty characters of ASCII....")
        session.end_message()
        session.after_model_call("my-model", Usage())
        used = events[0].usage
        assert (used.input_tokens, used.output_tokens, used.total_tokens, used.estimated) == (900, 100, 1000, True)
        assert used.cost == Decimal("0.01")
        session.after_model_call("my-model", Usage(1, 1))
        assert not events[1].usage.estimated
        assert events[1].total.estimated  # as long as a part is, the whole is
        assert guard.session(state=session.save()).usage.estimated

    def test_what_is_reported_is_never_estimated(self) -> None:
        session = LoopGuard({"limits": {"tokens": 1000}}).session()
        session.before_model_call(input_tokens=10)
        session.feed_text("x" * 300)
        session.after_model_call(usage=Usage(total_tokens=7))
        assert (session.usage.total_tokens, session.usage.estimated) == (7, False)

    def test_an_estimate_holds_a_cap_on_tokens(self) -> None:
        session = LoopGuard({"limits": {"tokens": 250}}).session()
        for _ in range(3):
            assert session.before_model_call().stop is None
            session.feed_text("x" * 300)
            session.after_model_call()
        stop = session.before_model_call().stop
        assert stop is not None
        assert stop.reason == "max_tokens"

    @pytest.mark.parametrize("how", ["failed", "end"])
    def test_a_stream_that_was_cancelled_is_paid_for(self, how: str) -> None:
        session = LoopGuard({"limits": {"cost": 1, "unpriced": 10}}).session()
        session.before_model_call("my-model", input_tokens=900)
        session.feed_text("x" * 300)
        if how == "failed":
            session.model_call_failed(asyncio.CancelledError())
        usage = session.end(error=asyncio.CancelledError()).usage
        assert (usage.cost, usage.estimated) == (Decimal("0.01"), True)
        assert session.model_calls == 0

    def test_a_call_that_failed_costs_nothing(self) -> None:
        session = LoopGuard({"limits": {"cost": 1, "unpriced": 10}}).session()
        session.before_model_call("my-model", input_tokens=900)
        session.feed_text("x" * 300)
        session.model_call_failed(TimeoutError())
        assert session.end().usage == Usage()

    def test_without_a_cap_nothing_is_estimated(self) -> None:
        session = LoopGuard().session()
        session.before_model_call(input_tokens=10)
        session.feed_text("x" * 300)
        session.after_model_call()
        assert session.usage == Usage()


# -- reserving -----------------------------------------------------------------------------------------------------


class TestReserve:
    LIMITS: ClassVar = {"cost": 1, "reserve": True, "unpriced": 100}  # $0.0001 a token

    def test_no_call_starts_that_may_go_beyond_the_cap(self) -> None:
        session = LoopGuard({"limits": self.LIMITS}).session()
        about = {"input_tokens": 1000, "max_output_tokens": 2000}  # at most $0.30, in fact $0.20
        calls, stop = calls_until_the_end(session, Usage(1000, 1000), "my-model", **about)
        assert (calls, stop.reason, session.usage.cost) == (4, "max_cost", Decimal("0.8"))
        assert "may cost $0.30, and of the limit of $1.00 $0.80 is spent" in stop.message
        assert session.end().reason == "max_cost"

    def test_exactly_what_is_left_fits(self) -> None:
        session = LoopGuard({"limits": self.LIMITS}).session()
        about = {"input_tokens": 1000, "max_output_tokens": 1500}
        calls, _ = calls_until_the_end(session, Usage(1000, 1500), "my-model", **about)
        assert (calls, session.usage.cost) == (4, Decimal(1))

    def test_without_it_the_last_call_may_go_beyond(self) -> None:
        session = LoopGuard({"limits": {**self.LIMITS, "reserve": False}}).session()
        about = {"input_tokens": 1000, "max_output_tokens": 2000}
        calls, _ = calls_until_the_end(session, Usage(1000, 2000), "my-model", **about)
        assert (calls, session.usage.cost) == (4, Decimal("1.2"))

    def test_where_the_worst_case_is_unknown_the_dearest_call_stands_for_it(self) -> None:
        session = LoopGuard({"limits": {"cost": 1, "reserve": True}}).session()
        calls, stop = calls_until_the_end(session, Usage(cost="0.3"))
        assert (calls, stop.reason, session.usage.cost) == (3, "max_cost", Decimal("0.9"))
        again = LoopGuard({"limits": {"cost": 1, "reserve": True}}).session(state=session.save())
        assert again.before_model_call().stop == stop

    def test_tokens_are_reserved_too(self) -> None:
        session = LoopGuard({"limits": {"tokens": 1000, "reserve": True}}).session()
        about = {"input_tokens": 100, "max_output_tokens": 300}
        calls, stop = calls_until_the_end(session, Usage(100, 150), **about)
        assert (calls, stop.reason, session.usage.total_tokens) == (3, "max_tokens", 750)

    def test_runs_that_are_nested_at_once_share_the_room(self) -> None:
        guard = LoopGuard({"limits": self.LIMITS})
        outer = guard.session()
        inner = [guard.session(parent=outer) for _ in range(5)]
        about = {"model": "my-model", "input_tokens": 1000, "max_output_tokens": 2000}
        started = [session for session in inner if session.before_model_call(**about).stop is None]
        assert len(started) == 3
        for session in started:
            session.after_model_call("my-model", Usage(1000, 2000))
        assert outer.usage.cost == Decimal("0.9")

    @pytest.mark.parametrize("how", ["failed", "ended"])
    def test_what_a_call_held_goes_back(self, how: str) -> None:
        guard = LoopGuard({"limits": self.LIMITS})
        outer = guard.session()
        about = {"model": "my-model", "input_tokens": 1000, "max_output_tokens": 8000}
        for _ in range(5):
            inner = guard.session(parent=outer)
            assert inner.before_model_call(**about).stop is None
            assert inner.before_model_call(**about).stop is None  # asked again it is the same call
            if how == "failed":
                inner.model_call_failed(TimeoutError())
                assert inner.before_model_call(**about).stop is None
            inner.end()

    @pytest.mark.parametrize("tokens", [-5, "many", True, 1e300, None])
    def test_odd_numbers_are_unknown(self, tokens: Any) -> None:
        guard = LoopGuard({"limits": self.LIMITS})
        session = guard.session()
        assert session.before_model_call("my-model", tokens, tokens).stop is None
        json.dumps(session.save())
        assert not guard.faults.counts


# -- keys ----------------------------------------------------------------------------------------------------------


class TestKeys:
    def test_two_guards_share_one_limit(self, url: str) -> None:
        with LoopGuard(with_key(url, 1)) as first, LoopGuard(with_key(url, 1)) as second:
            sessions = [first.session(), second.session()]
            calls = 0
            stops: list[Stop] = []
            while len(stops) < 2:
                session = sessions[calls % 2]
                stop = session.before_model_call().stop
                if stop is not None:
                    stops.append(stop)
                    sessions = [other for other in sessions if other is not session] * 2
                    continue
                session.after_model_call(usage=Usage(cost="0.15"))
                calls += 1
        assert calls == 6
        assert standing(url) == (Decimal("0.90"), 0)
        assert {stop.reason for stop in stops} == {"key_limit"}
        assert stops[0].verdict is None
        assert 'The spending limit is reached: key "team": $0.15 asked for, $0.10 of $1.00 left' in stops[0].message

    def test_the_end_says_key_limit_and_no_last_answer_is_bought(self, url: str) -> None:
        session = LoopGuard(with_key(url, "0.1")).session()
        calls_until_the_end(session, Usage(cost="0.1"))
        assert session.final_answer() is None
        event = session.end()
        assert (event.reason, event.verdict) == ("key_limit", None)

    @needs_fork
    def test_processes_share_one_limit_to_the_exact_call(self, url: str) -> None:
        results = in_processes(4, spend_in_a_process, url)
        assert sum(results) == 10  # $0.10 each of $1.00, whoever came first
        assert standing(url) == (1, 0)

    def test_the_worst_case_is_held_while_a_call_runs(self, url: str, listed: None) -> None:
        session = LoopGuard(with_key(url, 1)).session()
        assert session.before_model_call(GPT, 1000, 1000).stop is None
        assert standing(url)[1] >= Decimal("0.0125")
        session.after_model_call(GPT, USED)
        assert standing(url) == (PRICE, 0)

    def test_a_failed_call_gives_back(self, url: str) -> None:
        session = LoopGuard(with_key(url, 1, limits={"unpriced": 100})).session()
        session.before_model_call("m", 1000, 1000)
        assert standing(url) == (0, Decimal("0.2"))
        session.model_call_failed(TimeoutError())
        assert standing(url) == (0, 0)

    @pytest.mark.parametrize("how", ["end", "discard", "paused"])
    def test_a_call_that_runs_at_the_end_gives_back(self, url: str, how: str) -> None:
        guard = LoopGuard(with_key(url, 1, limits={"unpriced": 100}))
        session = guard.session("run")
        session.before_model_call("m", 1000, 1000)
        if how == "discard":
            guard.discard("run")
        else:
            session.end("paused" if how == "paused" else None)
        assert standing(url) == (0, 0)
        if how == "paused":  # the same call goes on, and is held for once more
            assert session.before_model_call("m", 1000, 1000).stop is None
            assert standing(url) == (0, Decimal("0.2"))

    def test_a_call_nobody_reported_is_unknown_and_not_held_for_ever(self, url: str) -> None:
        guard = LoopGuard(with_key(url, 1, limits={"unpriced": 100}))
        session = guard.session()
        for number in range(20):
            assert session.before_model_call("m", 1000, 1000).stop is None
            session.begin_round([ToolCall("1", "tool", {"n": number})])
        session.end()
        assert standing(url) == (0, 0)
        assert "usage without cost" in guard.faults.counts

    def test_several_keys_count_each_call_and_each_limit_holds(self, url: str) -> None:
        with open_ledger(url) as ledger:
            ledger.set_limit("alice", "0.2")
        session = LoopGuard(with_key(url, 1)).session(key="alice")
        calls, stop = calls_until_the_end(session, Usage(cost="0.1"))
        assert (calls, stop.reason) == (2, "key_limit")
        assert '"alice"' in stop.message
        assert standing(url) == standing(url, "alice") == (Decimal("0.2"), 0)

    def test_a_nested_run_spends_on_the_keys_around_it(self, url: str) -> None:
        guard = LoopGuard(with_key(url))
        outer = guard.session(key="alice")
        inner = guard.session(parent=guard.session(parent=outer), key=["research", "alice"])
        inner.before_model_call()
        inner.after_model_call(usage=Usage(cost="0.1"))
        for key in ("team", "alice", "research"):
            assert standing(url, key) == (Decimal("0.1"), 0)

    def test_a_key_both_guards_name_counts_once(self, url: str) -> None:
        """Adapters make a guard for each agent of a policy; the store is then the same, the guards are not."""
        outer = LoopGuard(with_key(url, 1)).session()
        inner = LoopGuard(with_key(url, 1)).session(parent=outer)
        inner.before_model_call()
        inner.after_model_call(usage=Usage(cost="0.1"))
        assert standing(url) == (Decimal("0.1"), 0)

    def test_stores_that_differ_are_all_asked(self, url: str, tmp_path: Path) -> None:
        other = f"sqlite:///{tmp_path / 'other.db'}"
        outer = LoopGuard(with_key(url, "0.5")).session()
        inner = LoopGuard(with_key(other, "0.3")).session(parent=outer)
        calls, stop = calls_until_the_end(inner, Usage(cost="0.1"))
        assert (calls, stop.reason) == (3, "key_limit")
        assert standing(url) == standing(other) == (Decimal("0.3"), 0)
        assert outer.before_model_call().stop is not None  # a stop inside reaches the outside

    def test_the_policy_s_limit_is_set_and_one_it_does_not_name_is_left(self, url: str) -> None:
        with open_ledger(url) as ledger:
            ledger.set_limit("team", 7, "daily")
            LoopGuard(with_key(url)).session().before_model_call()
            assert ledger.status("team").limit == 7
            LoopGuard(with_key(url, 9, reset="monthly")).session().before_model_call()
            status = ledger.status("team")
        assert (status.limit, status.reset) == (9, "monthly")

    @pytest.mark.parametrize("key", ["", " x", 5, ["a"] * 2 + [""], [], "lg-" + "x" * 43])
    def test_a_key_that_is_none_is_refused_where_it_is_named(self, url: str, key: Any) -> None:
        with pytest.raises(LedgerValueError) as caught:
            LoopGuard(with_key(url)).session(key=key)
        assert "xxxxxxxx" not in str(caught.value)

    def test_a_key_in_code_needs_no_key_in_the_policy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        guard = LoopGuard()
        session = guard.session(key="alice")
        session.before_model_call()
        session.after_model_call(usage=Usage(cost="0.1"))
        assert guard.session().money is None
        assert standing(f"sqlite:///{tmp_path / '.loopguard' / 'keys.db'}", "alice") == (Decimal("0.1"), 0)

    def test_switched_off_nothing_is_opened_or_counted(self, url: str, tmp_path: Path) -> None:
        session = LoopGuard({**with_key(url, "0.1"), "enabled": False}).session()
        for _ in range(3):
            assert session.before_model_call().stop is None
            session.after_model_call(usage=Usage(cost="0.1"))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("reason", ["max_cost", "key_limit"])
    def test_shadow_mode_and_plugins_leave_limits_on(self, url: str, reason: str) -> None:
        def let_go(event: DoomLoopDetected) -> Action:
            return Action.OBSERVE

        policy = {"limits": {"cost": "0.3"}} if reason == "max_cost" else with_key(url, "0.3")
        session = LoopGuard({**policy, "shadow": True}, on_loop=let_go).session()
        calls, stop = calls_until_the_end(session, Usage(cost="0.1"))
        assert (calls, stop.reason, session.end().reason) == (3, reason, reason)

    def test_a_resumed_run_counts_nothing_twice(self, url: str) -> None:
        guard = LoopGuard(with_key(url, 1))
        session = guard.session()
        for _ in range(2):
            session.before_model_call()
            session.after_model_call(usage=Usage(cost="0.2"))
        state = json.loads(json.dumps(session.save()))
        again = LoopGuard(with_key(url, 1)).session(state=state)
        assert standing(url) == (Decimal("0.4"), 0)
        assert again.usage.cost == Decimal("0.4")
        calls, stop = calls_until_the_end(again, Usage(cost="0.2"))
        assert (calls, stop.reason) == (3, "key_limit")
        assert standing(url) == (1, 0)

    def test_a_run_resumed_in_the_middle_of_a_call_holds_for_it_again(self, url: str) -> None:
        policy = with_key(url, 1, limits={"unpriced": 100})
        session = LoopGuard(policy).session()
        session.before_model_call("m", 1000, 1000)
        again = LoopGuard(policy).session(state=session.save())
        assert again.before_model_call("m", 1000, 1000).stop is None
        assert standing(url) == (0, Decimal("0.4"))  # until the process that died lets go, or its hold expires
        again.after_model_call("m", Usage(1000, 1000))
        session.end()
        assert standing(url) == (Decimal("0.2"), 0)

    @needs_fork
    def test_what_a_crash_left_expires(self, url: str) -> None:
        policy = with_key(url, 1, limits={"unpriced": 100})
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                LoopGuard(policy).session().before_model_call("m", 4000, 5000)
            os._exit(0)
        os.waitpid(child, 0)
        assert standing(url) == (0, Decimal("0.9"))
        assert LoopGuard(policy).session().before_model_call("m", 4000, 5000).stop is not None
        with open_ledger(url, clock=lambda: time.time() + 3601) as later:
            assert later.status("team").reserved == 0
            later.reserve("team", "0.9")

    def test_nothing_secret_is_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        address = f"sqlite:///{tmp_path / 'missing' / 'budget.db'}"
        with caplog.at_level(logging.DEBUG, "loopguard"):
            session = LoopGuard(with_key(address, 1)).session(key="sk-" + "s" * 40)
            stop = session.before_model_call("m").stop
        assert stop is not None
        for text in (caplog.text, stop.message, json.dumps(session.save())):
            assert "ssssssss" not in text
        assert str(tmp_path) not in stop.message  # which may reach a user or a model


def spend_in_a_process(number: int, url: str) -> int:
    with LoopGuard(with_key(url, 1, limits={"unpriced": 100})) as guard, guard.session() as session:
        about = {"input_tokens": 500, "max_output_tokens": 500}
        return calls_until_the_end(session, Usage(500, 500), "my-model", **about)[0]


# -- a store that cannot be used -----------------------------------------------------------------------------------


@pytest.fixture
def locked(url: str) -> Iterator[Callable[[], None]]:
    """Locks the store's file; unlocks it when called."""
    with open_ledger(url) as ledger:
        ledger.set_limit("team", 1)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    yield lambda: other.execute("ROLLBACK") and None
    other.close()


def impatient(guard: LoopGuard) -> LoopGuard:
    assert guard._keys is not None
    guard._keys.ledger._store._file._busy_seconds = 0.01  # type: ignore[attr-defined]
    return guard


class TestStoreDown:
    def test_denied_no_call_starts(self, url: str, locked: Callable[[], None]) -> None:
        session = impatient(LoopGuard(with_key(url, 1))).session()
        stop = session.before_model_call().stop
        assert stop is not None
        assert stop.reason == "key_limit"
        assert 'The spending limit on key "team" cannot be checked' in stop.message
        assert session.end().reason == "key_limit"

    def test_allowed_calls_start_and_count_later(self, url: str, locked: Callable[[], None]) -> None:
        session = impatient(LoopGuard(with_key(url, 1, on_store_error="allow"))).session()
        for _ in range(3):
            assert session.before_model_call().stop is None
            session.after_model_call(usage=Usage(cost="0.3"))
        locked()
        calls, stop = calls_until_the_end(session, Usage(cost="0.3"))
        assert (calls, stop.reason) == (0, "key_limit")
        assert standing(url) == (Decimal("0.9"), 0)

    def test_a_limit_the_store_could_not_take_is_set_later(self, url: str, locked: Callable[[], None]) -> None:
        session = impatient(LoopGuard(with_key(url, "0.5", on_store_error="allow"))).session()
        assert session.before_model_call().stop is None
        session.after_model_call(usage=Usage(cost="0.3"))
        locked()
        assert session.before_model_call().stop is not None  # $0.20 of $0.50 is left
        with open_ledger(url) as ledger:
            assert ledger.status("team").limit == Decimal("0.5")

    def test_what_the_end_could_not_count_is_named(
        self, url: str, locked: Callable[[], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        session = impatient(LoopGuard(with_key(url, 1, on_store_error="allow"))).session()
        session.before_model_call()
        session.after_model_call(usage=Usage(cost="0.3"))
        session.end()
        assert '$0.30 could not be counted on "team", and the run is over' in caplog.text


# -- event loops ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[list[float]]:
    """How long the event loop stood still, at the most."""
    worst = [0.0]

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            worst[0] = max(worst[0], time.perf_counter() - before)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    yield worst
    await asyncio.sleep(0.01)
    ticking.cancel()


class TestAsync:
    async def test_the_loop_and_the_session_go_on_while_the_store_is_waited_for(
        self, url: str, locked: Callable[[], None]
    ) -> None:
        guard = LoopGuard(with_key(url, 1))
        session = guard.session()
        async with watched_loop() as stood_still:
            asking = asyncio.create_task(session.abefore_model_call())
            await asyncio.sleep(0.4)
            assert not asking.done()
            session.begin_round([ToolCall("1", "tool")])  # the session's lock is free
            session.record_result("1", "x")
            locked()
            assert (await asking).stop is None
        assert stood_still[0] < 2  # the store would have been waited for much longer

    async def test_nothing_at_the_end_of_a_call_or_run_stops_the_loop(self, url: str, tmp_path: Path) -> None:
        guard = LoopGuard(with_key(url, 1, limits={"unpriced": 100}))
        failed, reported, ended = guard.session(), guard.session(), guard.session()
        for session in (failed, reported, ended):
            assert (await session.abefore_model_call("m", 100, 100)).stop is None
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with watched_loop() as stood_still:
            failed.model_call_failed(TimeoutError())
            reported.after_model_call("m", Usage(100, 100))
            ended.end()
            await asyncio.sleep(0.3)
            other.execute("ROLLBACK")
            other.close()
        assert stood_still[0] < 2  # the store would have been waited for much longer
        await asyncio.to_thread(guard.close)
        assert standing(url) == (Decimal("0.02"), 0)

    async def test_a_retry_after_a_failure_has_what_the_failed_call_held(self, url: str) -> None:
        """The failed call's hold goes back in a thread; the next call waits for that and no run ends for it."""
        session = LoopGuard(with_key(url, 1, limits={"unpriced": 100})).session()
        for _ in range(30):
            assert (await session.abefore_model_call("m", 4000, 5000)).stop is None
            session.model_call_failed(TimeoutError())
        assert (await session.abefore_model_call("m", 4000, 5000)).stop is None

    async def test_to_the_exact_call(self, url: str) -> None:
        async def run(session: Session) -> int:
            calls = 0
            while (await session.abefore_model_call("m", 500, 500)).stop is None:
                await asyncio.sleep(0)
                await session.aafter_model_call("m", Usage(500, 500))
                calls += 1
            return calls

        guard = LoopGuard(with_key(url, 1, limits={"unpriced": 100}))
        assert sum(await asyncio.gather(*(run(guard.session()) for _ in range(5)))) == 10
        assert standing(url) == (1, 0)

    async def test_cancelled_while_it_asks_it_gives_back(self, url: str, locked: Callable[[], None]) -> None:
        guard = LoopGuard(with_key(url, 1, limits={"unpriced": 100}))
        asking = asyncio.create_task(guard.session().abefore_model_call("m", 100, 100))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        locked()
        await asyncio.to_thread(guard.close)
        assert standing(url) == (0, 0)

    async def test_cancelled_while_it_counts_it_is_counted(self, url: str) -> None:
        guard = LoopGuard(with_key(url, 1))
        session = guard.session()
        await session.abefore_model_call()
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        counting = asyncio.create_task(session.aafter_model_call(usage=Usage(cost="0.3")))
        await asyncio.sleep(0.05)
        counting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await counting
        assert session.usage.cost == Decimal("0.3")
        other.execute("ROLLBACK")
        other.close()
        await asyncio.to_thread(guard.close)
        assert standing(url) == (Decimal("0.3"), 0)


# -- what a provider says ------------------------------------------------------------------------------------------


class PaymentError(Exception):
    """What clients of OpenAI's kind raise."""

    def __init__(self, body: Any, status: Any = 402) -> None:
        super().__init__("Payment Required")
        self.status_code = status
        self.body = body


class Response:
    def __init__(self, status: int, body: Any) -> None:
        self.status_code = status
        self._body = body

    def json(self) -> Any:
        if isinstance(self._body, Exception):
            raise self._body
        return self._body


class HttpError(Exception):
    def __init__(self, response: Any) -> None:
        super().__init__("402")
        self.response = response


def body_of(source: Any, code: Any = 402) -> dict[str, Any]:
    return {"error": {"code": code, "message": "no money", "metadata": {"limit_source": source}}}


def raised_from(cause: BaseException) -> BaseException:
    error = RuntimeError("the framework's own")
    error.__cause__ = cause
    return error


KEY_LIMITS = {
    "openai, whole body": PaymentError(body_of("openrouter_key_limit")),
    "openai, its error": PaymentError(body_of("openrouter_credits")["error"]),
    "a gateway": PaymentError(body_of("loopguard_key_limit")),
    "body as text": PaymentError(json.dumps(body_of("openrouter_key_limit"))),
    "status as text": PaymentError(body_of("openrouter_key_limit"), "402"),
    "in a stream, without a status": PaymentError(body_of("openrouter_key_limit")["error"], None),
    "httpx": HttpError(Response(402, body_of("openrouter_credits"))),
    "wrapped": raised_from(PaymentError(body_of("openrouter_key_limit"))),
    "in the text alone": type("ApiError", (Exception,), {"status_code": 402})(
        "Error code: 402 - {'error': {'metadata': {'limit_source': 'openrouter_key_limit'}}}"
    ),
}


class HostileError(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


def around_itself() -> BaseException:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


OTHERS = {
    "none": None,
    "plain": TimeoutError("limit_source: openrouter_key_limit"),
    "another status": PaymentError(body_of("openrouter_key_limit", 429), 429),
    "another source": PaymentError(body_of("somebody_else")),
    "no source": PaymentError({"error": {"code": 402, "message": "insufficient credits"}}),
    "odd body": PaymentError([body_of("openrouter_key_limit")]),
    "odd metadata": PaymentError({"error": {"metadata": "openrouter_key_limit"}}),
    "a source of another kind": PaymentError(body_of(["openrouter_key_limit"])),
    "a stream nobody read": HttpError(Response(402, RuntimeError("not read"))),
    "hostile": HostileError(),
    "circular": around_itself(),
    "endless": PaymentError("[" * 100_000),
}


class TestKeyLimitOfAProvider:
    @pytest.mark.parametrize("error", KEY_LIMITS.values(), ids=KEY_LIMITS.keys())
    def test_it_ends_the_run(self, error: BaseException) -> None:
        assert is_key_limit(error)
        ends: list[SessionEnd] = []
        session = LoopGuard(on_end=ends.append).session()
        session.before_model_call()
        session.model_call_failed(error)
        stop = session.before_model_call().stop
        assert stop is not None
        assert (stop.reason, stop.verdict) == ("key_limit", None)
        event = session.end(error=error)
        assert (event.reason, event.error) == ("key_limit", type(error).__name__)
        assert ends == [event]

    def test_where_only_the_end_is_told_it_says_so_too(self) -> None:
        guard = LoopGuard()
        outer = guard.session()
        inner = guard.session(parent=outer)
        assert inner.end(error=KEY_LIMITS["httpx"]).reason == "key_limit"
        assert outer.before_model_call().stop is not None

    @pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS.keys())
    def test_every_other_error_is_none(self, error: BaseException | None) -> None:
        assert not is_key_limit(error)
        session = LoopGuard().session()
        session.model_call_failed(error)
        assert session.before_model_call().stop is None

    def test_switched_off_it_ends_nothing(self) -> None:
        session = LoopGuard({"enabled": False}).session()
        session.model_call_failed(KEY_LIMITS["httpx"])
        assert session.stop is None


def test_threads_on_one_session_hold_once(url: str) -> None:
    session = LoopGuard(with_key(url, 1, limits={"unpriced": 100})).session()
    threads = [threading.Thread(target=session.before_model_call, args=("m", 1000, 1000)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert standing(url) == (0, Decimal("0.2"))
    session.after_model_call("m", Usage(1000, 1000))
    assert standing(url) == (Decimal("0.2"), 0)


def test_a_fault_of_ours_is_contained(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = LoopGuard({"limits": {"cost": 1, "unpriced": 1}})
    session = guard.session()
    monkeypatch.setattr(_prices, "price", lambda *_: 1 / 0)
    assert session.before_model_call("m").stop is None
    assert session.after_model_call("m", Usage(1, 1)) is None
    assert guard.faults.counts == {"after_model_call": 1}


# -- any order -----------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Session], object]] = {
    "before": lambda s: s.before_model_call("m", 100, 200),
    "before, unknown": lambda s: s.before_model_call("m"),
    "text": lambda s: s.feed_text("x" * 30),
    "end of a message": lambda s: s.end_message(),
    "after": lambda s: s.after_model_call("m", Usage(100, 100)),
    "after, reported": lambda s: s.after_model_call("m", Usage(cost="0.5")),
    "after, unknown": lambda s: s.after_model_call("m"),
    "failed": lambda s: s.model_call_failed(TimeoutError()),
    "cancelled": lambda s: s.model_call_failed(asyncio.CancelledError()),
    "round": lambda s: s.begin_round([ToolCall("1", "tool", {"n": s.turns})]),
    "user": lambda s: s.user_turn(),
    "pause": lambda s: s.pause(),
    "paused end": lambda s: s.end("paused"),
}


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=15), st.booleans())
def test_in_any_order_the_key_counts_what_the_run_does_and_holds_nothing_at_the_end(
    steps: list[str], nested: bool
) -> None:
    limits = {"unpriced": 100, "reserve": True, "cost": 100}
    guard = LoopGuard(with_key("memory://", 100, limits=limits))
    outer = guard.session()
    session = guard.session(parent=outer) if nested else outer
    for step in steps:
        STEPS[step](session)
    event = session.end("complete")
    assert guard._keys is not None
    status = guard._keys.ledger.status("team")
    assert (status.spent, status.reserved) == (event.usage.cost or 0, 0)
    assert outer.budget._held_inside == (0, 0)
    assert outer.usage.cost == event.usage.cost
    assert set(guard.faults.counts) <= {"usage without cost"}
