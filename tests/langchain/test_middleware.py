"""What `LoopGuardMiddleware` sees, refuses and ends, in agents made with `create_agent`."""

import copy
import json
import pickle
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentState
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.tools import InjectedState, ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from loopguard_langchain import LoopGuardMiddleware
from loopguard_langchain_models import (
    LOOKUP,
    OWN,
    WAYS,
    Counted,
    Say,
    ScriptedModel,
    StreamingModel,
    answers,
    ask,
    assert_complete,
    assert_healthy,
    assert_stopped,
    both_ways,
    call,
    deaf,
    different,
    every_way,
    four_ways,
    guarded,
    listening,
    refused,
    rounds,
    run,
    sequence,
    streamed,
    thread,
    watched,
)
from pydantic import BaseModel, Field

from loopguard_core import LoopGuard, Policy

DEFAULT_ACTIONS = [(2, "observe"), (3, "block"), (4, "block"), (5, "block"), (6, "stop")]


# -- one call, again and again ---------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("kind", [ScriptedModel, StreamingModel])
def test_a_model_that_never_listens_is_stopped_at_its_sixth_request(way, kind):
    model, lookup, seen = kind(script=deaf()), Counted(), watched()
    result = run(guarded(model, [lookup], seen), ask(), way)

    assert len(lookup.ran) == 2
    assert model.calls == 6
    assert seen.actions == DEFAULT_ACTIONS
    stop = assert_stopped(result)
    assert stop["verdict"]["detector"] == "repeated_call"
    assert (stop["verdict"]["streak"], stop["verdict"]["tool"], stop["verdict"]["round"]) == (6, "lookup", 6)
    statuses = [(m.status, str(m.text).startswith(OWN)) for m in answers(result["messages"])]
    assert statuses == [("success", False)] * 2 + [("error", True)] * 4
    assert seen.reasons == ["doom_loop"]
    [end] = seen.ends
    assert (end.turns, end.model_calls, end.tool_calls, end.verdict.streak) == (6, 6, 2, 6)
    assert seen.live == 0


@every_way
def test_a_model_that_listens_answers_after_one_refusal(way):
    model, lookup, seen = ScriptedModel(script=listening()), Counted(), watched()
    result = run(guarded(model, [lookup], seen), ask(), way)

    assert len(lookup.ran) == 2
    assert model.calls == 4
    assert seen.actions == DEFAULT_ACTIONS[:2]
    assert_healthy(result, "I could not find it.")
    assert len(refused(result["messages"])) == 1
    assert seen.reasons == ["complete"]
    assert seen.live == 0


@every_way
def test_a_healthy_run_keeps_no_trace_of_the_guard(way):
    model, lookup, seen = ScriptedModel(script=different(4)), Counted(), watched()
    result = run(guarded(model, [lookup], seen), ask(), way)

    assert_healthy(result)
    # LangGraph streams private channels too; `invoke` hides them.
    ours = {key for key in result if key.startswith("loopguard_")}
    assert set(result) - (ours if "stream" in way else set()) == {"messages"}
    assert len(lookup.ran) == 4
    assert seen.actions == []
    assert seen.reasons == ["complete"]
    assert (seen.ends[0].turns, seen.ends[0].model_calls, seen.ends[0].tool_calls) == (4, 5, 4)


@every_way
def test_after_a_stop_the_next_turn_of_the_thread_is_a_run_like_any_other(way):
    def script(messages, _number):
        asked = [m.text for m in messages if isinstance(m, HumanMessage)][-1]
        return Say("done") if asked == "Never mind." else Say("", (LOOKUP,))

    model, lookup, seen = ScriptedModel(script=script), Counted(), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())

    assert_stopped(run(agent, ask(), way, thread()))
    second = run(agent, ask("Never mind."), way, thread())
    assert_healthy(second)
    third = run(agent, ask("Try again."), way, thread())
    assert_stopped(third)
    assert len(lookup.ran) == 4
    assert seen.reasons == ["doom_loop", "complete", "doom_loop"]
    assert [end.turns for end in seen.ends] == [6, 0, 6]
    assert seen.live == 0


