"""What `LoopGuardMiddleware` tells the model, gives to a stronger one, and how it ends a run."""

import logging

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from loopguard_langchain import LoopGuardMiddleware
from loopguard_langchain import LoopGuardStop as LangChainStop
from loopguard_langchain_models import (
    LOOKUP,
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
    rounds,
    run,
    sequence,
    since_user,
    thread,
    watched,
)

from loopguard_core import Action, LoopGuard, LoopGuardStop, Policy, hookimpl

STEER_AT_2 = {"steer": 2}


# -- steer -----------------------------------------------------------------------------------------------------------


@four_ways
def test_a_steered_model_reads_it_once_a_streak_last_in_its_request(way):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched({"ladder": STEER_AT_2})
    result = run(guarded(model, [lookup], seen), ask(), way)

    assert_stopped(result)
    assert [len(request.told) for request in model.requests] == [0, 0, 1, 0, 0, 0]
    note = model.requests[2].messages[-1]
    assert isinstance(note, HumanMessage)
    assert str(note.text).startswith(OWN)
    assert isinstance(model.requests[2].messages[-2], ToolMessage)
    assert not [m for m in result["messages"] if isinstance(m, HumanMessage) and str(m.text).startswith(OWN)]


@both_ways
def test_a_streak_that_begins_again_is_steered_again(way):
    script = sequence(*[Say("", (LOOKUP,))] * 2, Say("", (call(key="other"),)), *[Say("", (LOOKUP,))] * 2)
    alone = {"detectors": {"cycle": {"enabled": False}}}
    model, seen = ScriptedModel(script=script), watched({"ladder": STEER_AT_2, **alone})
    assert_healthy(run(guarded(model, [Counted()], seen), ask(), way))

    assert [len(request.told) for request in model.requests] == [0, 0, 1, 0, 0, 1]


@both_ways
def test_a_model_is_steered_also_where_its_call_was_refused(way):
    model, lookup = ScriptedModel(script=deaf()), Counted()
    result = run(guarded(model, [lookup], watched({"ladder": {"steer": 3, "block": 3}})), ask(), way)

    assert_stopped(result)
    assert len(lookup.ran) == 2
    assert [len(request.told) for request in model.requests] == [0, 0, 0, 1, 0, 0]
    *_, refusal, note = model.requests[3].messages
    assert isinstance(refusal, ToolMessage)
    assert str(refusal.text).startswith(OWN)
    assert isinstance(note, HumanMessage)


@both_ways
def test_two_streaks_in_a_round_are_steered_about_together_after_everything_else(way):
    model = ScriptedModel(script=rounds(2, LOOKUP, call("other", key="x")))
    agent = guarded(model, [Counted(), Counted(name="other")], watched({"ladder": STEER_AT_2}))
    assert_healthy(run(agent, ask(), way))

    *_, last_result, first, second = model.requests[2].messages
    assert isinstance(last_result, ToolMessage)
    assert {first.text == second.text, *(str(note.text).startswith(OWN) for note in (first, second))} == {False, True}
    assert ["lookup" in first.text, "other" in second.text] == [True, True]


@both_ways
def test_steering_survives_a_model_call_that_failed(way):
    """The words wait for the call that goes through; a retry inside our middleware sends them along."""
    from langchain.agents.middleware import ModelRetryMiddleware

    script = sequence(*[Say("", (LOOKUP,))] * 2, ConnectionError("gone"), Say("done"))
    model, seen = ScriptedModel(script=script), watched({"ladder": STEER_AT_2})
    retry = ModelRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    result = run(guarded(model, [Counted()], seen, middleware=lambda ours: [ours, retry]), ask(), way)

    assert_healthy(result)
    assert [len(request.told) for request in model.requests] == [0, 0, 1, 1]


# -- escalate --------------------------------------------------------------------------------------------------------


def strong(script) -> ScriptedModel:
    return ScriptedModel(script=script, model_name="strong-1")


@four_ways
def test_the_stronger_model_takes_exactly_one_turn_of_a_streak(way):
    usual, better = ScriptedModel(script=deaf()), strong(deaf())
    seen, lookup = watched({"ladder": {"escalate": 3}}), Counted()
    result = run(guarded(usual, [lookup], seen, escalate_model=better), ask(), way)

    assert_stopped(result)
    assert (usual.calls, better.calls) == (5, 1)
    assert [event.model for event in seen.model_calls] == [*["scripted-1"] * 3, "strong-1", *["scripted-1"] * 2]
    assert better.requests[0].tools == ["lookup"]
    assert str(better.requests[0].messages[-1].text).startswith(OWN)  # the refusal it is to do better about
    assert len(lookup.ran) == 2


