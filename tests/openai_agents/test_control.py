"""Steering, escalation, limits, the ways to stop, plugins, the switch, and every way a run can end."""

import asyncio

import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    HostedMCPTool,
    InputGuardrail,
    MaxTurnsExceeded,
    ModelSettings,
    MultiProvider,
    OutputGuardrail,
    RunConfig,
    RunHooks,
    SQLiteSession,
    Usage,
    handoff,
)
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, LoopGuardModel, LoopGuardStop, run_streamed
from loopguard_openai_agents_kit import (
    DEFAULT_ACTIONS,
    OWN,
    Counted,
    Models,
    Scripted,
    Watched,
    acaught,
    assert_stop,
    assert_well_formed,
    call,
    deaf,
    different,
    drain,
    every_way,
    go,
    handoff_call,
    hooked,
    items_of,
    listening,
    outputs,
    say,
)
from openai.types.responses.response_output_item import McpApprovalRequest
from openai.types.shared import Reasoning
from pydantic import BaseModel

from loopguard_core import Action, LoopGuard, PolicyError, hookimpl

STEER = {"ladder": {"observe": 2, "steer": 2, "block": 3, "stop": 6}}
ESCALATE = {"ladder": {"observe": 2, "escalate": 2, "block": 4, "stop": 6}}


def agent_with(model, *tools, **fields):
    return Agent(name="A", model=model, tools=[tool.tool for tool in tools], **fields)


def named(guard, script, *, strong=None, tools=(), **options):
    """An agent whose model is a name, with the provider that knows it."""
    model = Scripted(script, "usual")
    provider = Models(usual=model, **({} if strong is None else {"strong": strong}))
    agent = Agent(name="A", model="usual", tools=[tool.tool for tool in tools])
    return agent, model, {"guard": guard, "run_config": RunConfig(model_provider=provider), **options}


# -- steer -------------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("surface", ["runner", "hooks"])
def test_a_steered_model_is_told_once_and_history_does_not_keep_it(surface, way):
    model, lookup, guard = Scripted(deaf()), Counted(), Watched(STEER)
    session = SQLiteSession("s")
    agent = agent_with(model, lookup)
    if surface == "hooks":
        ran = hooked(way, agent, guard, session=session)
    else:
        ran = go(way, agent, guard=guard, on_stop="raise", session=session)
    assert_stop(ran)
    assert [len(asked.told) for asked in model.asked] == [0, 0, 1, 0, 0, 0]
    assert model.asked[2].input[-1]["content"].startswith(OWN)
    assert not any(OWN in str(item.get("content")) for item in items_of(session))
    assert not any(OWN in str(item.get("content")) for item in ran.history)


@every_way
def test_a_model_that_is_wrapped_too_is_told_once(way):
    guard = Watched(STEER)
    agent, model, options = named(guard, deaf(), tools=[Counted()])
    assert_stop(go(way, agent, on_stop="raise", **options))
    assert [len(asked.told) for asked in model.asked] == [0, 0, 1, 0, 0, 0]


@every_way
def test_a_steered_model_that_listens_goes_on_undisturbed(way):
    model, lookup, guard = Scripted(listening()), Counted(), Watched({"ladder": {"steer": 2, "block": False}})
    ran = go(way, agent_with(model, lookup), guard=guard)
    assert (ran.output, len(lookup.ran), guard.reasons) == ("I could not find it.", 2, ["complete"])


# -- escalate ----------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("given", ["policy", "name", "object"])
def test_a_stronger_model_takes_one_turn(way, given):
    strong = Scripted(lambda _: [call("lookup", {"key": "another"})], "strong")
    lookup = Counted()
    policy = ESCALATE if given != "policy" else {**ESCALATE, "escalation": {"models": {"openai_agents": "strong"}}}
    guard = Watched(policy)

    def script(asked):
        return [say("done")] if any("another" in str(item) for item in asked.input) else [call()]

    agent, usual, options = named(guard, script, strong=strong, tools=[lookup])
    escalate = {"policy": None, "name": "strong", "object": strong}[given]
    ran = go(way, agent, escalate_model=escalate, **options)

    assert (ran.output, guard.reasons) == ("done", ["complete"])
    assert (usual.calls, strong.calls) == (3, 1)
    assert lookup.ran == ["K-1", "K-1", "another"]
    assert [event.model for event in guard.model_calls] == ["usual", "usual", "strong", "usual"]
    assert_well_formed(ran.history)


@every_way
def test_a_stronger_model_that_fails_leaves_its_turn_to_the_usual_one(way):
    strong = Scripted(lambda _: ConnectionError("down"), "strong")
    guard, lookup = Watched(ESCALATE), Counted()
    agent, usual, options = named(guard, deaf(), strong=strong, tools=[lookup])
    ran = go(way, agent, escalate_model="strong", on_stop="raise", **options)
    assert_stop(ran)
    assert (strong.calls, usual.calls) == (1, 6)
    assert guard.faults.counts == {}
    assert guard.ends[0].model_calls == 6


