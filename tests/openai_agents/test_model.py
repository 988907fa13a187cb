"""`LoopGuardModel` and its provider: text while it streams, and runs that have no hooks of ours."""

import asyncio
import itertools

import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    tool_namespace,
)
from loopguard_openai_agents import (
    GuardedRunner,
    LoopGuardHooks,
    LoopGuardModel,
    LoopGuardModelProvider,
    guard_run_config,
    loop_guard_tool_guardrail,
)
from loopguard_openai_agents_kit import (
    DEFAULT_ACTIONS,
    OWN,
    Counted,
    Models,
    Scripted,
    Watched,
    acaught,
    ago,
    ahooked,
    assert_stop,
    assert_well_formed,
    call,
    caught,
    deaf,
    drain,
    every_way,
    go,
    handoff_call,
    hooked,
    items_of,
    listening,
    outputs,
    say,
    sequence,
    think,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from loopguard_core import Detector, Finding, Ladder, hookimpl
from loopguard_core.testing import ScriptedServer, gives_up_when_refused, never_listens

both_ways = pytest.mark.parametrize("way", ["run", "run_streamed"])


def plainly(way, agent, **options):
    """One run of the SDK's own `Runner`, without hooks."""
    options = {"max_turns": 50, **options}
    if way == "run_sync":
        return caught(lambda: Runner.run_sync(agent, "Where is it?", **options))
    if way == "run":
        return asyncio.run(acaught(Runner.run(agent, "Where is it?", **options)))

    async def streamed():
        return await drain(Runner.run_streamed(agent, "Where is it?", **options))

    return asyncio.run(streamed())


# -- text --------------------------------------------------------------------------------------------------------------


class Stammer(Detector):
    """Fires on a message that says `again` three times."""

    name = "stammer"
    ladder = Ladder(steer=1, stop=2)
    channels = ("content",)
    heard_on: list

    def __init__(self):
        self.text, self.fired, self.messages, self.open = "", 0, 0, True
        type(self).heard.append(self)
        self.seen = []

    heard: list = []  # noqa: RUF012  # every instance, for the tests

    def feed_text(self, delta, channel):
        self.seen.append((channel, delta))
        if channel != "content" or not self.open:
            return None
        self.text += delta
        if self.text.count("again") < 3:
            return None
        self.fired, self.open = self.fired + 1, False
        return Finding(self.fired, self.fired, char=len(self.text), abort=True)

    def end_message(self, finish_reason):
        self.text, self.open, self.messages = "", True, self.messages + 1
        return


class Stammers:
    @hookimpl
    def detectors(self, policy):
        return [Stammer()]


@pytest.fixture
def heard():
    Stammer.heard = []
    return Stammer.heard


REPEATED = "again and " * 500


def provided(guard, script, **options):
    model = Scripted(script, "usual")
    config = RunConfig(model_provider=Models(usual=model))
    return Agent(name="A", model="usual", **options), model, {"guard": guard, "run_config": config}


def test_a_stream_that_repeats_itself_is_cut_at_once_and_the_model_told(heard):
    guard = Watched(plugins=[Stammers()])
    agent, model, options = provided(guard, sequence([say(REPEATED)], [say("It is paid.")]))
    session = SQLiteSession("s")
    ran = go("run_streamed", agent, session=session, **options)

    assert ran.output == "It is paid."
    assert model.closed == 1  # the provider's stream was closed, not drained
    assert len(ran.deltas) < 60
    assert (model.calls, guard.reasons) == (2, ["complete"])
    assert [len(asked.told) for asked in model.asked] == [0, 1]
    assert guard.actions == [(1, "steer")]
    assert (guard.loops[0].channel, guard.loops[0].abort) == ("content", True)
    assert guard.ends[0].model_calls == 2
    assert [item.get("role") for item in items_of(session)] == ["user", "assistant"]


@pytest.mark.parametrize("how", ["raise", "end"])
def test_a_stream_that_repeats_itself_again_ends_the_run(heard, how):
    guard = Watched(plugins=[Stammers()])
    lookup = Counted()
    agent, model, options = provided(
        guard, lambda asked: [say(REPEATED)] if asked.rounds else [call()], tools=[lookup.tool]
    )
    session = SQLiteSession("s")
    ran = go("run_streamed", agent, on_stop=how, session=session, **options)

    assert (model.calls, model.closed) == (3, 2)
    assert guard.reasons == ["doom_loop"]
    if how == "raise":
        assert assert_stop(ran).verdict.detector == "stammer"
    else:
        written, _, notice = ran.output.partition("\n\n")
        assert REPEATED.startswith(written)
        assert notice.startswith("[loopguard] The run was ended")
    assert_well_formed(items_of(session))


@pytest.mark.parametrize("way", ["run", "run_sync"])
def test_a_response_in_one_piece_is_judged_the_same(heard, way):
    guard = Watched(plugins=[Stammers()])
    agent, model, options = provided(guard, sequence([say(REPEATED)], [say("It is paid.")]))
    ran = go(way, agent, **options)
    assert (ran.output, model.calls, guard.actions) == ("It is paid.", 2, [(1, "steer")])
    assert guard.ends[0].usage.total_tokens == 240  # what was thrown away was paid for


def test_a_detector_that_never_tires_cannot_keep_the_model_busy(heard):
    class Endless(Stammer):
        ladder = Ladder(steer=1)

    class Plugin:
        @hookimpl
        def detectors(self, policy):
            return [Endless()]

    guard = Watched(plugins=[Plugin()])
    agent, model, options = provided(guard, lambda _: [say(REPEATED)])
    ran = go("run_streamed", agent, **options)
    assert (ran.output, model.calls) == (REPEATED, 2)  # text.retries is 1


@every_way
@pytest.mark.parametrize("surface", ["runner", "hooks", "model"])
def test_every_channel_is_read_once_whatever_the_surface(heard, surface, way):
    guard = Watched(plugins=[Stammers()])
    said = [think("hm, let me see"), say("Looking."), call("lookup", {"key": "K-1"})]
    lookup = Counted()
    script = sequence(said, then="done")
    agent = Agent(name="A", model=Scripted(script), tools=[lookup.tool])
    if surface == "runner":
        provided_agent, _, options = provided(guard, script, tools=[lookup.tool])
        ran = go(way, provided_agent, **options)
    elif surface == "hooks":
        ran = hooked(way, agent, guard)
    else:
        agent.model = LoopGuardModel(agent.model, guard)
        ran = plainly(way, agent)
    assert ran.output == "done"
    [detector] = heard
    texts = {
        channel: "".join(delta for found, delta in detector.seen if found == channel)
        for channel in ("reasoning", "content", "arguments")
    }
    assert texts == {"reasoning": "hm, let me see", "content": "Looking.done", "arguments": '{"key": "K-1"}'}
    assert detector.messages == 2


def test_text_read_after_the_fact_still_counts_under_hooks_alone(heard):
    lookup, guard = Counted(), Watched(plugins=[Stammers()])
    model = Scripted(lambda asked: [say(REPEATED), call("lookup", {"key": str(asked.number)})])
    ran = hooked("run_streamed", Agent(name="A", model=model, tools=[lookup.tool]), guard)
    assert_stop(ran)
    assert model.calls == 2
    assert len(model.asked[1].told) == 1


# -- a run without hooks of ours ---------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("attached", ["model", "provider"])
def test_a_model_alone_ends_the_run_before_the_sixth_round(way, attached):
    guard, lookup, model = Watched(), Counted(), Scripted(deaf(), "usual")
    session = SQLiteSession("s")
    if attached == "model":
        agent = Agent(name="A", model=LoopGuardModel(model, guard), tools=[lookup.tool])
        ran = plainly(way, agent, session=session)
    else:
        agent = Agent(name="A", model="usual", tools=[lookup.tool])
        provider = LoopGuardModelProvider(Models(usual=model), guard)
        ran = plainly(way, agent, run_config=RunConfig(model_provider=provider), session=session)

    assert ran.output.startswith("[loopguard] The run was ended")
    assert (model.calls, len(lookup.ran)) == (6, 5)  # it cannot block
    assert [action for _, action in guard.actions] == ["observe", "steer", "steer", "steer", "stop"]
    assert guard.reasons == ["doom_loop"]
    assert sum(len(asked.told) for asked in model.asked) == 1
    assert ran.result.context_wrapper.usage.requests == 6  # the replaced response was made and paid for
    assert_well_formed(ran.history)
    assert_well_formed(items_of(session))
    assert guard._live == {}
    if way == "run_streamed":
        assert ran.deltas == ran.output


@every_way
def test_a_model_alone_can_raise(way):
    guard, lookup = Watched(), Counted()
    agent = Agent(name="A", model=LoopGuardModel(Scripted(deaf()), guard, on_stop="raise"), tools=[lookup.tool])
    assert_stop(plainly(way, agent))
    assert (len(lookup.ran), guard.reasons) == (5, ["doom_loop"])


@every_way
def test_a_model_alone_can_answer(way):
    guard, lookup, model = Watched(), Counted(), Scripted(deaf())
    agent = Agent(name="A", model=LoopGuardModel(model, guard, on_stop="answer"), tools=[lookup.tool])
    ran = plainly(way, agent)
    assert (ran.output, len(lookup.ran), model.calls) == ("enough", 5, 7)
    assert model.asked[-1].tools == []
    assert guard.ends[0].model_calls == 7
    assert_well_formed(ran.history)


class Invoice(BaseModel):
    paid: bool


@both_ways
def test_a_model_alone_raises_where_only_typed_output_is_final(way):
    guard, lookup = Watched(), Counted()
    agent = Agent(name="A", model=LoopGuardModel(Scripted(deaf()), guard), tools=[lookup.tool], output_type=Invoice)
    assert_stop(plainly(way, agent))


@every_way
def test_a_model_alone_escalates_one_turn(way):
    strong = Scripted(lambda _: [call("lookup", {"key": "another"})], "strong")
    guard, lookup = Watched({"ladder": {"observe": 2, "escalate": 2, "stop": 6}}), Counted()
    usual = Scripted(lambda asked: [say("done")] if strong.calls else [call()], "usual")
    agent = Agent(name="A", model=LoopGuardModel(usual, guard, escalate_model=strong), tools=[lookup.tool])
    ran = plainly(way, agent)
    assert (ran.output, strong.calls, guard.reasons) == ("done", 1, ["complete"])
    assert lookup.ran == ["K-1", "K-1", "another"]


@both_ways
def test_limits_hold_for_a_model_alone(way):
    guard, lookup = Watched({"limits": {"turns": 3}}), Counted(lambda n, _: f"row {n}")
    model = Scripted(lambda asked: [call("lookup", {"key": str(asked.number)})])
    ran = plainly(way, Agent(name="A", model=LoopGuardModel(model, guard), tools=[lookup.tool]))
    assert "limit of 3" in ran.output
    assert (model.calls, len(lookup.ran), guard.reasons) == (3, 3, ["max_turns"])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (lambda asked: [call("lookup", {"key": str(asked.number)})], "max_turns"),
        (lambda asked: ConnectionError("down"), "error"),
        (lambda asked: [say("done")], "complete"),
    ],
)
@both_ways
def test_a_model_alone_is_told_how_the_run_ended(way, script, reason):
    guard, lookup = Watched(), Counted(lambda n, _: f"row {n}")
    agent = Agent(name="A", model=LoopGuardModel(Scripted(script), guard), tools=[lookup.tool])
    ran = plainly(way, agent, max_turns=4)
    if way == "run_streamed" and reason == "max_turns":
        reason = "complete"  # the SDK's streams end without an error there, and raise where they are read
    assert guard.reasons == [reason]
    assert ran.error is None or isinstance(ran.error, (MaxTurnsExceeded, ConnectionError))


