"""Hard caps, to the exact call."""

from contextlib import suppress

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from loopguard_langchain_models import (
    OWN,
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
    refused,
    run,
    sequence,
    settle,
    thread,
    watched,
)

from loopguard_core import Action, hookimpl

A, B, C = call(key="a"), call(key="b"), call(key="c")


def limited(script, *, kind=ScriptedModel, clock=None, tools=None, how="end", plugins=(), **limits):
    options = {} if clock is None else {"clock": clock}
    seen = watched({"limits": limits, "on_stop": {"how": how}}, plugins=plugins, **options)
    model, lookup = kind(script=script), Counted()
    return model, lookup, seen, guarded(model, tools or [lookup], seen, checkpointer=InMemorySaver())


# -- turns -----------------------------------------------------------------------------------------------------------


@four_ways
def test_forty_turns_are_forty_rounds_and_forty_model_calls(way):
    model, lookup, seen, agent = limited(different(99), turns=40)
    result = run(agent, ask(), way, thread())

    assert_stopped(result, "max_turns")
    assert (model.calls, len(lookup.ran)) == (40, 40)
    assert refused(result["messages"]) == []
    [end] = seen.ends
    assert (end.reason, end.turns, end.model_calls, end.tool_calls) == ("max_turns", 40, 40, 40)


@both_ways
def test_a_run_that_needs_exactly_its_turns_and_one_more_answer_does_not_get_it(way):
    """No model call starts after the last round, not even one that would only have answered."""
    model, lookup, _, agent = limited(different(3), turns=3)
    assert_stopped(run(agent, ask(), way, thread()), "max_turns")
    assert (model.calls, len(lookup.ran)) == (3, 3)


@both_ways
def test_a_run_below_its_turns_is_left_alone(way):
    model, lookup, seen, agent = limited(different(3), turns=4)
    assert_healthy(run(agent, ask(), way, thread()))
    assert (model.calls, len(lookup.ran), seen.reasons) == (4, 3, ["complete"])


@four_ways
def test_one_turn_is_one_round(way):
    model, lookup, seen, agent = limited(different(9), turns=1)
    assert_stopped(run(agent, ask(), way, thread()), "max_turns")
    assert (model.calls, len(lookup.ran), seen.ends[0].turns) == (1, 1, 1)


@both_ways
def test_an_answer_without_tools_is_no_turn(way):
    _, _, seen, agent = limited(sequence(), turns=1)
    assert_healthy(run(agent, ask(), way, thread()))
    assert (seen.ends[0].turns, seen.ends[0].model_calls) == (0, 1)


@both_ways
def test_refused_rounds_are_turns(way):
    model, lookup, _, agent = limited(deaf(), turns=4)
    assert_stopped(run(agent, ask(), way, thread()), "max_turns")
    assert (model.calls, len(lookup.ran)) == (4, 2)


@both_ways
def test_a_fan_out_is_one_turn(way):
    model, lookup, _, agent = limited(lambda _m, n: Say("", tuple(call(key=f"{n}-{i}") for i in range(5))), turns=2)
    assert_stopped(run(agent, ask(), way, thread()), "max_turns")
    assert (model.calls, len(lookup.ran)) == (2, 10)


@both_ways
def test_every_turn_of_a_thread_has_all_its_limits(way):
    model, _, seen, agent = limited(different(3), turns=4, tool_calls=3, tokens=75)
    for _ in range(3):
        assert_healthy(run(agent, ask(), way, thread()))
    assert model.calls == 12
    assert seen.reasons == ["complete"] * 3
    assert [end.turns for end in seen.ends] == [3, 3, 3]


@both_ways
def test_a_detection_comes_before_a_limit_of_the_same_round(way):
    _, _, seen, agent = limited(deaf(), turns=6)
    assert_stopped(run(agent, ask(), way, thread()), "doom_loop")
    assert seen.reasons == ["doom_loop"]


@four_ways
def test_the_turn_limit_of_the_sdk_ends_the_session_as_max_turns(way):
    model, seen = ScriptedModel(script=different(99)), watched()
    agent = guarded(model, [Counted()], seen)
    with suppress(GraphRecursionError):
        run(agent, ask(), way, {"recursion_limit": 10})
    settle(seen)
    assert seen.reasons == ["max_turns"]
    assert seen.live == 0