@every_way
def test_a_usual_model_that_fails_ends_the_run_with_its_error(way):
    guard, lookup = Watched(), Counted()
    agent, _, options = named(
        guard, lambda asked: ConnectionError("down") if asked.rounds else [call()], tools=[lookup]
    )
    ran = go(way, agent, **options)
    assert isinstance(ran.error, ConnectionError)
    assert guard.reasons == ["error"]
    assert (guard.ends[0].error, guard.ends[0].model_calls) == ("ConnectionError", 1)


def test_a_model_object_can_be_wrapped_to_be_escalated():
    strong, lookup, guard = Scripted(lambda _: [say("solved")], "strong"), Counted(), Watched(ESCALATE)
    agent = agent_with(LoopGuardModel(Scripted(deaf()), guard, escalate_model=strong), lookup)
    ran = go("run", agent, guard=guard, escalate_model=strong)
    assert (ran.output, strong.calls) == ("solved", 1)


@pytest.mark.parametrize("given", ["object", "name"])
def test_the_runners_stronger_model_stands_in_for_a_wrapped_one(given):
    strong, lookup, guard = Scripted(lambda _: [say("solved")], "strong"), Counted(), Watched(ESCALATE)
    agent = agent_with(LoopGuardModel(Scripted(deaf()), guard), lookup)
    config = RunConfig(model_provider=Models(strong=strong))
    escalate = strong if given == "object" else "strong"
    ran = go("run", agent, guard=guard, escalate_model=escalate, run_config=config)
    assert (ran.output, strong.calls) == ("solved", 1)


def test_a_bare_model_object_cannot_be_escalated_and_says_so(caplog):
    guard, lookup = Watched(ESCALATE), Counted()
    agent = agent_with(Scripted(deaf()), lookup)
    ran = go("run", agent, guard=guard, escalate_model="strong", on_stop="raise")
    assert_stop(ran)
    assert "cannot escalate: such verdicts steer instead" in caplog.text
    assert any(asked.told for asked in agent.model.asked)


@pytest.mark.parametrize("wrapped", [False, True], ids=["agent", "handoff"])
def test_a_bare_model_object_of_an_agent_handed_over_to_counts_too(caplog, wrapped):
    guard, lookup, strong = Watched(ESCALATE), Counted(), Scripted(lambda _: [say("solved")], "strong")
    bare = Scripted(lambda asked: [say("told")] if asked.told else [call()])
    other = Agent(name="B", model=bare, tools=[lookup.tool])
    first, usual, options = named(guard, lambda _: [handoff_call("b")], strong=strong)
    first.handoffs = [handoff(other) if wrapped else other]
    ran = go("run", first, escalate_model="strong", **options)
    assert "cannot escalate: such verdicts steer instead" in caplog.text
    assert (ran.output, strong.calls, usual.calls) == ("told", 0, 1)


def test_the_stronger_model_gets_its_own_default_settings():
    strong, guard, lookup = Scripted(lambda _: [say("solved")], "gpt-4.1"), Watched(ESCALATE), Counted()
    usual = Scripted(deaf(), "gpt-5")
    provider = Models(**{"gpt-5": usual, "gpt-4.1": strong})
    agent = Agent(name="A", model="gpt-5", tools=[lookup.tool])
    go("run", agent, guard=guard, escalate_model="gpt-4.1", run_config=RunConfig(model_provider=provider))
    assert usual.asked[0].settings.reasoning is not None
    assert strong.asked[0].settings.reasoning is None
    chosen = Agent(name="A", model="gpt-5", tools=[lookup.tool], model_settings=ModelSettings(temperature=0.3))
    go("run", chosen, guard=guard, escalate_model="gpt-4.1", run_config=RunConfig(model_provider=provider))
    assert strong.asked[1].settings.temperature == 0.3
    settings = ModelSettings(reasoning=Reasoning(effort="high"))
    chosen = Agent(name="A", model="gpt-5", tools=[lookup.tool], model_settings=settings)
    go("run", chosen, guard=guard, escalate_model="gpt-4.1", run_config=RunConfig(model_provider=provider))
    assert strong.asked[2].settings.reasoning.effort == "high"


# -- limits ------------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("surface", ["runner", "hooks"])
def test_forty_turns_are_forty_rounds(surface, way):
    model, lookup, guard = (
        Scripted(different(1000)),
        Counted(lambda n, _: f"row {n}"),
        Watched({"limits": {"turns": 40}}),
    )
    if surface == "hooks":
        ran = hooked(way, agent_with(model, lookup), guard)
    else:
        ran = go(way, agent_with(model, lookup), guard=guard, on_stop="raise", max_turns=None)
    assert_stop(ran, "max_turns")
    assert (len(lookup.ran), model.calls, guard.ends[0].turns) == (40, 40, 40)
    assert guard.ends[0].verdict is None