def test_an_error_around_the_run_is_not_its_own():
    guard = Watched()
    agent = Agent(name="A", model=LoopGuardModel(Scripted(sequence([call()])), guard), tools=[Counted().tool])
    agent.tool_use_behavior = "stop_on_first_tool"
    try:
        {}["the user's"]
    except KeyError:
        plainly("run", agent)
    assert guard.reasons == ["complete"]


@both_ways
def test_documented_seams_alone_block_too(way):
    """The provider judges whole rounds, and the guardrail on the tool refuses."""
    guard = Watched()
    lookup = Counted(options={"tool_input_guardrails": [loop_guard_tool_guardrail(guard)]})
    model = Scripted(deaf(), "usual")
    config = guard_run_config(guard, RunConfig(model_provider=Models(usual=model)), on_stop="raise")
    ran = plainly(way, Agent(name="A", model="usual", tools=[lookup.tool]), run_config=config)
    assert_stop(ran)
    assert (len(lookup.ran), guard.actions, guard.reasons) == (2, DEFAULT_ACTIONS, ["doom_loop"])
    assert [text.startswith(OWN) for text in outputs(ran.history)] == [False, False, True, True, True]


def test_of_two_tools_only_the_one_with_a_guardrail_is_refused():
    guard = Watched()
    with_guardrail = Counted(name="one", options={"tool_input_guardrails": [loop_guard_tool_guardrail(guard)]})
    without = Counted(name="two")
    model = LoopGuardModel(Scripted(deaf(("one", None), ("two", None))), guard, on_stop="raise")
    agent = Agent(name="A", model=model, tools=[with_guardrail.tool, without.tool])
    ran = plainly("run", agent)
    assert_stop(ran)
    assert (len(with_guardrail.ran), len(without.ran)) == (2, 5)


