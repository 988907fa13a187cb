"""`LoopGuardCallbackHandler` beside `LoopGuardMiddleware`: one guard counts once, two know nothing of each other."""

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.types import Command, interrupt
from loopguard_langchain import LoopGuardCallbackHandler, LoopGuardMiddleware
from loopguard_langchain import LoopGuardStop as LangChainStop

from loopguard_core import Action

sys.path.insert(0, str(Path(__file__).parent))
scripted = importlib.import_module("scripted")

ASK, Counting, Scripted, Watched = scripted.ASK, scripted.Counting, scripted.Scripted, scripted.Watched

BOTH = pytest.mark.parametrize("how", ["invoke", "ainvoke"])
WAYS = pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream-updates", "astream-messages"])


class Failing(AgentMiddleware):
    """Raises in one hook, the second time it is called."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.calls = 0

        def fails(*_args: Any) -> None:
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("this middleware is broken")

        if hook.startswith("wrap"):

            def wrap(request, handler):
                fails()
                return handler(request)

            async def awrap(request, handler):
                fails()
                return await handler(request)

            setattr(self, hook, wrap)
            setattr(self, f"a{hook}", awrap)
        else:
            setattr(self, hook, lambda state, runtime: fails())


def failing(hook: str) -> Failing:
    """One of a class that has that hook: create_agent looks at the class to know which hooks there are."""

    def never(self, *_args: Any) -> Any:
        raise NotImplementedError

    names = (hook, f"a{hook}") if hook.startswith("wrap") else (hook,)
    return type("Failing", (Failing,), dict.fromkeys(names, never))(hook)


def both(policy: Any = "default", *, on_stop: str = "raise", **options: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    guard = Watched(policy)
    handler = LoopGuardCallbackHandler(guard, on_stop=on_stop)
    return guard, handler, LoopGuardMiddleware(guard, **options), {"callbacks": [handler]}


@WAYS
def test_handler_on_the_model_itself_leaves_the_run_to_the_middleware(how):
    """It sees model calls and no run around them."""
    counted = Counting()
    guard = Watched()
    handler = LoopGuardCallbackHandler(guard)
    model = Scripted(callbacks=[handler])
    graph = create_agent(model, [counted.tool], middleware=[LoopGuardMiddleware(guard)])
    scripted.run(graph, how, ASK)
    assert (counted.count, len(model.seen), guard.reasons) == (2, 6, ["doom_loop"])
    assert [event.streak for event in guard.loops] == [2, 3, 4, 5, 6]
    scripted.assert_nothing_left(handler)


@WAYS
@pytest.mark.parametrize("on_stop", ["raise", "drain"])
def test_every_round_counts_once(on_stop, how):
    lookup = Counting()
    guard, handler, middleware, config = both(on_stop=on_stop)
    graph = create_agent(Scripted(), [lookup.tool], middleware=[middleware], checkpointer=InMemorySaver())
    config["configurable"] = {"thread_id": "1"}
    scripted.run(graph, how, config=config)  # the middleware ends it gracefully
    assert [(e.streak, e.action) for e in guard.loops] == [
        (2, Action.OBSERVE),
        (3, Action.BLOCK),
        (4, Action.BLOCK),
        (5, Action.BLOCK),
        (6, Action.STOP),
    ]
    assert lookup.count == 2
    assert [(e.reason, e.turns, e.model_calls) for e in guard.ends] == [("doom_loop", 6, 6)]
    assert len(guard.calls) == 6
    assert scripted.well_formed(graph.get_state(config).values["messages"])
    scripted.assert_nothing_left(handler)


@BOTH
def test_middleware_that_raises_ends_once(how):
    guard, handler, middleware, config = both(exit_behavior="error")
    graph = create_agent(Scripted(), [Counting().tool], middleware=[middleware])
    with pytest.raises(LangChainStop):
        scripted.run(graph, how, config=config)
    assert guard.reasons == ["doom_loop"]
    scripted.assert_nothing_left(handler)


@WAYS
def test_healthy_run_ends_once(how):
    guard, handler, middleware, config = both()
    graph = create_agent(
        Scripted(script=scripted.healthy(9)), [Counting(lambda key: key).tool], middleware=[middleware]
    )
    scripted.run(graph, how, config=config)
    assert guard.loops == []
    assert [(e.reason, e.turns, e.model_calls) for e in guard.ends] == [("complete", 9, 10)]
    assert len(guard.calls) == 10
    scripted.assert_nothing_left(handler)


# -- runs that die where the middleware does not see it --------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("place", ["before ours", "after ours"])
@pytest.mark.parametrize("hook", ["before_model", "after_model", "wrap_model_call", "wrap_tool_call"])
def test_error_in_another_middleware(hook, place, how):
    guard, handler, middleware, config = both()
    listed = [failing(hook), middleware] if place == "before ours" else [middleware, failing(hook)]
    graph = create_agent(Scripted(script=scripted.healthy(9)), [Counting(lambda key: key).tool], middleware=listed)
    with pytest.raises(RuntimeError, match="broken"):
        scripted.run(graph, how, config=config)
    assert [(e.reason, e.error) for e in guard.ends] == [("error", "RuntimeError")]
    scripted.assert_nothing_left(handler)


@BOTH
def test_error_after_the_middleware_has_ended_its_session(how):
    """`after_agent` hooks run in reverse: the session is complete by then, and ends once."""

    class Breaks(AgentMiddleware):
        def after_agent(self, state, runtime):
            raise RuntimeError("too late")

    guard, handler, middleware, config = both()
    graph = create_agent(Scripted(script=scripted.healthy(1)), [Counting().tool], middleware=[Breaks(), middleware])
    with pytest.raises(RuntimeError, match="too late"):
        scripted.run(graph, how, config=config)
    assert guard.reasons == ["complete"]
    scripted.assert_nothing_left(handler)


@BOTH
def test_model_that_fails_below_another_middleware(how):
    """Ours is inside a retry: whether a failure is the end, only the handler sees."""

    def script(messages):
        if scripted.since_user(messages) == 2:
            raise ConnectionError("gone")
        return scripted.request(("lookup", {"key": str(len(messages))}))

    guard, handler, middleware, config = both()
    retry = ModelRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False, on_failure="error")
    graph = create_agent(Scripted(script=script), [Counting().tool], middleware=[retry, middleware])
    with pytest.raises(ConnectionError):
        scripted.run(graph, how, config=config)
    assert set(guard.reasons) == {"error"}
    assert guard.last_end.error == "ConnectionError"
    assert guard.last_end.model_calls == 2
    scripted.assert_nothing_left(handler)


@WAYS
def test_the_graphs_own_limit(how):
    guard, handler, middleware, config = both()
    graph = create_agent(
        Scripted(script=scripted.healthy(99)), [Counting(lambda key: key).tool], middleware=[middleware]
    )
    with pytest.raises(GraphRecursionError):
        scripted.run(graph, how, config={**config, "recursion_limit": 8})
    assert guard.reasons == ["max_turns"]
    scripted.assert_nothing_left(handler)


def test_cancelled_run():
    entered = asyncio.Event()

    @tool
    async def lookup(key: str) -> str:
        """Wait."""
        entered.set()
        await asyncio.Event().wait()
        return key

    guard, handler, middleware, config = both()

    async def main():
        graph = create_agent(Scripted(), [lookup], middleware=[middleware])
        running = asyncio.create_task(graph.ainvoke(ASK, config))
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert guard.reasons == ["cancelled"]
    scripted.assert_nothing_left(handler)


# -- company ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("place", ["before ours", "after ours"])
def test_model_calls_of_other_middleware_are_not_sessions(place, how):
    """A summary before the agent's first model call: nothing of the run is adopted yet if its hook comes first."""
    summary = Scripted(script=lambda _: AIMessage("It looked."))
    summarise = SummarizationMiddleware(model=summary, trigger=("messages", 3), keep=("messages", 2))
    guard, handler, middleware, config = both()
    listed = [summarise, middleware] if place == "before ours" else [middleware, summarise]
    graph = create_agent(Scripted(), [Counting().tool], middleware=listed)
    scripted.run(graph, how, {"messages": [("user", "a"), ("ai", "b"), ("user", "c")]}, config)
    assert summary.seen
    assert [(e.reason, e.turns) for e in guard.ends] == [("doom_loop", 6)]
    assert [e.streak for e in guard.loops] == [2, 3, 4, 5, 6]
    scripted.assert_nothing_left(handler)


