"""`loop_guard_callback`: everything in a block is watched, and whatever else is attached, it counts once."""

import asyncio
import importlib
import sys
from pathlib import Path

import pytest
from langchain_core.runnables import RunnableLambda
from loopguard_langchain import LoopGuardCallbackHandler, guard_tools, loop_guard_callback

from loopguard_core import LoopGuardStop, current_session

sys.path.insert(0, str(Path(__file__).parent))
scripted = importlib.import_module("scripted")

ASK, Counting, Scripted, Watched = scripted.ASK, scripted.Counting, scripted.Scripted, scripted.Watched
LADDER = ["observe 2", "observe 3", "observe 4", "observe 5", "stop 6"]


def ladder(guard):
    return [f"{event.action.value} {event.streak}" for event in guard.loops]


def run(how, model, tool, config=None):
    if how == "invoke":
        return scripted.hand_loop(model, tool, config)
    return asyncio.run(scripted.ahand_loop(model, tool, config))


@pytest.fixture
def guard():
    return Watched()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
class TestBlock:
    def test_a_hand_loop_needs_no_config(self, guard, how):
        counted = Counting()
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard):
            run(how, Scripted(), counted.tool)
        assert (counted.count, ladder(guard), guard.reasons) == (5, LADDER, ["doom_loop"])

    def test_so_does_a_graph(self, guard, how):
        counted = Counting()
        graph = scripted.raw_graph(Scripted(), [counted.tool])
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard):
            graph.invoke(ASK) if how == "invoke" else asyncio.run(graph.ainvoke(ASK))
        assert (ladder(guard), guard.reasons) == (LADDER, ["doom_loop"])

    def test_after_the_block_nothing_is_watched(self, guard, how):
        with loop_guard_callback(guard):
            pass
        run(how, Scripted(script=scripted.looping(9)), Counting().tool)
        assert (guard.loops, guard.ends) == ([], [])

    def test_the_end_of_the_block_ends_the_loops_in_it(self, guard, how):
        model = Scripted()
        with pytest.raises(ZeroDivisionError), loop_guard_callback(guard):  # noqa: PT012
            model.invoke("hello") if how == "invoke" else asyncio.run(model.ainvoke("hello"))
            raise ZeroDivisionError
        assert guard.reasons == ["error"]

    def test_blocks_in_one_another_count_once(self, guard, how):
        counted = Counting()
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard), loop_guard_callback(guard):
            run(how, Scripted(), counted.tool)
        assert (ladder(guard), guard.reasons) == (LADDER, ["doom_loop"])


class TestTwice:
    """The same guard, attached more than once."""

    def check(self, guard, counted):
        assert (counted.count, ladder(guard), guard.reasons) == (5, LADDER, ["doom_loop"])
        assert len(guard.calls) == 6
        assert not guard.faults.counts

    def test_the_same_handler_in_the_config_too(self, guard):
        counted = Counting()
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard) as handler:
            run("invoke", Scripted(), counted.tool, {"callbacks": [handler]})
        self.check(guard, counted)

    def test_another_handler_in_the_config_too(self, guard):
        counted = Counting()
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard):
            run("invoke", Scripted(), counted.tool, {"callbacks": [LoopGuardCallbackHandler(guard)]})
        self.check(guard, counted)

    def test_one_inherited_and_one_on_the_model(self, guard):
        counted = Counting()
        graph = scripted.raw_graph(Scripted(callbacks=[LoopGuardCallbackHandler(guard)]), [counted.tool])
        with pytest.raises(LoopGuardStop):
            graph.invoke(ASK, {"callbacks": [LoopGuardCallbackHandler(guard)]})
        self.check(guard, counted)

    @pytest.mark.parametrize("same", [True, False])
    def test_one_bound_and_one_given(self, guard, same):
        """LangChain joins the two lists, even if both hold one and the same handler."""
        counted = Counting()
        first = LoopGuardCallbackHandler(guard)
        second = first if same else LoopGuardCallbackHandler(guard)
        graph = scripted.raw_graph(Scripted(), [counted.tool]).with_config(callbacks=[first])
        with pytest.raises(LoopGuardStop):
            graph.invoke(ASK, {"callbacks": [second]})
        self.check(guard, counted)
        assert len(first._tree) == len(second._tree) == 0

    def test_guarded_tools_ask_whichever_follows_the_run(self, guard):
        counted = Counting()
        (tool,) = guard_tools([counted.tool], guard)
        both = [LoopGuardCallbackHandler(guard), LoopGuardCallbackHandler(guard)]
        with pytest.raises(LoopGuardStop):
            RunnableLambda(lambda _: run("invoke", Scripted(), tool)).invoke("", {"callbacks": both})
        assert (counted.count, guard.reasons) == (2, ["doom_loop"])

    def test_handlers_of_different_guards_both_count(self, guard):
        other = Watched({"ladder": {"stop": False}})
        with pytest.raises(LoopGuardStop), loop_guard_callback(guard):
            run("invoke", Scripted(), Counting().tool, {"callbacks": [LoopGuardCallbackHandler(other)]})
        assert ladder(guard) == LADDER
        assert ladder(other)[:4] == LADDER[:4]
        assert current_session() is None, "they are told of a tool's end in the order of its start"


def test_tasks_do_not_see_each_others_block(guard):
    other = Watched()

    async def loop(watched, rounds):
        with loop_guard_callback(watched):
            await scripted.ahand_loop(Scripted(script=scripted.healthy(rounds)), Counting().tool)

    async def both():
        await asyncio.gather(loop(guard, 3), loop(other, 5))

    asyncio.run(both())
    assert ([end.turns for end in guard.ends], [end.turns for end in other.ends]) == ([3], [5])


def test_left_in_another_context(guard):
    """As when pytest runs the two halves of an async fixture."""

    async def halves():
        block = loop_guard_callback(guard)
        await asyncio.create_task(asyncio.to_thread(block.__enter__))
        block.__exit__(None, None, None)

    asyncio.run(halves())


def test_what_on_stop_must_be(guard):
    with pytest.raises(ValueError, match="on_stop"), loop_guard_callback(guard, on_stop="end"):
        pass