@both_ways
def test_a_stronger_model_that_finds_another_way_saves_the_run(way):
    usual = ScriptedModel(script=lambda messages, _n: Say("done") if found(messages) else Say("", (LOOKUP,)))
    better = strong(sequence(Say("", (call(key="the right one"),))))
    lookup = Counted(lambda _n, key: "found" if key == "the right one" else "nothing found")
    seen = watched({"ladder": {"escalate": 3}})
    result = run(guarded(usual, [lookup], seen, escalate_model=better), ask(), way)

    assert_healthy(result)
    assert (usual.calls, better.calls) == (4, 1)
    assert lookup.ran[-1] == "the right one"


def found(messages):
    return any(m.text == "found" for m in messages if isinstance(m, ToolMessage))


@both_ways
def test_escalation_stays_in_its_budget(way):
    """Four streaks reach the rung; the third and fourth are steered in its place."""
    said = [Say("", (call(key=f"k{streak}"),)) for streak in range(4) for _ in range(3)]
    usual, better = (
        ScriptedModel(script=lambda messages, _n: step(messages, said)),
        strong(lambda messages, _n: step(messages, said)),
    )
    seen = watched({"ladder": {"escalate": 2}, "escalation": {"max": 2}})
    result = run(guarded(usual, [Counted()], seen, escalate_model=better), ask(), way)

    assert_healthy(result)
    assert (usual.calls, better.calls) == (11, 2)
    steered = [len(request.told) for request in usual.requests]
    assert (sum(steered), max(steered)) == (2, 1)


def step(messages, said):
    asked = sum(isinstance(m, AIMessage) for m in since_user(messages))
    return said[asked] if asked < len(said) else Say("done")


@both_ways
def test_a_stronger_model_that_fails_leaves_the_turn_to_the_usual_one(way):
    usual, better = ScriptedModel(script=deaf()), strong(sequence(*[ConnectionError("gone")] * 9))
    seen, lookup = watched({"ladder": {"escalate": 3}}), Counted()
    result = run(guarded(usual, [lookup], seen, escalate_model=better), ask(), way)

    assert_stopped(result)
    assert (usual.calls, better.calls) == (6, 1)
    assert seen.ends[0].model_calls == 6
    assert seen.reasons == ["doom_loop"]


@both_ways
def test_when_both_models_fail_the_run_ends_with_the_error(way):
    usual = ScriptedModel(script=sequence(*[Say("", (LOOKUP,))] * 3, ValueError("usual")))
    better = strong(sequence(ConnectionError("strong")))
    seen = watched({"ladder": {"escalate": 3}})
    with pytest.raises(ValueError, match="usual"):
        run(guarded(usual, [Counted()], seen, escalate_model=better), ask(), way)

    assert [(end.reason, end.error) for end in seen.ends] == [("error", "ValueError")]
    assert seen.live == 0


@both_ways
def test_without_a_stronger_model_escalation_steers_and_says_so(way, caplog):
    model, seen = ScriptedModel(script=deaf()), watched({"ladder": {"escalate": 3}})
    with caplog.at_level(logging.WARNING, "loopguard"):
        agent = guarded(model, [Counted()], seen)
    attached = [r.getMessage() for r in caplog.records if not r.getMessage().startswith("policy:")]
    assert attached == ["LoopGuardMiddleware cannot escalate: such verdicts steer instead"]
    assert_stopped(run(agent, ask(), way))
    assert [len(request.told) for request in model.requests] == [0, 0, 0, 1, 0, 0]


def test_attaching_with_a_stronger_model_warns_of_nothing(caplog):
    policy = Policy(ladder={"escalate": 3}, escalation={"models": {"langchain": "openai:gpt-6"}})
    guard = LoopGuard(policy)
    caplog.clear()
    LoopGuardMiddleware(guard)
    guarded(ScriptedModel(script=deaf()), [], LoopGuard(Policy()), escalate_model=strong(deaf()))
    assert caplog.records == []


