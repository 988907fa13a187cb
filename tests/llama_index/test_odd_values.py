"""Whatever a provider reports, however a model writes: no run ends of it, and no loop is hidden by it."""

from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index_instrumentation import get_dispatcher
from loopguard_llama_index import LoopGuardEventHandler, guard_agent, guard_tool
from loopguard_llama_index import _translate as translate
from loopguard_llama_index_kit import USAGE, Counted, Scripted, Watched, call, deaf, go
from loopguard_llama_index_workflow_drivers import OwnLoop
from pydantic import PrivateAttr

pytestmark = pytest.mark.filterwarnings("ignore")  # LlamaIndex warns of each odd value it passes on

CAPPED = {"limits": {"cost": 5, "tokens": 10**9}}
UNKNOWN = {"usage without cost", "usage without tokens"}
"""What is said of a model call whose usage is not known. It is no fault."""


class OddModel(Scripted):
    """Its provider's response may be anything."""

    _given: Any = PrivateAttr()

    def __init__(self, script: Any, raw: Any) -> None:
        super().__init__(script)
        self._given = raw

    def _raw(self) -> Any:
        return self._given


async def agent(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    return await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=llm), guard))


async def whole(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    return await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=llm, streaming=False), guard))


async def workflow(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    return await go(guard_agent(AgentWorkflow(agents=[FunctionAgent(tools=[tool.tool], llm=llm)]), guard))


async def tools(llm: Scripted, tool: Counted, guard: Watched) -> Any:
    try:
        return await OwnLoop(llm, [guard_tool(tool.tool, guard)], True).run(query="go")
    except Exception as error:  # noqa: BLE001
        return error


every_surface = pytest.mark.parametrize("surface", [agent, whole, workflow, tools])


async def loop_is_seen(surface: Any, raw: Any) -> Watched:
    """The run ends as that of a provider which reports nothing odd; the guard."""
    guard, llm = Watched(CAPPED), OddModel(deaf(), raw)
    await surface(llm, Counted(), guard)
    assert (guard.reasons, llm.calls) == (["doom_loop"], 6)
    assert set(guard.faults.counts) <= UNKNOWN
    return guard


NO_AMOUNTS = {
    "text": "n/a",
    "word": "free",
    "empty": "",
    "none": None,
    "bool": True,
    "negative": -1,
    "negative text": "-0.5",
    "nan": float("nan"),
    "infinite": float("inf"),
    "exponent": "1e999999",
    "huge": 10**5000,
    "object": {"usd": 1},
    "list": [],
}


@every_surface
@pytest.mark.parametrize("cost", NO_AMOUNTS.values(), ids=NO_AMOUNTS)
async def test_a_cost_that_is_no_amount_is_unknown(surface: Any, cost: Any) -> None:
    guard = await loop_is_seen(surface, {"usage": {**USAGE, "cost": cost}})
    assert guard.ends[0].usage.cost is None
    assert guard.ends[0].usage.total_tokens == 6 * 120
    assert set(guard.faults.counts) == {"usage without cost"}


@every_surface
async def test_a_cost_written_as_text_is_the_amount(surface: Any) -> None:
    guard = await loop_is_seen(surface, {"usage": {**USAGE, "cost": "0.25"}})
    assert str(guard.ends[0].usage.cost) == "1.50"


class Rude:
    """A provider's object that cannot say what it used."""

    @property
    def usage(self) -> Any:
        raise RuntimeError("not known")

    usage_metadata = choices = model = usage


ODD = {
    "text": {"usage": "n/a"},
    "list": {"usage": [1, 2]},
    "number": {"usage": 7},
    "texts": {"usage": {"prompt_tokens": "10", "completion_tokens": "5", "total_tokens": "15"}},
    "none": {"usage": dict.fromkeys(USAGE)},
    "negative": {"usage": dict.fromkeys(USAGE, -5)},
    "fraction": {"usage": dict.fromkeys(USAGE, 2.5)},
    "nan": {"usage": dict.fromkeys(USAGE, float("nan"))},
    "huge": {"usage": dict.fromkeys(USAGE, 10**5000)},
    "bool": {"usage": dict.fromkeys(USAGE, True)},
    "details": {"usage": {"prompt_tokens_details": "none", "completion_tokens_details": [1]}},
    "choices": {"usage": None, "choices": [None], "model": 5, "stop_reason": ["x"]},
    "more choices": {"choices": {"a": 1}, "usage_metadata": 0},
    "text alone": "a text",
    "nothing": None,
    "object": SimpleNamespace(usage=SimpleNamespace(prompt_tokens="x", cost="free")),
    "rude": Rude(),
}


@every_surface
@pytest.mark.parametrize("kind", ODD)
async def test_token_counts_that_are_none_are_unknown(surface: Any, kind: str) -> None:
    guard = await loop_is_seen(surface, ODD[kind])
    used = guard.ends[0].usage
    assert used.estimated or used.total_tokens is None


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ARGUMENTS = {
    "set": {1, 2},
    "bytes": b"\xff",
    "object": print,
    "nan": float("nan"),
    "huge": 10**400,
    "keys": {("a", 1): 2, None: 3},
    "deep": nested(100),
    "surrogate": "\udfff",
}


@every_surface
@pytest.mark.parametrize("kind", ARGUMENTS)
async def test_odd_arguments_are_arguments(surface: Any, kind: str) -> None:
    guard, llm = Watched(CAPPED), Scripted(lambda _asked: [call(key=ARGUMENTS[kind])])
    outcome = await surface(llm, Counted(), guard)
    assert not guard.faults.counts.keys() - UNKNOWN
    assert (guard.reasons, llm.calls) == (["doom_loop"], 6), outcome


@pytest.mark.parametrize("given", ["[1, 2]", '"text"', "7", "{", "", "[" * 100_000], ids=range(6))
async def test_arguments_that_are_no_object_are_a_round_for_a_handler_too(given: str) -> None:
    """The LLM classes make no arguments of them; the handler reads the same."""
    guard = Watched()
    get_dispatcher().add_event_handler(LoopGuardEventHandler(guard))

    def script(_asked: Any) -> list[Any]:
        return [ToolCallBlock(tool_call_id=None, tool_name="lookup", tool_kwargs=given)]

    class Parsing(Scripted):
        def get_tool_calls_from_response(self, response: Any, error_on_no_tool_call: bool = True, **_: Any) -> Any:
            return [
                ToolSelection(tool_id="c", tool_name=block.tool_name, tool_kwargs={})
                for block in response.message.blocks
                if isinstance(block, ToolCallBlock)
            ]

    await go(FunctionAgent(tools=[Counted().tool], llm=Parsing(script)), max_iterations=7)
    assert guard.faults.counts == {}
    assert [event.action.value for event in guard.loops][-1] == "stop"


# -- faults of ours ----------------------------------------------------------------------------------------------------


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("surface", [agent, whole, workflow])
@pytest.mark.parametrize("name", ["usage_of", "arguments_in", "finish_reason", "texts_of", "sent_tokens", "max_tokens"])
async def test_a_fault_beside_detection_hides_no_loop(surface: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, name, broken)
    guard, llm = Watched(CAPPED), Scripted(deaf())
    outcome = await surface(llm, Counted(), guard)
    assert (guard.reasons, llm.calls, outcome.error) == (["doom_loop"], 6, None)


@pytest.mark.parametrize("cost", ["n/a", 0.1])
async def test_a_whole_response_is_cut_whatever_it_cost(cost: Any) -> None:
    def script(asked: Any) -> list[Any]:
        return ["Let me check that again. " * 60 if asked.number == 1 else "done"]

    guard = Watched(CAPPED)
    outcome = await whole(OddModel(script, {"usage": {**USAGE, "cost": cost}}), Counted(), guard)
    assert (outcome.text, outcome.error) == ("done", None)
    assert guard.actions == [(1, "steer")]
    assert not guard.faults.counts.keys() - UNKNOWN


# -- estimates ---------------------------------------------------------------------------------------------------------


def test_tools_that_come_one_after_another_in_the_same_place_are_told_apart() -> None:
    for length in (30, 30_000, 300):
        tool = Counted(name="x" * length).tool
        assert length // 3 < translate.tool_sizes.of([tool]) < length // 3 + 200
        del tool
