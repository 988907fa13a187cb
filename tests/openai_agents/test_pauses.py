"""Runs that wait for a human, and go on from a `RunState`: in this process, from a string, in another process."""

import asyncio
import gc

import pytest
from agents import Agent, Runner, RunState, SQLiteSession
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, run_streamed, session_of
from loopguard_openai_agents_kit import (
    DEFAULT_ACTIONS,
    Counted,
    Scripted,
    Watched,
    acaught,
    assert_stop,
    assert_well_formed,
    call,
    deaf,
    drain,
    say,
)

from loopguard_core import LoopGuard

both_ways = pytest.mark.parametrize("way", ["run", "run_streamed"])


def danger(**options):
    return Counted(name="lookup", options={"needs_approval": True, **options})


async def once(way, surface, agent, input_, guard, **options):
    if surface == "runner":
        options = {"guard": guard, "on_stop": "raise", **options}
        if way == "run":
            return await acaught(GuardedRunner.run(agent, input_, **options))
        return await drain(run_streamed(agent, input_, **options))
    if way == "run":
        return await acaught(Runner.run(agent, input_, hooks=LoopGuardHooks(guard), **options))
    return await drain(Runner.run_streamed(agent, input_, hooks=LoopGuardHooks(guard), **options))


async def to_the_end(way, surface, agent, guard, decide="approve", through=None, collect=False, **options):
    """Run, deciding every call a human is asked about, until nobody is asked any more."""
    ran, asked = await once(way, surface, agent, "x", guard, **options), 0
    while ran.error is None and ran.result.interruptions:
        asked += 1
        state = ran.result.to_state()
        if through is not None:
            state = await through(agent, state)
        for item in state.get_interruptions():
            getattr(state, decide)(item)
        ran = None
        if collect:
            gc.collect()  # nothing but the state may be needed to go on
        ran = await once(way, surface, agent, state, guard, **options)
    return ran, asked


async def by_string(agent, state):
    return await RunState.from_string(agent, state.to_string())


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
@pytest.mark.parametrize("through", [None, by_string], ids=["object", "string"])
def test_a_run_that_is_approved_again_and_again_goes_on_counting(way, surface, through):
    lookup, guard = danger(), Watched()
    session = SQLiteSession("s")
    agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
    ran, asked = asyncio.run(
        to_the_end(way, surface, agent, guard, through=through, collect=way == "run", session=session)
    )

    assert_stop(ran)
    assert (len(lookup.ran), asked) == (2, 2)  # from the third on it is refused, and no human is asked
    assert guard.actions == DEFAULT_ACTIONS
    assert len({event.session_id for event in guard.loops}) == 1
    expected = ["paused", "paused", "doom_loop"] if surface == "runner" else ["doom_loop"]
    assert guard.reasons == expected
    assert guard.ends[-1].turns == 6
    assert_well_formed(asyncio.run(session.get_items()))
    assert guard._live == {}


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
def test_a_call_that_a_human_refuses_again_and_again_is_a_loop(way, surface):
    lookup, guard = danger(), Watched()
    agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
    ran, asked = asyncio.run(to_the_end(way, surface, agent, guard, decide="reject"))
    assert_stop(ran)
    assert (lookup.ran, asked, guard.actions) == ([], 2, DEFAULT_ACTIONS)


@both_ways
def test_a_pause_inside_a_tool_goes_on_inside(way):
    lookup, guard = danger(), Watched()
    inner = Agent(name="Inner", model=Scripted(deaf()), tools=[lookup.tool])
    tool = inner.as_tool("research", "research", hooks=LoopGuardHooks(guard), max_turns=50)
    outer = Agent(name="Outer", model=Scripted(deaf(("research", {"input": "x"}))), tools=[tool])
    ran, asked = asyncio.run(to_the_end(way, "runner", outer, guard))

    assert_stop(ran)
    assert (len(lookup.ran), asked) == (2, 2)
    assert outer.model.calls == 1
    inner_end = next(end for end in guard.ends if end.agent == "Inner")
    assert (inner_end.reason, inner_end.turns) == ("doom_loop", 6)
    assert guard.reasons[-1] == "doom_loop"
    assert inner_end.parent_id == guard.ends[-1].session_id


