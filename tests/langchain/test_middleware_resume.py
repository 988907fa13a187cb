"""Runs that are interrupted, resumed elsewhere, taken back in time, or gone on with in a second turn."""

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import ParentCommand
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from loopguard_langchain_models import (
    LOOKUP,
    OWN,
    Counted,
    Say,
    ScriptedModel,
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
    refused,
    rounds,
    run,
    sequence,
    settle,
    since_user,
    thread,
    watched,
)

from loopguard_core import LoopGuardStop


class Asks(Counted):
    """A tool that asks a human the first time it runs, and each time it is in `rounds` (its own count, from 1)."""

    def __init__(self, *when, result="nothing found", **options):
        self.begun = 0
        self.finished = 0

        def body(_n, _key):
            self.begun += 1
            if self.finished + 1 in when:
                interrupt("go on?")
            self.finished += 1
            return result(self.finished) if callable(result) else result

        super().__init__(body, **options)


@pytest.fixture(params=["memory", "sqlite"])
def saver(request, tmp_path):
    if request.param == "memory":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as sqlite:
        yield sqlite


# -- interrupts in a tool --------------------------------------------------------------------------------------------


@four_ways
def test_a_streak_goes_on_over_an_interrupt(way):
    model, lookup, seen = ScriptedModel(script=deaf()), Asks(1, 2), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())

    assert "__interrupt__" in run(agent, ask(), way, thread())
    assert "__interrupt__" in run(agent, Command(resume="yes"), way, thread())
    result = run(agent, Command(resume="yes"), way, thread())

    assert_stopped(result)
    assert (model.calls, lookup.finished, lookup.begun) == (6, 2, 4)
    assert seen.actions == [(2, "observe"), (3, "block"), (4, "block"), (5, "block"), (6, "stop")]
    assert seen.reasons == ["paused", "paused", "doom_loop"]
    assert [end.turns for end in seen.ends] == [1, 2, 6]
    assert len({end.session_id for end in seen.ends}) == 1
    assert seen.live == 0


