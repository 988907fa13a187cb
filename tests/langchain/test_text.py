"""Text that repeats itself: the stream is really cut, the model is told once, and what it wrote is kept.

Most of it goes through LangChain's real OpenAI client to a server on loopback, which notices when it is hung up on.
"""

import asyncio
import gc
from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core.language_models import BaseChatModel, FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from loopguard_langchain import LoopGuardCallbackHandler, LoopGuardMiddleware, LoopGuardStop
from loopguard_langchain_models import (
    OWN,
    Counted,
    ask,
    assert_complete,
    assert_healthy,
    assert_stopped,
    run,
    streamed,
    thread,
    watched,
)
from text_samples import prose

from loopguard_core import Action, Session, estimate_tokens, hookimpl
from loopguard_core.testing import ChatRequest, Reply, ScriptedCall, ScriptedServer

LEAD = "Here is the report you asked for. "
LOOP = LEAD + "The total is still being computed, please wait. " * 10_000
"""About half a million characters: no buffer between client and server holds what a cut stream does not take."""

STREAMED = ("stream-messages", "astream-messages")
every_stream = pytest.mark.parametrize("way", STREAMED)


def told(request: ChatRequest) -> int:
    """How often loopguard said something to the model."""
    return sum(OWN in text for text in request.texts("user"))


def stammers(request: ChatRequest) -> Reply:
    """Repeats itself until it is told."""
    return Reply("I see now.") if told(request) else Reply(LOOP)


def always(request: ChatRequest) -> Reply:
    return Reply(LOOP)


def client(server: ScriptedServer, **options: Any) -> ChatOpenAI:
    """The real client. Its own asynchronous connections would be kept from one event loop to the next."""
    fresh = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
    return ChatOpenAI(
        model="scripted-1",
        base_url=server.base_url,
        api_key="none",
        max_retries=0,
        stream_usage=True,
        http_async_client=fresh,
        **options,
    )


def agent(model: Any, guard: Any, *tools: Any, middleware: Any = (), **options: Any) -> Any:
    ours = LoopGuardMiddleware(
        getattr(guard, "guard", guard),
        **{name: options.pop(name) for name in ("exit_behavior", "escalate_model") if name in options},
    )
    return create_agent(model, list(tools), middleware=[ours, *middleware], **options)


def cuts(seen: Any) -> list[tuple[int, str]]:
    """What was done about text that repeats itself. (That two cut messages are the same is noted as well.)"""
    return [(e.streak, e.action.value) for e in seen.loops if e.detector == "text_repetition"]


def shown(pairs: list[Any]) -> str:
    """What a consumer of `stream_mode="messages"` saw, in order."""
    return "".join(chunk.text for chunk, _ in pairs)


async def gone(server: ScriptedServer, count: int) -> None:
    """Wait until the server noticed."""
    for _ in range(200):
        if server.disconnects >= count:
            return
        await asyncio.sleep(0.01)


def disconnects(server: ScriptedServer, count: int) -> int:
    asyncio.run(gone(server, count))
    return server.disconnects


# -- through the real client -----------------------------------------------------------------------------------------


@every_stream
def test_a_stream_is_cut_and_the_model_is_told_once(way):
    seen = watched()
    with ScriptedServer(stammers) as server:
        chunks, result = streamed(agent(client(server), seen), ask(), way)
        assert disconnects(server, 1) == 1, "the connection to the provider was closed"
        first, second = server.requests
    partial, answer = result["messages"][1:]
    assert answer.text == "I see now."
    assert len(shown(chunks)) < 4_000 < len(LOOP), "the rest was never received"
    assert LOOP.startswith(partial.text)
    assert len(LEAD) < len(partial.text) < 4_000
    assert partial.response_metadata["loopguard_cut"]["detector"] == "text_repetition"
    assert [m["role"] for m in second["messages"]] == [*(m["role"] for m in first["messages"]), "assistant", "user"]
    assert second["messages"][-2]["content"] == partial.text
    assert second["messages"][-1]["content"].startswith(OWN)
    assert seen.actions == [(1, "steer")]
    assert seen.loops[0].abort
    assert (seen.reasons, result.get("loopguard")) == (["complete"], None)