@both_ways
def test_a_stronger_model_that_cannot_be_made_does_not_end_the_run(way):
    """Its name is resolved when it is first needed; a wrong one is a failed strong model like any other."""
    policy = {"ladder": {"escalate": 3}, "escalation": {"models": {"langchain": "no_such_provider:no-such-model"}}}
    model, seen = ScriptedModel(script=deaf()), watched(policy)
    assert_stopped(run(guarded(model, [Counted()], seen), ask(), way))
    assert model.calls == 6


# -- how a run ends --------------------------------------------------------------------------------------------------

STOPS = {
    "doom_loop": ({}, deaf()),
    "max_turns": ({"limits": {"turns": 2}}, different(9)),
    "max_tool_calls": ({"limits": {"tool_calls": 2}}, different(9)),
    "max_tokens": ({"limits": {"tokens": 30}}, different(9)),
}
every_stop = pytest.mark.parametrize("reason", STOPS)


def stopping(reason, *, how=None, script=None, tokens=None, **options):
    policy, endless = STOPS[reason]
    policy = policy if how is None else {**policy, "on_stop": {"how": how}}
    seen = watched(policy)
    model = options.pop("kind", ScriptedModel)(script=script or endless)
    return model, seen, guarded(model, [Counted()], seen, **options)


@four_ways
@every_stop
def test_by_default_a_stop_closes_the_conversation(way, reason):
    _, seen, agent = stopping(reason, checkpointer=InMemorySaver())
    result = run(agent, ask(), way, thread())

    stop = assert_stopped(result, reason)
    assert result["messages"][-1].text == stop["message"]
    assert seen.reasons == [reason]
    state = agent.get_state(thread())
    assert state.next == ()
    assert_complete(state.values["messages"])
    assert state.values["loopguard"] == stop


def last_words(text, endless):
    """Answers once no tool is offered any more."""

    def script(messages, number):
        return text if answering(messages) else endless(messages, number)

    return script


def answering(messages):
    last = messages[-1]
    return isinstance(last, HumanMessage) and str(last.text).startswith(OWN)


@four_ways
@every_stop
def test_answer_lets_the_model_close_the_conversation_in_its_own_words(way, reason):
    script = last_words(Say("Here is what I have."), STOPS[reason][1])
    model, seen, agent = stopping(reason, how="answer", script=script, checkpointer=InMemorySaver())
    before = stopping(reason)
    run(before[2], ask(), way)
    result = run(agent, ask(), way, thread())

    assert_stopped(result, reason)
    assert result["messages"][-1].text == "Here is what I have."
    last = model.requests[-1]
    assert last.tools == []
    assert len(last.told) == 1
    assert_complete(last.messages)
    assert not any(request.told for request in model.requests[:-1])
    assert model.calls == before[0].calls + 1
    assert seen.ends[0].model_calls == model.calls
    assert seen.reasons == [reason]
    assert_complete(agent.get_state(thread()).values["messages"])


@both_ways
@pytest.mark.parametrize(
    "way_out", [Say(""), Say("", (LOOKUP,)), ConnectionError("gone")], ids=["empty", "call", "error"]
)
def test_a_last_answer_that_fails_still_leaves_a_closed_conversation(way, way_out):
    script = last_words(way_out, deaf())
    _, seen, agent = stopping("doom_loop", how="answer", script=script, checkpointer=InMemorySaver())
    result = run(agent, ask(), way, thread())

    stop = assert_stopped(result)
    assert result["messages"][-1].text == stop["message"]
    assert seen.ends[0].model_calls == (6 if isinstance(way_out, Exception) else 7)
    assert seen.reasons == ["doom_loop"]
    assert seen.live == 0


@both_ways
def test_a_last_answer_counts_its_tokens(way):
    _, seen, agent = stopping("doom_loop", how="answer", script=last_words(Say("Sorry.", tokens=(100, 50)), deaf()))
    run(agent, ask(), way)
    assert seen.ends[0].usage.total_tokens == 6 * 15 + 150


@pytest.mark.parametrize("way", ["stream-messages", "astream-messages"])
@pytest.mark.parametrize("kind", [ScriptedModel, StreamingModel])
def test_the_last_answer_is_in_the_message_stream_once(way, kind):
    from loopguard_langchain_models import streamed

    script = last_words(Say("Here is what I have."), deaf())
    _, _, agent = stopping("doom_loop", how="answer", script=script, kind=kind)
    chunks, result = streamed(agent, ask(), way)

    closing = result["messages"][-1]
    text = "".join(str(message.text) for message, _ in chunks if message.id == closing.id)
    assert text.strip() == closing.text.strip() == "Here is what I have."