@both_ways
@pytest.mark.parametrize("namespace", [None, "crm"])
def test_a_tool_without_a_guardrail_is_not_said_to_be_refused(way, namespace):
    guard, counted = Watched(), Counted()
    other = Counted(name="other", options={"tool_input_guardrails": [loop_guard_tool_guardrail(guard)]})
    tool = counted.tool
    if namespace is not None:
        [tool] = tool_namespace(name=namespace, description="d", tools=[tool])
    model = LoopGuardModel(Scripted(lambda _: [call().model_copy(update={"namespace": namespace})]), guard)
    plainly(way, Agent(name="A", model=model, tools=[tool, other.tool]))
    assert [action for _, action in guard.actions] == ["observe", "steer", "steer", "steer", "stop"]
    assert len(counted.ran) == 5


@both_ways
def test_a_model_alone_steers_agents_that_hand_over_to_each_other(way):
    guard = Watched()
    other = Counted(name="other", options={"tool_input_guardrails": [loop_guard_tool_guardrail(guard)]})
    a, b = Agent(name="A", tools=[other.tool]), Agent(name="B", tools=[other.tool])
    a.model = LoopGuardModel(Scripted(lambda _: [handoff_call("b")]), guard, on_stop="raise")
    b.model = LoopGuardModel(Scripted(lambda _: [handoff_call("a")]), guard, on_stop="raise")
    a.handoffs, b.handoffs = [b], [a]
    assert_stop(plainly(way, a))
    actions = [action for _, action in guard.actions]
    assert "steer" in actions
    assert "block" not in actions


