"""What is seen, refused and stopped, under `GuardedRunner` and under `LoopGuardHooks` alone."""

import asyncio

import pytest
from agents import Agent, FunctionTool, RunConfig, SQLiteSession, handoff
from agents.extensions.handoff_filters import remove_all_tools
from agents.mcp import MCPServer
from loopguard_openai_agents import LoopGuardHooks, LoopGuardStop, run
from loopguard_openai_agents_kit import (
    DEFAULT_ACTIONS,
    OWN,
    Counted,
    Models,
    Scripted,
    Watched,
    ago,
    ahooked,
    assert_stop,
    assert_well_formed,
    call,
    deaf,
    every_way,
    go,
    handoff_call,
    hooked,
    items_of,
    listening,
    outputs,
    say,
    sequence,
)
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as McpTool

NOT_FOUND = RunConfig(tool_not_found_behavior="return_error_to_model")


@pytest.fixture(params=["runner", "hooks"])
def under(request):
    """Run an agent under either surface; a stop raises under both."""

    def start(way, agent, guard, given="Where is it?", **options):
        if request.param == "hooks":
            return hooked(way, agent, guard, given, **options)
        return go(way, agent, given, guard=guard, on_stop="raise", **{"max_turns": 100, **options})

    return start


def agent_with(model, *tools, **fields):
    return Agent(
        name="A", model=model, tools=[tool.tool if isinstance(tool, Counted) else tool for tool in tools], **fields
    )


# -- one call, again and again -----------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("answer", ["nothing", TimeoutError("no answer after 30 s")], ids=["result", "failure"])
def test_a_model_that_never_listens_is_stopped_at_its_sixth_request(under, way, answer):
    model, lookup, guard = Scripted(deaf()), Counted(answer), Watched()
    ran = under(way, agent_with(model, lookup), guard)

    assert len(lookup.ran) == 2
    assert model.calls == 6
    assert guard.actions == DEFAULT_ACTIONS
    stop = assert_stop(ran)
    assert (stop.verdict.detector, stop.verdict.streak, stop.verdict.tool, stop.verdict.round) == (
        "repeated_call",
        6,
        "lookup",
        6,
    )
    [end] = guard.ends
    assert (end.reason, end.turns, end.model_calls, end.tool_calls) == ("doom_loop", 6, 6, 2)
    assert (end.agent, end.adapter, end.verdict) == ("A", "openai_agents", stop.verdict)
    assert (end.usage.input_tokens, end.usage.output_tokens, end.usage.cached_tokens) == (600, 120, 384)
    assert [text.startswith(OWN) for text in outputs(ran.history)] == [False] * 2 + [True] * 4
    assert guard.faults.counts == {}


@every_way
def test_a_model_that_listens_answers_after_one_refusal(under, way):
    model, lookup, guard = Scripted(listening()), Counted(), Watched()
    ran = under(way, agent_with(model, lookup), guard)

    assert (len(lookup.ran), model.calls, ran.output) == (2, 4, "I could not find it.")
    assert guard.actions == DEFAULT_ACTIONS[:2]
    assert guard.reasons == ["complete"]
    assert guard.last_end.verdict is None
    assert_well_formed(ran.history)


@every_way
def test_memory_is_well_formed_after_a_stop_and_takes_the_next_turn(under, way):
    session = SQLiteSession("s")
    model, lookup, guard = Scripted(deaf()), Counted(), Watched()
    assert_stop(under(way, agent_with(model, lookup), guard, session=session))
    stored = items_of(session)
    assert_well_formed(stored)
    assert len(outputs(stored)) == 6

    friendly = Scripted(lambda asked: [say("It is paid.")] if asked.rounds else [call()])
    ran = under(way, agent_with(friendly, lookup), guard, "And now?", session=session)

    assert ran.output == "It is paid."
    assert len(lookup.ran) == 3  # a new turn starts afresh
    assert guard.reasons == ["doom_loop", "complete"]
    assert_well_formed(items_of(session))