@both_ways
def test_two_questions_of_one_tool_are_two_pauses(way):
    def twice(_n, _key):
        return f"{interrupt('first?')} {interrupt('second?')}"

    seen = watched()
    agent = guarded(ScriptedModel(script=rounds(1)), [Counted(twice)], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    run(agent, Command(resume="a"), way, thread())
    assert_healthy(run(agent, Command(resume="b"), way, thread()))
    assert seen.reasons == ["paused", "paused", "complete"]


@both_ways
def test_two_tools_that_ask_in_one_round_are_one_pause(way):
    seen = watched()
    tools = [Asks(1), Asks(1, name="other")]
    model = ScriptedModel(script=rounds(1, LOOKUP, call("other", key="x")))
    agent = guarded(model, tools, seen, checkpointer=InMemorySaver())
    paused = run(agent, ask(), way, thread())
    assert len(paused["__interrupt__"]) == 2
    resumed = run(agent, Command(resume={i.id: "yes" for i in paused["__interrupt__"]}), way, thread())
    assert_healthy(resumed)
    assert seen.reasons == ["paused", "complete"]
    assert seen.ends[-1].tool_calls == 2


@both_ways
def test_a_call_that_ran_beside_one_that_asks_is_not_counted_again(way):
    seen, asks, plain = watched(), Asks(1), Counted(name="other")
    model = ScriptedModel(script=rounds(1, LOOKUP, call("other", key="x")))
    agent = guarded(model, [asks, plain], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    assert_healthy(run(agent, Command(resume="yes"), way, thread()))
    assert (asks.begun, len(plain.ran)) == (2, 1)
    assert (seen.ends[-1].tool_calls, seen.ends[-1].turns) == (2, 1)


def test_a_streak_goes_on_in_another_process(saver):
    """Nothing is shared but the checkpoints: a new guard, a new middleware, a new agent."""

    def process():
        model, lookup, seen = ScriptedModel(script=deaf()), Asks(1), watched()
        return model, lookup, seen, guarded(model, [lookup], seen, checkpointer=saver)

    model, lookup, seen, agent = process()
    assert "__interrupt__" in run(agent, ask(), "invoke", thread())
    assert seen.reasons == ["paused"]
    assert lookup.finished == 0

    def answered(_n, _key):
        return interrupt("go on?")

    model, seen = ScriptedModel(script=deaf()), watched()
    agent = guarded(model, [Counted(answered)], seen, checkpointer=saver)
    run(agent, Command(resume="nothing found"), "invoke", thread())

    model, lookup, seen = ScriptedModel(script=deaf()), Counted("nothing found"), watched()
    agent = guarded(model, [lookup], seen, checkpointer=saver)
    result = run(agent, Command(resume="nothing found"), "invoke", thread())

    assert_stopped(result)
    assert lookup.ran == [LOOKUP[1]["key"]]  # the second round; the first was answered in the process before
    assert seen.actions == [(3, "block"), (4, "block"), (5, "block"), (6, "stop")]
    assert (seen.ends[-1].turns, seen.ends[-1].model_calls, seen.ends[-1].tool_calls) == (6, 6, 2)
    assert seen.ends[-1].usage.total_tokens == 90
    assert seen.live == 0


def test_a_changed_result_is_seen_across_processes(saver):
    """The outcome of the last round travels with the streak."""
    for number in range(8):

        def answered(_n, _key):
            return interrupt("go on?")

        model, seen = ScriptedModel(script=rounds(8)), watched()
        agent = guarded(model, [Counted(answered)], seen, checkpointer=saver)
        given = ask() if number == 0 else Command(resume=f"row {number}")
        run(agent, given, "invoke", thread())
        assert "block" not in dict(seen.actions).values()
    agent = guarded(
        ScriptedModel(script=rounds(8)), [Counted(lambda _n, _k: interrupt("go on?"))], seen, checkpointer=saver
    )
    assert_healthy(run(agent, Command(resume="row 8"), "invoke", thread()))


@both_ways
def test_limits_go_on_over_an_interrupt_in_another_process(way):
    saver = InMemorySaver()
    policy = {"limits": {"turns": 3, "cost": 10}}
    first = guarded(ScriptedModel(script=different(9, cost=1)), [Asks(2)], watched(policy), checkpointer=saver)
    run(first, ask(), way, thread())

    model, seen = ScriptedModel(script=different(9, cost=1)), watched(policy)
    second = guarded(model, [Counted(lambda _n, _k: "yes")], seen, checkpointer=saver)
    assert_stopped(run(second, Command(resume="yes"), way, thread()), "max_turns")
    assert model.calls == 1
    assert (seen.ends[0].turns, str(seen.ends[0].usage.cost)) == (3, "3")


@both_ways
def test_an_interrupted_run_that_is_given_up_for_a_new_question_is_cancelled(way):
    def script(messages, _number):
        return (
            Say("done")
            if [m.text for m in messages if isinstance(m, HumanMessage)][-1] == "Never mind."
            else Say("", (LOOKUP,))
        )

    seen = watched()
    agent = guarded(ScriptedModel(script=script), [Asks(1)], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    result = run(agent, ask("Never mind."), way, thread())
    assert result["messages"][-1].text == "done"
    assert seen.reasons[0] == "paused"
    assert seen.reasons[-1] == "complete"
    assert seen.live == 0
    assert seen.ends[-1].turns == 0


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@both_ways
def test_the_time_a_human_takes_does_not_count(way):
    clock = Clock()

    def body(_n, _key):
        clock.now += 5
        interrupt("go on?")
        return "new"

    seen = watched({"limits": {"seconds": 60}}, clock=clock)
    agent = guarded(ScriptedModel(script=rounds(1)), [Counted(body)], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    clock.now += 100_000
    assert_healthy(run(agent, Command(resume="yes"), way, thread()))
    assert seen.ends[0].duration == 5
    assert seen.ends[-1].reason == "complete"


@both_ways
def test_the_time_a_tool_takes_after_the_human_answered_counts(way):
    clock = Clock()

    def body(_n, _key):
        interrupt("go on?")
        clock.now += 100
        return "new"

    seen = watched({"limits": {"seconds": 60}}, clock=clock)
    agent = guarded(ScriptedModel(script=rounds(1)), [Counted(body)], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    clock.now += 100_000
    assert_stopped(run(agent, Command(resume="yes"), way, thread()), "max_seconds")
    assert seen.ends[-1].duration == 100


@both_ways
@pytest.mark.parametrize(
    "where", [{"interrupt_before": ["tools"]}, {"interrupt_after": ["tools"]}], ids=["before", "after"]
)
def test_a_streak_goes_on_over_breakpoints(way, where):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver(), **where)
    result = run(agent, ask(), way, thread())
    for _ in range(10):
        if not agent.get_state(thread()).next:
            break
        result = run(agent, None, way, thread())

    assert_stopped(result)
    assert (model.calls, len(lookup.ran)) == (6, 2)
    assert seen.reasons[-1] == "doom_loop"
    assert seen.live == 0


@both_ways
def test_the_time_at_a_breakpoint_does_not_count(way):
    clock = Clock()
    seen = watched({"limits": {"seconds": 60}}, clock=clock)
    agent = guarded(
        ScriptedModel(script=different(2)), [Counted()], seen, checkpointer=InMemorySaver(), interrupt_before=["tools"]
    )
    result = run(agent, ask(), way, thread())
    for _ in range(2):
        clock.now += 100_000
        result = run(agent, None, way, thread())
    assert_healthy(result)
    assert seen.reasons[-1] == "complete"


# -- time travel -----------------------------------------------------------------------------------------------------


def before_model_call(agent, number, config):
    """The checkpoint from which the `number`th model call starts."""
    history = [state for state in agent.get_state_history(config) if state.next == ("model",)]
    return history[::-1][number - 1].config


@four_ways
def test_going_back_goes_on_from_the_counters_of_that_point(way):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())
    assert_stopped(run(agent, ask(), way, thread()))
    assert len(lookup.ran) == 2

    again = run(agent, None, way, before_model_call(agent, 2, thread()))
    assert_stopped(again)
    assert len(lookup.ran) == 3  # the second round ran once more, the third was refused
    assert (seen.ends[-1].turns, seen.ends[-1].model_calls, seen.ends[-1].tool_calls) == (6, 6, 2)
    assert seen.actions[5:] == seen.actions[:5]
    assert seen.live == 0


@both_ways
def test_going_back_while_the_run_is_paused_goes_on_from_there(way):
    """The session of the pause is still alive in this process; it must not be taken for the earlier point's."""
    model, lookup, seen = ScriptedModel(script=deaf()), Asks(2), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    assert seen.reasons == ["paused"]

    run(agent, None, way, before_model_call(agent, 1, thread()))  # runs into the same question again
    result = run(agent, Command(resume="yes"), way, thread())
    assert_stopped(result)
    assert (seen.ends[-1].turns, seen.ends[-1].model_calls) == (6, 6)
    assert seen.live == 0


@both_ways
def test_two_branches_from_one_point_do_not_mix(way):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    point = before_model_call(agent, 3, thread())
    for _ in range(2):
        assert_stopped(run(agent, None, way, point))
        assert seen.ends[-1].turns == 6
        assert seen.actions[-4:] == [(3, "block"), (4, "block"), (5, "block"), (6, "stop")]
    assert len(lookup.ran) == 2


@both_ways
def test_a_forked_thread_with_changed_history_goes_on_counting(way):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    point = before_model_call(agent, 3, thread())
    messages = agent.get_state(point).values["messages"]
    edited = messages[-1].model_copy(update={"content": "something new"})
    fork = agent.update_state(point, {"messages": [edited]})
    result = run(agent, None, way, fork)

    assert_stopped(result)
    # The second result was made news, and the third is news against it: the fourth request is the first of its streak.
    assert seen.ends[-1].turns == 9


# -- second turns ----------------------------------------------------------------------------------------------------


@four_ways
def test_a_second_turn_starts_afresh(way):
    model, lookup, seen = ScriptedModel(script=rounds(2)), Counted(), watched({"limits": {"turns": 3}})
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())
    for _ in range(3):
        assert_healthy(run(agent, ask(), way, thread()))
    assert seen.actions == [(2, "observe")] * 3
    assert [(end.reason, end.turns, end.model_calls) for end in seen.ends] == [("complete", 2, 3)] * 3
    assert len({end.session_id for end in seen.ends}) == 3


def test_a_second_turn_in_another_process_starts_afresh(saver):
    for _ in range(2):
        seen = watched()
        agent = guarded(ScriptedModel(script=rounds(2)), [Counted()], seen, checkpointer=saver)
        assert_healthy(run(agent, ask(), "invoke", thread()))
        assert [(end.reason, end.turns) for end in seen.ends] == [("complete", 2)]


@both_ways
def test_the_note_of_a_stop_is_gone_in_the_next_turn(way):
    def script(messages, _number):
        return Say("done") if len([m for m in messages if isinstance(m, HumanMessage)]) > 1 else Say("", (LOOKUP,))

    agent = guarded(ScriptedModel(script=script), [Counted()], watched(), checkpointer=InMemorySaver())
    assert_stopped(run(agent, ask(), way, thread()))
    assert run(agent, ask(), way, thread()).get("loopguard") is None
    assert agent.get_state(thread()).values.get("loopguard") is None


@both_ways
def test_the_note_of_a_stop_cannot_be_given_as_input(way):
    agent = guarded(ScriptedModel(script=sequence()), [], watched())
    result = run(agent, {**ask(), "loopguard": {"reason": "forged"}}, way)
    assert result.get("loopguard") is None


@both_ways
def test_a_thread_that_began_without_us_can_be_gone_on_with(way):
    """The middleware is added while a run of the thread is waiting at its tools."""
    saver = InMemorySaver()
    model, lookup = ScriptedModel(script=deaf()), Counted()
    bare = create_agent(model, [lookup.tool], checkpointer=saver, interrupt_before=["tools"])
    run(bare, ask(), way, thread())

    seen = watched()
    result = run(guarded(model, [lookup], seen, checkpointer=saver), None, way, thread())
    assert_stopped(result)
    assert len(lookup.ran) == 3  # the first round was never judged
    assert seen.reasons == ["doom_loop"]
    assert seen.live == 0


@both_ways
def test_a_thread_that_began_with_us_can_go_on_without(way):
    saver = InMemorySaver()
    model, lookup = ScriptedModel(script=rounds(3)), Counted()
    run(guarded(model, [lookup], watched(), checkpointer=saver, interrupt_before=["tools"]), ask(), way, thread())
    assert_complete(run(create_agent(model, [lookup.tool], checkpointer=saver), None, way, thread())["messages"])


@both_ways
def test_damaged_saved_counters_do_not_end_a_run(way):
    seen = watched()
    agent = guarded(
        ScriptedModel(script=deaf()), [Counted()], seen, checkpointer=InMemorySaver(), interrupt_before=["tools"]
    )
    run(agent, ask(), way, thread())
    saved = agent.get_state(thread()).values["loopguard_session"]
    seen.guard.discard(saved["id"])
    agent.update_state(
        thread(), {"loopguard_session": {**saved, "state": {"version": 1, "counters": "x"}}}, as_node="model"
    )
    result = None
    while agent.get_state(thread()).next:
        result = run(agent, None, way, thread())
    assert_stopped(result)
    assert seen.live == 0


def test_the_saved_state_is_small_and_holds_no_arguments():
    import json

    agent = guarded(ScriptedModel(script=deaf()), [Counted()], watched(), checkpointer=InMemorySaver())
    run(agent, ask(), "invoke", thread())
    for state in agent.get_state_history(thread()):
        saved = json.dumps(state.values.get("loopguard_session"))
        assert len(saved) < 32 * 1024
        assert LOOKUP[1]["key"] not in saved


# -- agents as part of a larger graph --------------------------------------------------------------------------------


@both_ways
def test_an_agent_that_is_a_node_of_a_graph_ends_its_own_run_only(way):
    seen = watched()
    agent = guarded(ScriptedModel(script=deaf()), [Counted()], seen)
    after = []
    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("after", lambda state: after.append(len(state["messages"])))
    graph.add_edge(START, "agent")
    graph.add_edge("agent", "after")
    graph.add_edge("after", END)
    result = run(graph.compile(checkpointer=InMemorySaver()), ask(), way, thread())

    assert_complete(result["messages"])
    assert result["messages"][-1].response_metadata["loopguard"]["reason"] == "doom_loop"
    assert len(after) == 1
    assert seen.reasons == ["doom_loop"]


@both_ways
def test_an_agent_that_is_a_node_goes_on_counting_over_an_interrupt(way):
    seen, lookup = watched(), Asks(1)
    graph = StateGraph(MessagesState)
    graph.add_node("agent", guarded(ScriptedModel(script=deaf()), [lookup], seen))
    graph.add_edge(START, "agent")
    graph.add_edge("agent", END)
    compiled = graph.compile(checkpointer=InMemorySaver())
    run(compiled, ask(), way, thread())
    result = run(compiled, Command(resume="yes"), way, thread())

    assert_complete(result["messages"])
    assert seen.reasons == ["paused", "doom_loop"]
    assert lookup.finished == 2
    assert seen.live == 0


@both_ways
def test_handing_over_to_another_agent_of_the_graph_ends_the_run(way):
    """The usual hand-off: a tool that returns a command for the graph outside. The agent's run is over with it."""
    from typing import Annotated

    from langchain.tools import InjectedState
    from langchain_core.tools import InjectedToolCallId, tool

    @tool
    def hand_over(tool_call_id: Annotated[str, InjectedToolCallId], state: Annotated[dict, InjectedState]) -> Command:
        """Hand over."""
        said = ToolMessage("handed over", tool_call_id=tool_call_id)
        return Command(goto="second", graph=Command.PARENT, update={"messages": [*state["messages"], said]})

    seen = watched()
    graph = StateGraph(MessagesState)
    graph.add_node("first", guarded(ScriptedModel(script=deaf(call("hand_over"))), [hand_over], seen))
    graph.add_node("second", guarded(ScriptedModel(script=sequence(then="done")), [], seen))
    graph.add_edge(START, "first")
    result = run(graph.compile(), ask(), way)

    assert result["messages"][-1].text == "done"
    assert seen.reasons == ["complete", "complete"]
    assert seen.live == 0


@both_ways
def test_a_raised_stop_is_raised_again_when_the_thread_is_resumed(way):
    seen = watched()
    agent = guarded(
        ScriptedModel(script=deaf()), [Counted()], seen, exit_behavior="error", checkpointer=InMemorySaver()
    )
    for given in (ask(), None):
        with pytest.raises(LoopGuardStop):
            run(agent, given, way, thread())
    assert seen.live == 0
    assert len(refused(agent.get_state(thread()).values["messages"])) == 4
    assert isinstance(agent.get_state(thread()).values["messages"][-1], AIMessage)
    assert len(since_user(agent.get_state(thread()).values["messages"])) == 13
    assert OWN in agent.get_state(thread()).values["messages"][-1].text


# -- runs that end without another model call ------------------------------------------------------------------------


def held(agent_middleware):
    """Resumed runs that a middleware holds on to."""
    return len(agent_middleware._invocations._resumed)


def with_own(model, tool, seen, **options):
    """An agent, and the middleware in it."""
    ours = []
    agent = guarded(model, [tool], seen, middleware=lambda made: ours.append(made) or ours, **options)
    return agent, ours[0]


@both_ways
def test_a_resumed_run_that_ends_with_a_tools_result_is_let_go(way):
    seen = watched()
    lookup = Counted(lambda _n, _key: interrupt("go on?"), return_direct=True)
    agent, ours = with_own(ScriptedModel(script=deaf()), lookup, seen, checkpointer=InMemorySaver())
    for number in range(5):
        run(agent, ask(), way, thread(str(number)))
        assert run(agent, Command(resume="yes"), way, thread(str(number)))["messages"][-1].text == "yes"
    assert seen.reasons == ["paused", "complete"] * 5
    assert (held(ours), seen.live) == (0, 0)


def team(seen, hand_over):
    """A graph of two nodes: an agent, and who it hands over to."""
    lookup = Counted(lambda _n, _key: hand_over(interrupt("go on?")))
    agent, ours = with_own(ScriptedModel(script=deaf()), lookup, seen)

    def colleague(_state):
        return {"messages": [AIMessage("it is done")]}

    built = StateGraph(MessagesState)
    built.add_node("agent", agent)
    built.add_node("colleague", colleague)
    built.add_edge(START, "agent")
    built.add_edge("colleague", END)
    return built.compile(checkpointer=InMemorySaver()), ours


def returned_handoff(said):
    answer = ToolMessage(str(said), tool_call_id="call_1_0")
    return Command(graph=Command.PARENT, goto="colleague", update={"messages": [answer]})


def raised_handoff(_said):
    raise ParentCommand(Command(graph=Command.PARENT, goto="colleague"))


@both_ways
@pytest.mark.parametrize("hand_over", [returned_handoff, raised_handoff])
def test_a_resumed_run_that_hands_over_is_let_go(way, hand_over):
    seen = watched()
    graph, ours = team(seen, hand_over)
    assert "__interrupt__" in run(graph, ask(), way, thread())
    assert run(graph, Command(resume="yes"), way, thread())["messages"][-1].text == "it is done"
    assert held(ours) == 0
    settle(seen)
    assert seen.reasons[0] == "paused"
    assert (len(seen.reasons), seen.live) == (2, 0)


@both_ways
def test_runs_that_are_paused_again_and_again_are_not_kept(way):
    """With one call at a time the second tool of a round goes on after the first one asked."""
    seen = watched()
    tools = [Asks(1, 2, 3, 4, 5, 6, name="lookup"), Counted(name="other")]
    model = ScriptedModel(script=rounds(3, LOOKUP, call("other", key="x")))
    ours = []
    agent = guarded(model, tools, seen, middleware=lambda made: ours.append(made) or ours, checkpointer=InMemorySaver())
    config = {**thread(), "max_concurrency": 1}
    run(agent, ask(), way, config)
    for _ in range(3):
        assert held(ours[0]) <= 1
        result = run(agent, Command(resume="yes"), way, config)
    assert_healthy(result)
    assert (held(ours[0]), seen.live) == (0, 0)


# -- a human is asked about a model call -----------------------------------------------------------------------------


class Approves(AgentMiddleware):
    """Asks a human before the model calls in `when` (from 1)."""

    def __init__(self, *when):
        super().__init__()
        self.when, self.made = when, 0

    def wrap_model_call(self, request, handler):
        if self.made + 1 in self.when:
            interrupt("may I?")
        self.made += 1
        return handler(request)

    async def awrap_model_call(self, request, handler):
        if self.made + 1 in self.when:
            interrupt("may I?")
        self.made += 1
        return await handler(request)


@both_ways
def test_a_model_call_that_waits_for_a_human_is_a_pause(way):
    seen = watched()
    agent = guarded(
        ScriptedModel(script=deaf()),
        [Counted()],
        seen,
        middleware=lambda ours: [ours, Approves(1, 3)],
        checkpointer=InMemorySaver(),
    )
    assert "__interrupt__" in run(agent, ask(), way, thread())
    assert "__interrupt__" in run(agent, Command(resume="yes"), way, thread())
    assert_stopped(run(agent, Command(resume="yes"), way, thread()))
    assert seen.reasons == ["paused", "paused", "doom_loop"]
    assert [end.model_calls for end in seen.ends] == [0, 2, 6]
    assert seen.actions == [(2, "observe"), (3, "block"), (4, "block"), (5, "block"), (6, "stop")]
    assert len({end.session_id for end in seen.ends}) == 1
    assert seen.live == 0


@both_ways
def test_an_escalated_model_call_that_waits_for_a_human_is_no_failure(way):
    seen = watched({"ladder": {"escalate": 2, "block": 4, "stop": 6}})
    strong = ScriptedModel(script=deaf(), model_name="strong")
    agent = guarded(
        ScriptedModel(script=deaf()),
        [Counted()],
        seen,
        middleware=lambda ours: [ours, Approves(3)],
        checkpointer=InMemorySaver(),
        escalate_model=strong,
    )
    assert "__interrupt__" in run(agent, ask(), way, thread())
    assert seen.reasons == ["paused"]
    assert_stopped(run(agent, Command(resume="yes"), way, thread()))
    assert seen.reasons == ["paused", "doom_loop"]
