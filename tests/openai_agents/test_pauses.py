"""Runs that wait for a human, and go on from a `RunState`: in this process, from a string, in another process."""

import asyncio
import gc
from collections import OrderedDict

import pytest
from agents import Agent, Runner, RunState, ShellTool, SQLiteSession
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, LoopGuardModel, run_streamed, session_of
from loopguard_openai_agents._sessions import registry
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
    handoff_call,
    say,
)
from openai.types.responses.response_function_shell_tool_call import Action as ShellAction
from openai.types.responses.response_function_shell_tool_call import ResponseFunctionShellToolCall

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
    if surface == "hooks":
        options["hooks"] = LoopGuardHooks(guard)
    if way == "run":
        return await acaught(Runner.run(agent, input_, **options))
    return await drain(Runner.run_streamed(agent, input_, **options))


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
    assert guard.reasons[-1] == "doom_loop"
    pauses = guard.reasons[:-1]
    if surface == "runner":
        assert pauses == ["paused"] * 2
    else:
        assert set(pauses) <= {"paused"}, "hooks are told of a pause when the run's objects are gone"
    assert guard.ends[-1].turns == 6
    assert_well_formed(asyncio.run(session.get_items()))
    assert guard._live == {}
    assert not [run for run in registry._waiting if run.guard is guard]


@both_ways
@pytest.mark.parametrize("through", [None, by_string], ids=["object", "string"])
@pytest.mark.parametrize("decide", ["approve", "reject"])
def test_a_model_alone_goes_on_counting_over_approvals(way, through, decide):
    lookup, guard = danger(), Watched()
    agent = Agent(name="A", model=LoopGuardModel(Scripted(deaf()), guard), tools=[lookup.tool])
    ran, asked = asyncio.run(to_the_end(way, "model", agent, guard, decide, through, collect=True))
    assert ran.output.startswith("[loopguard]")
    assert (len(lookup.ran), asked) == (5 if decide == "approve" else 0, 5)
    assert [event.streak for event in guard.loops] == [2, 3, 4, 5, 6]
    assert guard.reasons == ["paused"] * 5 + ["doom_loop"]
    assert guard.ends[-1].turns == 6
    assert guard._live == {}


def test_a_run_that_was_left_after_a_turn_does_not_wait_for_a_human():
    guard = Watched()
    agent = Agent(name="A", model=LoopGuardModel(Scripted(deaf()), guard), tools=[Counted().tool])

    async def main():
        result = Runner.run_streamed(agent, "x")
        async for event in result.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_output":
                result.cancel(mode="after_turn")

    asyncio.run(main())
    assert guard.reasons == ["complete"]
    assert not [run for run in registry._waiting if run.guard is guard]


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
def test_a_call_that_a_human_refuses_again_and_again_is_a_loop(way, surface):
    lookup, guard = danger(), Watched()
    agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
    ran, asked = asyncio.run(to_the_end(way, surface, agent, guard, decide="reject"))
    assert_stop(ran)
    assert (lookup.ran, asked, guard.actions) == ([], 2, DEFAULT_ACTIONS)


