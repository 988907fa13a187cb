"""Many runs at once on one guard and one compiled agent; runs that die."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, GraphRecursionError
from loopguard_langchain_models import (
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
    rounds,
    run,
    settle,
    since_user,
    thread,
    watched,
)

RUNS = 50


def looping_or_healthy(messages, _number):
    """What a run does is in what its user said."""
    spoken = [m.text for m in messages if isinstance(m, HumanMessage)][-1]
    if spoken.startswith("loop"):
        return Say("", (call(key="the same for all"),))
    asked = sum(isinstance(m, AIMessage) for m in since_user(messages))
    return Say("", (call(key=f"key {asked}"),)) if asked < 4 else Say("done")


def sayings():
    return [f"loop {i}" if i % 2 else f"fine {i}" for i in range(RUNS)]


def config_of(kept, said):
    return {**thread(said), "recursion_limit": 150} if kept else {"recursion_limit": 300}


def crowd(kept):
    seen = watched()
    options = {"checkpointer": InMemorySaver()} if kept else {}
    return seen, guarded(ScriptedModel(script=looping_or_healthy), [Counted()], seen, **options)


def assert_unmixed(seen, results):
    for said, result in zip(sayings(), results, strict=True):
        assert result["messages"][0].text == said
        if said.startswith("loop"):
            assert_stopped(result)
            assert sum(bool(m.tool_calls) for m in result["messages"] if isinstance(m, AIMessage)) == 6
        else:
            assert_healthy(result)
    assert sorted(seen.reasons) == ["complete"] * (RUNS // 2) + ["doom_loop"] * (RUNS // 2)
    assert {(e.reason, e.turns, e.model_calls, e.tool_calls) for e in seen.ends} == {
        ("doom_loop", 6, 6, 2),
        ("complete", 4, 5, 4),
    }
    assert len({e.session_id for e in seen.ends}) == RUNS
    assert {e.parent_id for e in seen.ends} == {None}
    assert seen.live == 0
    assert all(seen.guard.live(e.session_id) is None for e in seen.ends)


kept_or_not = pytest.mark.parametrize("kept", [False, True], ids=["loose", "checkpointed"])


@kept_or_not
async def test_fifty_runs_at_once_on_one_event_loop_do_not_mix(kept):
    seen, agent = crowd(kept)
    results = await asyncio.gather(*(agent.ainvoke(ask(said), config_of(kept, said)) for said in sayings()))
    assert_unmixed(seen, results)


@kept_or_not
def test_fifty_runs_at_once_in_threads_do_not_mix(kept):
    seen, agent = crowd(kept)
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda said: agent.invoke(ask(said), config_of(kept, said)), sayings()))
    assert_unmixed(seen, results)


def test_batches_do_not_mix():
    seen, agent = crowd(False)
    results = agent.batch([ask(said) for said in sayings()])
    assert_unmixed(seen, results)


def test_runs_in_threads_and_on_an_event_loop_share_a_guard():
    seen, agent = crowd(False)
    halves = sayings()[::2], sayings()[1::2]
    results = {}

    def in_threads():
        for said in halves[0]:
            results[said] = agent.invoke(ask(said))

    async def on_a_loop():
        done = await asyncio.gather(*(agent.ainvoke(ask(said)) for said in halves[1]))
        results.update(zip(halves[1], done, strict=True))

    worker = threading.Thread(target=in_threads)
    worker.start()
    asyncio.run(on_a_loop())
    worker.join()
    assert_unmixed(seen, [results[said] for said in sayings()])


async def test_nested_runs_at_once_do_not_mix():
    """Ten outer runs, each with two agents at once inside; the odd ones loop inside."""
    seen = watched()

    def outer_script(messages, _number):
        spoken = messages[0].text
        calls = (call("delegate", key=spoken), call("delegate", key="fine"))
        return Say("", calls) if len(messages) == 1 else Say("done")

    inside = guarded(ScriptedModel(script=looping_or_healthy), [Counted()], seen, name="inner")

    async def body(key: str = "") -> str:
        return str((await inside.ainvoke(ask(key)))["messages"][-1].text)

    tool = StructuredTool.from_function(coroutine=body, name="delegate", description="Ask.")
    outer = guarded(ScriptedModel(script=outer_script), [tool], seen, name="outer")
    said = sayings()[:10]
    results = await asyncio.gather(*(outer.ainvoke(ask(text)) for text in said))

    for text, result in zip(said, results, strict=True):
        if text.startswith("loop"):
            assert_stopped(result)
        else:
            assert_healthy(result)
    ends = {e.session_id: e for e in seen.ends}
    outer_ends = [e for e in seen.ends if e.agent == "outer"]
    inner_ends = [e for e in seen.ends if e.agent == "inner"]
    assert (len(outer_ends), len(inner_ends)) == (10, 20)
    assert {ends[e.parent_id].agent for e in inner_ends} == {"outer"}
    assert sorted(e.reason for e in outer_ends) == ["complete"] * 5 + ["doom_loop"] * 5
    assert seen.live == 0


# -- runs that die ---------------------------------------------------------------------------------------------------


def raising(error):
    def body(_n, _key):
        raise error

    return Counted(body)


@four_ways
def test_a_tool_that_raises_ends_the_session_with_the_error(way):
    seen = watched()
    agent = guarded(ScriptedModel(script=rounds(1)), [raising(ValueError("broken"))], seen)
    with pytest.raises(ValueError, match="broken"):
        run(agent, ask(), way)
    assert [(e.reason, e.error, e.turns) for e in seen.ends] == [("error", "ValueError", 1)]
    assert seen.live == 0


@four_ways
def test_a_model_that_raises_ends_the_session_with_the_error(way):
    seen = watched()
    agent = guarded(
        ScriptedModel(script=lambda _m, n: ConnectionError("gone") if n > 2 else Say("", (call(key=str(n)),))),
        [Counted()],
        seen,
    )
    with pytest.raises(ConnectionError):
        run(agent, ask(), way)
    assert [(e.reason, e.error, e.model_calls) for e in seen.ends] == [("error", "ConnectionError", 2)]
    assert seen.live == 0


@kept_or_not
def test_a_call_that_starts_after_another_of_its_round_failed_opens_no_session_of_its_own(kept):
    failed = threading.Event()

    class Gate(AgentMiddleware):
        """Holds the calls of `other` back until `lookup` has failed."""

        def wrap_tool_call(self, request, handler):
            if request.tool_call["name"] == "other":
                assert failed.wait(10)
            try:
                return handler(request)
            finally:
                failed.set()

    seen, other = watched(), Counted(name="other")
    agent = guarded(
        ScriptedModel(script=rounds(1, call(key="a"), call("other", key="b"))),
        [raising(ValueError("broken")), other],
        seen,
        middleware=lambda ours: [Gate(), ours],
        **({"checkpointer": InMemorySaver()} if kept else {}),
    )
    with pytest.raises(ValueError, match="broken"):
        run(agent, ask(), "invoke", thread() if kept else None)
    assert len(other.ran) == 1
    assert seen.reasons == ["error"]
    assert seen.live == 0


@both_ways
def test_after_an_error_the_thread_can_be_gone_on_with(way):
    """The failed round is resumed: the tool works the second time, and the streak goes on where it was."""
    failing = [True]

    def body(n, _key):
        if n == 2 and failing.pop():
            raise ConnectionError("gone")
        return "nothing found"

    model, lookup, seen = ScriptedModel(script=deaf()), Counted(body), watched()
    agent = guarded(model, [lookup], seen, checkpointer=InMemorySaver())
    with pytest.raises(ConnectionError):
        run(agent, ask(), way, thread())
    result = run(agent, None, way, thread())

    assert_stopped(result)
    assert (model.calls, len(lookup.ran)) == (6, 3)
    assert seen.reasons == ["error", "doom_loop"]
    assert seen.ends[-1].turns == 6
    assert seen.live == 0


@both_ways
def test_after_an_error_a_new_question_starts_afresh(way):
    def script(messages, _number):
        return (
            Say("done")
            if [m.text for m in messages if isinstance(m, HumanMessage)][-1] == "Again."
            else ValueError("x")
        )

    seen = watched()
    agent = guarded(ScriptedModel(script=script), [Counted()], seen, checkpointer=InMemorySaver())
    with pytest.raises(ValueError, match="x"):
        run(agent, ask(), way, thread())
    assert run(agent, ask("Again."), way, thread())["messages"][-1].text == "done"
    assert seen.reasons == ["error", "complete"]


class Waits:
    """Somewhere to be cancelled."""

    def __init__(self):
        self.reached = asyncio.Event()
        self.when_reached = lambda: None

    async def forever(self):
        self.reached.set()
        self.when_reached()
        await asyncio.Event().wait()


async def cancelled(agent, waits, config=None):
    task = asyncio.ensure_future(agent.ainvoke(ask(), config))
    await asyncio.wait_for(waits.reached.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@kept_or_not
async def test_cancelling_inside_a_tool_ends_the_session_as_cancelled(kept):
    waits, seen = Waits(), watched()

    async def body(key: str = "") -> str:
        await waits.forever()

    tool = StructuredTool.from_function(coroutine=body, name="lookup", description="Look up.")
    options = {"checkpointer": InMemorySaver()} if kept else {}
    agent = guarded(ScriptedModel(script=rounds(1)), [tool], seen, **options)
    await cancelled(agent, waits, thread() if kept else None)
    assert seen.reasons == ["cancelled"]
    assert seen.live == 0


class WaitingModel(ScriptedModel):
    """Waits for ever from its `since`th call on."""

    since: int = 1
    waits: object = None

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        result = await super()._agenerate(messages, stop, run_manager, **options)
        if self.calls >= self.since:
            await self.waits.forever()
        return result


@pytest.mark.parametrize("since", [1, 3])
async def test_cancelling_inside_the_model_ends_the_session_as_cancelled(since):
    waits, seen = Waits(), watched()
    agent = guarded(WaitingModel(script=different(9), since=since, waits=waits), [Counted()], seen)
    await cancelled(agent, waits)
    assert [(e.reason, e.model_calls) for e in seen.ends] == [("cancelled", since - 1)]
    assert seen.live == 0


async def test_cancelling_the_last_answer_of_a_stopped_run_still_ends_its_session():
    waits, seen = Waits(), watched({"on_stop": {"how": "answer"}})
    agent = guarded(WaitingModel(script=deaf(), since=7, waits=waits), [Counted()], seen)
    await cancelled(agent, waits)
    assert seen.reasons == ["doom_loop"]
    assert seen.live == 0


async def test_cancelling_an_inner_run_cancels_both():
    waits, seen = Waits(), watched()
    inside = guarded(WaitingModel(script=different(9), waits=waits), [Counted()], seen, name="inner")

    async def body(key: str = "") -> str:
        return str((await inside.ainvoke(ask(key)))["messages"][-1].text)

    tool = StructuredTool.from_function(coroutine=body, name="delegate", description="Ask.")
    agent = guarded(ScriptedModel(script=rounds(1, call("delegate", key="x"))), [tool], seen, name="outer")
    await cancelled(agent, waits)
    assert [(e.agent, e.reason) for e in seen.ends] == [("inner", "cancelled"), ("outer", "cancelled")]
    assert seen.live == 0


async def test_a_timeout_around_a_run_ends_its_session():
    waits, seen = Waits(), watched()
    agent = guarded(WaitingModel(script=different(9), since=2, waits=waits), [Counted()], seen)

    async def in_time():
        async with asyncio.timeout(None) as deadline:
            waits.when_reached = lambda: deadline.reschedule(asyncio.get_running_loop().time())
            await agent.ainvoke(ask())

    with pytest.raises(TimeoutError):
        await in_time()
    assert seen.reasons == ["cancelled"]
    assert seen.live == 0


def assert_died_unseen(seen):
    """The run ended where no middleware is asked; its session ends all the same, as soon as nothing holds the run."""
    settle(seen)
    assert len(seen.reasons) == 1
    assert set(seen.reasons) <= {"cancelled", "error"}
    assert seen.live == 0


@pytest.mark.parametrize("mode", ["updates", "values"])
def test_a_reader_that_leaves_a_stream_leaves_no_session_behind(mode):
    seen = watched()
    agent = guarded(ScriptedModel(script=different(9)), [Counted()], seen)
    stream = agent.stream(ask(), stream_mode=mode)
    for _ in range(5):
        next(stream)
    stream.close()
    del stream
    assert_died_unseen(seen)


@pytest.mark.parametrize("mode", ["updates", "values"])
async def test_a_reader_that_leaves_an_async_stream_leaves_no_session_behind(mode):
    seen = watched()
    agent = guarded(ScriptedModel(script=different(9)), [Counted()], seen)
    stream = agent.astream(ask(), stream_mode=mode)
    for _ in range(5):
        await anext(stream)
    await stream.aclose()
    del stream
    others = asyncio.all_tasks() - {asyncio.current_task()}  # LangGraph cancels them, and does not wait
    await asyncio.gather(*others, return_exceptions=True)
    assert_died_unseen(seen)


async def test_a_cancelled_thread_can_be_gone_on_with():
    waits, seen = Waits(), watched()
    agent = guarded(WaitingModel(script=deaf(), since=4, waits=waits), [Counted()], seen, checkpointer=InMemorySaver())
    await cancelled(agent, waits, thread())
    again = guarded(ScriptedModel(script=deaf()), [Counted()], seen, checkpointer=agent.checkpointer)
    result = await again.ainvoke(None, thread())
    assert_stopped(result)
    assert_complete(result["messages"])
    assert seen.reasons == ["cancelled", "doom_loop"]
    assert seen.ends[-1].turns == 6
    assert OWN in result["messages"][-1].text


@both_ways
def test_a_run_that_another_middleware_broke_leaves_no_session_behind(way):
    class Breaks(AgentMiddleware):
        def before_model(self, state, runtime):
            if len(state["messages"]) > 2:
                raise ValueError("no more")

    seen = watched()
    agent = guarded(ScriptedModel(script=deaf()), [Counted()], seen, middleware=lambda ours: [ours, Breaks()])
    with pytest.raises(ValueError, match="no more"):
        run(agent, ask(), way)
    assert_died_unseen(seen)


@both_ways
def test_runs_that_die_unseen_do_not_pile_up(way):
    seen = watched()
    agent = guarded(ScriptedModel(script=different(99)), [Counted()], seen)
    for _ in range(20):
        with suppress(GraphRecursionError):
            run(agent, ask(), way, {"recursion_limit": 6})
    settle(seen)
    assert seen.live == 0
    assert len(seen.ends) == 20


@both_ways
def test_a_run_that_is_drained_leaves_no_session_behind(way):
    """LangGraph's own way to shut down between two nodes; the thread can be gone on with later."""
    from langgraph.runtime import RunControl

    control, seen = RunControl(), watched()

    def body(n, _key):
        if n == 2:
            control.request_drain("shutting down")
        return "nothing found"

    saver, model = InMemorySaver(), ScriptedModel(script=deaf())
    agent = guarded(model, [Counted(body)], seen, checkpointer=saver)
    with pytest.raises(GraphDrained):
        run(agent, ask(), way, thread(), control=control)
    settle(seen)
    assert seen.live == 0
    assert_stopped(run(agent, None, way, thread()))
    assert model.calls == 6
    assert seen.ends[-1].turns == 6