@both_ways
@pytest.mark.parametrize("refusable", [True, False])
def test_a_limit_on_tool_calls_holds_where_no_call_can_be_refused(way, refusable):
    """The round that would exceed it is not made at all; with guardrails, as much of it as there is room for."""
    guard = Watched({"limits": {"tool_calls": 3}})
    options = {"tool_input_guardrails": [loop_guard_tool_guardrail(guard)]} if refusable else {}
    lookup = Counted(lambda ran, key: f"{key}: {ran}", options=options)
    wanted = Scripted(lambda asked: [call("lookup", {"key": f"{asked.number}-{n}"}) for n in range(2)])
    ran = plainly(way, Agent(name="A", model=LoopGuardModel(wanted, guard), tools=[lookup.tool]))
    assert ran.output.startswith(OWN)
    assert (len(lookup.ran), guard.reasons) == (3 if refusable else 2, ["max_tool_calls"])
    assert_well_formed(ran.history)


def test_fifty_runs_through_one_provider_do_not_mix():
    guard = Watched()
    model = Scripted(
        lambda asked: (
            deaf()(asked) if "bad" in str(asked.input[0]) else [say("done")] if asked.rounds > 6 else [call()]
        ),
        "usual",
    )
    lookup = Counted(lambda times, _: "nothing")
    healthy = Counted(lambda times, _: f"row {times}")
    config = guard_run_config(guard, RunConfig(model_provider=Models(usual=model)), on_stop="raise")
    bad = Agent(name="Bad", model="usual", tools=[lookup.tool])
    good = Agent(name="Good", model="usual", tools=[healthy.tool])

    async def one(index):
        agent, words = (bad, "bad") if index % 2 else (good, "good")
        return await acaught(Runner.run(agent, words, run_config=config, max_turns=50))

    async def everything():
        return await asyncio.gather(*(one(index) for index in range(50)))

    results = asyncio.run(everything())
    assert [ran.output for ran in results[::2]] == ["done"] * 25
    for ran in results[1::2]:
        assert_stop(ran)
    assert sorted(guard.reasons) == ["complete"] * 25 + ["doom_loop"] * 25
    assert len(lookup.ran) == 125