@BOTH
def test_agents_inside_tools(how):
    """Both look after the inner agent as well, which is nested in the outer one, and its stop ends both."""
    guard, handler, _, config = both()
    inner = create_agent(Scripted(), [Counting().tool], middleware=[LoopGuardMiddleware(guard)], name="inner")

    @tool
    def delegate(key: str) -> str:
        """Hand over."""
        return str(inner.invoke({"messages": [("user", key)]})["messages"][-1].content)

    outer = create_agent(
        Scripted(script=scripted.healthy(9, name="delegate")),
        [delegate],
        middleware=[LoopGuardMiddleware(guard)],
        name="outer",
    )
    scripted.run(outer, how, config=config)
    inside, last = guard.ends
    assert (inside.agent, inside.parent_id, inside.reason) == ("inner", last.session_id, "doom_loop")
    assert (last.agent, last.parent_id, last.reason, last.turns) == ("outer", None, "doom_loop", 1)
    assert len(guard.loops) == 5
    scripted.assert_nothing_left(handler)


@BOTH
def test_model_inside_a_tool_belongs_to_the_run_the_middleware_looks_after(how):
    side = Scripted(script=lambda _: AIMessage("a summary", usage_metadata=scripted.request().usage_metadata))

    @tool
    def lookup(key: str) -> str:
        """Summarise."""
        return str(side.invoke(key).content)

    guard, handler, middleware, config = both()
    graph = create_agent(Scripted(script=scripted.looping(2)), [lookup], middleware=[middleware])
    scripted.run(graph, how, config=config)
    *inside, last = guard.ends
    assert [(e.parent_id, e.reason, e.turns) for e in inside] == [(last.session_id, "complete", 0)] * 2
    assert last.turns == 2
    assert last.usage.total_tokens == 2 * 15 + 2 * 15
    scripted.assert_nothing_left(handler)


