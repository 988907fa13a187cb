"""Whatever a provider reports, however a model writes: no run ends of it, and no loop is hidden by it."""

import operator

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langgraph.errors import GraphDrained
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from loopguard_langchain import (
    LoopGuardCallbackHandler,
    LoopGuardMiddleware,
    LoopGuardStop,
    async_tool_call_wrapper,
    tool_call_wrapper,
)
from loopguard_langchain import _invocations as invocations
from loopguard_langchain import _model_call as model_call
from loopguard_langchain import _rounds as rounds
from loopguard_langchain import _text as text
from loopguard_langchain import _translate as translate
from loopguard_langchain_models import (
    OWN,
    Counted,
    Say,
    ScriptedModel,
    StreamingModel,
    ask,
    assert_complete,
    both_ways,
    call,
    deaf,
    guarded,
    run,
    watched,
)

CAPPED = {"limits": {"cost": 5, "tokens": 10**9}}
UNKNOWN = {"usage without cost", "usage without tokens"}
"""What is said of a model call whose usage is not known. It is no fault."""


class OddModel(ScriptedModel):
    """Asks for the same call for ever; every field of its messages may be anything."""

    fields: dict

    def _say(self, messages, options):
        message = super()._say(messages, options)
        for name, value in self.fields.items():
            object.__setattr__(message, name, value(message) if callable(value) else value)
        return message


