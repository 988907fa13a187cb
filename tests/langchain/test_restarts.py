"""Streams that break off and are asked for anew by other middleware: what came of the first one is in no message."""

import pytest
from langchain.agents.middleware import AgentMiddleware, ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from loopguard_langchain_models import (
    Counted,
    Say,
    ScriptedModel,
    StreamingModel,
    ask,
    assert_complete,
    call,
    guarded,
    run,
    sequence,
    settle,
    watched,
)

from loopguard_core import Detector, Finding, Ladder, hookimpl

STREAMED = ("stream-messages", "astream-messages")
ORDERS = ("ours first", "ours last")

streamed_ways = pytest.mark.parametrize("way", STREAMED)
both_orders = pytest.mark.parametrize("order", ORDERS)


class Reads(Detector):
    """Keeps the text of each complete message."""

    name = "reads"
    ladder = Ladder(observe=1)

    def __init__(self, kept):
        self.kept, self.text = kept, ""

    def begin_message(self):
        self.text = ""

    def feed_text(self, delta, channel) -> Finding | None:
        self.text += delta if channel == "content" else ""
        return None

    def end_message(self, finish_reason) -> Finding | None:
        self.kept.append(self.text.strip())
        self.text = ""
        return None


class Reading:
    """The plugin that adds it."""

    def __init__(self):
        self.texts = []

    @hookimpl
    def detectors(self, policy):
        return [Reads(self.texts)]


class Breaking(StreamingModel):
    """Its first streams break off in the middle."""

    breaks: int = 1

    def _stream(self, messages, stop=None, run_manager=None, **options):
        if self.calls < self.breaks:
            self._say(messages, options)
            yield ChatGenerationChunk(message=AIMessageChunk(content="never "))
            yield ChatGenerationChunk(message=AIMessageChunk(content="said"))
            raise ConnectionError("broken off")
        yield from super()._stream(messages, stop, None, **options)

    async def _astream(self, messages, stop=None, run_manager=None, **options):
        for piece in self._stream(messages, stop, None, **options):
            yield piece


def retry():
    return ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)


def reading(model, other, order, policy=None, **options):
    reads, lookup = Reading(), Counted()
    seen = watched(policy, plugins=[reads])
    places = {"ours first": lambda ours: [ours, other], "ours last": lambda ours: [other, ours]}
    return reads, lookup, seen, guarded(model, [lookup], seen, middleware=places[order], **options)


@streamed_ways
@both_orders
@pytest.mark.parametrize("breaks", [1, 3])
def test_a_retry_writes_the_message_anew(way, order, breaks):
    model = Breaking(script=sequence(*[Say("x")] * breaks, Say("the answer")), breaks=breaks)
    reads, _, seen, agent = reading(model, retry(), order)
    assert_complete(run(agent, ask(), way)["messages"])
    settle(seen)
    assert reads.texts == ["the answer"]
    assert seen.ends[-1].reason == "complete"
    assert seen.ends[-1].model_calls == 1


@streamed_ways
@both_orders
@pytest.mark.parametrize("kind", [ScriptedModel, StreamingModel])
def test_another_model_writes_the_message_anew(way, order, kind):
    spare = kind(script=sequence(Say("", (call(key="a"),)), then="by the other one"))
    model = Breaking(script=sequence(), breaks=99)
    reads, _, seen, agent = reading(model, ModelFallbackMiddleware(spare), order)
    assert_complete(run(agent, ask(), way)["messages"])
    settle(seen)
    assert reads.texts == ["", "by the other one"]
    assert seen.ends[-1].model_calls == 2


@streamed_ways
@both_orders
def test_an_escalated_turn_that_is_tried_again_stays_escalated(way, order):
    """It breaks off once. Tried again inside of us it is still asked; around us the usual model goes on."""
    strong = Breaking(script=sequence(Say("x"), Say("by the strong one")), breaks=1, model_name="strong")
    weak = StreamingModel(script=sequence(*[Say("", (call(key="k"),))] * 2, then="by the weak one"))
    ladder = {"ladder": {"escalate": 2, "block": False, "stop": 9}}
    reads, _, seen, agent = reading(weak, retry(), order, ladder, escalate_model=strong)
    result = run(agent, ask(), way)
    assert_complete(result["messages"])
    settle(seen)
    expected = "by the strong one" if order == "ours first" else "by the weak one"
    assert result["messages"][-1].text.strip() == expected
    assert reads.texts[-1] == expected
    assert not any("never" in text for text in reads.texts)


class MadeUp(AgentMiddleware):
    """Answers in the model's place when that fails."""

    def wrap_model_call(self, request, handler):
        from langchain_core.messages import AIMessage

        try:
            return handler(request)
        except ConnectionError:
            return AIMessage("made up")

    async def awrap_model_call(self, request, handler):
        from langchain_core.messages import AIMessage

        try:
            return await handler(request)
        except ConnectionError:
            return AIMessage("made up")


@streamed_ways
def test_an_answer_in_the_models_place_is_read_instead(way):
    reads, _, _, agent = reading(Breaking(script=sequence(), breaks=9), MadeUp(), "ours first")
    assert_complete(run(agent, ask(), way)["messages"])
    assert reads.texts == ["made up"]