@both_ways
def test_the_turn_limit_of_the_sdk_counts_each_turn_of_a_thread_afresh(way):
    def script(messages, number):
        patient = [m.text for m in messages if isinstance(m, HumanMessage)][-1] == "For ever."
        return Say("", (call(key=f"k{number}"),)) if patient or number <= 2 else Say("done")

    seen = watched()
    agent = guarded(ScriptedModel(script=script), [Counted()], seen, checkpointer=InMemorySaver())
    assert_healthy(run(agent, ask(), way, {**thread(), "recursion_limit": 10}))
    with pytest.raises(GraphRecursionError):
        run(agent, ask("For ever."), way, {**thread(), "recursion_limit": 10})
    settle(seen)
    assert seen.reasons == ["complete", "max_turns"]


# -- tool calls ------------------------------------------------------------------------------------------------------


def pairs(_messages, number):
    return Say("", (call(key=f"{number}-first"), call(key=f"{number}-second")))


@four_ways
def test_calls_beyond_the_limit_are_refused_in_order_and_then_the_run_ends(way):
    model, lookup, seen, agent = limited(pairs, tool_calls=3)
    result = run(agent, ask(), way, thread())

    assert_stopped(result, "max_tool_calls")
    assert sorted(lookup.ran) == ["1-first", "1-second", "2-first"]
    assert [m.tool_call_id for m in refused(result["messages"])] == ["call_2_1"]
    assert model.calls == 2
    assert (seen.ends[0].turns, seen.ends[0].tool_calls) == (2, 3)


@both_ways
def test_a_limit_that_falls_between_rounds_lets_the_model_answer(way):
    model, lookup, seen, agent = limited(
        lambda messages, n: pairs(messages, n) if n <= 2 else Say("done"), tool_calls=4
    )
    assert_healthy(run(agent, ask(), way, thread()))
    assert (model.calls, len(lookup.ran), seen.reasons) == (3, 4, ["complete"])


@both_ways
def test_a_whole_round_beyond_the_limit_is_refused_whole(way):
    model, lookup, _, agent = limited(pairs, tool_calls=4)
    result = run(agent, ask(), way, thread())
    assert_stopped(result, "max_tool_calls")
    assert (model.calls, len(lookup.ran), len(refused(result["messages"]))) == (3, 4, 2)


@both_ways
def test_refused_calls_are_no_tool_calls(way):
    _, lookup, seen, agent = limited(deaf(), tool_calls=3)
    assert_stopped(run(agent, ask(), way, thread()), "doom_loop")
    assert (len(lookup.ran), seen.ends[0].tool_calls) == (2, 2)


# -- tokens, cost ----------------------------------------------------------------------------------------------------


@four_ways
@pytest.mark.parametrize("kind", [ScriptedModel, StreamingModel])
def test_no_model_call_starts_once_the_tokens_are_spent(way, kind):
    model, lookup, seen, agent = limited(different(99), kind=kind, tokens=45)
    assert_stopped(run(agent, ask(), way, thread()), "max_tokens")
    assert (model.calls, len(lookup.ran)) == (3, 3)  # the calls of the last response still run
    assert seen.ends[0].usage.total_tokens == 45


@both_ways
def test_the_answer_that_spends_the_last_token_is_still_delivered(way):
    _, _, seen, agent = limited(different(2), tokens=45)
    assert_healthy(run(agent, ask(), way, thread()))
    assert seen.reasons == ["complete"]


@four_ways
def test_no_model_call_starts_once_the_dollars_are_spent(way):
    model, lookup, seen, agent = limited(different(99, cost=0.1), cost=0.3)
    assert_stopped(run(agent, ask(), way, thread()), "max_cost")
    assert (model.calls, len(lookup.ran)) == (3, 3)
    assert str(seen.ends[0].usage.cost) == "0.3"


@both_ways
def test_a_cost_limit_that_cannot_hold_is_said_once(way, caplog):
    _, _, seen, agent = limited(different(4), cost=0.3)
    assert_healthy(run(agent, ask(), way, thread()))
    said = [r.getMessage() for r in caplog.records if "cost" in r.getMessage() and "unknown" in r.getMessage()]
    assert len(said) == 1
    assert seen.ends[0].usage.cost is None


@both_ways
def test_tokens_nobody_reports_are_estimated_and_counted(way):
    model, _, seen, agent = limited(different(40, tokens=None), tokens=300)
    assert_stopped(run(agent, ask(), way, thread()), "max_tokens")
    assert 1 < model.calls < 20
    [end] = seen.ends
    assert end.usage.estimated
    assert end.usage.input_tokens + end.usage.output_tokens >= 300


