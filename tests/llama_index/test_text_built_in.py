"""Text that repeats itself, with the detectors that are built in."""

import asyncio
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.llms import LLMMetadata
from loopguard_llama_index import guard_agent
from loopguard_llama_index_kit import OWN, Counted, Scripted, Think, Watched, assert_well_formed, call, go
from text_samples import prose

from loopguard_core import Session, estimate_tokens
from loopguard_core.testing import ChatRequest, Reply, ScriptedServer

LEAD = "Here is the report you asked for. "
LOOP = LEAD + "The total is still being computed, please wait. " * 400
PIECES = len(LOOP) // 8


def stammers(asked: Any) -> Any:
    return ["I see now."] if asked.told else [LOOP]


def always(asked: Any) -> Any:
    return [LOOP]


def cuts(guard: Watched) -> list[tuple[int, str]]:
    return [(e.streak, e.action.value) for e in guard.loops if e.detector == "text_repetition"]


def agents(llm: Scripted, **options: Any) -> dict[str, Any]:
    return {
        "function": FunctionAgent(tools=[Counted().tool], llm=llm, **options),
        "workflow": AgentWorkflow(agents=[FunctionAgent(tools=[Counted().tool], llm=llm, **options)]),
    }


def deltas(ran: Any) -> str:
    return "".join(event.delta for event in ran.events if isinstance(event, AgentStream))


@pytest.mark.parametrize("kind", ["function", "workflow"])
async def test_a_stream_is_cut_and_the_model_is_told_once(kind: str) -> None:
    guard, llm = Watched(), Scripted(stammers)
    ran = await go(guard_agent(agents(llm)[kind], guard))
    assert (ran.text, llm.calls, llm.closed, guard.reasons) == ("I see now.", 2, 2, ["complete"])
    assert llm.sent < PIECES / 5, "the rest was never sent"
    assert LOOP.startswith(deltas(ran).removesuffix("I see now."))
    partial, note = llm.asked[1].messages[-2:]
    assert (partial.role.value, note.role.value) == ("assistant", "user")
    assert LOOP.startswith(partial.content)
    assert note.content.startswith(OWN)
    assert cuts(guard) == [(1, "steer")]
    assert_well_formed(ran.history)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", ["function", "workflow"])
async def test_the_second_time_the_run_ends_with_what_was_written(kind: str, streaming: bool) -> None:
    guard, llm = Watched(), Scripted(always)
    ran = await go(guard_agent(agents(llm, streaming=streaming)[kind], guard))
    assert (llm.calls, guard.reasons, cuts(guard)) == (2, ["doom_loop"], [(1, "steer"), (2, "stop")])
    written, _, notice = ran.text.partition("\n\n")
    assert LOOP.startswith(written)
    assert LEAD in written
    assert notice.startswith(OWN)
    assert_well_formed(ran.history)


async def test_every_turn_has_a_retry_of_its_own() -> None:
    guard = Watched()
    agent = guard_agent(FunctionAgent(tools=[Counted().tool], llm=Scripted(stammers)), guard)
    memory = None
    for _ in range(3):
        ran = await go(agent, memory=memory)
        memory = ran.memory
        assert ran.text == "I see now."
    assert cuts(guard) == [(1, "steer")] * 3


async def test_what_a_cut_call_used_is_estimated() -> None:
    guard, llm = Watched(), Scripted(stammers)
    ran = await go(guard_agent(agents(llm)["function"], guard), "Find it. " * 40)
    cut, answered = (event.usage for event in guard.model_calls)
    assert cut.output_tokens == estimate_tokens(deltas(ran).removesuffix("I see now."))
    assert estimate_tokens("Find it. " * 40) < cut.input_tokens < estimate_tokens("Find it. " * 40) + 100
    assert (cut.estimated, answered.estimated) == (True, False)
    assert guard.last_end.usage.total_tokens == cut.total_tokens + answered.total_tokens