@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith("messages")])
@pytest.mark.parametrize("kind", [ScriptedModel, StreamingModel])
def test_whoever_reads_the_message_stream_gets_the_refusals_and_the_closing_message(way, kind):
    seen = watched()
    agent = guarded(kind(script=deaf()), [Counted()], seen)
    chunks, result = streamed(agent, ask(), way)

    messages = [message for message, _metadata in chunks]
    closing = result["messages"][-1]
    assert [m.id for m in messages if m.text == closing.text and isinstance(m, AIMessage)] == [closing.id]
    ours = [m for m in messages if isinstance(m, ToolMessage) and str(m.text).startswith(OWN)]
    assert [m.tool_call_id for m in ours] == [m.tool_call_id for m in refused(result["messages"])]


@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith("updates")])
def test_updates_say_once_that_the_run_was_ended(way):
    chunks, result = streamed(guarded(ScriptedModel(script=deaf()), [Counted()], watched()), ask(), way)

    updates = [update for chunk in chunks for update in chunk.values() if update]
    assert [u["loopguard"] for u in updates if u.get("loopguard")] == [result["loopguard"]]
    private = json.dumps([{k: v for k, v in u.items() if k.startswith("loopguard")} for u in updates])
    assert LOOKUP[1]["key"] not in private


@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith("values")])
def test_values_say_at_the_end_that_the_run_was_ended(way):
    chunks, _ = streamed(guarded(ScriptedModel(script=deaf()), [Counted()], watched()), ask(), way)

    assert chunks[-1]["loopguard"]["reason"] == "doom_loop"
    assert not any(chunk.get("loopguard") for chunk in chunks if not str(chunk["messages"][-1].text).startswith(OWN))


@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith(("values", "updates"))])
@pytest.mark.parametrize("kept", [False, True], ids=["loose", "checkpointed"])
def test_what_a_stream_carries_of_ours_can_be_copied_and_sent_on(way, kept):
    """Servers send the chunks of a stream to browsers, private channels too."""
    options = {"checkpointer": InMemorySaver()} if kept else {}
    agent = guarded(ScriptedModel(script=deaf()), [Counted()], watched(), **options)
    chunks, _ = streamed(agent, ask(), way, thread() if kept else None)
    states = chunks if way.endswith("values") else [u for chunk in chunks for u in chunk.values() if u]
    private = [{k: v for k, v in state.items() if k.startswith("loopguard")} for state in states]

    assert json.loads(json.dumps(private)) == private
    assert copy.deepcopy(private) == private
    assert pickle.loads(pickle.dumps(private)) == private


def test_the_output_is_plain_json_apart_from_the_messages():
    result = run(guarded(ScriptedModel(script=deaf()), [Counted()], watched()), ask())
    assert json.loads(json.dumps(result["loopguard"])) == result["loopguard"]


@both_ways
def test_nothing_of_ours_quotes_arguments(way):
    model, seen = ScriptedModel(script=deaf()), watched({"ladder": {"steer": 2}})
    result = run(guarded(model, [Counted()], seen), ask(), way)

    secret = LOOKUP[1]["key"]
    ours = [m.text for m in refused(result["messages"])] + [result["messages"][-1].text]
    ours += [m.text for request in model.requests for m in request.told]
    ours += [json.dumps(result["loopguard"]), seen.ends[0].message, *(event.message for event in seen.loops)]
    assert len(ours) > 8
    assert not [text for text in ours if secret in text]


def test_every_refusal_names_the_tool_and_the_call():
    result = run(guarded(ScriptedModel(script=deaf()), [Counted()], watched()), ask())
    for message in refused(result["messages"]):
        assert message.name == "lookup"
        assert message.tool_call_id.startswith("call_")


# -- several calls in a round ----------------------------------------------------------------------------------------

A, B, C = call(key="a"), call(key="b"), call(key="c")