# -- with hooks of ours ------------------------------------------------------------------------------------------------


@every_way
def test_hooks_and_a_guarded_provider_count_every_round_once(way):
    guard, lookup, model = Watched(), Counted(), Scripted(deaf(), "usual")
    config = guard_run_config(guard, RunConfig(model_provider=Models(usual=model)))
    ran = hooked(way, Agent(name="A", model="usual", tools=[lookup.tool]), guard, run_config=config)
    assert_stop(ran)
    assert (len(lookup.ran), guard.actions, len(guard.ends)) == (2, DEFAULT_ACTIONS, 1)
    assert guard.ends[0].model_calls == 6


def test_the_sdks_own_retries_count_once():
    guard, lookup = Watched(), Counted()
    flaky = itertools.count()
    model = Scripted(lambda asked: ConnectionError("blip") if next(flaky) % 2 == 0 else listening()(asked), "usual")
    settings = ModelSettings(
        retry=ModelRetrySettings(max_retries=3, backoff={"initial_delay": 0}, policy=lambda _: True)
    )
    config = RunConfig(model_provider=Models(usual=model), model_settings=settings)
    agent = Agent(name="A", model="usual", tools=[lookup.tool])
    ran = go("run", agent, guard=guard, run_config=config)
    assert (ran.output, len(lookup.ran)) == ("I could not find it.", 2)
    assert (guard.ends[0].model_calls, guard.actions) == (4, DEFAULT_ACTIONS[:2])


# -- what a wrapper must not change ------------------------------------------------------------------------------------


def test_everything_else_of_the_model_shows_through():
    class Special(Scripted):
        _supports_default_prompt_cache_key = True
        ended = ()

        async def _cleanup_on_run_end(self, owner):
            self.ended += (owner,)

        async def close(self):
            self.closed += 1

        def get_retry_advice(self, request):
            return "advice"

    inner = Special(lambda _: [say("hi")])
    model = LoopGuardModel(inner, "default")
    assert model._supports_default_prompt_cache_key is True
    assert model.get_retry_advice(None) == "advice"
    assert not hasattr(model, "no_such_thing")
    plainly("run", Agent(name="A", model=model))
    assert len(inner.ended) == 1
    asyncio.run(model.close())
    assert inner.closed == 1
    assert LoopGuardModel(model, "default")._model is inner


def test_a_provider_wraps_each_model_once_and_closes_its_own():
    models = Models(usual=Scripted(deaf()))
    provider = LoopGuardModelProvider(models, "default")
    assert provider.get_model("usual") is provider.get_model("usual")
    asyncio.run(provider.aclose())
    assert models.closed == 1


def test_a_model_called_without_a_runner_is_left_alone():
    guard = Watched()
    model = LoopGuardModel(Scripted(deaf()), guard)

    async def main():
        for _ in range(8):
            await model.get_response(None, "x", ModelSettings(), [Counted().tool], None, [], None)

    asyncio.run(main())
    assert (guard.actions, guard.ends) == ([], [])