@every_way
def test_no_model_call_starts_once_the_tokens_are_spent(way):
    model, lookup, guard = (
        Scripted(different(50)),
        Counted(lambda n, _: f"row {n}"),
        Watched({"limits": {"tokens": 360}}),
    )
    ran = go(way, agent_with(model, lookup), guard=guard, on_stop="raise", max_turns=50)
    assert_stop(ran, "max_tokens")
    assert (model.calls, len(lookup.ran)) == (3, 3)


def test_calls_over_the_limit_are_refused_in_order():
    wanted = [("lookup", {"key": f"K-{n}"}) for n in range(5)]
    model, lookup, guard = Scripted(deaf(*wanted)), Counted(), Watched({"limits": {"tool_calls": 3}})
    ran = go("run", agent_with(model, lookup), guard=guard, on_stop="raise")
    assert_stop(ran, "max_tool_calls")
    assert lookup.ran == ["K-0", "K-1", "K-2"]
    assert [text.startswith(OWN) for text in outputs(ran.history)] == [False] * 3 + [True] * 2


def test_usage_a_provider_does_not_report_is_estimated_where_a_limit_counts_it():
    model, lookup, guard = (
        Scripted(different(3), usage=Usage(requests=1)),
        Counted(),
        Watched({"limits": {"tokens": 10_000}}),
    )
    ran = go("run", agent_with(model, lookup), guard=guard)
    assert ran.output == "done"
    usage = guard.ends[0].usage
    assert usage.estimated
    assert 0 < usage.output_tokens < 100
    assert 0 < usage.input_tokens < 1_000


def test_usage_a_provider_does_not_report_is_unknown_where_nothing_counts_it():
    model, lookup, guard = Scripted(different(3), usage=Usage(requests=1)), Counted(), Watched()
    go("run", agent_with(model, lookup), guard=guard)
    assert guard.ends[0].usage.total_tokens is None


def test_a_plugin_can_end_the_run_before_its_next_model_call():
    class Stopper:
        @hookimpl
        def stop_when(self, session):
            return "enough rows" if session.turns >= 2 else None

    model, lookup = Scripted(different(9)), Counted(lambda n, _: f"row {n}")
    guard = Watched(plugins=[Stopper()])
    ran = go("run", agent_with(model, lookup), guard=guard)
    assert "enough rows" in ran.output
    assert (guard.reasons, len(lookup.ran)) == (["custom"], 2)


# -- how a run is stopped ----------------------------------------------------------------------------------------------


@every_way
def test_end_closes_the_run_with_a_message(way):
    session = SQLiteSession("s")
    model, lookup, guard = Scripted(deaf()), Counted(), Watched()
    agent = agent_with(model, lookup)
    ran = go(way, agent, guard=guard, session=session)  # the policy's default

    assert ran.output.startswith("[loopguard] The run was ended")
    assert (len(lookup.ran), model.calls, guard.reasons) == (2, 6, ["doom_loop"])
    assert ran.result.last_agent is agent
    assert ran.result.context_wrapper.usage.requests == 6
    assert len(ran.result.raw_responses) == 6
    assert_well_formed(ran.history)
    stored = items_of(session)
    assert_well_formed(stored)
    assert stored[-1]["content"][0]["text"] == ran.output
    assert stored[0] == {"role": "user", "content": "Where is it?"}
    if way == "run_streamed":
        assert ran.deltas == ran.output
        assert ran.item_events[-1] == "message_output_created"
        assert ran.result.is_complete

    friendly = Scripted(lambda _: [say("Paid.")])
    again = go(way, agent_with(friendly), "And now?", guard=guard, session=session)
    assert again.output == "Paid."
    assert friendly.asked[0].input[-1]["content"] == "And now?"