@four_ways
@every_stop
@pytest.mark.parametrize("by", ["argument", "policy"])
def test_error_raises_once_the_history_is_complete(way, reason, by):
    options = {"exit_behavior": "error"} if by == "argument" else {"how": "raise"}
    _, seen, agent = stopping(reason, checkpointer=InMemorySaver(), **options)
    with pytest.raises(LoopGuardStop) as raised:
        run(agent, ask(), way, thread())

    assert isinstance(raised.value, LangChainStop)
    assert raised.value.reason == reason
    assert (raised.value.verdict is not None) == (reason == "doom_loop")
    values = agent.get_state(thread()).values
    assert_stopped(values, reason)
    assert seen.reasons == [reason]
    assert seen.live == 0


@four_ways
def test_the_turn_after_a_raised_stop_works(way):
    def script(messages, number):
        said = [m.text for m in messages if isinstance(m, HumanMessage)][-1]
        return Say("done") if said == "Never mind." else Say("", (LOOKUP,))

    _, seen, agent = stopping("doom_loop", script=script, exit_behavior="error", checkpointer=InMemorySaver())
    with pytest.raises(LoopGuardStop):
        run(agent, ask(), way, thread())
    assert_healthy(run(agent, ask("Never mind."), way, thread()))
    assert seen.reasons == ["doom_loop", "complete"]


@both_ways
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_raised_stop_leaves_a_complete_history_however_checkpoints_are_written(way, durability):
    _, _, agent = stopping("doom_loop", exit_behavior="error", checkpointer=InMemorySaver())
    with pytest.raises(LoopGuardStop):
        run(agent, ask(), way, thread(), durability=durability)
    assert_stopped(agent.get_state(thread()).values)


def test_the_argument_of_the_adapter_beats_the_policy():
    _, _, agent = stopping("doom_loop", how="raise", exit_behavior="end")
    assert_stopped(run(agent, ask()))


# -- plugins ---------------------------------------------------------------------------------------------------------


class Says:
    """A plugin that answers every verdict with the same action."""

    def __init__(self, action=None, at=1):
        self.action, self.at, self.seen = action, at, []

    @hookimpl
    def doom_loop_detected(self, event):
        self.seen.append((event.streak, event.proposed.value, event.action.value))
        return self.action if event.streak >= self.at else None


@both_ways
def test_a_plugin_may_let_a_loop_run_on(way):
    lookup, plugin = Counted(), Says(Action.OBSERVE)
    seen = watched(plugins=[plugin])
    assert_healthy(run(guarded(ScriptedModel(script=rounds(9)), [lookup], seen), ask(), way))

    assert len(lookup.ran) == 9
    assert plugin.seen[-1] == (9, "stop", "stop")
    assert seen.actions[-1] == (9, "observe")


@both_ways
def test_a_plugin_may_stop_a_run_sooner(way):
    lookup, seen = Counted(), watched(plugins=[Says(Action.STOP)])
    result = run(guarded(ScriptedModel(script=deaf()), [lookup], seen), ask(), way)

    stop = assert_stopped(result)
    assert stop["verdict"]["streak"] == 2
    assert len(lookup.ran) == 1
    assert seen.ends[0].turns == 2


@both_ways
def test_the_first_plugin_in_the_order_of_registration_decides(way):
    lookup, later = Counted(), Says(Action.STOP)
    seen = watched(plugins=[Says(None), Says(Action.OBSERVE), later])
    assert_healthy(run(guarded(ScriptedModel(script=rounds(7)), [lookup], seen), ask(), way))

    assert len(lookup.ran) == 7
    assert later.seen[-1] == (7, "stop", "observe")


@both_ways
def test_a_plugin_may_turn_a_refusal_into_a_word(way):
    model, lookup = ScriptedModel(script=rounds(4)), Counted()
    seen = watched(plugins=[Says(Action.STEER, at=3)])
    assert_healthy(run(guarded(model, [lookup], seen), ask(), way))

    assert len(lookup.ran) == 4
    assert [len(request.told) for request in model.requests] == [0, 0, 0, 1, 0]