@both_ways
def test_a_fan_out_repeated_whole_is_refused_whole(way):
    model, lookup, seen = ScriptedModel(script=deaf(A, B, C)), Counted(), watched()
    result = run(guarded(model, [lookup], seen), ask(), way)

    assert sorted(lookup.ran) == ["a", "a", "b", "b", "c", "c"]
    assert model.calls == 6
    assert_stopped(result)
    assert len(refused(result["messages"])) == 12
    assert seen.ends[0].tool_calls == 6


@both_ways
def test_only_the_repeated_call_of_a_round_is_refused(way):
    def script(_messages, number):
        return Say("", (A, call(key=f"new-{number}"))) if number < 5 else Say("done")

    lookup, seen = Counted(), watched()
    result = run(guarded(ScriptedModel(script=script), [lookup], seen), ask(), way)

    assert_healthy(result)
    assert sorted(lookup.ran) == ["a", "a", "new-1", "new-2", "new-3", "new-4"]
    assert [m.tool_call_id for m in refused(result["messages"])] == ["call_3_0", "call_4_0"]
    assert seen.actions == DEFAULT_ACTIONS[:3]


@both_ways
def test_in_the_round_that_ends_the_run_nothing_runs_and_only_the_offender_carries_the_verdict(way):
    def script(_messages, number):
        return Say("", (call(key=f"new-{number}"), A))

    lookup, seen = Counted(), watched()
    result = run(guarded(ScriptedModel(script=script), [lookup], seen), ask(), way)

    assert_stopped(result)
    assert "new-6" not in lookup.ran
    beside, offender = answers(result["messages"])[-2:]
    assert offender.text == result["loopguard"]["verdict"]["message"]
    assert str(beside.text).startswith(OWN)
    assert beside.text != offender.text
    assert beside.status == offender.status == "error"


@both_ways
def test_identical_calls_in_one_round_count_once(way):
    model, lookup, seen = ScriptedModel(script=deaf(A, A, A)), Counted(), watched()
    result = run(guarded(model, [lookup], seen), ask(), way)

    assert lookup.ran == ["a"] * 6
    assert model.calls == 6
    assert seen.actions == DEFAULT_ACTIONS
    assert_stopped(result)


@both_ways
def test_the_order_within_a_round_does_not_matter(way):
    orders = [(A, B, C), (C, A, B), (B, C, A)]

    def script(_messages, number):
        return Say("", orders[number % 3])

    lookup, seen = Counted(), watched()
    result = run(guarded(ScriptedModel(script=script), [lookup], seen), ask(), way)

    assert len(lookup.ran) == 6
    assert_stopped(result)
    assert seen.ends[0].turns == 6


@both_ways
def test_rounds_of_another_tool_leave_a_streak_alone(way):
    def script(_messages, number):
        return Say("", (A,) if number % 2 else (call("other", key=f"o-{number}"),))

    lookup, other, seen = Counted(), Counted(name="other"), watched()
    result = run(guarded(ScriptedModel(script=script), [lookup, other], seen), ask(), way)

    assert_stopped(result)
    assert (len(lookup.ran), len(other.ran)) == (2, 5)
    assert seen.ends[0].turns == 11


# -- what comes back counts ------------------------------------------------------------------------------------------


@both_ways
def test_polling_with_changing_results_is_never_refused(way):
    poll, seen = Counted(lambda n, _key: f"{n} of 30 rows copied"), watched()
    result = run(guarded(ScriptedModel(script=rounds(30)), [poll], seen), ask(), way)

    assert_healthy(result)
    assert len(poll.ran) == 30
    assert seen.actions == [(2, "observe")]  # the first result has nothing to differ from


@both_ways
def test_a_result_that_stops_changing_is_refused_from_then_on(way):
    poll, seen = Counted(lambda n, _key: f"row {min(n, 10)}"), watched()
    result = run(guarded(ScriptedModel(script=deaf()), [poll], seen), ask(), way)

    assert_stopped(result)
    # The tenth result is news, so the eleventh request is the first of the streak.
    assert len(poll.ran) == 12
    assert seen.ends[0].turns == 16