def test_a_run_config_is_wrapped_once_and_never_changed():
    guard = Watched()
    mine = RunConfig(model=Scripted(deaf()), workflow_name="mine")
    once = guard_run_config(guard, mine)
    again = guard_run_config(guard, once)
    assert isinstance(once.model, LoopGuardModel)
    assert (again.model, again.model_provider) == (once.model, once.model_provider)
    assert again.tool_error_formatter is once.tool_error_formatter
    assert (once.workflow_name, mine.tool_error_formatter, type(mine.model)) == ("mine", None, Scripted)
    assert guard_run_config(guard, {"workflow_name": "dict"}).workflow_name == "dict"


@every_way
@pytest.mark.parametrize("own", ["ignored", Scripted(lambda _: [say("not asked")])], ids=["name", "object"])
def test_one_model_for_the_whole_run_is_guarded_too(way, own):
    guard, lookup, strong = Watched({"ladder": {"escalate": 2}}), Counted(), Scripted(lambda _: [say("solved")])
    agent = Agent(name="A", model=own, tools=[lookup.tool])
    config = RunConfig(model=Scripted(deaf()))
    ran = go(way, agent, guard=guard, run_config=config, escalate_model=strong)
    assert (ran.output, guard.reasons) == ("solved", ["complete"])


# -- through the real client -------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("persona", [never_listens, gives_up_when_refused])
def test_through_the_real_client(way, persona):
    guard, lookup = Watched({"limits": {"cost": 50}}), Counted()
    with ScriptedServer(persona("lookup", {"key": "K-1"}), price_per_million=(1.0, 2.0)) as server:

        async def main():
            client = AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0)
            model = OpenAIChatCompletionsModel(model="scripted-1", openai_client=client)
            agent = Agent(
                name="A",
                model=LoopGuardModel(model, guard),
                tools=[lookup.tool],
                model_settings=ModelSettings(include_usage=True),
            )
            async with client:
                return await ago(way, agent, guard=guard, on_stop="answer")

        ran = asyncio.run(main())
        requests = server.requests

    deaf_one = persona is never_listens
    assert (len(lookup.ran), len(requests)) == (2, 7 if deaf_one else 4)
    assert guard.actions == (DEFAULT_ACTIONS if deaf_one else DEFAULT_ACTIONS[:2])
    assert guard.reasons == ["doom_loop" if deaf_one else "complete"]
    assert "tools" not in requests[-1] or not deaf_one
    assert ran.output
    spent = sum(entry["cost"] for entry in server.usage_log)
    assert float(guard.ends[0].usage.cost) == pytest.approx(spent)
    assert guard.ends[0].usage.total_tokens == sum(entry["total_tokens"] for entry in server.usage_log)
    assert_well_formed(ran.history)


def test_hooks_through_the_real_client():
    guard, lookup = Watched(), Counted()
    with ScriptedServer(never_listens("lookup", {"key": "K-1"})) as server:

        async def main():
            async with AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as client:
                model = OpenAIChatCompletionsModel(model="scripted-1", openai_client=client)
                agent = Agent(name="A", model=model, tools=[lookup.tool])
                return await ahooked("run", agent, hooks=LoopGuardHooks(guard), max_turns=20)

        assert_stop(asyncio.run(main()))
    assert (len(lookup.ran), guard.actions) == (2, DEFAULT_ACTIONS)


@pytest.mark.parametrize("wrong", [7, "", object()])
@pytest.mark.parametrize(
    "make",
    [
        lambda wrong: LoopGuardModel(Scripted(deaf()), escalate_model=wrong),
        lambda wrong: LoopGuardModelProvider(escalate_model=wrong),
        lambda wrong: guard_run_config("default", escalate_model=wrong),
        lambda wrong: GuardedRunner.run_sync(Agent(name="A", model=Scripted(deaf())), "go", escalate_model=wrong),
    ],
    ids=["model", "provider", "run config", "runner"],
)
def test_a_stronger_model_that_is_none_is_named_at_once(make, wrong):
    with pytest.raises(TypeError) as caught:
        make(wrong)
    assert str(caught.value).startswith(f"escalate_model = {wrong!r:.80}: must be a Model, or the name of one")