@every_stream
def test_the_second_time_the_run_ends_with_what_was_written(way):
    seen = watched()
    with ScriptedServer(always) as server:
        chunks, result = streamed(agent(client(server), seen), ask(), way)
        assert disconnects(server, 2) == 2
        assert len(server.requests) == 2
    stop = assert_stopped(result)
    partial, closing = result["messages"][1:]
    assert LOOP.startswith(partial.text)
    written, _, notice = closing.text.partition("\n\n")
    assert LOOP.startswith(written)
    assert len(written) > len(LEAD)
    assert notice == stop["message"]
    assert cuts(seen) == [(1, "steer"), (2, "stop")]
    assert seen.reasons == ["doom_loop"]
    assert seen.ends[0].verdict.detector == "text_repetition"
    text = shown(chunks)
    assert text.endswith(notice), "whoever watches the stream sees why it ends"
    assert text.count(OWN) == 1
    assert text.count(LEAD) == 2, "and nothing twice"


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream-updates", "astream-values"])
def test_without_a_stream_the_text_is_judged_when_it_is_complete(way):
    seen = watched()
    with ScriptedServer(stammers) as server:
        result = run(agent(client(server), seen), ask(), way)
        used = [usage["completion_tokens"] for usage in server.usage_log]
    assert result["messages"][-1].text == "I see now."
    assert len(result["messages"][1].text) < 4_000, "it is kept to where it began to repeat itself"
    assert seen.ends[0].usage.output_tokens == sum(used), "it was paid for"
    with ScriptedServer(always) as server:
        assert_stopped(run(agent(client(server), seen), ask(), way))


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_client_that_always_streams_is_cut_without_anybody_watching(way):
    seen = watched()
    with ScriptedServer(always) as server:
        assert_stopped(run(agent(client(server, streaming=True), seen), ask(), way))
        assert disconnects(server, 2) == 2


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_other_kinds_of_streams_are_cut_too(version, asynchronous):
    if version == "v2" and not asynchronous:
        pytest.skip("events of this version are only asynchronous")
    seen = watched()

    async def consume(graph: Any) -> None:
        if version == "v2":
            async for _ in graph.astream_events(ask(), version="v2"):
                pass
        else:
            stream = await graph.astream_events(ask(), version="v3")
            async for _ in stream:
                pass

    with ScriptedServer(always) as server:
        graph = agent(client(server), seen)
        if asynchronous:
            asyncio.run(consume(graph))
        else:
            for _ in graph.stream_events(ask(), version="v3"):
                pass
        assert disconnects(server, 2) == 2
    assert seen.reasons == ["doom_loop"]


@every_stream
def test_what_a_cut_call_used_is_estimated(way):
    seen = watched()
    with ScriptedServer(stammers) as server:
        chunks, _ = streamed(agent(client(server), seen), ask("Find it. " * 40), way)
        [_, whole] = server.usage_log
    cut, answered = seen.model_calls
    received = shown(chunks).removesuffix("I see now.")
    assert (cut.usage.output_tokens, cut.usage.estimated) == (estimate_tokens(received), True)
    assert cut.usage.input_tokens == estimate_tokens("Find it. " * 40)
    assert not answered.usage.estimated
    assert answered.usage.output_tokens == whole["completion_tokens"]
    assert seen.ends[0].usage.total_tokens == cut.usage.total_tokens + answered.usage.total_tokens
    assert seen.ends[0].model_calls == 2