@both_ways
def test_the_same_failure_again_and_again_is_refused(way):
    def fail(_n, _key):
        raise ToolException("404: no such record")

    lookup, seen = Counted(fail, handle_tool_error=True), watched()
    result = run(guarded(ScriptedModel(script=deaf()), [lookup], seen), ask(), way)

    assert_stopped(result)
    assert len(lookup.ran) == 2
    assert [m.status for m in answers(result["messages"])] == ["error"] * 6


@both_ways
def test_a_failure_that_becomes_another_is_progress(way):
    def fail(n, _key):
        raise ToolException(f"{20 - n} tests failed")

    lookup, seen = Counted(fail, handle_tool_error=True), watched()
    result = run(guarded(ScriptedModel(script=rounds(10)), [lookup], seen), ask(), way)

    assert_healthy(result)
    assert len(lookup.ran) == 10


@both_ways
def test_results_in_content_blocks_are_compared_too(way):
    same = Counted(lambda _n, _key: [{"type": "text", "text": "the same"}])
    changing = Counted(lambda n, _key: [{"type": "text", "text": f"row {n}"}])

    assert_stopped(run(guarded(ScriptedModel(script=deaf()), [same], watched()), ask(), way))
    assert_healthy(run(guarded(ScriptedModel(script=rounds(9)), [changing], watched()), ask(), way))
    assert (len(same.ran), len(changing.ran)) == (2, 9)


@both_ways
def test_text_blocks_and_plain_text_are_the_same_result(way):
    lookup = Counted(lambda n, _key: "the same" if n % 2 else [{"type": "text", "text": "the same"}])
    assert_stopped(run(guarded(ScriptedModel(script=deaf()), [lookup], watched()), ask(), way))
    assert len(lookup.ran) == 2


@both_ways
def test_an_artifact_is_no_part_of_what_the_model_sees(way):
    """The model gets the content alone, so a changing artifact is no news."""
    lookup = Counted(lambda n, _key: ("the same", {"attempt": n}), response_format="content_and_artifact")
    result = run(guarded(ScriptedModel(script=deaf()), [lookup], watched()), ask(), way)

    assert_stopped(result)
    assert len(lookup.ran) == 2
    assert [m.artifact for m in answers(result["messages"])[:2]] == [{"attempt": 1}, {"attempt": 2}]


@both_ways
def test_a_result_object_counts_by_its_content(way):
    lookup = Counted(lambda n, _key: {"row": n})
    assert_healthy(run(guarded(ScriptedModel(script=rounds(9)), [lookup], watched()), ask(), way))
    assert len(lookup.ran) == 9


# -- calls that go wrong ---------------------------------------------------------------------------------------------


@four_ways
def test_an_unknown_tool_asked_for_again_and_again_ends_the_run(way):
    model, seen = ScriptedModel(script=deaf(call("no_such_tool", key="x"))), watched()
    result = run(guarded(model, [Counted()], seen), ask(), way)

    assert_stopped(result)
    assert model.calls == 6
    assert len(refused(result["messages"])) == 4
    assert result["loopguard"]["verdict"]["tool"] == "no_such_tool"


@both_ways
def test_an_unknown_tool_in_an_agent_without_tools_ends_the_run(way):
    model, seen = ScriptedModel(script=deaf(call("no_such_tool", key="x"))), watched()
    result = run(guarded(model, [], seen), ask(), way)

    assert_stopped(result)
    assert model.calls == 6


@both_ways
def test_arguments_of_the_wrong_type_end_the_run(way):
    @tool
    def add(number: int) -> int:
        """Add one."""
        return number + 1

    model, seen = ScriptedModel(script=deaf(call("add", number="many"))), watched()
    result = run(guarded(model, [add], seen), ask(), way)

    assert_stopped(result)
    assert model.calls == 6
    assert len(refused(result["messages"])) == 4