@every_way
@pytest.mark.parametrize("model_object", [True, False])
def test_answer_gives_the_model_one_last_call_without_tools(way, model_object):
    session = SQLiteSession("s")
    lookup, guard = Counted(), Watched()
    config = RunConfig(model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=True))
    if model_object:
        model = Scripted(deaf())
        agent, options = agent_with(model, lookup), {"guard": guard, "run_config": config}
    else:
        agent, model, options = named(guard, deaf(), tools=[lookup])
        options["run_config"].model_settings = config.model_settings
    ran = go(way, agent, on_stop="answer", session=session, **options)

    assert (ran.output, len(lookup.ran), model.calls) == ("enough", 2, 7)
    last = model.asked[-1]
    assert last.tools == []
    assert (last.settings.tool_choice, last.settings.parallel_tool_calls) == (None, None)
    assert len(last.told) == 1
    assert "No tool can be used any more" in last.told[0]
    assert len(last.outputs) == 6
    assert guard.reasons == ["doom_loop"]
    assert (guard.ends[0].model_calls, guard.ends[0].usage.total_tokens) == (7, 840)
    assert ran.result.last_agent is agent
    assert ran.result.new_items[-1].agent is agent
    assert ran.result.context_wrapper.usage.requests == 7
    stored = items_of(session)
    assert_well_formed(stored)
    assert stored[-1]["content"][0]["text"] == "enough"
    assert not any(OWN in str(item.get("content")) for item in stored[:-1])


@every_way
@pytest.mark.parametrize("answer", [lambda: ConnectionError("down"), lambda: [call()]], ids=["error", "calls"])
def test_a_last_answer_that_fails_leaves_the_closing_message(way, answer):
    model, lookup, guard = Scripted(lambda asked: [call()] if asked.tools else answer()), Counted(), Watched()
    ran = go(way, agent_with(model, lookup), guard=guard, on_stop="answer")
    assert ran.output.startswith("[loopguard] The run was ended")
    assert (guard.reasons, guard.ends[0].turns, guard.actions) == (["doom_loop"], 6, DEFAULT_ACTIONS)


class Invoice(BaseModel):
    paid: bool


@every_way
def test_an_agent_with_typed_output_can_answer_but_not_end(way):
    lookup, guard = Counted(), Watched()
    model = Scripted(lambda asked: [call()] if asked.tools else [say('{"paid": true}')])
    agent = agent_with(model, lookup, output_type=Invoice)
    assert go(way, agent, guard=guard, on_stop="answer").output == Invoice(paid=True)
    assert_stop(go(way, agent, guard=guard, on_stop="end"))
    assert guard.reasons == ["doom_loop", "doom_loop"]


@pytest.mark.parametrize("how", ["end", "answer"])
def test_the_ends_of_agents_are_told_to_the_users_hooks(how):
    class Ends(RunHooks):
        def __init__(self):
            self.seen = []

        async def on_agent_end(self, context, agent, output):
            self.seen.append(("run", agent.name, output))

        async def on_agent_start(self, context, agent):
            self.seen.append(("start", agent.name))

    class AgentEnds(AgentHooks):
        async def on_end(self, context, agent, output):
            ends.seen.append(("agent", agent.name, output))

    ends = Ends()
    agent = agent_with(Scripted(deaf()), Counted(), hooks=AgentEnds())
    ran = go("run", agent, guard=Watched(), on_stop=how, hooks=ends)
    assert ends.seen[0] == ("start", "A")
    assert sorted(ends.seen[1:]) == [("agent", "A", ran.output), ("run", "A", ran.output)]


def test_a_conversation_the_server_keeps_gets_the_last_results_with_the_last_question():
    model, lookup, guard = Scripted(deaf()), Counted(), Watched()
    ran = go("run", agent_with(model, lookup), guard=guard, on_stop="answer", auto_previous_response_id=True)
    assert ran.output == "enough"
    last = model.asked[-1]
    assert [item.get("type") for item in last.input] == ["function_call_output", None]
    assert last.rest["previous_response_id"] == "resp_6"


@every_way
def test_a_last_answer_is_made_with_the_runs_own_context_and_checked_like_any_other(way):
    seen, checked = [], []

    def instructions(context, agent):
        seen.append(context.context)
        return "Be brief."

    def check(context, agent, output):
        checked.append(output)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    guardrails = [OutputGuardrail(guardrail_function=check)]
    agent = agent_with(Scripted(deaf()), Counted(), instructions=instructions, output_guardrails=guardrails)
    ran = go(way, agent, guard=Watched(), on_stop="answer", context="the user's own")
    assert set(seen) == {"the user's own"}
    assert (ran.output, checked, len(ran.result.output_guardrail_results)) == ("enough", ["enough"], 1)


@every_way
def test_a_conversation_the_server_keeps_is_told_what_was_asked_where_no_call_was_made(way):
    class Stopper:
        @hookimpl
        def stop_when(self, session):
            return "closed today"

    model = Scripted(deaf())
    guard = Watched(plugins=[Stopper()])
    ran = go(way, agent_with(model), guard=guard, on_stop="answer", conversation_id="conv_1")
    assert (ran.output, guard.reasons) == ("enough", ["custom"])
    assert [item["content"] for item in model.asked[0].input][:1] == ["Where is it?"]