@every_stream
def test_tokens_of_a_cut_call_count_towards_a_limit(way):
    seen = watched({"limits": {"tokens": 100}})
    with ScriptedServer(stammers) as server:
        _, result = streamed(agent(client(server), seen), ask(), way)
        assert len(server.requests) == 1
    assert_stopped(result, "max_tokens")
    assert LOOP.startswith(result["messages"][1].text)


@every_stream
def test_the_thread_can_be_used_for_the_next_turn(way):
    seen = watched()

    def persona(request: ChatRequest) -> Reply:
        return Reply("Hello again.") if "Thanks." in request.texts("user") else Reply(LOOP)

    with ScriptedServer(persona) as server:
        graph = agent(client(server), seen, checkpointer=InMemorySaver())
        assert_stopped(streamed(graph, ask(), way, thread())[1])
        _, result = streamed(graph, {"messages": [HumanMessage("Thanks.")]}, way, thread())
        assert_healthy(result, "Hello again.")
        roles = [(m["role"], bool(m["content"])) for m in server.requests[-1]["messages"]]
    assert roles == [("user", True), ("assistant", True), ("assistant", True), ("user", True)]
    assert seen.reasons == ["doom_loop", "complete"]


@every_stream
def test_every_turn_has_a_retry_of_its_own(way):
    seen = watched()

    def persona(request: ChatRequest) -> Reply:
        last = request.messages[-1]["content"]
        return Reply("I see now.") if OWN in last else Reply(LOOP)

    with ScriptedServer(persona) as server:
        graph = agent(client(server), seen, checkpointer=InMemorySaver())
        for _ in range(3):
            assert streamed(graph, ask(), way, thread())[1]["messages"][-1].text == "I see now."
    assert seen.actions == [(1, "steer")] * 3


@every_stream
def test_a_loop_after_the_tools_ran_is_cut_and_the_round_stays(way):
    seen, tool = watched(), Counted("42")

    def persona(request: ChatRequest) -> Reply:
        if not request.texts("tool"):
            return Reply("Let me look.", (ScriptedCall("lookup", {"key": "K-1"}),))
        return Reply("It is 42.") if told(request) else Reply(LOOP)

    with ScriptedServer(persona) as server:
        _, result = streamed(agent(client(server), seen, tool.tool), ask(), way)
    assert_complete(result["messages"])
    assert (result["messages"][-1].text, tool.ran) == ("It is 42.", ["K-1"])


@every_stream
def test_a_call_beside_text_that_was_cut_is_not_made(way):
    seen, tool = watched(), Counted()

    def persona(request: ChatRequest) -> Reply:
        return Reply("done") if told(request) else Reply(LOOP, (ScriptedCall("lookup", {"key": "K-1"}),))

    with ScriptedServer(persona) as server:
        _, result = streamed(agent(client(server), seen, tool.tool), ask(), way)
        assert (result["messages"][-1].text, tool.ran) == ("done", [])
        assert run(agent(client(server), seen, tool.tool), ask())["messages"][-1].text == "done"
    assert tool.ran == [], "neither is one of a response that came in one piece"


@every_stream
@pytest.mark.parametrize("calls", [False, True])
def test_healthy_streams_are_left_alone(way, calls):
    seen, text, tool = watched(), prose(20_000), Counted()

    def persona(request: ChatRequest) -> Reply:
        done = not calls or request.texts("tool")
        return Reply(text) if done else Reply(text[:5_000], (ScriptedCall("lookup", {"key": "K-1"}),))

    with ScriptedServer(persona) as server:
        graph, bare = agent(client(server), seen, tool.tool), create_agent(client(server), [tool.tool])
        chunks, result = streamed(graph, ask(), way)
        expected, _ = streamed(bare, ask(), way)
        assert server.disconnects == 0
    assert [chunk.text for chunk, _ in chunks] == [chunk.text for chunk, _ in expected]
    assert result["messages"][-1].text == text
    assert (seen.loops, seen.reasons) == ([], ["complete"])