@four_ways
def test_an_answer_that_is_broken_json_alone_ends_the_run_as_it_always_does(way):
    """LangChain ends a run whose last message holds no readable call; that is no business of ours."""
    model, seen = ScriptedModel(script=deaf_broken()), watched()
    result = run(guarded(model, [Counted()], seen), ask(), way)

    assert model.calls == 1
    assert result.get("loopguard") is None
    assert seen.reasons == ["complete"]


def deaf_broken(*calls):
    said = Say("", calls, broken=(("lookup", '{"key": "K-77'),))
    return lambda _messages, _number: said


@both_ways
@pytest.mark.parametrize("kind", [ScriptedModel, StreamingModel])
def test_the_same_broken_json_beside_other_calls_counts(way, kind):
    def script(_messages, number):
        return Say("", (call("other", key=f"o-{number}"),), broken=(("lookup", '{"key": "K-77'),))

    model, other, seen = kind(script=script), Counted(name="other"), watched()
    result = run(guarded(model, [Counted(), other], seen), ask(), way)

    assert_stopped(result)
    assert result["loopguard"]["verdict"]["tool"] == "lookup"
    assert seen.ends[0].turns == 6
    assert len(other.ran) == 5


@both_ways
def test_a_refused_call_of_broken_json_is_told_why(way):
    """Such a call never runs; from the third round on the model reads our reason in place of the SDK's."""

    def script(messages, number):
        told = any(str(m.text).startswith(OWN) for m in messages if isinstance(m, ToolMessage))
        said = Say("", (call("other", key=f"o-{number}"),), broken=(("lookup", '{"key": "K-77'),))
        return Say("done") if told else said

    seen = watched()
    result = run(guarded(ScriptedModel(script=script), [Counted(), Counted(name="other")], seen), ask(), way)

    assert_healthy(result)
    assert seen.actions == DEFAULT_ACTIONS[:2]


@both_ways
def test_the_turn_after_a_stop_on_broken_json_is_well_formed(way):
    def script(messages, number):
        if [m.text for m in messages if isinstance(m, HumanMessage)][-1] == "Never mind.":
            return Say("done")
        return Say("", (call("other", key=f"o-{number}"),), broken=(("lookup", '{"key": "K-77'),))

    model, seen = ScriptedModel(script=script), watched()
    agent = guarded(model, [Counted(), Counted(name="other")], seen, checkpointer=InMemorySaver())
    run(agent, ask(), way, thread())
    result = run(agent, ask("Never mind."), way, thread())

    assert_healthy(result)
    assert_complete(model.requests[-1].messages)


# -- tools of every kind ---------------------------------------------------------------------------------------------


@both_ways
def test_a_tool_that_answers_the_user_directly_ends_its_run_untouched(way):
    lookup, seen = Counted("the answer", return_direct=True), watched()
    model = ScriptedModel(script=deaf())
    result = run(guarded(model, [lookup], seen), ask(), way)

    assert result["messages"][-1].text == "the answer"
    assert result.get("loopguard") is None
    assert (model.calls, len(lookup.ran)) == (1, 1)
    assert seen.reasons == ["complete"]
    assert seen.live == 0


class Notes(AgentState):
    notes: list[str]