def test_another_process_goes_on_from_saved_state():
    async def main():
        lookup = danger()
        agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
        first = await GuardedRunner.run(agent, "x", guard=LoopGuard())
        paused = first.to_state().to_string(), session_of(first).save()
        del first
        gc.collect()

        here = Watched()  # as in another process: another guard, nothing else survives
        state = await RunState.from_string(agent, paused[0])
        state.approve(state.get_interruptions()[0])
        second = await GuardedRunner.run(agent, state, guard=here, saved=paused[1], session_id="invoice-7")
        return second, here, lookup

    second, here, lookup = asyncio.run(main())
    assert len(second.interruptions) == 1
    assert here.ends[0].session_id == "invoice-7"
    assert (here.ends[0].reason, here.ends[0].turns, here.ends[0].model_calls) == ("paused", 2, 2)
    assert here.actions == [(2, "observe")]
    assert len(lookup.ran) == 1


def test_a_session_can_be_named_to_go_on_with():
    async def main():
        agent = Agent(name="A", model=Scripted(deaf()), tools=[danger().tool])
        guard = Watched()
        first = await GuardedRunner.run(agent, "x", guard=guard, session_id="run-1")
        state = await by_string(agent, first.to_state())
        state.approve(state.get_interruptions()[0])
        await GuardedRunner.run(agent, state, guard=guard, session_id="run-1")
        return guard

    guard = asyncio.run(main())
    assert [(end.session_id, end.turns) for end in guard.ends] == [("run-1", 1), ("run-1", 2)]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_results_that_change_over_pauses_are_no_loop(elsewhere):
    """What an approved call returned is known, also where only saved state knows the call."""

    async def main():
        lookup = danger()
        lookup.answer = lambda times, _: f"{times * 7} percent"
        agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
        guard = Watched()
        result = await GuardedRunner.run(agent, "x", guard=guard, session_id="run-1")
        for _ in range(5):
            text, saved = result.to_state().to_string(), session_of(result).save()
            if elsewhere:
                guard = Watched()
            state = await RunState.from_string(agent, text)
            state.approve(state.get_interruptions()[0])
            options = {"saved": saved} if elsewhere else {"session_id": "run-1"}
            result = await GuardedRunner.run(agent, state, guard=guard, **options)
        return lookup, guard

    lookup, guard = asyncio.run(main())
    assert len(lookup.ran) == 5
    assert not [action for action in guard.actions if action[1] in ("block", "stop")]
    assert guard.ends[-1].turns == 6


@both_ways
def test_paused_runs_whose_provider_reuses_call_ids_do_not_mix(way):
    async def main():
        guard = Watched()
        scripts = [
            lambda asked, n=n: [call("lookup", {"key": "same"}, call_id=f"call_{asked.rounds}")] for n in range(10)
        ]
        agents = [Agent(name="A", model=Scripted(script), tools=[danger().tool]) for script in scripts]
        results = await asyncio.gather(*(to_the_end(way, "runner", agent, guard) for agent in agents))
        return guard, results

    guard, results = asyncio.run(main())
    for ran, asked in results:
        assert_stop(ran)
        assert asked == 2
    assert sorted(guard.reasons) == ["doom_loop"] * 10 + ["paused"] * 20
    assert len({end.session_id for end in guard.ends}) == 10
    assert guard._live == {}


def test_a_user_who_speaks_while_it_waits_starts_afresh():
    async def main():
        lookup, guard = danger(), Watched()
        agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
        ran = await once("run", "runner", agent, "x", guard)
        for _ in range(3):
            state = ran.result.to_state()
            state.approve(state.get_interruptions()[0])
            state.add_input("please try once more")
            ran = await once("run", "runner", agent, state, guard)
        return guard, lookup

    guard, lookup = asyncio.run(main())
    assert (guard.actions, len(lookup.ran)) == ([], 3)


def test_a_paused_run_that_is_dropped_stays_resumable_and_others_go_on():
    async def main():
        guard = Watched()
        agent = Agent(name="A", model=Scripted(deaf()), tools=[danger().tool])
        await GuardedRunner.run(agent, "x", guard=guard)
        other = Agent(name="B", model=Scripted(lambda _: [say("hi")]))
        return guard, await GuardedRunner.run(other, "x", guard=guard)

    guard, result = asyncio.run(main())
    assert (guard.reasons, result.final_output) == (["paused", "complete"], "hi")
    assert len(guard._live) == 1
