"""`loop_guard_tool_guardrail` alone: the SDK's own documented way to refuse a call."""

import asyncio
import gc

import pytest
from agents import Agent, MaxTurnsExceeded, Runner, SQLiteSession
from loopguard_openai_agents import (
    LoopGuardHooks,
    loop_guard_tool_guardrail,
    loop_guard_tool_output_guardrail,
)
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents_kit import (
    DEFAULT_ACTIONS,
    OWN,
    Counted,
    Scripted,
    Watched,
    acaught,
    ahooked,
    assert_stop,
    assert_well_formed,
    call,
    deaf,
    drain,
    items_of,
    outputs,
    say,
)

both_ways = pytest.mark.parametrize("way", ["run", "run_streamed"])


def guarded(guard, answer="nothing", *, results=True, name="lookup"):
    options = {"tool_input_guardrails": [loop_guard_tool_guardrail(guard)]}
    if results:
        options["tool_output_guardrails"] = [loop_guard_tool_output_guardrail(guard)]
    return Counted(answer, name, options=options)


def plainly(way, agent, **options):
    options = {"max_turns": 50, **options}

    async def main():
        if way == "run":
            return await acaught(Runner.run(agent, "Where is it?", **options))
        return await drain(Runner.run_streamed(agent, "Where is it?", **options))

    return asyncio.run(main())


@both_ways
def test_a_guardrail_alone_refuses_and_stops(way):
    guard, session = Watched(), SQLiteSession("s")
    lookup, model = guarded(guard), Scripted(deaf())
    ran = plainly(way, Agent(name="A", model=model, tools=[lookup.tool]), session=session)
    assert_stop(ran)
    assert (len(lookup.ran), model.calls) == (2, 6)
    assert guard.actions == DEFAULT_ACTIONS
    assert guard.reasons == ["doom_loop"]
    # The SDK drops the round in which a guardrail raises; what it keeps is whole.
    assert [text.startswith(OWN) for text in outputs(ran.history)] == [False] * 2 + [True] * 3
    assert_well_formed(items_of(session))


def test_a_model_that_listens_goes_on():
    guard = Watched()
    lookup = guarded(guard)
    model = Scripted(lambda asked: [say("done")] if OWN in str(asked.outputs) else [call()])
    ran = plainly("run", Agent(name="A", model=model, tools=[lookup.tool]))
    assert (ran.output, len(lookup.ran)) == ("done", 2)
    results = ran.result.tool_input_guardrail_results
    assert [found.guardrail.get_name() for found in results] == ["loopguard"] * 3
    assert guard.reasons == []  # a guardrail is not told of the end ...
    del ran, results
    gc.collect()
    plainly("run", Agent(name="A", model=Scripted(deaf()), tools=[guarded(guard).tool]))
    assert guard.reasons == ["complete", "doom_loop"]  # ... it is noticed when the next run begins


@pytest.mark.parametrize("results", [True, False])
def test_with_the_output_guardrail_polling_is_left_alone(results):
    guard = Watched()
    lookup = guarded(guard, lambda times, _: f"{times * 7} percent", results=results)
    model = Scripted(lambda asked: [call()] if asked.rounds < 9 else [say("ready")])
    ran = plainly("run", Agent(name="A", model=model, tools=[lookup.tool]))
    if results:
        assert (ran.output, len(lookup.ran)) == ("ready", 9)
    else:
        assert_stop(ran)


def test_nothing_is_kept_of_runs_that_are_over():
    guard = Watched()
    lookup = guarded(guard, lambda times, _: f"row {times}")
    agent = Agent(name="A", model=Scripted(lambda a: [call()] if a.rounds < 2 else [say("done")]), tools=[lookup.tool])
    for _ in range(20):
        assert plainly("run", agent).output == "done"
        gc.collect()
    guard.close()
    assert guard.reasons == ["complete"] * 20
    assert guard._live == {}
    assert not [run for run in registry._watched if run.guard is guard]


def test_a_fan_out_is_judged_by_its_first_call():
    guard = Watched()
    lookup = guarded(guard)
    wanted = [("lookup", {"key": f"K-{n}"}) for n in range(3)]
    ran = plainly("run", Agent(name="A", model=Scripted(deaf(*wanted)), tools=[lookup.tool]))
    assert_stop(ran)
    assert lookup.ran.count("K-0") == 2
    assert guard.actions == DEFAULT_ACTIONS


def test_equal_calls_in_one_response_are_no_loop():
    guard = Watched()
    lookup = guarded(guard)
    model = Scripted(lambda asked: [call() for _ in range(8)] if asked.number == 1 else [say("done")])
    ran = plainly("run", Agent(name="A", model=model, tools=[lookup.tool]))
    assert (ran.output, len(lookup.ran), guard.actions) == ("done", 8, [])


def test_under_hooks_it_does_what_they_decided_and_counts_nothing():
    guard = Watched()
    lookup = guarded(guard)
    agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
    ran = asyncio.run(ahooked("run", agent, hooks=LoopGuardHooks(guard), max_turns=50))
    assert_stop(ran)
    assert (len(lookup.ran), guard.actions, len(guard.ends)) == (2, DEFAULT_ACTIONS, 1)


def test_runs_at_once_do_not_mix():
    guard = Watched()
    bad, good = guarded(guard), guarded(guard, lambda times, _: f"row {times}")
    looping = Agent(name="Bad", model=Scripted(deaf()), tools=[bad.tool])
    healthy = Agent(
        name="Good", model=Scripted(lambda a: [call()] if a.rounds < 6 else [say("done")]), tools=[good.tool]
    )

    async def everything():
        runs = [acaught(Runner.run(agent, "x", max_turns=50)) for agent in (looping, healthy) * 10]
        return await asyncio.gather(*runs)

    results = asyncio.run(everything())
    for ran in results[::2]:
        assert_stop(ran)
    assert [ran.output for ran in results[1::2]] == ["done"] * 10
    assert (len(bad.ran), len(good.ran)) == (20, 60)


def test_the_switch_is_off():
    guard = Watched({"enabled": False})
    lookup = guarded(guard)
    ran = plainly("run", Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool]), max_turns=8)
    assert isinstance(ran.error, MaxTurnsExceeded)
    assert len(lookup.ran) == 8