def test_concurrent_runs_do_not_mix():
    seen = watched()
    healthy = prose(8_000)

    def persona(request: ChatRequest) -> Reply:
        if "healthy" in request.texts("user"):
            return Reply(healthy)
        return always(request) if "always" in request.texts("user") else stammers(request)

    async def one(graph: Any, kind: str) -> dict[str, Any]:
        final: dict[str, Any] = {}
        async for mode, chunk in graph.astream(ask(kind), stream_mode=["messages", "values"]):
            final = {**final, **chunk} if mode == "values" else final
        return final

    async def all_of_them(graph: Any) -> list[dict[str, Any]]:
        return await asyncio.gather(*(one(graph, kind) for kind in ("healthy", "always", "stammers") * 3))

    with ScriptedServer(persona) as server:
        results = asyncio.run(all_of_them(agent(client(server), seen)))
    for index in range(0, 9, 3):
        assert_healthy(results[index], healthy)
        assert_stopped(results[index + 1])
        assert results[index + 2]["messages"][-1].text == "I see now."
    assert sorted(seen.reasons) == ["complete"] * 6 + ["doom_loop"] * 3


@every_stream
def test_raise_and_answer(way):
    with ScriptedServer(always) as server:
        seen = watched()
        graph = agent(client(server), seen, exit_behavior="error", checkpointer=InMemorySaver())
        with pytest.raises(LoopGuardStop) as caught:
            streamed(graph, ask(), way, thread())
        assert caught.value.verdict.detector == "text_repetition"
        history = graph.get_state(thread()).values["messages"]
        assert [type(m).__name__ for m in history] == ["HumanMessage", "AIMessage", "AIMessage"]
    seen = watched({"on_stop": {"how": "answer"}})

    def persona(request: ChatRequest) -> Reply:
        return Reply("So: paid." if "No tool can be used" in request.texts("user")[-1] else LOOP)

    with ScriptedServer(persona) as server:
        chunks, result = streamed(agent(client(server), seen), ask(), way)
    assert_stopped(result)
    assert [m.text[:9] for m in result["messages"][1:]] == [LEAD[:9], LEAD[:9], "So: paid."]
    assert OWN not in shown(chunks)


@every_stream
def test_an_answer_that_repeats_itself_is_cut_as_well(way):
    seen = watched({"on_stop": {"how": "answer"}})
    with ScriptedServer(always) as server:
        _, result = streamed(agent(client(server), seen), ask(), way)
        assert disconnects(server, 3) == 3
    assert_stopped(result)
    assert len(result["messages"][-1].text) < 4_000


@every_stream
def test_retries_none_ends_the_run_at_the_first(way):
    seen = watched({"text": {"retries": 0}})
    with ScriptedServer(always) as server:
        assert_stopped(streamed(agent(client(server), seen), ask(), way)[1])
        assert len(server.requests) == 1


@every_stream
def test_shadow_mode_and_a_plugin_that_only_observes_cut_nothing(way):
    short = LEAD + "The total is still being computed. " * 60
    for seen in (
        watched("observe"),
        watched(plugins=[Weakens()]),
    ):
        with ScriptedServer(lambda _: Reply(short)) as server:
            assert_healthy(streamed(agent(client(server), seen), ask(), way)[1], short)
        assert cuts(seen) == [(1, "observe")]
        assert seen.reasons == ["complete"]


class Weakens:
    @hookimpl
    def doom_loop_detected(self, event):
        return Action.OBSERVE


@every_stream
def test_switched_off_nothing_is_read(way):
    seen = watched({"enabled": False})
    short = LEAD + "The total is still being computed. " * 60
    with ScriptedServer(lambda _: Reply(short)) as server:
        assert_healthy(streamed(agent(client(server), seen), ask(), way)[1], short)
    assert seen.loops == []


