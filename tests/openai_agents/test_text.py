"""Text that repeats itself, through the real client to a server on loopback; and what MCP servers say of tools."""

import asyncio
import sys

import httpx
import pytest
from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, RunConfig, Runner, SQLiteSession
from agents.mcp import MCPServerStdio
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, LoopGuardModel, LoopGuardModelProvider, run_streamed
from loopguard_openai_agents_kit import OWN, Counted, Models, Watched, acaught, assert_stop, drain, go, items_of
from openai import AsyncOpenAI
from text_samples import prose

from loopguard_core import Session, estimate_tokens
from loopguard_core.testing import ChatRequest, Reply, ScriptedCall, ScriptedServer

LEAD = "Here is the report you asked for. "
LOOP = LEAD + "The total is still being computed, please wait. " * 10_000


def told(request: ChatRequest) -> int:
    return sum(OWN in text for text in request.texts("user"))


def stammers(request: ChatRequest) -> Reply:
    return Reply("I see now.") if told(request) else Reply(LOOP)


def always(request: ChatRequest) -> Reply:
    return Reply(LOOP)


def model_of(server: ScriptedServer) -> OpenAIChatCompletionsModel:
    fresh = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
    client = AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, http_client=fresh)
    return OpenAIChatCompletionsModel("scripted-1", client)


def guarded(server: ScriptedServer, guard: Watched, *tools):
    config = RunConfig(model_provider=Models(usual=model_of(server)), tracing_disabled=True)
    return Agent(name="A", model="usual", tools=list(tools)), {"guard": guard, "run_config": config}


def disconnects(server: ScriptedServer, count: int) -> int:
    async def wait() -> None:
        for _ in range(200):
            if server.disconnects >= count:
                return
            await asyncio.sleep(0.01)

    asyncio.run(wait())
    return server.disconnects


def cuts(guard: Watched) -> list[tuple[int, str]]:
    return [(e.streak, e.action.value) for e in guard.loops if e.detector == "text_repetition"]


def test_a_stream_is_cut_and_the_model_is_told_once():
    guard = Watched()
    with ScriptedServer(stammers) as server:
        agent, options = guarded(server, guard)
        ran = go("run_streamed", agent, **options)
        assert disconnects(server, 1) == 1, "the connection to the provider was closed"
        _, second = server.requests
    assert ran.output == "I see now."
    written = ran.deltas.removesuffix("I see now.")
    assert LOOP.startswith(written)
    assert len(LEAD) < len(written) < 4_000
    partial, note = second["messages"][-2:]
    assert (partial["role"], note["role"]) == ("assistant", "user")
    assert LOOP.startswith(str(partial["content"]))
    assert note["content"].startswith(OWN)
    assert (cuts(guard), guard.reasons) == ([(1, "steer")], ["complete"])


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_the_second_time_the_run_ends_with_what_was_written(way):
    guard, session = Watched(), SQLiteSession("s")
    with ScriptedServer(always) as server:
        agent, options = guarded(server, guard)
        ran = go(way, agent, session=session, **options)
        if way == "run_streamed":
            assert disconnects(server, 2) == 2
        assert len(server.requests) == 2
    written, _, notice = ran.output.partition("\n\n")
    assert LOOP.startswith(written)
    assert len(LEAD) < len(written) < 4_000
    assert notice.startswith(OWN)
    assert items_of(session)[-1]["content"][0]["text"] == ran.output
    assert len(ran.history) == 2
    assert (cuts(guard), guard.reasons) == ([(1, "steer"), (2, "stop")], ["doom_loop"])
    if way == "run_streamed":
        assert ran.deltas.endswith("\n\n" + notice)
        assert ran.deltas.count(LEAD) == 2, "what the stream has shown is not shown again"


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_a_last_answer_comes_after_what_was_written(way):
    guard, session = Watched(), SQLiteSession("s")

    replies = iter((Reply(LOOP), Reply(LOOP), Reply("The short of it.")))

    def persona(request: ChatRequest) -> Reply:
        return next(replies)

    with ScriptedServer(persona) as server:
        agent, options = guarded(server, guard)
        ran = go(way, agent, session=session, on_stop="answer", **options)
        sent = [message["role"] for message in server.requests[-1]["messages"]]
    assert ran.output == "The short of it."
    assert sent == ["user", "assistant", "user"]
    written, answer = [item["content"][0]["text"] for item in items_of(session)[1:]]
    assert LOOP.startswith(written)
    assert len(LEAD) < len(written) < 4_000
    assert answer == ran.output
    if way == "run_streamed":
        assert ran.deltas.count(LEAD) == 2
        assert ran.deltas.endswith(answer)