async def test_what_came_in_one_piece_is_reported_and_not_estimated() -> None:
    guard = Watched()
    await go(guard_agent(agents(Scripted(stammers), streaming=False)["function"], guard))
    assert [event.usage.estimated for event in guard.model_calls] == [False, False]


async def test_reasoning_is_read() -> None:
    guard = Watched()
    llm = Scripted(lambda asked: ["I see now."] if asked.told else [Think(LOOP), "never said"])
    ran = await go(guard_agent(agents(llm)["function"], guard))
    assert (ran.text, guard.loops[0].channel, llm.calls) == ("I see now.", "reasoning", 2)


async def test_a_react_agent_is_cut_too() -> None:
    guard = Watched()
    llm = Scripted(
        lambda asked: ["Thought: I know.\nAnswer: I see now."] if asked.told else ["Thought: " + LOOP],
        calls_functions=False,
    )
    ran = await go(guard_agent(ReActAgent(tools=[Counted().tool], llm=llm), guard))
    assert (ran.text, llm.calls, cuts(guard)) == ("I see now.", 2, [(1, "steer")])


@pytest.mark.parametrize("streaming", [True, False])
async def test_that_a_response_says_nothing_is_known(streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[Any] = []
    original = Session.feed_text

    def spy(self: Session, delta: str, channel: Any = "content") -> Any:
        fed.append((delta, channel))
        return original(self, delta, channel)

    monkeypatch.setattr(Session, "feed_text", spy)
    llm = Scripted(lambda asked: ["done"] if asked.outputs else [call()])
    ran = await go(guard_agent(agents(llm, streaming=streaming)["function"], Watched()))
    assert ran.text == "done"
    assert fed[0] == ("", "content"), "a message with calls alone"
    assert "".join(delta for delta, channel in fed if channel != "arguments") == "done"


@pytest.mark.parametrize("streaming", [True, False])
async def test_healthy_text_is_left_alone(streaming: bool) -> None:
    guard, text, tool = Watched(), prose(10_000), Counted()
    llm = Scripted(lambda asked: [text] if asked.outputs else [text[:3_000], call()])
    ran = await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=llm, streaming=streaming), guard))
    assert (ran.text, guard.loops, guard.reasons) == (text, [], ["complete"])


async def test_concurrent_runs_do_not_mix() -> None:
    guard, healthy = Watched(), prose(4_000)

    def script(asked: Any) -> Any:
        said = " ".join(str(message.content) for message in asked.messages)
        if "healthy" in said:
            return [healthy]
        return always(asked) if "forever" in said else stammers(asked)

    agent = guard_agent(FunctionAgent(tools=[Counted().tool], llm=Scripted(script)), guard)
    rans = await asyncio.gather(*(go(agent, kind) for kind in ("healthy", "forever", "stammers") * 3))
    for at in range(0, 9, 3):
        assert rans[at].text == healthy
        assert OWN in rans[at + 1].text
        assert rans[at + 2].text == "I see now."
    assert sorted(guard.reasons) == ["complete"] * 6 + ["doom_loop"] * 3


async def test_a_cut_closes_the_connection_to_the_provider() -> None:
    """With LlamaIndex's real client."""
    openai = pytest.importorskip("llama_index.llms.openai", reason="needs llama-index-llms-openai")

    class Client(openai.OpenAI):
        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(is_chat_model=True, is_function_calling_model=True, model_name=self.model)

    def persona(request: ChatRequest) -> Reply:
        return Reply(LEAD + "The total is still being computed, please wait. " * 40_000)

    guard = Watched()
    with ScriptedServer(persona) as server:
        llm = Client(
            model="scripted-1", api_base=server.base_url, api_key="none", max_retries=0, reuse_client=False, timeout=30
        )
        ran = await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=llm), guard))
        for _ in range(200):
            if server.disconnects >= 2:
                break
            await asyncio.sleep(0.01)
        assert (server.disconnects, len(server.requests)) == (2, 2)
    assert OWN in ran.text
    assert len(deltas(ran)) < 8_000
    assert guard.last_end.usage.estimated
