"""Whatever a provider reports, however a model writes: no run ends of it, and no loop is hidden by it."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from agents import Agent, ModelSettings, Runner
from agents import Usage as SdkUsage
from agents import usage as sdk_usage
from loopguard_openai_agents import GuardedRunner, LoopGuardHooks, LoopGuardModel
from loopguard_openai_agents import _events as events
from loopguard_openai_agents import _run as run_module
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents import _turn as turn_module
from loopguard_openai_agents import hooks as hooks_module
from loopguard_openai_agents_kit import (
    OWN,
    Counted,
    Scripted,
    Watched,
    acaught,
    assert_well_formed,
    call,
    deaf,
    drain,
    say,
    tokens,
)

CAPPED = {"limits": {"cost": 5, "tokens": 10**9}}
UNKNOWN = {"usage without cost", "usage without tokens"}
"""What is said of a model call whose usage is not known. It is no fault."""

KEPT_AS = getattr(sdk_usage, "_RAW_USAGE_ATTRIBUTE", "_unknown_to_older_releases")
"""Where the SDK keeps the provider's own block of usage on a streamed response."""

every_surface = pytest.mark.parametrize("surface", ["runner", "hooks", "model"])
both_ways = pytest.mark.parametrize("way", ["run", "run_streamed"])


class OddModel(Scripted):
    """Reports what it is told to; the SDK takes the provider's own block of usage as it is."""

    def __init__(self, script, usage=None, raw=None):
        super().__init__(script)
        self.odd, self.raw = usage, raw

    def _usage(self):
        usage = tokens()
        for name, value in (self.odd or {}).items():
            object.__setattr__(usage, name, value)
        return usage

    async def get_response(self, *args, **kwargs):
        response = await super().get_response(*args, **kwargs)
        response.usage, response.raw_usage = self._usage(), self.raw
        return response

    async def stream_response(self, *args, **kwargs):
        async for event in super().stream_response(*args, **kwargs):
            if event.type == "response.completed":
                usage = event.response.usage
                for name, value in (self.odd or {}).items():
                    object.__setattr__(usage, name, value)
                object.__setattr__(event.response, KEPT_AS, self.raw)
            yield event


def ran(surface, way, model, guard, result="nothing", **options):
    """A run in each way to attach."""
    keeps = {"preserve_raw_usage": True} if hasattr(ModelSettings(), "preserve_raw_usage") else {}
    agent = Agent(name="A", model=model, tools=[Counted(result).tool], model_settings=ModelSettings(**keeps))
    runner, options = Runner, {"max_turns": 30, **options}
    if surface == "runner":
        runner, options["guard"] = GuardedRunner, guard
    elif surface == "hooks":
        options["hooks"] = LoopGuardHooks(guard)
    else:
        agent.model = LoopGuardModel(model, guard)

    async def once():
        if way == "run":
            return await acaught(runner.run(agent, "Where is it?", **options))
        return await drain(runner.run_streamed(agent, "Where is it?", **options))

    return asyncio.run(once())


def loop_is_seen(surface, way, model):
    """The run ends as that of a provider which reports nothing odd; the guard."""
    guard = Watched(CAPPED)
    ran(surface, way, model, guard)
    assert guard.reasons == ["doom_loop"]
    assert len(model.asked) == 6
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
@both_ways
@pytest.mark.parametrize("cost", NO_AMOUNTS.values(), ids=NO_AMOUNTS)
def test_a_cost_that_is_no_amount_is_unknown(surface, way, cost):
    guard = loop_is_seen(surface, way, OddModel(deaf(), raw={"cost": cost}))
    assert guard.ends[0].usage.cost is None
    assert guard.ends[0].usage.total_tokens == 6 * 120
    assert set(guard.faults.counts) == {"usage without cost"}


@every_surface
@both_ways
def test_a_cost_written_as_text_is_the_amount(surface, way):
    if way == "run_streamed" and not hasattr(sdk_usage, "_RAW_USAGE_ATTRIBUTE"):
        pytest.skip("this release keeps no usage of a streamed response")
    guard = loop_is_seen(surface, way, OddModel(deaf(), raw={"cost": "0.25"}))
    assert str(guard.ends[0].usage.cost) == "1.50"


@every_surface
@pytest.mark.parametrize("raw", ["n/a", [], 5, {"cost": {}}, SimpleNamespace(cost="n/a")], ids=range(5))
def test_an_odd_block_of_usage_is_unknown(surface, raw):
    guard = loop_is_seen(surface, "run", OddModel(deaf(), raw=raw))
    assert guard.ends[0].usage.cost is None


@every_surface
@both_ways
@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -10, "output_tokens": -5, "total_tokens": -15},
        {"input_tokens": 10**40, "output_tokens": 10**40, "total_tokens": 10**40},
        {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
    ],
    ids=["negative", "huge", "nothing"],
)
def test_token_counts_that_are_none_are_unknown(surface, way, usage):
    """Others do not get this far: the SDK's own usage takes whole numbers only."""
    used = loop_is_seen(surface, way, OddModel(deaf(), usage=usage)).ends[0].usage
    assert used.estimated or used.total_tokens is None


