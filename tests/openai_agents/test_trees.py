"""Runs inside tools that share a tree, where providers number their calls from zero in every conversation."""

import asyncio

import pytest
from agents import Agent, RunContextWrapper, ShellTool, function_tool
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, guard_run_config
from loopguard_openai_agents_kit import (
    Counted,
    Scripted,
    Watched,
    call,
    deaf,
    different,
    go,
    hooked,
    outputs,
    say,
    sequence,
)
from openai.types.responses.response_function_shell_tool_call import Action as ShellAction
from openai.types.responses.response_function_shell_tool_call import ResponseFunctionShellToolCall

both_ways = pytest.mark.parametrize("way", ["run", "run_streamed"])


@pytest.fixture(params=["runner", "hooks"])
def under(request):
    """Run an outer agent under either surface; what is inside its tools has hooks."""

    def start(way, agent, guard):
        if request.param == "hooks":
            return hooked(way, agent, guard, run_config=guard_run_config(guard))
        return go(way, agent, guard=guard, on_stop="raise")

    return start


def numbered(name, tool, rounds, arguments, then):
    """An agent whose calls are `call_0`, `call_1`, ..."""

    def script(asked):
        if asked.rounds >= rounds:
            return [say(then)]
        return [call(tool.name, arguments(asked.rounds), call_id=f"call_{asked.rounds}")]

    return Agent(name=name, model=Scripted(script), tools=[tool.tool])


def around(guard, *inner):
    """An agent that asks all of these at once."""
    hooks = LoopGuardHooks(guard)
    calls = [call(agent.name, {"input": "x"}, call_id=f"call_{n}") for n, agent in enumerate(inner)]
    tools = [agent.as_tool(agent.name, agent.name, hooks=hooks, max_turns=50) for agent in inner]
    return Agent(name="Outer", model=Scripted(sequence(calls)), tools=tools)


@both_ways
@pytest.mark.parametrize("healthy_first", [True, False])
def test_a_refused_call_of_one_run_does_not_end_another(under, way, healthy_first):
    guard = Watched()
    stuck, healthy = Counted(), Counted(lambda times, _: f"row {times}", name="fetch")
    bad = numbered("bad", stuck, 5, lambda n: {"key": "same"}, "gave up")
    good = numbered("good", healthy, 8, lambda n: {"key": f"K-{n}"}, "found")
    ran = under(way, around(guard, *((good, bad) if healthy_first else (bad, good))), guard)

    assert ran.output == "done"
    assert outputs(ran.history) == (["found", "gave up"] if healthy_first else ["gave up", "found"])
    assert (len(stuck.ran), len(healthy.ran)) == (2, 8)
    assert guard.reasons == ["complete"] * 3
    outer = guard.ends[-1].session_id
    assert [end.parent_id for end in guard.ends] == [outer, outer, None]


@both_ways
@pytest.mark.parametrize("healthy_first", [True, False])
def test_what_went_wrong_in_one_run_is_not_taken_for_another_ones_result(under, way, healthy_first):
    """A poll whose result changes is progress, whatever failed beside it under the same id."""
    guard = Watched()
    failing, polled = Counted(lambda *_: ValueError("disk")), Counted(lambda n, _: f"{n * 7} percent", name="poll")
    bad = numbered("bad", failing, 4, lambda n: {"key": f"K-{n}"}, "gave up")
    good = numbered("good", polled, 8, lambda n: {"key": "job"}, "ready")
    ran = under(way, around(guard, *((good, bad) if healthy_first else (bad, good))), guard)
    assert ran.output == "done"
    assert (len(failing.ran), len(polled.ran)) == (4, 8)
    assert not [action for action in guard.actions if action[1] in ("block", "stop")]


@both_ways
def test_a_shell_inside_is_not_taken_for_the_call_around_it(under, way):
    """The SDK gives a shell the context of its run, and that of a run inside a tool names the outer call."""
    listed, guard, lookup = [], Watched(), Counted()

    def execute(request):
        listed.append("ls")
        return f"{len(listed)} files"

    def shell(number):
        action = ShellAction(commands=["ls", str(number)])
        return ResponseFunctionShellToolCall(
            type="shell_call", id=f"i{number}", call_id=f"c{number}", action=action, status="completed"
        )

    def script(asked):
        if asked.number < 3:
            return [call()]
        # The third round repeats a call under the id of the outer one, and is refused, beside a shell that runs.
        return [call(call_id="call_0"), shell(asked.number)] if asked.number == 3 else [say("found")]

    inner = Agent(name="inner", model=Scripted(script), tools=[lookup.tool, ShellTool(executor=execute)])
    ran = under(way, around(guard, inner), guard)
    assert (ran.output, outputs(ran.history)) == ("done", ["found"])
    assert (len(lookup.ran), len(listed)) == (2, 1)
    assert guard.reasons == ["complete"] * 2


