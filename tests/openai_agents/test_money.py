"""Money on every way to attach: caps to the exact call, room for the next one, keys, a provider's 402."""

import asyncio
import gc
from decimal import Decimal

import httpx
import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, SQLiteSession
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, LoopGuardModel, guard_run_config
from loopguard_openai_agents_kit import (
    OWN,
    Counted,
    Models,
    Scripted,
    Watched,
    acaught,
    assert_well_formed,
    call,
    drain,
    items_of,
    say,
)
from openai import APIStatusError, AsyncOpenAI

from loopguard_core.keys import open_ledger
from loopguard_core.testing import Reply, ScriptedServer

PRICE = 100
"""Dollars a million tokens: a call of the scripted model, of 120 tokens, costs $0.012."""

SURFACES = ("runner", "runner, model object", "hooks", "model", "run config")
every_surface = pytest.mark.parametrize("surface", SURFACES)
both_ways = pytest.mark.parametrize("way", ["run", "run_streamed"])


def attached(surface, guard, model, *tools, **agent_options):
    """An agent, who runs it, and with what."""
    agent = Agent(name="A", tools=[tool.tool for tool in tools], **agent_options)
    if surface in ("runner", "run config"):
        agent.model = "usual"
        config = RunConfig(model_provider=Models(usual=model))
        if surface == "runner":
            return agent, GuardedRunner, {"guard": guard, "run_config": config}
        return agent, Runner, {"run_config": guard_run_config(guard, config)}
    agent.model = LoopGuardModel(model, guard) if surface == "model" else model
    if surface == "runner, model object":
        return agent, GuardedRunner, {"guard": guard}
    return agent, Runner, {"hooks": LoopGuardHooks(guard)} if surface == "hooks" else {}


def ran(way, agent, runner, given="Where is it?", **options):
    async def run():
        if way == "run":
            return await acaught(runner.run(agent, given, max_turns=100, **options))
        return await drain(runner.run_streamed(agent, given, max_turns=100, **options))

    return asyncio.run(run())


def always_new():
    """A model that works for ever, and never asks for the same twice."""
    return Scripted(lambda asked: [call("lookup", {"key": f"K-{asked.number}"})])


def ended(surface, guard, outcome, reason):
    """It ended for this reason, with a history that can be gone on with."""
    assert guard.reasons == [reason]
    if surface == "hooks":
        assert outcome.error.reason == reason
        return
    assert outcome.output.startswith(OWN)
    assert_well_formed(outcome.history)


@every_surface
@both_ways
def test_a_cap_on_cost_stops_before_the_call_that_would_exceed_it(surface, way):
    guard, model = Watched({"limits": {"cost": "0.055", "unpriced": PRICE}}), always_new()
    agent, runner, options = attached(surface, guard, model, Counted(lambda ran, key: f"{key}: {ran}"))
    outcome = ran(way, agent, runner, **options)
    ended(surface, guard, outcome, "max_cost")
    assert model.calls == 5
    assert guard.ends[0].usage.cost == Decimal("0.06")


@every_surface
@both_ways
def test_a_cap_that_reserves_leaves_room_for_what_a_call_may_use(surface, way):
    """About 200 tokens are sent, and at most 900 may come back."""
    text, settings = "Where? " * 85, ModelSettings(max_tokens=900)
    for cap, starts in ((1_000, False), (1_300, True)):
        guard, model = Watched({"limits": {"tokens": cap, "reserve": True}}), always_new()
        lookup = Counted(lambda ran, key: f"{key}: {ran}")
        agent, runner, options = attached(surface, guard, model, lookup, model_settings=settings)
        outcome = ran(way, agent, runner, text, **options)
        assert bool(model.calls) == starts
        assert guard.reasons == ["max_tokens"]
        assert outcome.error is None or surface == "hooks"


def test_settings_of_the_run_bound_what_a_call_may_use():
    guard, model = Watched({"limits": {"tokens": 1_000, "reserve": True}}), always_new()
    agent, runner, options = attached("runner, model object", guard, model, Counted())
    config = RunConfig(model_settings=ModelSettings(max_tokens=990))
    assert ran("run", agent, runner, "Where? " * 10, run_config=config, **options).output.startswith(OWN)
    assert (model.calls, guard.reasons) == (0, ["max_tokens"])


