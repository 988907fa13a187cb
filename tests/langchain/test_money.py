"""Caps on cost, limits on keys, a provider that refuses and a store that is down: on every surface."""

import threading
from contextlib import suppress
from decimal import Decimal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core.runnables import RunnableLambda
from langgraph.errors import GraphDrained
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from loopguard_langchain import (
    LoopGuardCallbackHandler,
    LoopGuardMiddleware,
    async_tool_call_wrapper,
    guard_tools,
    tool_call_wrapper,
)
from loopguard_langchain_models import (
    Counted,
    Say,
    ScriptedModel,
    StreamingModel,
    ask,
    assert_complete,
    assert_healthy,
    assert_stopped,
    both_ways,
    call,
    deaf,
    different,
    four_ways,
    guarded,
    run,
    sequence,
    settle,
    watched,
)

from loopguard_core.keys import open_ledger
from loopguard_core.keys._sqlite import SqliteStore


class PaymentError(Exception):
    """As the clients of OpenAI and its relatives raise it."""

    status_code = 402

    def __init__(self) -> None:
        super().__init__("Error code: 402")
        self.body = {"error": {"code": 402, "metadata": {"limit_source": "openrouter_key_limit"}}}


# -- every surface ---------------------------------------------------------------------------------------------------


def middleware(model, lookup, guard):
    return create_agent(model, [lookup.tool], middleware=[LoopGuardMiddleware(guard)]), None


def node_of(tools, model, **options):
    bound = model.bind_tools(tools)
    graph = StateGraph(MessagesState)

    async def anode(state):
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph.add_node("agent", RunnableLambda(lambda state: {"messages": [bound.invoke(state["messages"])]}, anode))
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile()


def handler(model, lookup, guard):
    return node_of([lookup.tool], model), [LoopGuardCallbackHandler(guard)]


def guarded_tools(model, lookup, guard):
    return create_react_agent(model, guard_tools([lookup.tool], guard)), [LoopGuardCallbackHandler(guard)]


def wrapper(model, lookup, guard):
    wrappers = {"wrap_tool_call": tool_call_wrapper(guard), "awrap_tool_call": async_tool_call_wrapper(guard)}
    return node_of([lookup.tool], model, **wrappers), None


SURFACES = [middleware, handler, guarded_tools, wrapper]
SEES_MODEL_CALLS = [middleware, handler, guarded_tools]

every_surface = pytest.mark.parametrize("surface", SURFACES)
those_that_see_model_calls = pytest.mark.parametrize("surface", SEES_MODEL_CALLS)


def go(surface, way, script, policy, *, kind=ScriptedModel, **options):
    """One run to whatever end. Returns the model, the tool, what the hooks were told, the output and the error."""
    model, lookup, seen = kind(script=script, **options), Counted(), watched(policy)
    agent, callbacks = surface(model, lookup, seen.guard)
    result = error = None
    try:
        result = run(agent, ask(), way, {"callbacks": callbacks} if callbacks else None)
    except Exception as raised:  # noqa: BLE001
        error = raised
    settle(seen)
    return model, lookup, seen, result, error


@every_surface
@both_ways
def test_a_cap_on_cost_holds_to_the_exact_call(surface, way):
    script = different(40, cost=0.1)
    model, lookup, seen, _, _ = go(surface, way, script, {"limits": {"cost": 0.5}})
    assert (model.calls, len(lookup.ran)) == (5, 5)
    [end] = seen.ends
    assert (end.reason, end.usage.cost) == ("max_cost", Decimal("0.5"))


