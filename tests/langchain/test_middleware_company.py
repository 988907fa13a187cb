"""Our middleware beside those of LangChain, listed first and listed last."""

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
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
    guarded,
    refused,
    rounds,
    run,
    sequence,
    settle,
    thread,
    watched,
)

kept_or_not = pytest.mark.parametrize("kept", [False, True], ids=["loose", "checkpointed"])


def place_of(kept):
    """Options for an agent, and the config to run it with."""
    return ({"checkpointer": InMemorySaver()}, thread()) if kept else ({}, None)


first_and_last = pytest.mark.parametrize("place", ["first", "last"])


def beside(place, *others):
    return lambda ours: [ours, *others] if place == "first" else [*others, ours]


FAST = {"initial_delay": 0.0, "jitter": False}


# -- a human in the loop ---------------------------------------------------------------------------------------------


def reviewed(model, lookup, seen, place, mode="batched"):
    human = HumanInTheLoopMiddleware({"lookup": True}, interrupt_mode=mode)
    return guarded(model, [lookup], seen, middleware=beside(place, human), checkpointer=InMemorySaver())


def decide(agent, way, *decisions):
    """Ask, then give these decisions one after the other."""
    result = run(agent, ask(), way, thread())
    for decision in decisions:
        if "__interrupt__" not in result:
            break
        result = run(agent, Command(resume={"decisions": [decision]}), way, thread())
    return result


APPROVE = {"type": "approve"}
EDIT = {"type": "edit", "edited_action": {"name": "lookup", "args": {"key": "another"}}}
REJECT = {"type": "reject", "message": "no"}


@both_ways
@first_and_last
def test_approving_a_loop_does_not_let_it_through(way, place):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    result = decide(reviewed(model, lookup, seen, place), way, *[APPROVE] * 9)

    assert_stopped(result)
    assert (model.calls, len(lookup.ran)) == (6, 2)
    assert len(refused(result["messages"])) == 4
    assert seen.reasons[-1] == "doom_loop"
    assert seen.live == 0


@both_ways
@first_and_last
def test_a_refused_call_that_a_human_edits_is_another_call_and_runs(way, place):
    model = ScriptedModel(script=rounds(3))
    lookup, seen = Counted(), watched()
    result = decide(reviewed(model, lookup, seen, place), way, APPROVE, APPROVE, EDIT)

    assert_healthy(result)
    assert lookup.ran == [LOOKUP[1]["key"]] * 2 + ["another"]
    assert refused(result["messages"]) == []


@both_ways
@first_and_last
def test_a_refused_call_that_a_human_edits_into_itself_stays_refused(way, place):
    same = {"type": "edit", "edited_action": {"name": "lookup", "args": dict(LOOKUP[1])}}
    lookup, seen = Counted(), watched()
    result = decide(reviewed(ScriptedModel(script=rounds(3)), lookup, seen, place), way, APPROVE, APPROVE, same)

    assert_complete(result["messages"])
    assert len(lookup.ran) == 2


@both_ways
@first_and_last
def test_a_refused_call_that_a_human_edits_into_another_tool_runs(way, place):
    redirected = {"type": "edit", "edited_action": {"name": "other", "args": dict(LOOKUP[1])}}
    lookup, other, seen = Counted(), Counted(name="other"), watched()
    human = HumanInTheLoopMiddleware({"lookup": True})
    agent = guarded(
        ScriptedModel(script=rounds(3)),
        [lookup, other],
        seen,
        middleware=beside(place, human),
        checkpointer=InMemorySaver(),
    )
    result = decide(agent, way, APPROVE, APPROVE, redirected)

    assert_healthy(result)
    assert (len(lookup.ran), len(other.ran)) == (2, 1)


@both_ways
@first_and_last
def test_a_refused_call_that_a_human_rejects_is_answered_once(way, place):
    lookup, seen = Counted(), watched()
    result = decide(reviewed(ScriptedModel(script=rounds(3)), lookup, seen, place), way, APPROVE, APPROVE, REJECT)

    assert_healthy(result)
    assert len(lookup.ran) == 2
    assert "rejected" in str([m for m in result["messages"] if isinstance(m, ToolMessage)][-1].text)