@both_ways
def test_a_plugin_cannot_lift_a_limit(way):
    seen = watched({"limits": {"turns": 3}}, plugins=[Says(Action.OBSERVE)])
    assert_stopped(run(guarded(ScriptedModel(script=deaf()), [Counted()], seen), ask(), way), "max_turns")


class Broken:
    """A plugin whose every hook raises."""

    @hookimpl
    def doom_loop_detected(self, event):
        raise RuntimeError("plugin")

    @hookimpl
    def session_end(self, event):
        raise RuntimeError("plugin")

    @hookimpl
    def post_model_call(self, event):
        raise RuntimeError("plugin")

    @hookimpl
    def loop_key(self, tool, arguments):
        raise RuntimeError("plugin")

    @hookimpl
    def detectors(self, policy):
        raise RuntimeError("plugin")

    @hookimpl
    def stop_when(self, session):
        raise RuntimeError("plugin")


@both_ways
def test_a_plugin_that_raises_disturbs_nobody(way):
    lookup, seen = Counted(), watched(plugins=[Broken()])
    result = run(guarded(ScriptedModel(script=deaf()), [lookup], seen), ask(), way)

    assert_stopped(result)
    assert len(lookup.ran) == 2
    assert [action for _, action in seen.actions] == ["observe", "block", "block", "block", "stop"]
    assert seen.reasons == ["doom_loop"]
    assert len(seen.model_calls) == 6


@both_ways
def test_every_successful_model_call_is_reported_with_its_usage(way):
    seen = watched()
    run(guarded(ScriptedModel(script=different(2, cost=0.25)), [Counted()], seen), ask(), way)

    assert [(e.model, e.usage.total_tokens, e.model_calls) for e in seen.model_calls] == [
        ("scripted-1", 15, 1),
        ("scripted-1", 15, 2),
        ("scripted-1", 15, 3),
    ]
    assert [str(e.total.cost) for e in seen.model_calls] == ["0.25", "0.50", "0.50"]
    assert all(e.duration is not None and e.duration >= 0 for e in seen.model_calls)
    assert len({e.session_id for e in [*seen.model_calls, *seen.ends]}) == 1


@both_ways
def test_a_plugin_may_end_a_run_before_its_next_model_call(way):
    class Enough:
        @hookimpl
        def stop_when(self, session):
            return "three are enough" if session.turns == 3 else None

    model, seen = ScriptedModel(script=different(9)), watched(plugins=[Enough()])
    result = run(guarded(model, [Counted()], seen), ask(), way)

    assert_stopped(result, "custom")
    assert "three are enough" in result["messages"][-1].text
    assert model.calls == 3
    assert seen.reasons == ["custom"]


async def test_an_async_hook_is_done_before_an_async_run_returns():
    import asyncio

    done = []

    class Slow:
        @hookimpl
        async def session_end(self, event):
            for _ in range(5):
                await asyncio.sleep(0)
            done.append(event.reason)

        @hookimpl
        async def post_model_call(self, event):
            await asyncio.sleep(0)
            done.append(event.model_calls)

    seen = watched(plugins=[Slow()])
    await guarded(ScriptedModel(script=different(1)), [Counted()], seen).ainvoke(ask())
    assert done == [1, 2, "complete"]


def test_an_async_hook_runs_for_a_sync_run_too():
    done = []

    class Slow:
        @hookimpl
        async def session_end(self, event):
            done.append(event.reason)

    seen = watched(plugins=[Slow()])
    run(guarded(ScriptedModel(script=deaf()), [Counted()], seen), ask())
    seen.guard.close()
    assert done == ["doom_loop"]


@both_ways
def test_arguments_are_in_events_only_if_the_policy_allows(way):
    shown = watched({"privacy": {"include_arguments": True}})
    hidden = watched()
    for seen in (shown, hidden):
        run(guarded(ScriptedModel(script=rounds(2)), [Counted()], seen), ask(), way)
    assert shown.loops[0].arguments == LOOKUP[1]
    assert hidden.loops[0].arguments is None


@both_ways
def test_the_last_end_of_a_guard_is_at_hand(way):
    seen = watched()
    result = run(guarded(ScriptedModel(script=deaf()), [Counted()], seen), ask(), way)
    assert seen.guard.last_end is seen.ends[-1]
    assert seen.guard.last_end.verdict.as_dict() == result["loopguard"]["verdict"]
    assert len(refused(result["messages"])) == 4