@every_way
def test_equal_calls_of_one_round_count_once(under, way):
    model, lookup, guard = Scripted(deaf(("lookup", None), ("lookup", None))), Counted(), Watched()
    assert_stop(under(way, agent_with(model, lookup), guard))
    assert len(lookup.ran) == 4  # two rounds of two
    assert guard.actions == DEFAULT_ACTIONS


@every_way
def test_a_fan_out_that_repeats_is_stopped_whole(under, way):
    wanted = [("lookup", {"key": f"K-{n}"}) for n in range(5)]
    model, lookup, guard = Scripted(deaf(*wanted)), Counted(), Watched()
    ran = under(way, agent_with(model, lookup), guard)
    assert_stop(ran)
    assert len(lookup.ran) == 10
    assert len(outputs(ran.history)) == 30


@every_way
def test_only_the_repeated_call_of_a_round_is_refused(under, way):
    def script(asked):
        if asked.number > 5:
            return [say("done")]
        return [call("lookup", {"key": "same"}), call("lookup", {"key": f"new-{asked.number}"})]

    model, lookup, guard = Scripted(script), Counted(), Watched()
    ran = under(way, agent_with(model, lookup), guard)

    assert ran.output == "done"
    assert lookup.ran.count("same") == 2
    assert [key for key in lookup.ran if key != "same"] == [f"new-{n}" for n in range(1, 6)]
    assert_well_formed(ran.history)


@every_way
def test_polling_with_changing_results_is_left_alone(under, way):
    def script(asked):
        return [call()] if asked.rounds < 12 else [say("ready")]

    model, lookup, guard = Scripted(script), Counted(lambda times, _: f"{times * 7} percent"), Watched()
    ran = under(way, agent_with(model, lookup), guard)
    assert (ran.output, len(lookup.ran), guard.reasons) == ("ready", 12, ["complete"])
    assert not [action for action in guard.actions if action[1] in ("block", "stop")]


@every_way
def test_a_provider_that_reuses_one_call_id_is_stopped_too(under, way):
    """The SDK takes the repeat for a replay and does not run it again."""
    lookup, guard = Counted(), Watched()
    ran = under(way, agent_with(Scripted(lambda _: [call(call_id="call_0")]), lookup), guard)
    assert isinstance(ran.error, LoopGuardStop)
    assert (len(lookup.ran), guard.actions) == (1, DEFAULT_ACTIONS)


# -- calls that are no calls -------------------------------------------------------------------------------------------


@every_way
def test_a_loop_on_a_tool_that_does_not_exist_is_stopped(under, way):
    model, guard = Scripted(deaf(("nope", {"a": 1}))), Watched()
    ran = under(way, agent_with(model, Counted()), guard, run_config=NOT_FOUND)
    assert_stop(ran)
    assert (model.calls, guard.actions) == (6, DEFAULT_ACTIONS)


def test_the_runner_puts_its_reason_in_the_place_of_not_found():
    model, guard = Scripted(listening(("nope", {"a": 1}))), Watched()
    ran = go("run", agent_with(model, Counted()), guard=guard, run_config=NOT_FOUND)
    assert (model.calls, guard.reasons) == (4, ["complete"])
    assert [text.startswith(OWN) for text in outputs(ran.history)] == [False, False, True]


@every_way
def test_a_loop_of_invalid_json_is_stopped(under, way):
    model, lookup, guard = Scripted(deaf(("lookup", '{"key": '))), Counted(), Watched()
    ran = under(way, agent_with(model, lookup), guard)
    assert_stop(ran)
    assert (model.calls, lookup.ran, guard.actions) == (6, [], DEFAULT_ACTIONS)


@every_way
def test_without_the_setting_an_unknown_tool_ends_the_run_as_the_sdk_says(under, way):
    guard = Watched()
    ran = under(way, agent_with(Scripted(deaf(("nope", None))), Counted()), guard)
    assert type(ran.error).__name__ == "ModelBehaviorError"
    assert guard.reasons in ([], ["error"])  # hooks alone are not told


# -- what a tool returned ----------------------------------------------------------------------------------------------