def _note(counts):
    @tool
    def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Keep a note."""
        counts.append(text)
        return Command(update={"notes": [text], "messages": [ToolMessage("kept", tool_call_id=tool_call_id)]})

    return note


@both_ways
def test_tools_that_return_commands_are_counted_and_refused_like_any_other(way):
    counts, seen = [], watched()
    model = ScriptedModel(script=deaf(call("note", text="x")))
    result = run(guarded(model, [_note(counts)], seen, state_schema=Notes), ask(), way)

    assert_stopped(result)
    assert len(counts) == 2
    assert result["notes"] == ["x"]


@both_ways
def test_tools_that_read_the_state_still_get_it(way):
    read = []

    @tool
    def peek(key: str, state: Annotated[dict, InjectedState], runtime: ToolRuntime) -> str:
        """Look around."""
        read.append((len(state["messages"]), runtime.tool_call_id, runtime.state["messages"][0].text))
        return "nothing new"

    result = run(guarded(ScriptedModel(script=deaf(call("peek", key="x"))), [peek], watched()), ask(), way)

    assert_stopped(result)
    assert read == [(2, "call_1_0", "Find it."), (4, "call_2_0", "Find it.")]


@both_ways
def test_async_tools_are_guarded_too(way):
    if way == "invoke":
        pytest.skip("a tool with a coroutine alone cannot be invoked")
    ran = []

    @tool
    async def lookup(key: str) -> str:
        """Look up."""
        ran.append(key)
        return "nothing found"

    assert_stopped(run(guarded(ScriptedModel(script=deaf()), [lookup], watched()), ask(), way))
    assert len(ran) == 2


@both_ways
def test_an_agent_without_tools_just_answers(way):
    seen = watched()
    assert_healthy(run(guarded(ScriptedModel(script=sequence()), [], seen), ask(), way))
    assert [(e.reason, e.turns, e.model_calls) for e in seen.ends] == [("complete", 0, 1)]


@both_ways
def test_the_context_of_a_run_reaches_its_tools(way):
    class Context(BaseModel):
        user: str

    users = []

    @tool
    def who(runtime: ToolRuntime[Context]) -> str:
        """Who is it?"""
        users.append(runtime.context.user)
        return "somebody"

    agent = guarded(ScriptedModel(script=deaf(call("who"))), [who], watched(), context_schema=Context)
    assert_stopped(run(agent, ask(), way, context=Context(user="ada")))
    assert users == ["ada", "ada"]


@both_ways
def test_the_name_of_an_agent_is_in_every_event(way):
    seen = watched()
    run(guarded(ScriptedModel(script=deaf()), [Counted()], seen, name="billing"), ask(), way)
    events = [*seen.loops, *seen.model_calls, *seen.ends]
    assert {(event.agent, event.adapter) for event in events} == {("billing", "langchain")}


@both_ways
def test_exempt_tools_are_left_alone(way):
    lookup, seen = Counted(), watched({"tools": {"lookup": {"loop_key": False}}})
    assert_healthy(run(guarded(ScriptedModel(script=rounds(12)), [lookup], seen), ask(), way))
    assert len(lookup.ran) == 12


@both_ways
def test_shadow_mode_reports_and_does_nothing(way):
    lookup, seen = Counted(), watched({"preset": "observe"})
    result = run(guarded(ScriptedModel(script=rounds(8)), [lookup], seen), ask(), way)

    assert_healthy(result)
    assert len(lookup.ran) == 8
    assert [event.proposed.value for event in seen.loops] == ["observe", "block", "block", "block", *["stop"] * 3]
    assert {event.action.value for event in seen.loops} == {"observe"}


@both_ways
def test_the_openrouter_preset_looks_at_arguments_alone(way):
    poll, seen = Counted(lambda n, _key: f"row {n}"), watched("openrouter")
    assert_stopped(run(guarded(ScriptedModel(script=deaf()), [poll], seen), ask(), way))
    assert len(poll.ran) == 2


# -- structured output -----------------------------------------------------------------------------------------------


class Answer(BaseModel):
    """The answer."""

    number: int = Field(description="A number.")


GOOD, BAD = call("Answer", number=7), call("Answer", number="many")


@four_ways
def test_structured_output_as_a_tool_comes_through_untouched(way):
    seen, lookup = watched(), Counted()
    model = ScriptedModel(script=sequence(Say("", (LOOKUP,)), Say("", (GOOD,))))
    result = run(guarded(model, [lookup], seen, response_format=ToolStrategy(Answer)), ask(), way)

    assert result["structured_response"] == Answer(number=7)
    assert result.get("loopguard") is None
    assert_complete(result["messages"])
    assert (model.calls, len(lookup.ran)) == (2, 1)
    assert seen.reasons == ["complete"]


@both_ways
def test_structured_output_of_the_provider_comes_through_untouched(way):
    seen, lookup = watched(), Counted()
    model = ScriptedModel(script=sequence(Say("", (LOOKUP,)), then='{"number": 7}'))
    result = run(guarded(model, [lookup], seen, response_format=ProviderStrategy(Answer)), ask(), way)

    assert result["structured_response"] == Answer(number=7)
    assert model.calls == 2
    assert seen.reasons == ["complete"]


@every_way
@pytest.mark.parametrize("tools", [0, 1])
def test_structured_output_that_never_validates_ends(way, tools):
    """Without us this goes round for ever: the model node answers the call itself, and no tool ever runs."""
    model, seen = ScriptedModel(script=deaf(BAD)), watched()
    agent = guarded(model, [Counted()] * tools, seen, response_format=ToolStrategy(Answer))
    result = run(agent, ask(), way)

    assert_stopped(result)
    assert model.calls == 6
    assert result.get("structured_response") is None
    assert seen.reasons == ["doom_loop"]
    assert seen.live == 0


@both_ways
def test_structured_output_that_validates_after_a_few_tries_is_kept(way):
    model, seen = ScriptedModel(script=sequence(Say("", (BAD,)), Say("", (BAD,)), Say("", (GOOD,)))), watched()
    result = run(guarded(model, [], seen, response_format=ToolStrategy(Answer)), ask(), way)

    assert result["structured_response"] == Answer(number=7)
    assert_complete(result["messages"])
    assert seen.reasons == ["complete"]


@both_ways
def test_structured_output_that_fails_beside_another_call_ends_as_it_does_without_us(way):
    """LangChain takes the failed call for the end of the run, because its answer is no error."""
    script = sequence(Say("", (A, BAD)))
    seen, lookup = watched(), Counted()
    result = run(
        guarded(ScriptedModel(script=script), [lookup], seen, response_format=ToolStrategy(Answer)), ask(), way
    )
    plain = create_agent(ScriptedModel(script=script), [Counted().tool], response_format=ToolStrategy(Answer))

    assert [bare(m) for m in result["messages"]] == [bare(m) for m in run(plain, ask(), way)["messages"]]
    assert seen.reasons == ["complete"]


# -- switched off, and twice -----------------------------------------------------------------------------------------


@every_way
def test_the_kill_switch_leaves_the_agent_as_it_would_be_without_us(way, monkeypatch):
    monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    script = rounds(9, A, A)
    guarded_tool, plain_tool = Counted(), Counted()
    guarded_model, plain_model = ScriptedModel(script=script), ScriptedModel(script=script)
    seen = watched(Policy(limits={"turns": 2, "tool_calls": 1}))
    ours = run(guarded(guarded_model, [guarded_tool], seen), ask(), way)
    plain = run(create_agent(plain_model, [plain_tool.tool]), ask(), way)

    assert set(ours) == set(plain)
    assert [bare(m) for m in ours["messages"]] == [bare(m) for m in plain["messages"]]
    assert guarded_tool.ran == plain_tool.ran
    assert [[bare(m) for m in r.messages] for r in guarded_model.requests] == [
        [bare(m) for m in r.messages] for r in plain_model.requests
    ]
    assert (seen.loops, seen.ends, seen.model_calls, seen.live) == ([], [], [], 0)


def bare(message):
    """A message without the ids LangChain makes up."""
    return message.model_dump(exclude={"id"})


def test_the_same_middleware_twice_in_one_agent_is_an_error_of_langchain():
    with pytest.raises(AssertionError, match="duplicate"):
        create_agent(
            ScriptedModel(script=deaf()), [Counted().tool], middleware=[LoopGuardMiddleware(), LoopGuardMiddleware()]
        )


def test_an_exit_behavior_there_is_not_is_an_error():
    with pytest.raises(ValueError, match="'end' or 'error'"):
        LoopGuardMiddleware(exit_behavior="continue")


@pytest.mark.parametrize("wrong", [7, "", object(), ScriptedModel])
def test_a_stronger_model_that_is_none_is_named_at_once(wrong):
    with pytest.raises(TypeError) as caught:
        LoopGuardMiddleware(escalate_model=wrong)
    said = str(caught.value)
    assert said.startswith(f"escalate_model = {wrong!r:.80}: must be a chat model, or a name for init_chat_model")


@both_ways
def test_one_middleware_may_serve_several_agents(way):
    seen = watched()
    ours = LoopGuardMiddleware(seen.guard)
    looping = create_agent(ScriptedModel(script=deaf()), [Counted().tool], middleware=[ours])
    healthy = create_agent(ScriptedModel(script=different(3)), [Counted().tool], middleware=[ours])

    assert_stopped(run(looping, ask(), way))
    assert_healthy(run(healthy, ask(), way))
    assert seen.reasons == ["doom_loop", "complete"]


@pytest.mark.parametrize("form", ["guard", "policy", "preset", "path", "mapping"])
def test_a_guard_may_be_given_in_any_form(form, tmp_path):
    path = tmp_path / "loopguard.toml"
    path.write_text("ladder = { observe = 2, block = 3, stop = 4 }")
    forms = {
        "guard": LoopGuard(Policy(ladder={"stop": 4})),
        "policy": Policy(ladder={"stop": 4}),
        "preset": "default",
        "path": path,
        "mapping": {"ladder": {"stop": 4}},
    }
    model = ScriptedModel(script=deaf())
    agent = create_agent(model, [Counted().tool], middleware=[LoopGuardMiddleware(forms[form])])
    assert_stopped(run(agent, ask()))
    assert model.calls == (6 if form == "preset" else 4)


# -- odd things models say -------------------------------------------------------------------------------------------


def nested_list(depth):
    value = "bottom"
    for _ in range(depth):
        value = [value]
    return value


ODD = {
    "deep": nested_list(200),
    "not a number": float("nan"),
    "infinite": float("inf"),
    "huge": 10**400,
    "lone surrogate": "a\ud800b",
    "large": "x" * 200_000,
}


@both_ways
@pytest.mark.parametrize("odd", ODD)
def test_odd_arguments_are_guarded_like_any_other(way, odd):
    ran = []

    @tool
    def lookup(key: Any) -> str:
        """Look up."""
        ran.append(1)
        return "nothing found"

    seen = watched()
    result = run(guarded(ScriptedModel(script=deaf(call(key=ODD[odd]))), [lookup], seen), ask(), way)
    assert_stopped(result)
    assert len(ran) == 2
    assert seen.guard.faults.counts == {}


@both_ways
def test_the_name_of_an_unknown_tool_is_shown_with_care(way):
    name = "\x1b[31m" + "evil`" * 100
    result = run(guarded(ScriptedModel(script=deaf(call(name))), [Counted()], watched()), ask(), way)

    stop = assert_stopped(result)
    assert len(stop["verdict"]["tool"]) <= 64
    shown = [stop["message"], stop["verdict"]["tool"], *(str(m.text) for m in refused(result["messages"]))]
    assert not [text for text in shown if "\x1b" in text or len(text) > 1000]


def test_a_large_fan_out_that_repeats_is_ended_too():
    calls = tuple(call(key=str(i)) for i in range(100))
    model, lookup, seen = ScriptedModel(script=deaf(*calls)), Counted(), watched()
    assert_stopped(run(guarded(model, [lookup], seen), ask()))
    assert model.calls == 6


@both_ways
def test_two_calls_with_one_id_are_both_answered(way):
    class Twins(ScriptedModel):
        def _say(self, messages, options):
            message = super()._say(messages, options)
            message.tool_calls = [{**asked, "id": f"{asked['id'][:-2]}"} for asked in message.tool_calls]
            return message

    model, seen = Twins(script=deaf(A, B)), watched()
    result = run(guarded(model, [Counted()], seen), ask(), way)
    assert result["loopguard"]["reason"] == "doom_loop"
    assert len(answers(result["messages"])) == 12
    assert model.calls == 6