@every_stream
def test_the_stronger_model_takes_the_retry(way):
    seen = watched({"detectors": {"text_repetition": {"ladder": {"steer": 1, "escalate": 1, "stop": 2}}}})
    with ScriptedServer(always) as server, ScriptedServer(lambda _: Reply("I see it.")) as strong:
        graph = agent(client(server), seen, escalate_model=client(strong))
        _, result = streamed(graph, ask(), way)
        assert (len(server.requests), len(strong.requests)) == (1, 1)
    assert result["messages"][-1].text == "I see it."


@every_stream
def test_company_that_retries_and_falls_back_lets_a_cut_through(way):
    seen = watched()
    with ScriptedServer(always) as server, ScriptedServer(lambda _: Reply("never asked")) as other:
        company = [ModelRetryMiddleware(max_retries=3, initial_delay=0.0), ModelFallbackMiddleware(client(other))]
        _, result = streamed(agent(client(server), seen, middleware=company), ask(), way)
        assert (len(server.requests), len(other.requests)) == (2, 0)
    assert_stopped(result)


# -- models of other kinds -------------------------------------------------------------------------------------------


class Pieces(BaseChatModel):
    """Streams what `script` gives for a request, and counts what was taken from it.

    `script` returns a list of message chunks, or of errors.
    """

    script: Any
    sent: int = 0
    closed: int = 0
    asked: int = 0

    @property
    def _llm_type(self) -> str:
        return "pieces"

    def bind_tools(self, tools, *, tool_choice=None, **options):
        return self.bind(**options)

    def _generate(self, messages, stop=None, run_manager=None, **options):
        self.asked += 1
        whole = None
        for piece in self.script(messages, self.asked):
            whole = piece if whole is None else whole + piece
        message = AIMessage(whole.content, additional_kwargs=whole.additional_kwargs, tool_calls=whole.tool_calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages, stop=None, run_manager=None, **options):
        self.asked += 1
        try:
            for piece in self.script(messages, self.asked):
                if isinstance(piece, BaseException):
                    raise piece
                self.sent += 1
                yield ChatGenerationChunk(message=piece)
        finally:
            self.closed += 1


class AsyncPieces(Pieces):
    async def _astream(self, messages, stop=None, run_manager=None, **options):
        for piece in self._stream(messages):  # as some do
            await asyncio.sleep(0)
            yield piece


def in_pieces(text: str, make: Any) -> list[AIMessageChunk]:
    return [make(text[i : i + 20]) for i in range(0, len(text), 20)]


def content(piece: str) -> AIMessageChunk:
    return AIMessageChunk(piece)


REASONING = {
    "deepseek": lambda piece: AIMessageChunk("", additional_kwargs={"reasoning_content": piece}),
    "anthropic": lambda piece: AIMessageChunk([{"type": "thinking", "thinking": piece, "index": 0}]),
    "v1": lambda piece: AIMessageChunk([{"type": "reasoning", "reasoning": piece, "index": 0}]),
    "responses": lambda piece: AIMessageChunk(
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": piece, "index": 0}], "index": 0}]
    ),
    "bedrock": lambda piece: AIMessageChunk(
        [{"type": "reasoning_content", "reasoning_content": {"text": piece}, "index": 0}]
    ),
}


@pytest.mark.parametrize("way", [*STREAMED, "invoke", "ainvoke"])
@pytest.mark.parametrize("kind", REASONING)
def test_reasoning_is_read(kind, way):
    seen = watched()
    loop = "Wait, let me check the total again. " * 200

    def script(messages: Any, number: int) -> list[AIMessageChunk]:
        if any(OWN in str(m.content) for m in messages):
            return [content("I see now.")]
        return [*in_pieces(loop, REASONING[kind]), content("never said")]

    model = Pieces(script=script)
    result = run(agent(model, seen), ask(), way)
    assert (seen.loops[0].channel, seen.actions) == ("reasoning", [(1, "steer")])
    streams = way in STREAMED
    said = [m.text for m in result["messages"][1:]]
    assert said == (["I see now."] if streams else ["never said", "I see now."]), "an empty message is not kept"
    if streams:
        assert model.sent < 100