@both_ways
@first_and_last
def test_calls_a_human_keeps_rejecting_are_a_loop_too(way, place):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    result = decide(reviewed(model, lookup, seen, place), way, *[REJECT] * 9)

    assert_stopped(result)
    assert (model.calls, lookup.ran) == (6, [])


@both_ways
@first_and_last
def test_calls_reviewed_one_by_one_are_guarded_too(way, place):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    agent = reviewed(model, lookup, seen, place, mode="per_call")
    result = run(agent, ask(), way, thread())
    asked = 0
    while "__interrupt__" in result and asked < 9:
        asked += 1
        result = run(agent, Command(resume={result["__interrupt__"][0].id: APPROVE}), way, thread())

    assert_stopped(result)
    assert (model.calls, len(lookup.ran)) == (6, 2)
    assert seen.reasons[-1] == "doom_loop"
    assert seen.live == 0


@both_ways
@first_and_last
def test_waiting_for_a_human_is_a_pause(way, place):
    """The interrupt is raised in a hook of the other middleware, where ours is not asked."""
    seen = watched()
    agent = reviewed(ScriptedModel(script=rounds(1)), Counted(), seen, place)
    result = run(agent, ask(), way, thread())
    assert "__interrupt__" in result
    settle(seen)
    assert seen.reasons == ["paused"]
    assert_healthy(run(agent, Command(resume={"decisions": [APPROVE]}), way, thread()))
    assert seen.reasons == ["paused", "complete"]
    assert seen.live == 0


@both_ways
@first_and_last
def test_every_wait_for_a_human_is_one_pause(way, place):
    """Told at the latest when the run goes on, whether or not what was left of it is collected by then."""
    seen, kept = watched(), []
    agent = reviewed(ScriptedModel(script=different(3)), Counted(), seen, place)
    result = run(agent, ask(), way, thread())
    for _ in range(3):
        kept.append(result)
        result = run(agent, Command(resume={"decisions": [APPROVE]}), way, thread())
    assert_healthy(result)
    assert seen.reasons == ["paused", "paused", "paused", "complete"]
    assert len({end.session_id for end in seen.ends}) == 1


# -- retries, fallbacks, error handlers ------------------------------------------------------------------------------


def flaky(times, then="found"):
    def body(n, _key):
        if n <= times:
            raise ConnectionError("gone")
        return then

    return Counted(body)


@both_ways
@first_and_last
@kept_or_not
def test_tool_retries_are_one_call(way, place, kept):
    options, config = place_of(kept)
    lookup, seen = flaky(2), watched()
    retry = ToolRetryMiddleware(max_retries=3, **FAST)
    result = run(
        guarded(ScriptedModel(script=rounds(1)), [lookup], seen, middleware=beside(place, retry), **options),
        ask(),
        way,
        config,
    )

    assert_healthy(result)
    assert len(lookup.ran) == 3
    assert (seen.ends[-1].turns, seen.ends[-1].tool_calls, seen.ends[-1].model_calls) == (1, 1, 2)
    assert seen.reasons[-1] == "complete"
    assert seen.live == 0


@both_ways
@first_and_last
@kept_or_not
def test_a_call_that_fails_in_spite_of_retries_is_a_loop_when_repeated(way, place, kept):
    options, config = place_of(kept)
    lookup, seen = flaky(999), watched()
    retry = ToolRetryMiddleware(max_retries=1, **FAST)
    result = run(
        guarded(ScriptedModel(script=deaf()), [lookup], seen, middleware=beside(place, retry), **options),
        ask(),
        way,
        config,
    )

    assert_stopped(result)
    assert len(lookup.ran) == 4  # two calls, each tried twice
    assert seen.actions == [(2, "observe"), (3, "block"), (4, "block"), (5, "block"), (6, "stop")]
    assert seen.reasons[-1] == "doom_loop"
    assert seen.live == 0