@every_surface
@pytest.mark.parametrize("details", [None, "none", [], {}], ids=["none", "text", "list", "mapping"])
def test_odd_details_of_usage_are_unknown(surface, details):
    class Details(OddModel):
        async def get_response(self, *args, **kwargs):
            response = await super().get_response(*args, **kwargs)
            shown = SdkUsage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
            # The SDK adds these up itself and needs its own there; what it passes on is another object.
            response.raw_usage = {"input_tokens_details": details, "cost": details}
            response.usage = shown
            return response

    guard = loop_is_seen(surface, "run", Details(deaf()))
    assert guard.ends[0].usage.total_tokens == 720


ARGUMENTS = {
    "broken": '{"key": ',
    "empty": "",
    "list": "[1, 2]",
    "text": '"key"',
    "number": "7",
    "nan": '{"key": NaN}',
    "deep": '{"key": ' + "[" * 300 + "]" * 300 + "}",
    "hostile": "[" * 100_000,
    "surrogate": '{"key": "\\udfff"}',
    "twice": '{"key": "a", "key": "b"}',
    "digits": '{"key": ' + "9" * 5_000 + "}",
}


@every_surface
@both_ways
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_odd_arguments_are_arguments(surface, way, kind):
    """The SDK answers some of them with an error of its own: a loop all the same."""
    numbers = itertools.count()
    model = OddModel(lambda _asked: [call(arguments=ARGUMENTS[kind], call_id=f"c{next(numbers)}")])
    guard = Watched(CAPPED)
    outcome = ran(surface, way, model, guard)
    assert not guard.faults.counts.keys() - UNKNOWN
    if len(model.asked) > 1:  # else the SDK ended the run itself
        assert (guard.reasons, len(model.asked)) == (["doom_loop"], 6), outcome


@every_surface
@pytest.mark.parametrize("content", [None, 5, "abc", [None], [5], [{"type": "output_text", "text": 5}]], ids=range(6))
def test_odd_content_hides_no_round(surface, content):
    def script(_asked):
        said = say("x")
        object.__setattr__(said, "content", content)
        return [said, call()]

    guard, model = Watched(CAPPED), OddModel(script)
    ran(surface, "run", model, guard)
    if len(model.asked) > 1:  # else the SDK ended the run itself
        assert (guard.reasons, len(model.asked)) == (["doom_loop"], 6)


# -- faults of ours ----------------------------------------------------------------------------------------------------


def broken(*_args, **_options):
    raise RuntimeError("a fault of ours")


BESIDE = [  # what detection does not need
    (translate, "usage_of"),
    (translate, "hosted_results"),
    (translate, "hints_of_tools"),
    (hooks_module, "tokens_sent"),
    (hooks_module, "tools_of"),
]
PARTS = [
    *BESIDE,
    (translate, "requests_of"),
    (translate, "outputs_in"),
    (run_module.Run, "record_results"),
    (run_module.Run, "judge"),
    (events, "response_of"),
    (turn_module, "to_cut"),
]


@every_surface
@both_ways
@pytest.mark.parametrize(
    ("where", "name"), [*BESIDE, (translate, "texts_of")], ids=[*(name for _, name in BESIDE), "texts_of"]
)
def test_a_fault_beside_detection_hides_no_loop(surface, way, where, name, monkeypatch):
    monkeypatch.setattr(where, name, broken)
    guard, model = Watched(CAPPED), OddModel(deaf())
    ran(surface, way, model, guard)
    assert (guard.reasons, len(model.asked)) == (["doom_loop"], 6)


@every_surface
@both_ways
@pytest.mark.parametrize(("where", "name"), PARTS, ids=[name for _, name in PARTS])
def test_a_fault_of_ours_ends_no_run(surface, way, where, name, monkeypatch, caplog):
    def script(asked):
        return [say("Again. " * 300), call(arguments='{"key": "SECRET-1"}')] if asked.number < 5 else [say("done")]

    monkeypatch.setattr(where, name, broken)
    policy = {"ladder": {"block": 2, "stop": 9}, "detectors": {"repeated_message": {"enabled": False}}}
    guard = Watched({**CAPPED, **policy})
    outcome = ran(surface, way, OddModel(script), guard)
    if outcome.error is None:
        assert outcome.output.startswith(("done", "Again", OWN))
        assert_well_formed(outcome.history)
    else:
        assert outcome.error.reason == "doom_loop"  # the text, which the hooks can only answer by raising
    assert "SECRET" not in caplog.text


@every_surface
def test_a_whole_response_is_cut_whatever_it_cost(surface):
    def script(asked):
        return [say("Again and again. " * 200 if asked.number == 1 else "done")]

    guard, model = Watched(CAPPED), OddModel(script, raw={"cost": "n/a"})
    outcome = ran(surface, "run", model, guard)
    assert outcome.error is None
    assert not guard.faults.counts.keys() - UNKNOWN
