"""Caps on cost, limits on keys, a provider that refuses and a store that is down: on every surface."""

import threading
from decimal import Decimal
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index_instrumentation import get_dispatcher
from loopguard_llama_index import LoopGuardEventHandler, LoopGuardStop, guard_agent, guard_tool
from loopguard_llama_index_kit import USAGE, Counted, Scripted, Watched, call, deaf, go
from loopguard_llama_index_workflow_drivers import OwnLoop

from loopguard_core.keys import open_ledger
from loopguard_core.keys._sqlite import SqliteStore

PAID = {**USAGE, "cost": 0.1}


class PaymentError(Exception):
    """As the clients of OpenAI and its relatives raise it."""

    status_code = 402

    def __init__(self) -> None:
        super().__init__("Error code: 402")
        self.body = {"error": {"code": 402, "metadata": {"limit_source": "openrouter_key_limit"}}}


def varied(asked: Any) -> list[Any]:
    return [call(key=f"K-{asked.number}")] if asked.number <= 40 else ["done"]


def react(asked: Any) -> list[Any]:
    return [f'Thought: t\nAction: lookup\nAction Input: {{"key": "K-{asked.number}"}}']


async def agent(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    return (await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=llm), guard))).error


async def whole(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    return (await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=llm, streaming=False), guard))).error