@both_ways
@first_and_last
@kept_or_not
def test_a_failing_tool_that_another_middleware_answers_for_is_guarded(way, place, kept):
    options, config = place_of(kept)
    lookup, seen = flaky(999), watched()
    handler = ToolErrorMiddleware(lambda error, _request: f"{type(error).__name__}: try another host")
    result = run(
        guarded(ScriptedModel(script=deaf()), [lookup], seen, middleware=beside(place, handler), **options),
        ask(),
        way,
        config,
    )

    assert_stopped(result)
    assert len(lookup.ran) == 2
    assert seen.reasons[-1] == "doom_loop"


@both_ways
@first_and_last
@kept_or_not
def test_model_retries_are_one_model_call(way, place, kept):
    options, config = place_of(kept)
    model, seen = (
        ScriptedModel(script=sequence(ConnectionError("a"), Say("", (LOOKUP,)), ConnectionError("b"))),
        watched(),
    )
    retry = ModelRetryMiddleware(max_retries=2, **FAST)
    result = run(guarded(model, [Counted()], seen, middleware=beside(place, retry), **options), ask(), way, config)

    assert_healthy(result)
    assert model.calls == 4
    assert (seen.ends[-1].turns, seen.ends[-1].model_calls) == (1, 2)
    assert seen.reasons[-1] == "complete"
    assert seen.live == 0


@both_ways
@first_and_last
@kept_or_not
def test_limits_hold_across_model_retries(way, place, kept):
    options, config = place_of(kept)

    def script(_messages, number):
        return ConnectionError("gone") if number % 2 else Say("", (call(key=f"k{number}"),))

    model, seen = ScriptedModel(script=script), watched({"limits": {"turns": 3}})
    retry = ModelRetryMiddleware(max_retries=2, **FAST)
    result = run(guarded(model, [Counted()], seen, middleware=beside(place, retry), **options), ask(), way, config)

    assert_stopped(result, "max_turns")
    assert model.calls == 6
    assert seen.reasons[-1] == "max_turns"
    assert (seen.ends[-1].turns, seen.ends[-1].model_calls) == (3, 3)


@both_ways
@first_and_last
def test_a_model_that_stays_down_ends_the_run_in_words_of_its_retry(way, place):
    seen = watched()
    retry = ModelRetryMiddleware(max_retries=1, **FAST)
    model = ScriptedModel(script=lambda _m, _n: ConnectionError("gone"))
    result = run(guarded(model, [Counted()], seen, middleware=beside(place, retry)), ask(), way)

    assert isinstance(result["messages"][-1], AIMessage)
    assert "failed" in str(result["messages"][-1].text)
    assert result.get("loopguard") is None
    assert seen.live == 0


@both_ways
@first_and_last
@kept_or_not
def test_the_fallback_model_is_guarded_like_the_first(way, place, kept):
    options, config = place_of(kept)
    down = ScriptedModel(script=lambda _m, _n: ConnectionError("gone"), model_name="down-1")
    spare, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    result = run(
        guarded(down, [lookup], seen, middleware=beside(place, ModelFallbackMiddleware(spare)), **options),
        ask(),
        way,
        config,
    )

    assert_stopped(result)
    assert (down.calls, spare.calls, len(lookup.ran)) == (6, 6, 2)
    assert [event.model for event in seen.model_calls] == ["scripted-1"] * 6
    assert seen.ends[-1].model_calls == 6
    assert seen.live == 0


# -- limits of LangChain ---------------------------------------------------------------------------------------------


@both_ways
@first_and_last
@pytest.mark.parametrize("exit_behavior", ["continue", "end"])
def test_a_tool_call_limit_beside_ours_answers_no_call_twice(way, place, exit_behavior):
    lookup, seen = Counted(), watched()
    limit = ToolCallLimitMiddleware(run_limit=3, exit_behavior=exit_behavior)
    model = ScriptedModel(script=different(9))
    result = run(guarded(model, [lookup], seen, middleware=beside(place, limit)), ask(), way)

    assert_complete(result["messages"])
    assert len(lookup.ran) == 3
    assert seen.reasons == ["complete"]
    assert seen.live == 0