@every_surface
@both_ways
def test_a_limit_on_a_key_holds_to_the_exact_call_and_is_settled(surface, way, tmp_path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    policy = {"key": {"name": "team", "limit": 0.5, "store": url}}
    model, lookup, seen, _, _ = go(surface, way, different(40, cost=0.1), policy)
    assert (model.calls, len(lookup.ran)) == (5, 5)
    assert seen.reasons == ["key_limit"]
    with open_ledger(url) as ledger:
        status = ledger.status("team")
    assert (status.spent, status.reserved) == (Decimal("0.5"), 0)


@every_surface
@both_ways
def test_the_next_run_on_a_key_without_money_makes_no_model_call(surface, way, tmp_path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with open_ledger(url) as ledger:
        ledger.settle(ledger.reserve("team", Decimal("0.7")), Decimal("0.7"))
    policy = {"key": {"name": "team", "limit": 0.5, "store": url}}
    model, lookup, seen, _, _ = go(surface, way, different(40, cost=0.1), policy)
    # The wrapper alone sees no model call before the round it asks for.
    assert (model.calls, len(lookup.ran)) == ((1, 1) if surface is wrapper else (0, 0))
    assert seen.reasons == ["key_limit"]


@every_surface
@both_ways
def test_with_the_store_down_calls_are_denied_or_allowed(surface, way, tmp_path):
    policy = {"key": {"name": "team", "limit": 0.5, "store": f"sqlite:///{tmp_path}"}}  # a folder is no file
    model, _, seen, _, _ = go(surface, way, different(3, cost=0.1), policy)
    assert model.calls == (1 if surface is wrapper else 0)
    assert seen.reasons == ["key_limit"]

    policy["key"]["on_store_error"] = "allow"
    model, lookup, seen, result, error = go(surface, way, different(3, cost=0.1), policy)
    assert (model.calls, len(lookup.ran), error) == (4, 3, None)
    assert result["messages"][-1].text == "done"


@those_that_see_model_calls
@both_ways
def test_a_provider_that_says_the_key_is_used_up_ends_the_session_with_key_limit(surface, way):
    script = sequence(Say("", (call(key="a"),)), PaymentError(), then="never")
    model, lookup, seen, _, error = go(surface, way, script, {})
    assert (model.calls, len(lookup.ran)) == (2, 1)
    assert isinstance(error, PaymentError), "it comes through as it is"
    assert seen.reasons == ["key_limit"]


# -- the middleware --------------------------------------------------------------------------------------------------


def beside(script, policy, *listed, kind=ScriptedModel, **options):
    """An agent whose middleware is `listed`; None stands for ours."""
    model, lookup, seen = kind(script=script, **options), Counted(), watched(policy)
    agent = guarded(model, [lookup], seen, middleware=lambda ours: [ours if each is None else each for each in listed])
    return model, lookup, seen, agent


def retry(**options):
    return ModelRetryMiddleware(max_retries=2, initial_delay=0, jitter=False, **options)


@pytest.mark.parametrize("kind", [ScriptedModel, StreamingModel])
@four_ways
def test_a_retry_that_gives_up_on_a_key_without_money_hides_nothing(way, kind):
    """LangChain makes a message of the last error, and the run would look complete."""
    model, _, seen, agent = beside(lambda _m, _n: PaymentError(), {}, None, retry(), kind=kind)
    result = run(agent, ask(), way)
    settle(seen)
    assert model.calls == 3
    assert seen.reasons == ["key_limit"]
    assert seen.ends[0].model_calls == 0
    assert_complete(result["messages"])


@four_ways
def test_a_retry_around_ours_is_not_let_through_once_the_key_is_used_up(way):
    model, _, seen, agent = beside(lambda _m, _n: PaymentError(), {}, retry(), None)
    assert_stopped(run(agent, ask(), way), "key_limit")
    assert model.calls == 1
    assert set(seen.reasons) == {"key_limit"}


@four_ways
def test_another_provider_may_take_over_where_one_has_no_money_left(way):
    spare = ScriptedModel(script=sequence())
    model, _, seen, agent = beside(lambda _m, _n: PaymentError(), {}, None, ModelFallbackMiddleware(spare))
    assert_healthy(run(agent, ask(), way))
    assert (model.calls, spare.calls, seen.reasons) == (1, 1, ["complete"])


@pytest.mark.parametrize("surface", [middleware, wrapper])
async def test_a_keys_store_is_never_asked_on_the_event_loop(surface, tmp_path, monkeypatch):
    """Reserving and settling wait in a thread, for the last answer too."""
    threads = []
    for name in ("reserve", "settle"):
        original = getattr(SqliteStore, name)

        def noting(self, *args, original=original):
            threads.append(threading.get_ident())
            return original(self, *args)

        monkeypatch.setattr(SqliteStore, name, noting)
    policy = {
        "key": {"name": "team", "limit": 0.5, "store": f"sqlite:///{tmp_path / 'b.db'}"},
        "on_stop": {"how": "answer"},
    }
    seen, model, lookup = watched(policy), ScriptedModel(script=deaf(cost=0.01)), Counted()
    agent, _ = surface(model, lookup, seen.guard)
    with suppress(GraphDrained):
        await agent.ainvoke(ask())
    assert seen.reasons == ["doom_loop"]
    if surface is middleware:
        assert (model.calls, len(threads)) == (7, 12), "the last answer is counted, not reserved"
    assert len(threads) >= 6
    assert threading.get_ident() not in threads