def graph(model, tool, **options):
    built = StateGraph(MessagesState)

    async def anode(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    built.add_node("agent", RunnableLambda(lambda state: {"messages": [model.invoke(state["messages"])]}, anode))
    built.add_node("tools", ToolNode([tool], **options))
    built.add_edge(START, "agent")
    built.add_conditional_edges("agent", tools_condition)
    built.add_edge("tools", "agent")
    return built.compile()


def with_middleware(model, tool, guard):
    return create_agent(model, [tool], middleware=[LoopGuardMiddleware(guard)]), {}


def with_handler(model, tool, guard):
    handler = LoopGuardCallbackHandler(guard)
    return graph(model, tool), {"callbacks": [handler]}


def with_wrapper(model, tool, guard):
    wrappers = {"wrap_tool_call": tool_call_wrapper(guard), "awrap_tool_call": async_tool_call_wrapper(guard)}
    return graph(model, tool, **wrappers), {}


every_surface = pytest.mark.parametrize("surface", [with_middleware, with_handler, with_wrapper])


def loop_is_seen(surface, way, fields, policy=None, result="nothing found"):
    """The run ends as that of a provider which reports nothing odd; the guard."""
    seen, model = watched(CAPPED if policy is None else policy), OddModel(script=deaf(), fields=fields)
    agent, config = surface(model, Counted(result).tool, seen.guard)
    try:
        run(agent, ask(), way, config)
    except (LoopGuardStop, GraphDrained):
        assert surface is not with_middleware
    assert seen.reasons == ["doom_loop"]
    assert model.calls == 6
    assert seen.live == 0
    for handler in config.get("callbacks", ()):
        assert len(handler._tree) == 0
    return seen


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
@both_ways
@pytest.mark.parametrize("cost", NO_AMOUNTS.values(), ids=NO_AMOUNTS)
def test_a_cost_that_is_no_amount_is_unknown(surface, way, cost):
    seen = loop_is_seen(surface, way, {"response_metadata": {"token_usage": {"cost": cost}}})
    assert seen.ends[0].usage.cost is None
    assert seen.ends[0].usage.total_tokens == 6 * 15
    assert set(seen.guard.faults.counts) == {"usage without cost"}


@every_surface
def test_a_cost_written_as_text_is_the_amount(surface):
    seen = loop_is_seen(surface, "invoke", {"response_metadata": {"token_usage": {"cost": "0.25"}}})
    assert str(seen.ends[0].usage.cost) == "1.50"


USAGE = [
    {"input_tokens": "10", "output_tokens": "5", "total_tokens": "15"},
    {"input_tokens": None, "output_tokens": None, "total_tokens": None},
    {"input_tokens": -10, "output_tokens": -5, "total_tokens": -15},
    {"input_tokens": 10.5, "output_tokens": float("nan"), "total_tokens": float("inf")},
    {"input_tokens": 10**40, "output_tokens": 10**40, "total_tokens": 10**5000},
    {"input_token_details": [], "output_token_details": "none"},
    {"input_tokens": {"text": 5}, "output_tokens": [5], "total_tokens": True},
    [],
    "none",
    7,
]


@every_surface
@both_ways
@pytest.mark.parametrize("usage", USAGE, ids=range(len(USAGE)))
def test_token_counts_that_are_none_are_unknown(surface, way, usage):
    seen = loop_is_seen(surface, way, {"usage_metadata": usage, "response_metadata": {"token_usage": usage}})
    used = seen.ends[0].usage
    assert used.estimated or used.total_tokens is None
    assert set(seen.guard.faults.counts) <= UNKNOWN


@every_surface
@pytest.mark.parametrize("usage", [{"input_tokens": 10.0, "output_tokens": 5.0}, {"total_tokens": 15.0}])
def test_whole_floats_are_counts(surface, usage):
    seen = loop_is_seen(surface, "invoke", {"usage_metadata": usage})
    assert seen.ends[0].usage.total_tokens == 90


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def around():
    value = []
    value.append(value)
    return value


ARGUMENTS = {
    "set": {1, 2},
    "bytes": b"\xff",
    "object": operator,
    "nan": float("nan"),
    "huge": 10**400,
    "keys": {("a", 1): 2, None: 3},
    "deep": nested(200),
    "circular": around(),
    "surrogate": "\udfff",
}


@every_surface
@both_ways
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_odd_arguments_are_arguments(surface, way, kind):
    def calls(message):
        return [{**each, "args": {"key": ARGUMENTS[kind]}} for each in message.tool_calls]

    class Anything(Counted):
        def __init__(self):
            def body(key: object = None) -> str:
                return "nothing found"

            super().__init__()
            self.tool = type(self.tool).from_function(body, name="lookup", description="The tool lookup.")

    seen = watched(CAPPED)
    model = OddModel(script=deaf(), fields={"tool_calls": calls})
    agent, config = surface(model, Anything().tool, seen.guard)
    try:
        run(agent, ask(), way, config)
    except (LoopGuardStop, GraphDrained):
        assert surface is not with_middleware
    assert (seen.reasons, model.calls) == (["doom_loop"], 6)
    assert set(seen.guard.faults.counts) <= UNKNOWN


CONTENT = [
    [{"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": 5}, {}],
    [{"type": "reasoning", "reasoning": 5, "summary": "none"}, {"type": "thinking", "thinking": ["a"]}],
    [{"type": 5}, {"type": None, "text": "x"}, ""],
]


@every_surface
@both_ways
@pytest.mark.parametrize("content", CONTENT, ids=range(len(CONTENT)))
def test_odd_content_is_read_as_far_as_it_is_text(surface, way, content):
    more = {"additional_kwargs": {"reasoning_content": 5, "reasoning": {"summary": [None, {"text": 5}]}}}
    policy = {**CAPPED, "detectors": {"repeated_message": {"enabled": False}}}
    seen = loop_is_seen(surface, way, {"content": content, **more}, policy, result=lambda _n, _key: "nothing found")
    assert set(seen.guard.faults.counts) <= UNKNOWN


# -- faults of ours --------------------------------------------------------------------------------------------------


def broken(*_args, **_options):
    raise RuntimeError("a fault of ours")


PARTS = [
    (invocations.Invocations, "start"),
    (invocations.Invocations, "of"),
    (invocations.Invocations, "update"),
    (invocations.Invocations, "forget"),
    (translate, "last_round"),
    (translate, "usage_of"),
    (translate, "tokens_of"),
    (translate, "model_name"),
    (translate, "model_of"),
    (translate, "max_tokens"),
    (translate, "finish_reason_of"),
    (translate, "calls_of"),
    (translate, "annotate"),
    (text, "texts_of"),
    (text, "sent_tokens"),
    (text, "estimated_usage"),
    (model_call, "tapped"),
    (rounds, "answers"),
    (rounds, "judged"),
    (rounds, "refusal"),
    (rounds, "hands_over"),
]
part = pytest.mark.parametrize(("where", "name"), PARTS, ids=[name for _, name in PARTS])


@both_ways
@part
@pytest.mark.parametrize("streams", [False, True])
def test_a_fault_of_ours_ends_no_run(way, where, name, streams, monkeypatch, caplog):
    model = (StreamingModel if streams else ScriptedModel)(
        script=lambda messages, _n: Say("Again. " * 300, (call(key="SECRET-1"),)) if len(messages) < 9 else Say("done")
    )
    agent = guarded(model, [Counted()], watched({**CAPPED, "text": {"retries": 1}, "ladder": {"block": 2, "stop": 9}}))
    monkeypatch.setattr(where, name, broken)
    result = run(agent, ask(), way)
    assert_complete(result["messages"])
    assert result["messages"][-1].text.startswith(("done", "Again", OWN))
    assert "SECRET" not in caplog.text


BESIDE = [  # what detection does not need
    (translate, "usage_of"),
    (translate, "tokens_of"),
    (translate, "model_name"),
    (translate, "model_of"),
    (translate, "max_tokens"),
    (translate, "annotate"),
    (text, "sent_tokens"),
    (model_call, "tapped"),
    (rounds, "answers"),
]


@both_ways
@pytest.mark.parametrize(("where", "name"), BESIDE, ids=[name for _, name in BESIDE])
@every_surface
def test_a_fault_about_money_hides_no_loop(surface, way, where, name, monkeypatch):
    monkeypatch.setattr(where, name, broken)
    loop_is_seen(surface, way, {})


@both_ways
@pytest.mark.parametrize("name", ["texts_of", "usage_of", "finish_reason_of"])
def test_a_handler_lets_go_of_every_run_whatever_cannot_be_read(way, name, monkeypatch):
    where = text if name == "texts_of" else translate
    monkeypatch.setattr(where, name, broken)
    loop_is_seen(with_handler, way, {})


def test_a_handler_lets_go_of_calls_that_could_not_be_judged(monkeypatch):
    """In a loop written by hand nothing around a model call ends later."""
    guard = watched().guard
    handler, model = LoopGuardCallbackHandler(guard), ScriptedModel(script=deaf())
    monkeypatch.setattr(translate, "calls_of", broken)
    for _ in range(5):
        model.invoke("Find it.", {"callbacks": [handler]})
    assert guard.faults.counts == {"LoopGuardCallbackHandler.on_llm_end": 5}
    assert len(handler._tree) == 0


# -- estimates -------------------------------------------------------------------------------------------------------


def sized(length):
    """Tokens of a tool that is gone when this returns, so that the next one may get its place."""
    return text.sent_tokens([], [{"d": "x" * length}])


def test_tools_that_come_one_after_another_in_the_same_place_are_told_apart():
    for length in (30, 30_000, 300):
        assert length // 3 < sized(length) < length // 3 + 10
        tool = Counted(name="lookup").tool
        tool.description = "x" * length
        assert length // 3 < text.sent_tokens([], [tool]) < length // 3 + 100
        del tool


def test_requests_with_tools_of_their_own_are_told_apart():
    assert [sized(length) for length in (30, 30_000, 300)] == [13, 10_003, 103]