@both_ways
@first_and_last
@pytest.mark.parametrize(("run_limit", "model_calls"), [(1, 8), (2, 9), (9, 6)])
def test_a_loop_under_a_tool_call_limit_is_still_ended_by_us(way, place, run_limit, model_calls):
    """The limit's own words are one change of result, so a streak may begin once more."""
    lookup, seen = Counted(), watched()
    limit = ToolCallLimitMiddleware(run_limit=run_limit)
    model = ScriptedModel(script=deaf())
    result = run(guarded(model, [lookup], seen, middleware=beside(place, limit)), ask(), way)

    assert_stopped(result)
    assert model.calls == model_calls
    assert len(lookup.ran) == min(run_limit, 2)
    assert seen.reasons == ["doom_loop"]


@both_ways
@first_and_last
def test_a_tool_call_limit_that_ends_a_run_with_a_refused_call_in_it_answers_it_once(way, place):
    lookup, seen = Counted(), watched()
    limit = ToolCallLimitMiddleware(run_limit=2, exit_behavior="end")
    result = run(guarded(ScriptedModel(script=deaf()), [lookup], seen, middleware=beside(place, limit)), ask(), way)

    assert_complete(result["messages"])
    assert len(lookup.ran) == 2
    assert seen.live == 0


@both_ways
@first_and_last
def test_a_model_call_limit_beside_ours_ends_the_run_as_usual(way, place):
    model, seen = ScriptedModel(script=different(9)), watched()
    limit = ModelCallLimitMiddleware(run_limit=3)
    result = run(guarded(model, [Counted()], seen, middleware=beside(place, limit)), ask(), way)

    assert_complete(result["messages"])
    assert model.calls == 3
    assert seen.reasons == ["complete"]
    assert seen.live == 0


# -- histories that others rewrite -----------------------------------------------------------------------------------


def summarizing(keep=4):
    return SummarizationMiddleware(
        ScriptedModel(script=sequence(then="a summary")), trigger=("messages", 6), keep=("messages", keep)
    )


@both_ways
@first_and_last
@pytest.mark.parametrize("keep", [1, 2, 4])
def test_a_loop_behind_summaries_still_ends(way, place, keep):
    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    result = run(guarded(model, [lookup], seen, middleware=beside(place, summarizing(keep))), ask(), way)

    assert_stopped(result)
    assert seen.reasons == ["doom_loop"]
    assert model.calls <= 9
    assert seen.ends[0].model_calls == model.calls  # the summariser's own calls are no rounds of this run


@both_ways
@first_and_last
def test_polling_behind_summaries_is_never_refused(way, place):
    poll, seen = Counted(lambda n, _key: f"row {n}"), watched()

    def script(_messages, number):
        return Say("", (LOOKUP,)) if number <= 20 else Say("done")

    result = run(
        guarded(ScriptedModel(script=script), [poll], seen, middleware=beside(place, summarizing(1))), ask(), way
    )
    assert_healthy(result)
    assert len(poll.ran) == 20


@both_ways
@first_and_last
def test_results_that_are_cleared_from_requests_still_count(way, place):
    """Context editing changes what the model is sent; what the tools returned is read from the state."""
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0)])
    poll, stuck = Counted(lambda n, _key: f"row {n}"), Counted()
    healthy = guarded(ScriptedModel(script=rounds(12)), [poll], watched(), middleware=beside(place, editing))
    looping = guarded(ScriptedModel(script=deaf()), [stuck], watched(), middleware=beside(place, editing))

    assert_healthy(run(healthy, ask(), way))
    assert_stopped(run(looping, ask(), way))
    assert (len(poll.ran), len(stuck.ran)) == (12, 2)


# -- everybody else --------------------------------------------------------------------------------------------------