@four_ways
def test_a_call_that_cannot_fit_is_not_started(way):
    """`limits.reserve` needs to know what is about to be sent, and the most that may come back."""
    script = sequence(Say("", (call(key="a" * 3000),)), then="never")
    model, lookup, seen, agent = limited(script, tokens=1000, reserve=True)
    model.max_tokens = 100
    assert_stopped(run(agent, ask(), way, thread()), "max_tokens")
    assert (model.calls, len(lookup.ran)) == (1, 1)
    [end] = seen.ends
    assert end.usage.input_tokens + end.usage.output_tokens < 1000
    assert "may use" in end.message


@both_ways
def test_what_the_model_may_say_at_most_is_reserved(way):
    model, _, seen, agent = limited(sequence(), tokens=1000, reserve=True)
    model.max_tokens = 2000
    assert_stopped(run(agent, ask(), way, thread()), "max_tokens")
    assert (model.calls, seen.ends[0].model_calls) == (0, 0)


@both_ways
def test_the_last_answer_after_a_limit_is_one_call_and_no_more(way):
    def script(messages, number):
        if isinstance(messages[-1], HumanMessage) and str(messages[-1].text).startswith(OWN):
            return Say("Half of it is done.", cost=0.1)
        return Say("", (call(key=f"k{number}"),), cost=0.1)

    model, _, seen, agent = limited(script, cost=0.3, how="answer")
    result = run(agent, ask(), way, thread())
    assert_stopped(result, "max_cost")
    assert result["messages"][-1].text == "Half of it is done."
    assert model.calls == seen.ends[0].model_calls == 4
    assert str(seen.ends[0].usage.cost) == "0.4"


# -- time ------------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that goes on only when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@four_ways
def test_no_model_call_starts_once_the_time_is_up(way):
    clock = Clock()

    def slow(_n, _key):
        clock.now += 10
        return "something new"

    model, seen = ScriptedModel(script=different(99)), watched({"limits": {"seconds": 30}}, clock=clock)
    lookup = Counted(slow)
    result = run(guarded(model, [lookup], seen), ask(), way)
    assert_stopped(result, "max_seconds")
    assert (model.calls, len(lookup.ran)) == (3, 3)
    assert seen.ends[0].duration == 30


@both_ways
def test_time_the_model_takes_counts(way):
    clock = Clock()

    def script(_messages, number):
        clock.now += 20
        return Say("", (call(key=f"k{number}"),))

    model, lookup, seen, agent = limited(script, clock=clock, seconds=30)
    assert_stopped(run(agent, ask(), way, thread()), "max_seconds")
    assert (model.calls, len(lookup.ran), seen.ends[0].duration) == (2, 2, 40)


@both_ways
def test_time_between_the_turns_of_a_thread_does_not_count(way):
    clock = Clock()
    _, _, seen, agent = limited(different(3), clock=clock, seconds=30)
    for _ in range(3):
        assert_healthy(run(agent, ask(), way, thread()))
        clock.now += 10_000
    assert [end.duration for end in seen.ends] == [0, 0, 0]


# -- together --------------------------------------------------------------------------------------------------------


@both_ways
def test_a_limit_cannot_be_overridden(way):
    class Lenient:
        @hookimpl
        def doom_loop_detected(self, event):
            return Action.OBSERVE

    model, lookup, _, agent = limited(deaf(), plugins=[Lenient()], turns=7)
    assert_stopped(run(agent, ask(), way, thread()), "max_turns")
    assert (model.calls, len(lookup.ran)) == (7, 7)


@both_ways
def test_a_limit_stop_is_not_the_signal_of_a_loop(way):
    _, _, seen, agent = limited(different(9), turns=2)
    result = run(agent, ask(), way, thread())
    assert result["loopguard"]["verdict"] is None
    assert seen.ends[0].verdict is None
    assert seen.loops == []


@both_ways
def test_what_a_limit_leaves_behind_can_be_gone_on_with(way):
    def script(messages, number):
        asked = [m.text for m in messages if isinstance(m, HumanMessage)][-1]
        return Say("done") if asked == "Go on." else Say("", (call(key=f"k{number}"),))

    model, _, seen, agent = limited(script, turns=2)
    assert_stopped(run(agent, ask(), way, thread()), "max_turns")
    assert_healthy(run(agent, ask("Go on."), way, thread()))
    assert_complete(model.requests[-1].messages)
    assert seen.reasons == ["max_turns", "complete"]
    assert [type(m) for m in model.requests[-1].messages[-2:]] == [AIMessage, HumanMessage]