@every_surface
@both_ways
def test_a_key_without_money_ends_the_run(surface, way, tmp_path):
    url = f"sqlite:///{tmp_path}/keys.db"
    policy = {"key": {"name": "team", "limit": "0.06", "store": url}, "limits": {"unpriced": PRICE}}
    session = SQLiteSession("s")
    with Watched(policy) as guard:
        model = always_new()
        agent, runner, options = attached(surface, guard, model, Counted(lambda ran, key: f"{key}: {ran}"))
        outcome = ran(way, agent, runner, session=session, **options)
        ended(surface, guard, outcome, "key_limit")
        assert_well_formed(items_of(session))
        assert model.calls == 5
        again = ran(way, agent, runner, session=session, **options)
        assert guard.reasons == ["key_limit"] * 2
        assert again.error is None or surface == "hooks"
        assert model.calls == 5, "another run on the same key does not start"
    with open_ledger(url) as ledger:
        status = ledger.status("team")
    assert (status.spent, status.reserved) == (Decimal("0.06"), 0)


@every_surface
@both_ways
def test_a_store_that_cannot_be_asked_is_a_no(surface, way, tmp_path):
    (tmp_path / "file").write_text("")
    policy = {"key": {"name": "team", "limit": 1, "store": f"sqlite:///{tmp_path}/file/keys.db"}}
    with Watched(policy) as guard:
        model = always_new()
        agent, runner, options = attached(surface, guard, model, Counted())
        outcome = ran(way, agent, runner, **options)
        ended(surface, guard, outcome, "key_limit")
    assert model.calls == 0


@both_ways
def test_a_last_answer_is_not_asked_for_where_no_money_is_left(way, tmp_path):
    url = f"sqlite:///{tmp_path}/keys.db"
    policy = {"key": {"name": "team", "limit": "0.02", "store": url}, "limits": {"unpriced": PRICE}}
    with Watched(policy) as guard:
        model = always_new()
        agent, runner, options = attached("runner", guard, model, Counted())
        outcome = ran(way, agent, runner, on_stop="answer", **options)
        ended("runner", guard, outcome, "key_limit")
    assert model.calls == 1


# -- a provider's own limit --------------------------------------------------------------------------------------------

REFUSED = Reply(
    status=402,
    error={"code": 402, "message": "Key limit exceeded", "metadata": {"limit_source": "openrouter_key_limit"}},
)


def client_of(server):
    fresh = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
    client = AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, http_client=fresh)
    return OpenAIChatCompletionsModel("scripted-1", client)


@pytest.mark.parametrize("surface", [surface for surface in SURFACES if surface != "hooks"])
@both_ways
def test_a_providers_402_ends_the_session_with_key_limit(surface, way):
    guard = Watched()
    with ScriptedServer(lambda request: REFUSED) as server:
        agent, runner, options = attached(surface, guard, client_of(server), Counted())
        outcome = ran(way, agent, runner, **options)
        assert len(server.requests) == 1
    assert isinstance(outcome.error, APIStatusError), "what the provider said reaches the caller"
    assert guard.reasons == ["key_limit"]


@both_ways
def test_hooks_with_a_guarded_model_hear_of_a_402_too(way):
    guard = Watched()
    with ScriptedServer(lambda request: REFUSED) as server:
        model = LoopGuardModel(client_of(server), guard)
        agent, runner, options = attached("hooks", guard, model)
        outcome = ran(way, agent, runner, **options)
    assert isinstance(outcome.error, APIStatusError)
    del outcome
    gc.collect()
    guard.close()
    assert guard.reasons == ["key_limit"]


@pytest.mark.parametrize("status", [402, 500])
def test_another_error_of_the_provider_is_an_error(status):
    guard = Watched()
    with ScriptedServer(lambda request: Reply(status=status)) as server:
        agent, runner, options = attached("runner", guard, client_of(server))
        assert isinstance(ran("run", agent, runner, **options).error, APIStatusError)
    assert guard.reasons == ["error"]


# -- what a call used --------------------------------------------------------------------------------------------------


@both_ways
def test_a_stream_that_reports_nothing_is_estimated_from_what_was_sent_and_received(way):
    """Chat Completions report no usage of a stream unless they are asked to."""
    guard = Watched({"limits": {"tokens": 100_000}})
    text = "a " * 300

    with ScriptedServer(lambda request: Reply(text)) as server:
        agent, runner, options = attached("runner", guard, client_of(server))
        settings = ModelSettings(include_usage=False)
        agent.model_settings = settings
        ran(way, agent, runner, "b " * 150, **options)
    usage = guard.ends[0].usage
    assert usage.estimated == (way == "run_streamed")
    if usage.estimated:
        assert (usage.input_tokens, usage.output_tokens) == (100, 200)


def test_a_run_that_is_cut_by_its_reader_pays_for_what_came():
    guard = Watched({"limits": {"cost": 1, "unpriced": PRICE}})
    model = Scripted(lambda _: [say("word " * 300)])
    agent, runner, options = attached("runner", guard, model)

    async def run():
        result = runner.run_streamed(agent, "Go.", **options)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and "delta" in event.data.type:
                result.cancel()

    asyncio.run(run())
    assert guard.reasons == ["cancelled"]
    assert guard.ends[0].usage.cost > 0