@both_ways
def test_runs_at_once_that_were_given_one_context_object_do_not_mix(way):
    guard, context = Watched(), RunContextWrapper(context=None)
    lookup = Counted(lambda _, key: f"row {key}")
    agent = Agent(name="A", model=Scripted(different(3)), tools=[lookup.tool])

    async def one():
        if way == "run":
            return await GuardedRunner.run(agent, "x", guard=guard, context=context)
        result = GuardedRunner.run_streamed(agent, "x", guard=guard, context=context)
        async for _ in result.stream_events():
            pass
        return result

    async def everything():
        return await asyncio.gather(*(one() for _ in range(5)))

    assert [result.final_output for result in asyncio.run(everything())] == ["done"] * 5
    assert [(end.reason, end.turns, end.model_calls) for end in guard.ends] == [("complete", 3, 4)] * 5
    assert len(lookup.ran) == 15


class Unhurried(Scripted):
    """Takes longer for those who ask for more, so that they are asking while others end."""

    async def get_response(self, *args, **options):
        given = options["input"] if "input" in options else args[1]
        for _ in range(40 * int(given[0]["content"])):
            await asyncio.sleep(0)
        return await super().get_response(*args, **options)


@both_ways
@pytest.mark.parametrize("model", [Scripted, Unhurried])
@pytest.mark.parametrize("lengths", [(1, 2, 3), (3, 2, 1), (2, 3, 1)], ids=str)
def test_each_run_of_one_agent_ends_when_it_does(under, way, lengths, model):
    """The SDK does not say in which run an agent came to its end."""
    guard, lookup = Watched(), Counted(lambda times, _: f"row {times}")

    def script(asked):
        rounds = int(asked.input[0]["content"])
        return [call("lookup", {"key": f"{rounds}-{asked.rounds}"})] if asked.rounds < rounds else [say("found")]

    inner = Agent(name="inner", model=model(script), tools=[lookup.tool])
    tool = inner.as_tool("inner", "inner", hooks=LoopGuardHooks(guard))
    calls = [call("inner", {"input": str(rounds)}) for rounds in lengths]
    ran = under(way, Agent(name="Outer", model=Scripted(sequence(calls)), tools=[tool]), guard)
    assert ran.output == "done"
    *inside, outside = [(end.agent, end.reason, end.turns) for end in guard.ends]
    assert sorted(inside) == [("inner", "complete", rounds) for rounds in (1, 2, 3)]
    assert outside == ("Outer", "complete", 1)
    assert guard._live == {}


@both_ways
def test_a_stop_three_agents_deep_ends_them_all(under, way):
    guard, lookup = Watched(), Counted()
    hooks = LoopGuardHooks(guard)
    c = Agent(name="C", model=Scripted(deaf()), tools=[lookup.tool])
    b = Agent(name="B", model=Scripted(deaf(("c", {"input": "x"}))), tools=[c.as_tool("c", "c", hooks=hooks)])
    a = Agent(name="A", model=Scripted(deaf(("b", {"input": "x"}))), tools=[b.as_tool("b", "b", hooks=hooks)])
    ran = under(way, a, guard)
    assert ran.error.reason == "doom_loop"
    assert (a.model.calls, b.model.calls, c.model.calls, len(lookup.ran)) == (1, 1, 6, 2)
    assert [end.agent for end in guard.ends] == ["C", "B", "A"]
    assert [end.parent_id for end in guard.ends] == [*(end.session_id for end in guard.ends[1:]), None]


@both_ways
def test_a_stream_that_a_tool_leaves_half_way_is_cancelled_and_the_outer_run_goes_on(way):
    guard, lookup = Watched(), Counted(lambda times, _: f"row {times}")
    inner = numbered("inner", lookup, 20, lambda n: {"key": f"K-{n}"}, "found")

    @function_tool
    async def research(question: str) -> str:
        result = GuardedRunner.run_streamed(inner, question, guard=guard, max_turns=50)
        async for event in result.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_output":
                result.cancel()
        return "partial"

    outer = Agent(name="Outer", model=Scripted(sequence([call("research", {"question": "x"})])), tools=[research])
    ran = go(way, outer, guard=guard)
    assert ran.output == "done"
    assert [(end.agent, end.reason) for end in guard.ends] == [("inner", "cancelled"), ("Outer", "complete")]
    assert guard.ends[0].parent_id == guard.ends[1].session_id