@pytest.mark.parametrize("model", [Pieces, AsyncPieces])
@every_stream
def test_the_model_is_the_same_object_for_whoever_counts_in_it(model, way):
    """A copy would lose what a model keeps in itself, such as where a scripted one is in its script."""
    seen = watched()
    made = model(script=lambda _messages, number: [content(f"answer {number}")])
    graph = agent(made, seen)
    for number in (1, 2, 3):
        assert streamed(graph, ask(), way)[1]["messages"][-1].text == f"answer {number}"
    assert (made.asked, made.sent, made.closed) == (3, 3, 3)


@pytest.mark.parametrize("model", [Pieces, AsyncPieces])
@every_stream
def test_a_stream_is_closed_at_once_and_read_once(model, way):
    seen = watched()
    made = model(script=lambda _messages, _number: in_pieces(LOOP[:40_000], content))
    assert_stopped(streamed(agent(made, seen), ask(), way)[1])
    assert (made.asked, made.closed) == (2, 2)
    assert made.sent < 200 < 2 * 2_000
    assert cuts(seen) == [(1, "steer"), (2, "stop")], "nothing was counted twice"


def test_a_model_without_a_stream_is_not_made_to_have_one():
    seen = watched()
    model = FakeMessagesListChatModel(responses=[AIMessage("one"), AIMessage("two")])
    graph = agent(model, seen)
    assert [streamed(graph, ask(), "stream-messages")[1]["messages"][-1].text for _ in range(2)] == ["one", "two"]


@every_stream
def test_a_stream_that_breaks_off_and_is_retried_is_no_repetition(way):
    seen = watched()
    text = prose(3_000)

    def script(_messages: Any, number: int) -> list[Any]:
        return in_pieces(text, content) if number == 4 else [*in_pieces(text, content), ConnectionError("gone")]

    retry = ModelRetryMiddleware(max_retries=5, initial_delay=0.0)
    _, result = streamed(agent(Pieces(script=script), seen, middleware=[retry]), ask(), way)
    assert_healthy(result, text)
    assert (seen.loops, seen.ends[0].model_calls) == ([], 1)


@pytest.mark.parametrize("way", [*STREAMED, "invoke"])
def test_empty_responses_are_known_to_be_empty(way):
    """An agent whose other middleware asks again for as long as nothing is said."""
    from langchain.agents.middleware import after_model, hook_config

    @after_model
    @hook_config(can_jump_to=["model"])
    def again(state: Any, runtime: Any) -> dict[str, Any] | None:
        return None if state["messages"][-1].text else {"jump_to": "model"}

    seen = watched()
    empty = AIMessageChunk("", response_metadata={"finish_reason": "stop"})
    graph = agent(Silent(script=lambda *_: [empty]), seen, middleware=[again])
    result = run(graph, ask(), way)
    assert_stopped(result)
    assert [event.detector for event in seen.loops] == ["repeated_message"] * len(seen.loops)
    assert len(seen.loops) <= 5


class Silent(Pieces):
    def _generate(self, messages, stop=None, run_manager=None, **options):
        message = AIMessage("", response_metadata={"finish_reason": "stop"})
        return ChatResult(generations=[ChatGeneration(message=message)])


# -- the callback handler --------------------------------------------------------------------------------------------


def graph_of(model: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "model")
    return graph.compile()