@both_ways
def test_a_dead_run_that_is_let_go_late_does_not_end_the_run_that_goes_on(way):
    """Whoever logs an error may hold its run long after the thread was resumed."""
    held, seen = [], watched()

    def body(n, _key):
        if n == 1:
            raise ConnectionError("gone")
        if n == 3:
            held.clear()
            settle(seen)
        return "nothing found"

    agent = guarded(ScriptedModel(script=deaf()), [Counted(body)], seen, checkpointer=InMemorySaver())
    try:
        run(agent, ask(), way, thread())
    except ConnectionError as error:
        held.append(error)
    result = run(agent, None, way, thread())
    settle(seen)

    assert_stopped(result)
    assert seen.reasons == ["error", "doom_loop"]
    assert seen.ends[-1].turns == 6
    assert seen.live == 0


@both_ways
def test_a_stream_that_is_let_go_late_does_not_end_the_run_that_goes_on(way):
    held, seen = [], watched()

    def body(n, _key):
        if n == 2:
            held.clear()
            settle(seen)
        return "nothing found"

    agent = guarded(ScriptedModel(script=deaf()), [Counted(body)], seen, checkpointer=InMemorySaver())
    held.append(agent.stream(ask(), thread(), stream_mode="updates"))
    for _ in range(3):  # up to the first result
        next(held[0])
    result = run(agent, None, way, thread())
    settle(seen)

    assert_stopped(result)
    assert seen.reasons[-1] == "doom_loop"
    assert seen.reasons.count("doom_loop") == 1
    assert seen.ends[-1].turns == 6
    assert seen.live == 0


def test_what_a_graph_streams_can_be_printed():
    """LangGraph copies what a node returns with `type(value)(items)` to print it."""
    import dataclasses

    from langgraph.types import Command

    seen = watched()
    agent = guarded(ScriptedModel(script=different(2)), [Counted()], seen)
    for chunk in agent.stream(ask(), stream_mode="values"):
        repr(chunk)
        repr(Command(update=chunk))
        dataclasses.asdict(Command(update=chunk))