def with_an_agent_inside(guard, lookup, *, numbered=False):
    """An agent and one inside its tool; where numbered, each counts its calls from zero."""

    def asks_for(name, arguments):
        return lambda a: [call(name, arguments, call_id=f"call_{a.rounds}" if numbered else None)]

    inner = Agent(name="Inner", model=Scripted(asks_for("lookup", None)), tools=[lookup.tool])
    tool = inner.as_tool("research", "research", hooks=LoopGuardHooks(guard), max_turns=50)
    return Agent(name="Outer", model=Scripted(asks_for("research", {"input": "x"})), tools=[tool])


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
@pytest.mark.parametrize("through", [None, by_string], ids=["object", "string"])
@pytest.mark.parametrize(("collect", "numbered"), [(True, False), (False, False), (True, True)])
def test_a_pause_inside_a_tool_goes_on_inside(way, surface, through, collect, numbered):
    lookup, guard = danger(), Watched()
    outer = with_an_agent_inside(guard, lookup, numbered=numbered)
    ran, asked = asyncio.run(to_the_end(way, surface, outer, guard, through=through, collect=collect))

    assert_stop(ran)
    assert (len(lookup.ran), asked) == (2, 2)
    assert outer.model.calls == 1
    inner_end = [end for end in guard.ends if end.agent == "Inner"][-1]
    assert {end.reason for end in guard.ends} <= {"paused", "doom_loop"}
    assert (inner_end.reason, inner_end.turns) == ("doom_loop", 6)
    assert guard.reasons[-1] == "doom_loop"
    assert inner_end.parent_id == guard.ends[-1].session_id
    assert guard._live == {}


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
@pytest.mark.parametrize("through", [None, by_string], ids=["object", "string"])
def test_a_shell_inside_does_not_answer_the_call_around_it(way, surface, through):
    """The SDK gives a shell the context of its run, and that of a run inside a tool names the outer call."""

    def script(asked):
        if asked.number > 1:
            return [call()]
        action = ShellAction(commands=["ls"])
        return [
            ResponseFunctionShellToolCall(type="shell_call", id="i", call_id="c", action=action, status="completed")
        ]

    lookup, guard = danger(), Watched()
    inner = Agent(name="Inner", model=Scripted(script), tools=[lookup.tool, ShellTool(executor=lambda _: "2 files")])
    tool = inner.as_tool("research", "research", hooks=LoopGuardHooks(guard), max_turns=50)
    outer = Agent(name="Outer", model=Scripted(deaf(("research", {"input": "x"}))), tools=[tool])
    ran, asked = asyncio.run(to_the_end(way, surface, outer, guard, through=through, collect=True))
    assert_stop(ran)
    assert (len(lookup.ran), asked, outer.model.calls) == (2, 2, 1)
    assert guard._live == {}


@both_ways
def test_the_outer_run_of_a_pause_inside_can_be_saved_each_time(way):
    """A run resumed in another process may pause again before it makes a model call of its own."""

    async def main():
        lookup, guard = danger(), Watched()
        outer = with_an_agent_inside(guard, lookup)
        ran = await once(way, "runner", outer, "x", guard)
        for _ in range(2):
            text, saved = ran.result.to_state().to_string(), session_of(ran.result).save()
            guard = Watched()
            outer = with_an_agent_inside(guard, lookup)
            state = await RunState.from_string(outer, text)
            state.approve(state.get_interruptions()[0])
            ran = await once(way, "runner", outer, state, guard, saved=saved)
        return guard, session_of(ran.result)

    guard, session = asyncio.run(main())
    assert (session.ended.reason, session.turns, session.model_calls) == ("paused", 1, 1)
    assert guard.ends == [session.ended]


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
def test_what_really_went_wrong_in_an_approved_tool_is_known(way):
    failures = [ValueError("disk 7 on fire"), ValueError("fan is stuck"), ValueError("belt tore"), "fixed"]
    lookup, guard = danger(), Watched()
    lookup.answer = lambda times, _: failures[times - 1]
    agent = Agent(name="A", model=Scripted(lambda a: [call()] if a.rounds < 4 else [say("done")]), tools=[lookup.tool])
    ran, asked = asyncio.run(to_the_end(way, "runner", agent, guard, through=by_string))
    assert (ran.output, asked, len(lookup.ran)) == ("done", 4, 4)  # another error each time is no loop


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


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
def test_calls_that_are_approved_one_at_a_time_are_one_round(way, surface):
    async def first_only(agent, state):
        fresh = await by_string(agent, state)
        get = fresh.get_interruptions
        fresh.get_interruptions = lambda: get()[:1]
        return fresh

    lookup, guard, session = danger(), Watched(), SQLiteSession("s")
    wanted = [("lookup", {"key": f"K-{n}"}) for n in range(3)]
    agent = Agent(name="A", model=Scripted(deaf(*wanted)), tools=[lookup.tool])
    ran, asked = asyncio.run(to_the_end(way, surface, agent, guard, through=first_only, session=session))
    assert_stop(ran)
    assert (asked, len(lookup.ran), guard.ends[-1].turns) == (6, 6, 6)
    assert len({event.session_id for event in guard.loops}) == 1
    assert_well_formed(asyncio.run(session.get_items()))


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
def test_a_round_may_hold_what_is_refused_asked_about_and_neither(way, surface):
    lookup, asked_about, guard, session = Counted(), danger(), Watched(), SQLiteSession("s")
    asked_about.name = "danger"

    def script(asked):
        if asked.rounds < 2:
            return [call()]
        if asked.rounds > 2:
            return [say("done")]
        return [call(), call("danger", {"key": "a"}), call("danger", {"key": "b"}), call("lookup", {"key": "new"})]

    agent = Agent(name="A", model=Scripted(script), tools=[asked_about.tool, lookup.tool])

    async def main():
        ran = await once(way, surface, agent, "x", guard, session=session)
        state = await by_string(agent, ran.result.to_state())
        first, second = state.get_interruptions()
        state.approve(first)
        state.reject(second)
        return await once(way, surface, agent, state, guard, session=session)

    ran = asyncio.run(main())
    assert ran.output == "done"
    assert (asked_about.ran, lookup.ran) == (["a"], ["K-1", "K-1", "new"])
    assert_well_formed(ran.history)
    assert_well_formed(asyncio.run(session.get_items()))


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
@pytest.mark.parametrize("through", [None, by_string], ids=["object", "string"])
def test_a_run_that_is_handed_over_as_it_is_resumed_is_still_the_same(way, surface, through):
    lookup, guard = danger(), Watched()
    other = Agent(name="B", model=Scripted(lambda _: [say("taken over")]))
    first = Agent(
        name="A", model=Scripted(lambda _: [call(), handoff_call("b")]), tools=[lookup.tool], handoffs=[other]
    )
    ran, _ = asyncio.run(to_the_end(way, surface, first, guard, through=through))
    assert ran.output == "taken over"
    assert [(end.agent, end.turns, end.model_calls) for end in guard.ends if end.reason == "complete"] == [("A", 1, 2)]
    assert guard._live == {}