@pytest.mark.parametrize("on_stop", ["end", "answer"])
@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_a_model_alone_keeps_what_was_written(way, on_stop):
    guard = Watched()

    replies = iter((Reply(LOOP), Reply(LOOP), Reply("The short of it.")))

    def persona(request: ChatRequest) -> Reply:
        return next(replies)

    with ScriptedServer(persona) as server:
        agent = Agent(name="A", model=LoopGuardModel(model_of(server), guard, on_stop=on_stop))

        async def run():
            if way == "run":
                return await acaught(Runner.run(agent, "Where is it?"))
            return await drain(Runner.run_streamed(agent, "Where is it?"))

        ran = asyncio.run(run())
    texts = [item["content"][0]["text"] for item in ran.history[1:]]
    assert LOOP.startswith(texts[0].partition("\n\n")[0])
    assert texts[0].startswith(LEAD)
    assert ran.output == texts[-1]
    assert (OWN in ran.output, len(texts)) == ((True, 1) if on_stop == "end" else (False, 2))
    assert guard.reasons == ["doom_loop"]
    if way == "run_streamed":
        assert ran.deltas.count(LEAD) == 2


@pytest.mark.parametrize("surface", ["runner", "model"])
def test_a_last_answer_that_repeats_itself_is_none(surface):
    guard = Watched()
    with ScriptedServer(always) as server:
        agent, options = guarded(server, guard)
        if surface == "runner":
            ran = go("run", agent, on_stop="answer", **options)
        else:
            agent.model = LoopGuardModel(model_of(server), guard, on_stop="answer")
            ran = asyncio.run(acaught(Runner.run(agent, "Where is it?")))
        assert len(server.requests) == 3
    assert OWN in ran.output
    assert ran.output.startswith(LEAD), "what was written before is kept"
    assert len(ran.output) < 4_000
    assert (guard.ends[0].model_calls, guard.reasons) == (3, ["doom_loop"])


def test_what_was_written_is_kept_for_this_turn_only():
    guard, lookup = Watched(), Counted()

    def persona(request: ChatRequest) -> Reply:
        called = Reply(tool_calls=(ScriptedCall("lookup", {"key": "K-1"}),))
        return called if told(request) or request.texts("tool") else Reply(LOOP)

    with ScriptedServer(persona) as server:
        agent, options = guarded(server, guard, lookup.tool)
        ran = go("run_streamed", agent, **options)
    assert ran.output.startswith(OWN)
    assert guard.reasons == ["doom_loop"]


@pytest.mark.parametrize("way", ["run", "run_sync"])
def test_without_a_stream_the_text_is_judged_when_it_is_complete(way):
    guard = Watched()
    with ScriptedServer(stammers) as server:
        agent, options = guarded(server, guard)
        ran = go(way, agent, **options)
        used = sum(usage["completion_tokens"] for usage in server.usage_log)
        partial = server.requests[1]["messages"][-2]["content"]
    assert ran.output == "I see now."
    assert len(str(partial)) < 4_000, "the model is shown it to where it began to repeat itself"
    assert (guard.ends[0].usage.output_tokens, guard.ends[0].usage.estimated) == (used, False)
    assert cuts(guard) == [(1, "steer")]


def test_what_a_cut_call_used_is_estimated():
    guard = Watched()
    with ScriptedServer(stammers) as server:
        agent, options = guarded(server, guard)
        ran = go("run_streamed", agent, given="Find it. " * 40, **options)
    cut = guard.model_calls[0].usage
    shown = estimate_tokens(ran.deltas.removesuffix("I see now."))
    assert shown <= cut.output_tokens <= shown + 6, "the piece at which it was cut is not shown, and was received"
    assert cut.estimated
    assert cut.input_tokens == estimate_tokens("Find it. " * 40)


def test_a_model_alone_is_cut_too():
    guard = Watched()
    with ScriptedServer(always) as server:
        agent = Agent(name="A", model=LoopGuardModel(model_of(server), guard))

        async def streamed():
            return await drain(Runner.run_streamed(agent, "Where is it?"))

        ran = asyncio.run(streamed())
        assert disconnects(server, 2) == 2
    assert OWN in ran.output
    assert guard.reasons == ["doom_loop"]