async def workflow(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    return (await go(guard_agent(AgentWorkflow(agents=[FunctionAgent(tools=[tool.tool], llm=llm)]), guard))).error


async def tools(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    try:
        await OwnLoop(llm, [guard_tool(tool.tool, guard)], True).run(query="go")
    except Exception as error:  # noqa: BLE001
        return error
    return None


SURFACES = [agent, whole, workflow, tools]
every_surface = pytest.mark.parametrize("surface", SURFACES)


@every_surface
async def test_a_cap_on_cost_holds_to_the_exact_call(surface: Any) -> None:
    guard, llm = Watched({"limits": {"cost": 0.5}}), Scripted(varied, usage=PAID)
    tool = Counted(lambda ran, key: f"result {ran}")
    await surface(llm, tool, guard)
    assert (llm.calls, len(tool.ran)) == (5, 5)
    assert (guard.reasons, guard.last_end.usage.cost) == (["max_cost"], Decimal("0.5"))


async def test_a_react_agent_is_held_too() -> None:
    guard, llm = Watched({"limits": {"cost": 0.5}}), Scripted(react, usage=PAID)
    tool = Counted(lambda ran, key: f"result {ran}")
    await go(guard_agent(ReActAgent(tools=[tool.tool], llm=llm), guard))
    assert (llm.calls, len(tool.ran), guard.reasons) == (5, 5, ["max_cost"])


@every_surface
async def test_a_limit_on_a_key_holds_to_the_exact_call_and_is_settled(surface: Any, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    guard, llm = Watched({"key": {"name": "team", "limit": 0.5, "store": url}}), Scripted(varied, usage=PAID)
    tool = Counted(lambda ran, key: f"result {ran}")
    await surface(llm, tool, guard)
    assert (llm.calls, len(tool.ran), guard.reasons) == (5, 5, ["key_limit"])
    with open_ledger(url) as ledger:
        status = ledger.status("team")
    assert (status.spent, status.reserved) == (Decimal("0.5"), 0)


@every_surface
async def test_the_next_run_on_a_key_without_money_does_nothing(surface: Any, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with open_ledger(url) as ledger:
        ledger.settle(ledger.reserve("team", Decimal("0.7")), Decimal("0.7"))
    guard, llm = Watched({"key": {"name": "team", "limit": 0.5, "store": url}}), Scripted(varied, usage=PAID)
    tool = Counted()
    error = await surface(llm, tool, guard)
    # Guarded tools alone see no model call before the first round asks for them.
    assert llm.calls == (1 if surface is tools else 0)
    assert isinstance(error, LoopGuardStop) if surface is tools else error is None
    assert guard.reasons == ["key_limit"]


@every_surface
async def test_with_the_store_down_calls_are_denied_or_allowed(surface: Any, tmp_path: Any) -> None:
    policy: dict[str, Any] = {"key": {"name": "team", "limit": 0.5, "store": f"sqlite:///{tmp_path}"}}
    guard, llm = Watched(policy), Scripted(varied, usage=PAID)
    await surface(llm, Counted(), guard)
    assert (llm.calls, guard.reasons) == (1 if surface is tools else 0, ["key_limit"])

    policy["key"]["on_store_error"] = "allow"
    guard, llm, tool = (
        Watched(policy),
        Scripted(lambda asked: varied(asked)[:3] if asked.number < 4 else ["done"]),
        Counted(lambda ran, key: f"result {ran}"),
    )
    assert await surface(llm, tool, guard) is None
    assert (llm.calls, len(tool.ran), guard.reasons) == (4, 3, ["complete"])


@every_surface
async def test_a_provider_that_says_the_key_is_used_up_ends_the_session_with_key_limit(surface: Any) -> None:
    guard, tool = Watched(), Counted()
    llm = Scripted(lambda asked: [call()] if asked.number == 1 else PaymentError())
    error = await surface(llm, tool, guard)
    assert isinstance(error, PaymentError), "it comes through as it is"
    assert (llm.calls, len(tool.ran), guard.reasons) == (2, 1, ["key_limit"])


async def test_a_provider_that_says_so_is_noticed_by_the_handler() -> None:
    guard, llm = Watched(), Scripted(lambda asked: [call()] if asked.number == 1 else PaymentError())
    get_dispatcher().add_event_handler(LoopGuardEventHandler(guard))
    await go(FunctionAgent(tools=[Counted().tool], llm=llm))
    assert guard.reasons == ["key_limit"]


@pytest.mark.parametrize("surface", [agent, workflow])
async def test_a_call_that_cannot_fit_is_not_started(surface: Any) -> None:
    """`limits.reserve` needs to know what is about to be sent, and the most that may come back."""
    guard = Watched({"limits": {"tokens": 1200, "reserve": True}})
    llm = Scripted(lambda asked: [call(key="a" * 3000)] if asked.number == 1 else ["never"], max_tokens=100)
    tool = Counted()
    assert await surface(llm, tool, guard) is None
    assert (llm.calls, len(tool.ran), guard.reasons) == (1, 1, ["max_tokens"])
    assert "may use" in guard.last_end.message


@pytest.mark.parametrize("surface", [agent, whole])
async def test_tokens_nobody_reports_are_estimated_and_counted(surface: Any) -> None:
    guard, llm = Watched({"limits": {"tokens": 2000}}), Scripted(varied, usage=None)
    await surface(llm, Counted(lambda ran, key: f"result {ran} " * 40), guard)
    assert guard.reasons == ["max_tokens"]
    assert guard.last_end.usage.estimated
    assert 1 < llm.calls < 30


@pytest.mark.parametrize("surface", [agent, whole, workflow])
async def test_a_keys_store_is_never_asked_on_the_event_loop(surface: Any, tmp_path: Any, monkeypatch: Any) -> None:
    threads = []
    for name in ("reserve", "settle"):
        original = getattr(SqliteStore, name)

        def noting(self: Any, *args: Any, original: Any = original) -> Any:
            threads.append(threading.get_ident())
            return original(self, *args)

        monkeypatch.setattr(SqliteStore, name, noting)
    key = {"name": "team", "limit": 9, "store": f"sqlite:///{tmp_path / 'b.db'}"}
    guard, llm = Watched({"key": key, "on_stop": {"how": "answer"}}), Scripted(deaf(), usage=PAID)
    await surface(llm, Counted(), guard)
    assert (llm.calls, guard.reasons) == (7, ["doom_loop"])
    assert len(threads) == 12
    assert threading.get_ident() not in threads


async def test_a_guarded_tool_asks_a_keys_store_in_a_thread(tmp_path: Any, monkeypatch: Any) -> None:
    threads = []
    original = SqliteStore.reserve

    def noting(self: Any, *args: Any) -> Any:
        threads.append(threading.get_ident())
        return original(self, *args)

    monkeypatch.setattr(SqliteStore, "reserve", noting)
    key = {"name": "team", "limit": 9, "store": f"sqlite:///{tmp_path / 'b.db'}"}
    guard, llm = Watched({"key": key}), Scripted(deaf(), usage=PAID)
    await tools(llm, Counted(), guard)
    assert len(threads) >= 5
    assert threading.get_ident() not in threads