@both_ways
@pytest.mark.parametrize("surface", ["runner", "hooks"])
@pytest.mark.parametrize("through", [None, by_string], ids=["object", "string"])
def test_an_agent_that_a_human_lets_a_tool_start_is_a_run_of_its_own(way, surface, through):
    lookup, guard = Counted(), Watched()
    inner = Agent(
        name="Inner", model=Scripted(lambda a: [call()] if not a.rounds else [say("no idea")]), tools=[lookup.tool]
    )
    tool = inner.as_tool("research", "r", hooks=LoopGuardHooks(guard), needs_approval=True)
    outer = Agent(name="Outer", model=Scripted(deaf(("research", {"input": "x"}))), tools=[tool])
    ran, asked = asyncio.run(to_the_end(way, surface, outer, guard, through=through))
    assert_stop(ran)
    assert (asked, len(lookup.ran), outer.model.calls) == (2, 2, 6)
    ends = [end for end in guard.ends if end.reason != "paused"]
    assert [(end.agent, end.reason, end.turns) for end in ends] == [
        ("Inner", "complete", 1),
        ("Inner", "complete", 1),
        ("Outer", "doom_loop", 6),
    ]
    assert [end.parent_id for end in ends] == [ends[-1].session_id, ends[-1].session_id, None]


# -- one state, several attempts ---------------------------------------------------------------------------------------


@both_ways
def test_a_state_can_be_tried_again_after_an_error(way):
    lookup, guard = danger(), Watched()

    def script(asked):
        return ConnectionError("down") if asked.number == 2 else [call()]

    agent = Agent(name="A", model=Scripted(script), tools=[lookup.tool])

    async def main():
        ran = await once(way, "runner", agent, "x", guard)
        state = ran.result.to_state()
        state.approve(state.get_interruptions()[0])
        failed = await once(way, "runner", agent, state, guard)
        again = await once(way, "runner", agent, state, guard)
        return failed, again

    failed, again = asyncio.run(main())
    assert isinstance(failed.error, ConnectionError)
    assert len(again.result.interruptions) == 1
    assert [(end.reason, end.turns, end.model_calls) for end in guard.ends] == [
        ("paused", 1, 1),
        ("error", 1, 1),
        ("paused", 2, 2),  # the streak goes on from where it waited
    ]
    assert guard.actions == [(2, "observe")]
    assert session_of(again.result).ended is guard.last_end