@BOTH
def test_pause_and_resume(how):
    @tool
    def lookup(key: str) -> str:
        """Ask."""
        return str(interrupt("May I?"))

    guard, handler, middleware, config = both()
    graph = create_agent(
        Scripted(script=scripted.looping(2)), [lookup], middleware=[middleware], checkpointer=InMemorySaver()
    )
    config["configurable"] = {"thread_id": "1"}
    given: Any = ASK
    for _ in range(3):
        scripted.run(graph, how, given, config)
        given = Command(resume="yes")
    assert guard.reasons == ["paused", "paused", "complete"]
    assert len({e.session_id for e in guard.ends}) == 1
    assert [e.streak for e in guard.loops] == [2]
    scripted.assert_nothing_left(handler)


@BOTH
def test_interrupt_in_another_middleware_is_a_pause(how):
    """It happens in a node of its own, where ours has no hook."""

    class Asks(AgentMiddleware):
        def after_model(self, state, runtime):
            if state["messages"][-1].tool_calls:
                interrupt("May I?")

    guard, handler, middleware, config = both()
    graph = create_agent(
        Scripted(script=scripted.looping(1)),
        [Counting().tool],
        middleware=[middleware, Asks()],
        checkpointer=InMemorySaver(),
    )
    config["configurable"] = {"thread_id": "1"}
    scripted.run(graph, how, ASK, config)
    scripted.run(graph, how, Command(resume="yes"), config)
    assert guard.reasons == ["paused", "complete"]
    assert len({e.session_id for e in guard.ends}) == 1
    scripted.assert_nothing_left(handler)


@BOTH
def test_many_runs_at_once(how):
    lookup = Counting(lambda key: "nothing" if key.startswith("stuck") else f"line {key}")

    def script(messages):
        number = int(messages[0].content)
        return scripted.request(("lookup", {"key": f"stuck {number}"})) if number % 2 else scripted.healthy(6)(messages)

    guard, handler, middleware, config = both()
    graph = create_agent(Scripted(script=script), [lookup.tool], middleware=[middleware])
    given = [{"messages": [("user", str(number))]} for number in range(12)]
    if how == "invoke":
        graph.batch(given, config)
    else:
        asyncio.run(graph.abatch(given, config))
    assert sorted(guard.reasons) == ["complete"] * 6 + ["doom_loop"] * 6
    for event in guard.ends:
        streaks = [e.streak for e in guard.loops if e.session_id == event.session_id]
        assert streaks == ([] if event.reason == "complete" else [2, 3, 4, 5, 6])
    scripted.assert_nothing_left(handler)


# -- two guards ------------------------------------------------------------------------------------------------------


@BOTH
def test_different_guards_are_independent(how):
    lookup = Counting()
    theirs = Watched({"limits": {"turns": 3}})
    middleware = LoopGuardMiddleware(ours := Watched())
    handler = LoopGuardCallbackHandler(theirs)
    graph = create_agent(Scripted(), [lookup.tool], middleware=[middleware])
    with pytest.raises(LangChainStop) as stopped:
        scripted.run(graph, how, config={"callbacks": [handler]})
    assert stopped.value.reason == "max_turns"
    assert theirs.reasons == ["max_turns"]
    assert theirs.last_end.turns == 3
    assert [e.streak for e in theirs.loops] == [2, 3]
    assert [e.streak for e in ours.loops] == [2, 3]
    assert lookup.count == 2  # theirs observes the third round, ours blocks it
    scripted.assert_nothing_left(handler)


@BOTH
def test_graceful_end_of_the_one_completes_the_run_for_the_other(how):
    theirs = Watched()
    handler = LoopGuardCallbackHandler(theirs)
    middleware = LoopGuardMiddleware(ours := Watched({"limits": {"turns": 3}}))
    graph = create_agent(Scripted(), [Counting().tool], middleware=[middleware])
    scripted.run(graph, how, config={"callbacks": [handler]})
    assert ours.reasons == ["max_turns"]
    assert theirs.reasons == ["complete"]
    scripted.assert_nothing_left(handler)


def test_switched_off_guard_does_nothing():
    lookup = Counting()
    guard, handler, middleware, config = both({"enabled": False})
    create_agent(Scripted(script=scripted.looping(9)), [lookup.tool], middleware=[middleware]).invoke(ASK, config)
    assert lookup.count == 9
    assert guard.loops == guard.ends == guard.calls == []
    scripted.assert_nothing_left(handler)