@every_way
def test_a_conversation_the_server_keeps_gets_every_kind_of_result(way):
    """A hosted MCP server's calls are answered by approvals, and those stand behind the results of other tools."""
    hosted = {"type": "mcp", "server_label": "srv", "server_url": "http://127.0.0.1:1", "require_approval": "always"}
    approvals = HostedMCPTool(tool_config=hosted, on_approval_request=lambda request: {"approve": True})

    def script(asked):
        if not asked.tools:
            return [say("enough")]
        wanted = {"id": f"r{asked.number}", "name": "lookup", "server_label": "srv", "arguments": "{}"}
        return [call(), McpApprovalRequest(type="mcp_approval_request", **wanted)]

    agent = Agent(name="A", model=Scripted(script), tools=[Counted().tool, approvals])
    ran = go(way, agent, guard=Watched(), on_stop="answer", conversation_id="conv_1")
    assert ran.output == "enough"
    sent = [item.get("type") for item in agent.model.asked[-1].input]
    assert sent == ["function_call_output", "mcp_approval_response", None]
    rest = agent.model.asked[-1].rest
    assert (rest["conversation_id"], rest["previous_response_id"]) == ("conv_1", None)


@every_way
def test_a_last_answer_hands_over_to_nobody_and_is_checked_as_no_first_turn(way):
    checked = []

    def check(context, agent, given):
        checked.append(agent.name)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    other = Agent(name="B", model=Scripted(deaf()), tools=[Counted().tool])
    other.input_guardrails = [InputGuardrail(guardrail_function=check)]
    other.handoffs = [Agent(name="C", model=Scripted(lambda _: [say("taken over")]))]
    first = agent_with(Scripted(lambda _: [handoff_call("b")]), handoffs=[other])
    first.input_guardrails = [InputGuardrail(guardrail_function=check)]
    config = RunConfig(input_guardrails=[InputGuardrail(guardrail_function=check)])
    ran = go(way, first, guard=Watched(), on_stop="answer", run_config=config, session=SQLiteSession("s"))
    assert (ran.output, ran.result.last_agent) == ("enough", other)
    assert [asked.rest["handoffs"] for asked in other.model.asked[-2:]] == [["transfer_to_c"], []]
    assert checked == ["A", "A"]  # the agent's own and the run's, of the first turn
    assert_well_formed(ran.history)


def test_a_wrong_way_to_stop_is_named():
    with pytest.raises(ValueError, match="on_stop must be 'raise', 'end' or 'answer', not 'stop'"):
        GuardedRunner.run_sync(agent_with(Scripted(deaf())), "x", guard="default", on_stop="stop")


def test_a_tool_result_that_is_the_final_output_ends_the_run_all_the_same():
    model, lookup, guard = (
        Scripted(deaf()),
        Counted(),
        Watched({"ladder": {"observe": False, "block": False, "stop": 1}}),
    )
    agent = agent_with(model, lookup, tool_use_behavior="stop_on_first_tool")
    ended = go("run", agent, guard=guard, on_stop="end")
    assert ended.output.startswith("[loopguard] The run was ended")
    assert_stop(go("run", agent, guard=guard, on_stop="raise"))
    assert_stop(go("run_streamed", agent, guard=guard, on_stop="raise"))
    assert (lookup.ran, guard.reasons) == ([], ["doom_loop"] * 3)


def test_a_tool_choice_that_is_never_reset_is_stopped():
    model, lookup, guard = Scripted(deaf()), Counted(), Watched()
    settings = ModelSettings(tool_choice="required")
    agent = agent_with(model, lookup, reset_tool_choice=False, model_settings=settings)
    ran = go("run", agent, guard=guard)
    assert ran.output.startswith(OWN)
    assert {asked.settings.tool_choice for asked in model.asked} == {"required"}


# -- every way a run can end -------------------------------------------------------------------------------------------


@every_way
def test_the_sdks_own_turn_limit_ends_with_max_turns(way):
    model, lookup, guard = Scripted(different(99)), Counted(lambda n, _: f"row {n}"), Watched()
    ran = go(way, agent_with(model, lookup), guard=guard, max_turns=3)
    assert isinstance(ran.error, MaxTurnsExceeded)
    assert (guard.reasons, model.calls) == (["max_turns"], 3)


@every_way
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_turn_limit_with_a_handler_is_still_the_turn_limit(way, asynchronous):
    async def later(data):
        return "handled"

    model, lookup, guard = Scripted(different(99)), Counted(lambda n, _: f"row {n}"), Watched()
    handlers = {"max_turns": later if asynchronous else lambda data: "handled"}
    ran = go(way, agent_with(model, lookup), guard=guard, max_turns=3, error_handlers=handlers)
    assert (ran.output, guard.reasons) == ("handled", ["max_turns"])


