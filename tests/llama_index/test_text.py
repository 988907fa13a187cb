"""Text that repeats itself: the stream is really cut, what was written is kept, and the model is asked once more."""

from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent, ReActAgent
from loopguard_llama_index import LoopDetectedEvent, guard_agent
from loopguard_llama_index_kit import (
    OWN,
    REPEATED,
    Counted,
    Scripted,
    Stammers,
    Think,
    ThinkingStammer,
    Watched,
    assert_well_formed,
    call,
    go,
)

CHUNKS = len(REPEATED) // 8


def stammers(asked: Any) -> Any:
    """Repeats itself until it is told."""
    return ["I see now."] if asked.told else [REPEATED]


def always(asked: Any) -> Any:
    return [REPEATED]


def agents(llm: Scripted, **options: Any) -> dict[str, Any]:
    return {
        "function": FunctionAgent(tools=[Counted().tool], llm=llm, **options),
        "workflow": AgentWorkflow(agents=[FunctionAgent(tools=[Counted().tool], llm=llm, **options)]),
    }


KINDS = ("function", "workflow")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suspends", [True, False])
async def test_a_stream_is_cut_and_the_model_is_told_once(kind: str, suspends: bool) -> None:
    guard = Watched(plugins=[Stammers()])
    llm = Scripted(stammers, suspends=suspends)
    ran = await go(guard_agent(agents(llm)[kind], guard))
    assert (ran.text, llm.calls, guard.reasons) == ("I see now.", 2, ["complete"])
    if suspends:
        assert llm.sent < CHUNKS, "the rest was never sent"
    assert llm.closed == 2
    partial, told = llm.asked[1].messages[-2:]
    assert (partial.role.value, partial.content.count("again")) == ("assistant", 3)
    assert (told.role.value, told.content.startswith(OWN)) == ("user", True)
    assert [message.content.count("again") for message in ran.history if message.role.value == "assistant"] == [3, 0]
    assert_well_formed(ran.history)
    assert guard.last_end.model_calls == 2
    assert guard.last_end.usage.total_tokens > 120, "the call that was cut is estimated"
    assert guard.last_end.usage.estimated


async def test_what_the_consumer_sees_ends_with_the_cut() -> None:
    ran = await go(guard_agent(agents(Scripted(stammers))["function"], Watched(plugins=[Stammers()])))
    deltas = "".join(event.delta for event in ran.events if isinstance(event, AgentStream))
    assert 3 <= deltas.count("again") < 20, "what came until the cut was shown"
    assert deltas.endswith("I see now.")
    [event] = [event for event in ran.events if isinstance(event, LoopDetectedEvent)]
    assert (event.detector, event.action, event.channel, event.abort) == ("stammer", "steer", "content", True)
    assert "again" not in event.message.replace("against", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suspends", [True, False])
async def test_the_second_time_the_run_ends_with_what_was_written(kind: str, suspends: bool) -> None:
    guard = Watched(plugins=[Stammers()])
    llm = Scripted(always, suspends=suspends)
    ran = await go(guard_agent(agents(llm)[kind], guard))
    assert (llm.calls, guard.reasons, guard.last_end.verdict.detector) == (2, ["doom_loop"], "stammer")
    assert ran.text.count("again") == 3
    assert OWN in ran.text
    assert [message.content.count("again") for message in ran.history if message.role.value == "assistant"] == [3, 3]
    assert_well_formed(ran.history)


async def test_raise_and_answer_after_a_cut() -> None:
    ran = await go(guard_agent(agents(Scripted(always))["function"], Watched(plugins=[Stammers()]), on_stop="raise"))
    assert ran.error.verdict.detector == "stammer"
    assert ran.history[-1].content.count("again") == 3
    llm = Scripted(lambda asked: ["so: paid"] if not asked.tools else [REPEATED])
    ran = await go(guard_agent(agents(llm)["function"], Watched(plugins=[Stammers()]), on_stop="answer"))
    assert (ran.text, llm.calls) == ("so: paid", 3)
    assert [message.content.count("again") for message in ran.history if message.role.value == "assistant"] == [3, 3, 0]


async def test_a_call_in_a_message_that_was_cut_is_not_made() -> None:
    tool = Counted()
    llm = Scripted(lambda asked: ["done"] if asked.told else [call(), REPEATED])
    ran = await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=llm), Watched(plugins=[Stammers()])))
    assert (ran.text, tool.ran) == ("done", [])
    assert_well_formed(ran.history)


async def test_reasoning_is_read_too() -> None:
    guard = Watched(plugins=[Stammers(ThinkingStammer)])
    llm = Scripted(lambda asked: ["I see now."] if asked.told else [Think(REPEATED), "never said"])
    ran = await go(guard_agent(agents(llm)["function"], guard))
    assert (ran.text, llm.calls) == ("I see now.", 2)
    assert guard.loops[0].channel == "reasoning"
    assert "never said" not in str(ran.history)
    assert len(ran.history) == 2, "nothing had been written yet"


async def test_a_response_that_comes_whole_is_read_afterwards() -> None:
    guard = Watched(plugins=[Stammers()])
    llm = Scripted(stammers)
    ran = await go(guard_agent(agents(llm, streaming=False)["function"], guard))
    assert (ran.text, llm.calls, guard.reasons) == ("I see now.", 2, ["complete"])
    assert guard.last_end.usage.total_tokens == 240
    assert_well_formed(ran.history)


async def test_a_react_agent_is_cut_too() -> None:
    guard = Watched(plugins=[Stammers()])
    said = "Thought: I try " + REPEATED
    answer = "Thought: I know.\nAnswer: paid"
    llm = Scripted(lambda asked: [answer] if asked.told else [said], calls_functions=False)
    ran = await go(guard_agent(ReActAgent(tools=[Counted().tool], llm=llm), guard))
    assert (ran.text, llm.calls) == ("paid", 2)
    assert llm.asked[1].messages[-2].content.count("again") == 3
    assert ran.history[-1].content.count("again") == 3
    guard = Watched(plugins=[Stammers()])
    llm = Scripted(lambda asked: [said], calls_functions=False)
    ran = await go(guard_agent(ReActAgent(tools=[Counted().tool], llm=llm), guard))
    assert (llm.calls, guard.reasons) == (2, ["doom_loop"])
    assert ran.text.count("again") == 3
    assert OWN in ran.text


async def test_a_detector_that_raises_cuts_nothing() -> None:
    class Broken(ThinkingStammer):
        name = "broken"

        def feed_text(self, delta: str, channel: str) -> Any:
            raise RuntimeError("broken detector")

    guard = Watched(plugins=[Stammers(Broken)])
    ran = await go(guard_agent(agents(Scripted(lambda asked: ["hello"]))["function"], guard))
    assert (ran.text, guard.reasons) == ("hello", ["complete"])