def test_reasoning_of_chat_completions_is_read():
    guard = Watched()
    loop = "Wait, let me check the total again. " * 10_000

    def persona(request: ChatRequest) -> Reply:
        return Reply("I see now.") if told(request) else Reply("never said", reasoning=loop)

    with ScriptedServer(persona) as server:
        agent, options = guarded(server, guard)
        assert go("run_streamed", agent, **options).output == "I see now."
        assert disconnects(server, 1) == 1
        assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "user"], "nothing had been said yet"
    assert guard.loops[0].channel == "reasoning"


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_healthy_text_is_left_alone(way):
    guard, text, lookup = Watched(), prose(20_000), Counted()

    def persona(request: ChatRequest) -> Reply:
        done = request.texts("tool")
        return Reply(text) if done else Reply(text[:5_000], (ScriptedCall("lookup", {"key": "K-1"}),))

    with ScriptedServer(persona) as server:
        agent, options = guarded(server, guard, lookup.tool)
        ran = go(way, agent, **options)
        assert server.disconnects == 0
    assert (ran.output, guard.loops, guard.reasons) == (text, [], ["complete"])


def test_concurrent_runs_do_not_mix():
    guard, healthy = Watched(), prose(8_000)

    def persona(request: ChatRequest) -> Reply:
        if "healthy" in request.texts("user"):
            return Reply(healthy)
        return always(request) if "always" in request.texts("user") else stammers(request)

    async def all_of_them(agent, options):
        async def one(kind):
            return await drain(run_streamed(agent, kind, **options))

        return await asyncio.gather(*(one(kind) for kind in ("healthy", "always", "stammers") * 3))

    with ScriptedServer(persona) as server:
        rans = asyncio.run(all_of_them(*guarded(server, guard)))
    for index in range(0, 9, 3):
        assert rans[index].output == healthy
        assert OWN in rans[index + 1].output
        assert rans[index + 2].output == "I see now."
    assert sorted(guard.reasons) == ["complete"] * 6 + ["doom_loop"] * 3


def test_hooks_alone_read_a_response_when_it_is_complete():
    guard = Watched({"text": {"retries": 0}})
    with ScriptedServer(lambda r: Reply(LOOP, (ScriptedCall("lookup", {"key": "K-1"}),))) as server:
        lookup = Counted()
        agent = Agent(name="A", model=model_of(server), tools=[lookup.tool])

        async def run():
            return await acaught(Runner.run(agent, "Where is it?", hooks=LoopGuardHooks(guard)))

        assert assert_stop(asyncio.run(run())).verdict.detector == "text_repetition"
    assert (lookup.ran, guard.reasons) == ([], ["doom_loop"])


# -- MCP ---------------------------------------------------------------------------------------------------------------

SERVER = """
from mcp.types import ToolAnnotations
try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server
server = Server("files")
{tools}
server.run("stdio")
"""

TOOL = """
@server.tool(annotations=ToolAnnotations.model_validate({hints!r}))
def {name}(key: str) -> str:
    return "nothing"
"""


def mcp_script(**tools) -> str:
    return SERVER.format(tools="".join(TOOL.format(name=name, hints=hints) for name, hints in tools.items()))


since_0_24 = pytest.mark.skipif(not hasattr(FunctionTool, "mcp_annotations"), reason="the SDK does not keep them")


@pytest.mark.parametrize("surface", ["runner", "hooks", pytest.param("model", marks=since_0_24)])
def test_what_a_local_mcp_server_says_of_its_tools_is_passed_on(surface, monkeypatch):
    seen = []
    original = Session.begin_round

    def spy(self, calls):
        seen.extend((call.name, call.annotations) for call in calls)
        return original(self, calls)

    monkeypatch.setattr(Session, "begin_round", spy)
    guard = Watched()
    script = mcp_script(polish={"readOnlyHint": True}, fetch={"destructiveHint": True}, plain={})

    def persona(request: ChatRequest) -> Reply:
        calls = tuple(ScriptedCall(name, {"key": "K-1"}) for name in ("polish", "fetch", "plain"))
        return Reply("done") if request.texts("tool") else Reply(tool_calls=calls)

    async def run(server):
        async with MCPServerStdio({"command": sys.executable, "args": ["-c", script]}) as files:
            if surface == "model":
                agent = Agent(name="A", model=LoopGuardModel(model_of(server), guard), mcp_servers=[files])
                return await Runner.run(agent, "Go.")
            agent = Agent(name="A", model=model_of(server), mcp_servers=[files])
            if surface == "hooks":
                return await Runner.run(agent, "Go.", hooks=LoopGuardHooks(guard))
            config = RunConfig(model_provider=LoopGuardModelProvider(guard=guard), tracing_disabled=True)
            return await GuardedRunner.run(agent, "Go.", guard=guard, run_config=config)

    with ScriptedServer(persona) as server:
        assert asyncio.run(run(server)).final_output == "done"
    assert dict(seen) == {"polish": {"readOnlyHint": True}, "fetch": {"destructiveHint": True}, "plain": None}