@every_way
def test_a_guardrail_that_trips_ends_with_error(way):
    def trip(context, agent, given):
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    guard = Watched()
    agent = agent_with(Scripted(lambda _: [say("hi")]), input_guardrails=[InputGuardrail(guardrail_function=trip)])
    ran = go(way, agent, guard=guard)
    assert type(ran.error).__name__ == "InputGuardrailTripwireTriggered"
    assert (guard.reasons, guard.ends[0].error) == (["error"], "InputGuardrailTripwireTriggered")


@every_way
def test_a_guardrail_that_breaks_ends_with_error(way):
    def broken(context, agent, given):
        raise ZeroDivisionError("the user's own")

    guard = Watched()
    agent = agent_with(Scripted(different(9)), Counted(), input_guardrails=[InputGuardrail(guardrail_function=broken)])
    ran = go(way, agent, guard=guard)
    assert isinstance(ran.error, ZeroDivisionError)
    assert (guard.reasons, guard.ends[0].error) == (["error"], "ZeroDivisionError")


@pytest.mark.parametrize("kind", ["max_turns", "error", "tripped", "broken"])
def test_the_end_is_known_when_a_streams_reader_gets_the_error(kind):
    def trip(context, agent, given):
        if kind == "broken":
            raise ZeroDivisionError
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    guard = Watched()
    guardrails = [InputGuardrail(guardrail_function=trip)] if kind in ("tripped", "broken") else []
    model = Scripted((lambda _: ConnectionError("down")) if kind == "error" else different(9))

    async def main():
        result = run_streamed(agent_with(model, Counted(), input_guardrails=guardrails), "x", guard=guard, max_turns=2)
        try:
            async for _ in result.stream_events():
                pass
        except Exception:  # noqa: BLE001
            return list(guard.reasons)

    assert asyncio.run(main()) == ["max_turns" if kind == "max_turns" else "error"]


def test_a_cancelled_run_ends_with_cancelled():
    started = asyncio.Event

    async def main():
        running = started()

        async def forever(asked):
            running.set()
            await asyncio.Event().wait()

        class Stuck(Scripted):
            async def get_response(self, *args, **options):
                await forever(args)

        guard = Watched()
        task = asyncio.ensure_future(GuardedRunner.run(agent_with(Stuck(deaf())), "x", guard=guard))
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return guard

    assert asyncio.run(main()).reasons == ["cancelled"]


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
def test_a_cancelled_stream_ends_with_cancelled(mode):
    model, lookup, guard = Scripted(different(99)), Counted(lambda n, _: f"row {n}"), Watched()

    async def main():
        result = run_streamed(agent_with(model, lookup), "x", guard=guard)
        async for event in result.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_output" and len(lookup.ran) == 2:
                result.cancel(mode=mode)
        return result

    assert asyncio.run(main()).final_output is None
    assert guard.reasons == ["cancelled"]


def test_a_stream_that_is_left_when_its_event_loop_ends_is_cancelled():
    guard = Watched()

    async def main():
        run_streamed(agent_with(Scripted(different(99)), Counted()), "x", guard=guard)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert guard.reasons == ["cancelled"]
    assert guard._live == {}


def test_a_stopped_stream_gives_no_event_twice():
    model, guard = Scripted(lambda asked: [say("Looking."), call()]), Watched()
    ran = go("run_streamed", agent_with(model, Counted()), guard=guard)
    assert ran.deltas == "Looking." * 6 + ran.output
    assert ran.item_events.count("message_output_created") == 7
    assert len(ran.result.new_items) == 6 * 3 + 1


@every_way
@pytest.mark.parametrize(
    "given", [None, {}, {"workflow_name": "mine"}, RunConfig()], ids=["none", "empty", "dict", "own"]
)
def test_a_provider_that_nobody_gave_is_closed(way, given, monkeypatch):
    closed = []

    async def aclose(provider):
        closed.append(provider)

    monkeypatch.setattr(MultiProvider, "aclose", aclose)
    options = {} if given is None else {"run_config": given}
    ran = go(way, agent_with(Scripted(lambda _: [say("hi")])), guard=Watched(), **options)
    assert ran.output == "hi"
    assert len(closed) == (0 if isinstance(given, RunConfig) else 1)


def test_a_stream_nobody_reads_ends_all_the_same():
    model, lookup = Scripted(deaf()), Counted()
    guard_ended = asyncio.Event()
    guard = Watched(plugins=[EndPlugin(guard_ended.set)])

    async def main():
        result = run_streamed(agent_with(model, lookup), "x", guard=guard)
        await asyncio.wait({result.run_loop_task})
        await guard_ended.wait()
        return result

    result = asyncio.run(main())
    assert guard.reasons == ["doom_loop"]
    assert result.final_output.startswith(OWN)


class EndPlugin:
    """Tells when a session ended."""

    def __init__(self, told):
        self.told = told

    @hookimpl
    def session_end(self, event):
        self.told()