def test_the_runner_sees_the_real_error_behind_the_sdks_fixed_text():
    failures = [ValueError("disk 7 on fire"), ValueError("fan is stuck"), ValueError("belt tore"), "fixed"]
    lookup = Counted(lambda times, _: failures[times - 1])
    model, guard = Scripted(lambda asked: [call()] if asked.rounds < 4 else [say("done")]), Watched()
    ran = go("run", agent_with(model, lookup), guard=guard)
    assert (ran.output, len(lookup.ran)) == ("done", 4)  # another error each time is no loop


def test_a_tool_error_formatter_of_the_users_own_still_speaks():
    seen = []

    def formatter(args):
        seen.append(args.kind)
        return "the user's words"

    lookup, guard = Counted(ValueError("x")), Watched()
    model = Scripted(lambda asked: [call()] if asked.rounds < 1 else [say("done")])
    ran = go("run", agent_with(model, lookup), guard=guard, run_config=RunConfig(tool_error_formatter=formatter))
    unknown = Scripted(sequence([call("nope")]))
    config = RunConfig(tool_error_formatter=formatter, tool_not_found_behavior="return_error_to_model")
    again = go("run", agent_with(unknown, lookup), guard=guard, run_config=config)
    assert outputs(again.history) == ["the user's words"]
    assert seen in (["tool_exception", "tool_not_found"], ["tool_not_found"])  # the first kind is new in 0.24
    assert ran.output == "done"


def test_a_tools_own_failure_text_is_left_to_it():
    tool = Counted(ValueError("x"), options={"failure_error_function": lambda _, error: f"Error: {error} again"})
    model, guard = Scripted(deaf()), Watched()
    assert_stop(go("run", agent_with(model, tool), guard=guard, on_stop="raise"))
    assert guard.actions == DEFAULT_ACTIONS


class LocalServer(MCPServer):
    """An MCP server in this process."""

    def __init__(self):
        super().__init__()
        self.called = []

    name = "local"

    async def connect(self):
        pass

    async def cleanup(self):
        pass

    async def list_tools(self, run_context=None, agent=None):
        schema = {"type": "object", "properties": {"key": {"type": "string"}}}
        return [McpTool.model_validate({"name": "lookup", "inputSchema": schema})]

    async def call_tool(self, tool_name, arguments, meta=None):
        self.called.append(arguments)
        return CallToolResult(content=[TextContent(type="text", text="nothing")])

    async def list_prompts(self):
        raise NotImplementedError

    async def get_prompt(self, name, arguments=None):
        raise NotImplementedError


@every_way
def test_tools_of_a_local_mcp_server_are_refused_too(under, way):
    server, model, guard = LocalServer(), Scripted(deaf()), Watched()
    ran = under(way, agent_with(model, mcp_servers=[server]), guard)
    assert_stop(ran)
    assert (len(server.called), guard.actions) == (2, DEFAULT_ACTIONS)


# -- agents that hand over ---------------------------------------------------------------------------------------------


def ping_pong(**fields):
    moved = []
    a, b = Agent(name="A", **fields), Agent(name="B", **fields)
    a.model, b.model = Scripted(lambda asked: [handoff_call("b")]), Scripted(lambda asked: [handoff_call("a")])
    a.handoffs = [handoff(b, on_handoff=lambda _: moved.append("B"))]
    b.handoffs = [handoff(a, on_handoff=lambda _: moved.append("A"))]
    return a, moved


@every_way
def test_agents_that_hand_over_to_each_other_are_told_and_then_stopped(under, way):
    start, moved = ping_pong()
    guard = Watched({"ladder": {"observe": 2, "steer": 3, "block": 3, "stop": 6}})
    ran = under(way, start, guard)

    stop = assert_stop(ran)
    # The first two are news, so the first one of A counts from the third on: B's sixth comes first.
    assert stop.verdict.tool == "transfer_to_a"
    actions = [action for _, action in guard.actions]
    assert set(actions[:-1]) <= {"observe", "steer"}
    assert actions.count("steer") >= 6
    assert actions[-1] == "stop"
    assert guard.ends[0].turns == 12
    assert len(moved) == 12  # a call that hands over cannot be refused
    assert [end.reason for end in guard.ends] == ["doom_loop"]
    told = [request.told for request in start.model.asked if request.told]
    assert told
    assert all(text.startswith(OWN) for texts in told for text in texts)