ENDS = {"text": {"retries": 0}}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_handler_ends_a_run_in_the_middle_of_its_stream(asynchronous):
    seen = watched(ENDS)
    config = {"callbacks": [LoopGuardCallbackHandler(seen.guard)]}

    async def consume(graph: Any) -> None:
        async for _ in graph.astream(ask(), config, stream_mode="messages"):
            pass

    with ScriptedServer(always) as server:
        if asynchronous:
            graph = create_agent(client(server), [])
            with pytest.raises(LoopGuardStop) as caught:
                asyncio.run(consume(graph))
        else:
            graph = graph_of(client(server))
            with pytest.raises(LoopGuardStop) as caught:
                list(graph.stream(ask(), config, stream_mode="messages"))
        assert disconnects(server, 1) == 1
    assert caught.value.verdict.detector == "text_repetition"
    assert (seen.reasons, seen.actions) == (["doom_loop"], [(1, "stop")])
    assert 100 < seen.ends[0].usage.output_tokens < 1_000


def test_the_handler_alone_only_notes_what_the_policy_would_steer():
    seen = watched()
    short = LEAD + "The total is still being computed. " * 60
    config = {"callbacks": [LoopGuardCallbackHandler(seen.guard)]}
    with ScriptedServer(lambda _: Reply(short)) as server:
        chunks = list(graph_of(client(server)).stream(ask(), config, stream_mode="messages"))
    assert shown(chunks) == short
    assert (seen.actions, seen.reasons) == ([(1, "observe")], ["complete"])


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_the_handler_reads_what_is_not_streamed_when_it_is_complete(way):
    seen = watched(ENDS)
    config = {"callbacks": [LoopGuardCallbackHandler(seen.guard)]}
    with ScriptedServer(always) as server, pytest.raises(LoopGuardStop):
        run(create_agent(client(server), []), ask(), way, config)
    assert seen.reasons == ["doom_loop"]


def test_the_handler_reads_the_third_kind_of_stream():
    seen = watched(ENDS)
    config = {"callbacks": [LoopGuardCallbackHandler(seen.guard)]}
    with ScriptedServer(always) as server:
        graph = create_agent(client(server), [])
        try:
            for _ in graph.stream_events(ask(), config, version="v3"):
                pass
        except LoopGuardStop:
            pass
        else:
            pytest.fail("it went on")
        gc.collect()  # LangChain itself closes nothing here
        assert disconnects(server, 1) == 1
    assert seen.reasons == ["doom_loop"]


def test_the_handler_beside_the_middleware_counts_nothing_twice():
    seen = watched()
    config = {"callbacks": [LoopGuardCallbackHandler(seen.guard)]}
    with ScriptedServer(always) as server:
        assert_stopped(streamed(agent(client(server), seen), ask(), "stream-messages", config)[1])
    assert (cuts(seen), seen.reasons, len(seen.model_calls)) == ([(1, "steer"), (2, "stop")], ["doom_loop"], 2)


# -- what MCP servers say of tools -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_annotations_that_mcp_tools_carry_as_metadata_are_passed_on(way, monkeypatch):
    seen: dict[str, Any] = {}
    original = Session.begin_round

    def spy(self: Session, calls: Any) -> Any:
        seen.update((call.name, call.annotations) for call in calls)
        return original(self, calls)

    monkeypatch.setattr(Session, "begin_round", spy)
    hints = {
        "polish": {"title": "Polish", "readOnlyHint": True, "destructiveHint": None, "_meta": {"a": 1}},
        "fetch": {"destructiveHint": True, "idempotentHint": False},
        "odd": {"readOnlyHint": "yes"},
        "plain": None,
    }
    tools = [Counted(name=name, metadata=metadata).tool for name, metadata in hints.items()]

    def persona(request: ChatRequest) -> Reply:
        return Reply("done") if request.texts("tool") else Reply(tool_calls=tuple(ScriptedCall(n, {}) for n in hints))

    with ScriptedServer(persona) as server:
        assert_healthy(run(agent(client(server), watched(), *tools), ask(), way))
    assert seen == {
        "polish": {"readOnlyHint": True},
        "fetch": {"destructiveHint": True, "idempotentHint": False},
        "odd": None,
        "plain": None,
    }