def test_a_stop_before_the_first_streamed_model_call_keeps_the_users_words_in_memory():
    class Stopper:
        @hookimpl
        def stop_when(self, session):
            return "closed today"

    session = SQLiteSession("s")
    ran = go("run_streamed", agent_with(Scripted(deaf())), guard=Watched(plugins=[Stopper()]), session=session)
    assert "closed today" in ran.output
    assert [item["role"] for item in items_of(session)] == ["user", "assistant"]


@every_way
@pytest.mark.parametrize("how", ["raise", "end", "answer"])
def test_a_stop_that_loses_its_first_round_leaves_the_users_words_once_in_memory(way, how):
    """Without a failure function the stop inside the tool ends the outer round too, which the SDK then drops."""
    lookup, guard, session = Counted(), Watched(), SQLiteSession("s")
    inner = agent_with(Scripted(deaf()), lookup)
    tool = inner.as_tool("research", "r", hooks=LoopGuardHooks(guard), failure_error_function=None)
    script = deaf(("research", {"input": "x"}))
    ran = go(way, Agent(name="Outer", model=Scripted(script), tools=[tool]), guard=guard, on_stop=how, session=session)

    assert guard.reasons == ["doom_loop", "doom_loop"]
    closing = [] if how == "raise" else ["assistant"]
    assert [item["role"] for item in items_of(session)] == ["user", *closing]
    if how != "raise":
        assert ran.result.last_agent.name == "Outer"
        expected = "enough" if how == "answer" else "[loopguard] A nested run was ended. The run was ended: `lookup`"
        assert ran.output.startswith(expected)


@every_way
@pytest.mark.parametrize("surface", ["runner", "hooks"])
@pytest.mark.parametrize("script", [deaf(), lambda _: [say("hi")]], ids=["stopped", "healthy"])
def test_asynchronous_end_hooks_have_run_when_the_run_is_over(surface, way, script):
    seen = []

    async def on_end(event):
        for _ in range(1_000):  # longer than the SDK's own end of a run takes
            await asyncio.sleep(0)
        seen.append(event.reason)

    agent, guard = agent_with(Scripted(script), Counted()), LoopGuard(on_end=on_end)
    if surface == "hooks":
        hooked(way, agent, guard)
    else:
        go(way, agent, guard=guard)
    assert len(seen) == 1


# -- plugins -----------------------------------------------------------------------------------------------------------


@every_way
def test_a_plugin_can_let_a_loop_go_on(way):
    class Lenient:
        @hookimpl
        def doom_loop_detected(self, event):
            return Action.OBSERVE

    model = Scripted(lambda asked: [call()] if asked.rounds < 8 else [say("done")])
    lookup, guard = Counted(), Watched(plugins=[Lenient()])
    ran = go(way, agent_with(model, lookup), guard=guard, max_turns=20)
    assert (ran.output, len(lookup.ran), guard.reasons) == ("done", 8, ["complete"])


@every_way
def test_a_plugin_can_stop_sooner(way):
    class Strict:
        @hookimpl
        def doom_loop_detected(self, event):
            return Action.STOP

    model, lookup, guard = Scripted(deaf()), Counted(), Watched(plugins=[Strict()])
    assert_stop(go(way, agent_with(model, lookup), guard=guard, on_stop="raise"))
    assert (model.calls, len(lookup.ran)) == (2, 1)


@every_way
def test_a_plugin_that_raises_does_not_touch_the_run(way):
    class Broken:
        @hookimpl
        def doom_loop_detected(self, event):
            raise RuntimeError("plugin")

        @hookimpl
        def session_end(self, event):
            raise RuntimeError("plugin")

        @hookimpl
        def post_model_call(self, event):
            raise RuntimeError("plugin")

    model, lookup, guard = Scripted(deaf()), Counted(), Watched(plugins=[Broken()])
    assert_stop(go(way, agent_with(model, lookup), guard=guard, on_stop="raise"))
    assert (len(lookup.ran), guard.actions) == (2, DEFAULT_ACTIONS)


# -- on and off --------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("surface", ["runner", "hooks"])
def test_the_switch_leaves_everything_to_the_sdk(surface, way, monkeypatch):
    monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    model, lookup, guard = Scripted(deaf()), Counted(), Watched()
    agent = agent_with(model, lookup)
    ran = hooked(way, agent, guard, max_turns=8) if surface == "hooks" else go(way, agent, guard=guard, max_turns=8)
    assert isinstance(ran.error, MaxTurnsExceeded)
    assert (len(lookup.ran), guard.actions, guard.reasons) == (8, [], [])