def test_a_handoff_beside_a_refused_call_goes_on():
    other = Agent(name="B", model=Scripted(lambda asked: [say("taken over")]))

    def script(asked):
        return [call(), handoff_call("b")] if asked.number == 3 else [call()]

    lookup, guard = Counted(), Watched()
    first = Agent(name="A", model=Scripted(script), tools=[lookup.tool], handoffs=[other])
    ran = go("run", first, guard=guard)
    assert (ran.output, len(lookup.ran), guard.reasons) == ("taken over", 2, ["complete"])
    assert_well_formed(ran.history)


@every_way
@pytest.mark.parametrize(
    ("policy", "reason"), [({"limits": {"tool_calls": 2}}, "max_tool_calls"), ({"ladder": {"stop": 2}}, "doom_loop")]
)
def test_a_handoff_in_the_last_round_is_answered_and_goes_nowhere(under, way, policy, reason):
    """The SDK raises where a call that hands over is refused, so it takes place; the other agent is never asked."""
    guard, lookup, moved, session = Watched(policy), Counted(), [], SQLiteSession("s")
    other = Agent(name="B", model=Scripted(lambda _: [say("taken over")]))
    script = Scripted(lambda asked: [call()] if asked.number == 1 else [call(), handoff_call("b")])
    takes_over = handoff(other, on_handoff=lambda _: moved.append("B"))
    first = Agent(name="A", model=script, tools=[lookup.tool], handoffs=[takes_over])
    assert_stop(under(way, first, guard, session=session), reason)
    assert (len(lookup.ran), moved, other.model.calls) == (2 if reason == "max_tool_calls" else 1, ["B"], 0)
    assert guard.faults.counts == {}
    assert_well_formed(items_of(session))


@every_way
def test_results_that_a_handoff_takes_out_of_the_history_are_known_all_the_same(under, way):
    lookup, guard = (
        Counted(lambda times, _: f"{times * 7} percent"),
        Watched({"tools": {"transfer_*": {"loop_key": False}}}),
    )
    a, b = Agent(name="A", tools=[lookup.tool]), Agent(name="B", tools=[lookup.tool])

    def script(other):
        return lambda _: [call(), handoff_call(other)] if len(lookup.ran) < 8 else [say("ready")]

    a.model, b.model = Scripted(script("b")), Scripted(script("a"))
    a.handoffs = [handoff(b, input_filter=remove_all_tools)]
    b.handoffs = [handoff(a, input_filter=remove_all_tools)]
    ran = under(way, a, guard)
    assert (ran.output, len(lookup.ran), guard.reasons) == ("ready", 8, ["complete"])
    assert not [action for action in guard.actions if action[1] in ("block", "stop")]


# -- agents inside tools -----------------------------------------------------------------------------------------------


def nested(guard, inner_hooks, outer_script=None):
    lookup = Counted()
    inner = Agent(name="Inner", model=Scripted(deaf()), tools=[lookup.tool])
    hooks = None if inner_hooks is None else inner_hooks(guard)
    tool = inner.as_tool("research", "research", hooks=hooks, max_turns=50)
    script = outer_script or (lambda asked: [call("research", {"input": f"try {asked.number}"})])
    return Agent(name="Outer", model=Scripted(script), tools=[tool]), lookup


@every_way
def test_a_stop_inside_a_tool_ends_the_outer_run(under, way):
    guard = Watched()
    outer, lookup = nested(guard, LoopGuardHooks)
    ran = under(way, outer, guard)

    assert_stop(ran)
    assert len(lookup.ran) == 2
    assert outer.model.calls == 1  # the SDK swallowed the inner stop, and the outer run ended all the same
    assert guard.reasons == ["doom_loop", "doom_loop"]
    inner, outer_end = guard.ends
    assert (inner.agent, outer_end.agent) == ("Inner", "Outer")
    assert inner.parent_id == outer_end.session_id
    assert outer_end.usage.total_tokens == 7 * 120