@both_ways
@first_and_last
def test_tools_that_other_middleware_brings_are_guarded(way, place):
    todo = call("write_todos", todos=[{"content": "find it", "status": "in_progress"}])
    model, seen = ScriptedModel(script=deaf(todo)), watched()
    result = run(guarded(model, [], seen, middleware=beside(place, TodoListMiddleware())), ask(), way)

    assert_stopped(result)
    assert model.calls == 4  # a call that changes something is ended sooner


@both_ways
@first_and_last
def test_a_middleware_that_answers_a_call_before_it_runs_is_respected(way, place):
    class Answers(AgentMiddleware):
        def after_model(self, state, runtime):
            last = state["messages"][-1]
            asked = getattr(last, "tool_calls", None) or []
            return {"messages": [ToolMessage("from a cache", tool_call_id=c["id"]) for c in asked]}

    model, lookup, seen = ScriptedModel(script=deaf()), Counted(), watched()
    result = run(guarded(model, [lookup], seen, middleware=beside(place, Answers())), ask(), way)

    assert_stopped(result)
    assert (model.calls, lookup.ran) == (6, [])


@both_ways
@first_and_last
def test_a_middleware_that_jumps_to_the_end_ends_the_session(way, place):
    from langchain.agents.middleware import hook_config

    class Enough(AgentMiddleware):
        @hook_config(can_jump_to=["end"])
        def before_model(self, state, runtime):
            if len(state["messages"]) > 4:
                return {"jump_to": "end", "messages": [AIMessage("enough")]}
            return None

    seen = watched()
    result = run(
        guarded(ScriptedModel(script=different(9)), [Counted()], seen, middleware=beside(place, Enough())), ask(), way
    )
    assert_healthy(result, "enough")
    assert seen.reasons == ["complete"]


@both_ways
@first_and_last
def test_a_middleware_that_answers_for_the_model_costs_no_model_call(way, place):
    class Cache(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            return AIMessage("from a cache")

        async def awrap_model_call(self, request, handler):
            return AIMessage("from a cache")

    model, seen = ScriptedModel(script=deaf()), watched()
    result = run(guarded(model, [Counted()], seen, middleware=beside(place, Cache())), ask(), way)
    assert_healthy(result, "from a cache")
    assert model.calls == 0
    assert seen.reasons == ["complete"]


@both_ways
@first_and_last
def test_a_middleware_that_rewrites_calls_is_judged_by_what_it_made_of_them(way, place):
    """Listed first, ours sees what the others made of a response; listed last, what the model said."""

    class Rewrites(AgentMiddleware):
        def _changed(self, response):
            message = response.result[-1]
            for asked in message.tool_calls:
                asked["args"] = {"key": "rewritten"}
            return response

        def wrap_model_call(self, request, handler):
            return self._changed(handler(request))

        async def awrap_model_call(self, request, handler):
            return self._changed(await handler(request))

    def script(_messages, number):
        return Say("", (call(key=f"k{number}"),)) if number < 20 else Say("done")

    lookup, seen = Counted(), watched()
    result = run(
        guarded(ScriptedModel(script=script), [lookup], seen, middleware=beside(place, Rewrites())), ask(), way
    )
    if place == "first":
        assert_stopped(result)
        assert len(lookup.ran) == 2
    else:
        assert_healthy(result)


@both_ways
@first_and_last
def test_what_other_middleware_adds_to_a_request_stays_before_our_words(way, place):
    class Adds(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            return handler(request.override(messages=[*request.messages, HumanMessage("be brief")]))

        async def awrap_model_call(self, request, handler):
            return await handler(request.override(messages=[*request.messages, HumanMessage("be brief")]))

    model, seen = ScriptedModel(script=deaf()), watched({"ladder": {"steer": 2}})
    assert_stopped(run(guarded(model, [Counted()], seen, middleware=beside(place, Adds())), ask(), way))
    tail = [str(m.text) for m in model.requests[2].messages[-2:]]
    assert sorted(text.startswith(OWN) for text in tail) == [False, True]
    if place == "last":
        assert tail[1].startswith(OWN)