@every_way
def test_shadow_mode_reports_and_does_nothing(way):
    model, lookup, guard = Scripted(deaf()), Counted(), Watched("observe")
    ran = go(way, agent_with(model, lookup), guard=guard, max_turns=7)
    assert isinstance(ran.error, MaxTurnsExceeded)
    assert len(lookup.ran) == 7
    assert {action for _, action in guard.actions} == {"observe"}
    assert [event.proposed.value for event in guard.loops] == ["observe", "block", "block", "block", "stop", "stop"]


@pytest.mark.parametrize("guard", [None, "default", {"ladder": {"stop": 4}}], ids=["none", "preset", "mapping"])
def test_a_guard_can_be_given_in_every_form(guard, tmp_path):
    (tmp_path / "loopguard.toml").write_text("[limits]\nturns = 1\n")
    model, lookup = Scripted(deaf()), Counted()
    ran = go("run", agent_with(model, lookup), guard=guard, on_stop="raise")
    assert_stop(ran, "max_turns" if guard is None else "doom_loop")
    from_file = go("run", agent_with(model, lookup), guard=tmp_path / "loopguard.toml", on_stop="raise")
    assert_stop(from_file, "max_turns")


def test_a_bad_policy_is_an_error_at_once():
    with pytest.raises(PolicyError):
        run_streamed(agent_with(Scripted(deaf())), "x", guard={"limits": {"turn": 1}})


def test_the_hooks_own_guard_is_taken_where_none_is_given():
    model, lookup, guard = Scripted(deaf()), Counted(), Watched()
    ran = go("run", agent_with(model, lookup), hooks=LoopGuardHooks(guard))
    assert ran.output.startswith(OWN)
    assert (guard.reasons, guard.actions) == (["doom_loop"], DEFAULT_ACTIONS)


def test_the_users_configuration_is_left_as_it_is():
    provider = Models(usual=Scripted(deaf(), "usual"))
    config = RunConfig(model_provider=provider)
    before = dict(vars(config))
    go("run", Agent(name="A", model="usual", tools=[Counted().tool]), guard=Watched(), run_config=config)
    assert vars(config) == before
    assert provider.closed == 0


def test_run_sync_refuses_to_run_inside_a_loop():
    async def main():
        GuardedRunner.run_sync(agent_with(Scripted(deaf())), "x", guard="default")

    with pytest.raises(RuntimeError, match="run_sync cannot be called"):
        asyncio.run(main())


def test_a_stop_inside_one_task_leaves_others_alone():
    """`current_session` of one run is not seen by the next one in the same task."""
    guard = Watched()

    async def main():
        await acaught(GuardedRunner.run(agent_with(Scripted(deaf()), Counted()), "x", guard=guard))
        first = await drain(run_streamed(agent_with(Scripted(deaf()), Counted()), "x", guard=guard))
        second = await GuardedRunner.run(agent_with(Scripted(lambda _: [say("hi")])), "x", guard=guard)
        return first, second

    _, second = asyncio.run(main())
    assert second.final_output == "hi"
    assert [end.parent_id for end in guard.ends] == [None] * 3
    assert issubclass(LoopGuardStop, Exception)


# -- ends that meet ----------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("on_stop", ["end", "answer", "raise"])
def test_a_stop_that_is_due_as_the_sdks_own_limit_comes_is_carried_out(way, on_stop):
    """The call that would have been told to stop is the first one over `max_turns`."""
    guard, session = Watched(), SQLiteSession("s")
    ran = go(way, agent_with(Scripted(deaf()), Counted()), guard=guard, on_stop=on_stop, max_turns=6, session=session)
    assert guard.reasons == ["doom_loop"]
    assert_well_formed(items_of(session))
    if on_stop == "raise":
        assert_stop(ran)
        assert isinstance(ran.error.__cause__, MaxTurnsExceeded) or way == "run_streamed"
        return
    assert ran.error is None
    assert ran.output == "enough" if on_stop == "answer" else ran.output.startswith(OWN)
    assert items_of(session)[-1]["content"][0]["text"] == ran.output
    if way == "run_streamed":
        assert ran.deltas == ran.output


@every_way
def test_an_error_handler_of_the_users_still_takes_the_sdks_limit(way):
    guard = Watched()
    handlers = {"max_turns": lambda _: "handled"}
    ran = go(way, agent_with(Scripted(deaf()), Counted()), guard=guard, max_turns=6, error_handlers=handlers)
    assert (ran.output, guard.reasons) == ("handled", ["doom_loop"])


def test_a_stream_that_is_read_again_gives_its_closing_once():
    async def main():
        result = run_streamed(agent_with(Scripted(deaf()), Counted()), "x", guard=Watched(), max_turns=50)
        return [len((await drain(result)).events) for _ in range(2)]

    first, second = asyncio.run(main())
    assert first > 2
    assert second == 0