def test_two_nested_runs_at_once_have_sessions_of_their_own(under):
    guard = Watched()

    def script(asked):
        if asked.number > 1:
            return [say("both done")]
        return [call("research", {"input": "a"}), call("research", {"input": "b"})]

    inner = Agent(name="Inner", model=Scripted(lambda asked: [call()] if asked.rounds < 1 else [say("found")]))
    lookup = Counted()
    inner.tools = [lookup.tool]
    tool = inner.as_tool("research", "research", hooks=LoopGuardHooks(guard))
    ran = under("run", Agent(name="Outer", model=Scripted(script), tools=[tool]), guard)
    assert (ran.output, len(lookup.ran)) == ("both done", 2)
    assert [(end.agent, end.turns) for end in guard.ends] == [("Inner", 1), ("Inner", 1), ("Outer", 1)]
    assert {end.parent_id for end in guard.ends[:2]} == {guard.ends[2].session_id}


def test_limits_of_the_outer_run_hold_inside():
    guard = Watched({"limits": {"tokens": 500}})
    outer, lookup = nested(guard, LoopGuardHooks)
    ran = go("run", outer, guard=guard, on_stop="raise")
    assert_stop(ran, "max_tokens")
    assert guard.reasons[-1] == "max_tokens"
    assert guard.ends[-1].usage.total_tokens == 600  # one outer call, four inner ones
    assert len(lookup.ran) == 2


@every_way
def test_an_agent_inside_a_tool_is_guarded_without_hooks_where_its_model_is_a_name(way):
    guard = Watched()
    outer, lookup = nested(guard, None)
    inner_model, outer_model = Scripted(deaf(), "inner"), outer.model
    inner = Agent(name="Inner", model="inner", tools=[lookup.tool])
    outer = Agent(name="Outer", model="outer", tools=[inner.as_tool("research", "research", max_turns=50)])
    provider = Models(inner=inner_model, outer=outer_model)
    ran = go(way, outer, guard=guard, on_stop="raise", run_config=RunConfig(model_provider=provider))

    assert_stop(ran)
    assert outer_model.calls == 1
    assert (inner_model.calls, len(lookup.ran)) == (6, 5)  # without hooks there is no block
    assert guard.ends[0].parent_id == guard.ends[1].session_id
    assert guard.reasons == ["doom_loop", "doom_loop"]


def test_a_run_started_by_a_tool_of_a_guarded_run_is_nested():
    guard = Watched()
    lookup = Counted()
    inner = Agent(name="Inner", model=Scripted(deaf()), tools=[lookup.tool])

    async def research(context, arguments):
        result = await run(inner, "look", guard=guard)
        return result.final_output

    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = FunctionTool(name="research", description="d", params_json_schema=schema, on_invoke_tool=research)
    outer = Agent(name="Outer", model=Scripted(deaf(("research", {}))), tools=[tool])
    ran = go("run", outer, guard=guard)
    assert ran.output.startswith(OWN)
    assert len(lookup.ran) == 2
    assert outer.model.calls == 1
    assert guard.ends[0].parent_id == guard.ends[1].session_id


# -- many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surface", ["runner", "hooks"])
@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_fifty_runs_at_once_do_not_mix(surface, way):
    guard = Watched()
    hooks = LoopGuardHooks(guard)
    looping, healthy = Counted(), Counted(lambda times, _: f"row {times}")
    bad = Agent(name="Bad", model=Scripted(deaf()), tools=[looping.tool])
    good = Agent(
        name="Good",
        model=Scripted(lambda asked: [call()] if asked.rounds < 8 else [say("done")]),
        tools=[healthy.tool],
    )

    async def one(index):
        agent = bad if index % 2 else good
        if surface == "hooks":
            return await ahooked(way, agent, hooks=hooks, max_turns=50)
        return await ago(way, agent, guard=guard, on_stop="raise", max_turns=50)

    async def all_of_them():
        return await asyncio.gather(*(one(index) for index in range(50)))

    results = asyncio.run(all_of_them())
    assert [result.output for result in results[::2]] == ["done"] * 25
    for result in results[1::2]:
        assert_stop(result)
    assert (len(looping.ran), len(healthy.ran)) == (50, 200)
    assert sorted(guard.reasons) == ["complete"] * 25 + ["doom_loop"] * 25
    assert guard._live == {}