@both_ways
def test_a_state_that_goes_on_under_another_guard_is_that_ones_run(way):
    lookup, before, after = danger(), Watched(), Watched()
    agent = Agent(name="A", model=Scripted(lambda a: [call()] if not a.rounds else [say("done")]), tools=[lookup.tool])

    async def main():
        ran = await once(way, "runner", agent, "x", before)
        state = ran.result.to_state()
        state.approve(state.get_interruptions()[0])
        return await once(way, "runner", agent, state, after)

    assert asyncio.run(main()).output == "done"
    assert (before.reasons, after.reasons) == (["paused"], ["complete"])


@both_ways
def test_a_run_that_died_beside_one_that_waits_does_not_wait(way):
    lookup, guard = danger(), Watched()
    hooks = LoopGuardHooks(guard)
    waits = Agent(name="Waits", model=Scripted(deaf()), tools=[lookup.tool])
    dies = Agent(name="Dies", model=Scripted(lambda _: ConnectionError("down")))
    tools = [agent.as_tool(agent.name, "d", hooks=hooks) for agent in (waits, dies)]
    outer = Agent(
        name="Outer", model=Scripted(lambda _: [call(tool.name, {"input": "x"}) for tool in tools]), tools=tools
    )

    async def main():
        ran = await once(way, "hooks", outer, "x", guard)
        gc.collect()
        guard.close()
        return len(ran.result.interruptions)

    assert asyncio.run(main()) == 1
    assert [end.reason for end in guard.ends if end.agent == "Dies"] == ["cancelled"]
    assert {end.reason for end in guard.ends if end.agent != "Dies"} <= {"paused"}


@both_ways
def test_a_state_that_is_resumed_several_times_at_once_is_several_runs(way):
    lookup, guard = danger(), Watched()
    agent = Agent(
        name="A", model=Scripted(lambda asked: [call()] if asked.rounds < 2 else [say("done")]), tools=[lookup.tool]
    )

    async def main():
        ran = await once(way, "runner", agent, "x", guard)
        states = [ran.result.to_state() for _ in range(3)]
        for state in states:
            state.approve(state.get_interruptions()[0], always_approve=True)
        return await asyncio.gather(*(once(way, "runner", agent, state, guard) for state in states))

    assert [ran.output for ran in asyncio.run(main())] == ["done"] * 3
    assert guard.reasons == ["paused"] + ["complete"] * 3
    assert [(end.turns, end.model_calls) for end in guard.ends[1:]] == [(2, 3)] * 3
    assert guard.actions == [(2, "observe")] * 3
    assert guard._live == {}


def test_a_paused_run_is_not_given_up_when_many_others_wait(monkeypatch):
    monkeypatch.setattr("loopguard_openai_agents._sessions.MAX_WAITING", 1)
    monkeypatch.setattr(registry, "_waiting", OrderedDict())  # other tests left some

    async def main():
        agent = Agent(name="A", model=Scripted(deaf()), tools=[danger().tool])
        guard = Watched()
        names = ("run-1", "run-2", "run-3")
        results = [await GuardedRunner.run(agent, "x", guard=guard, session_id=name) for name in names]
        state = await by_string(agent, results[0].to_state())
        state.approve(state.get_interruptions()[0])
        await GuardedRunner.run(agent, state, guard=guard, session_id="run-1")
        return guard

    guard = asyncio.run(main())
    assert guard.reasons == ["paused"] * 4
    assert (guard.ends[-1].session_id, guard.ends[-1].turns) == ("run-1", 2)


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
