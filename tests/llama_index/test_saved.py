"""What a context keeps of a run is up to date whenever somebody reads it, though nothing is written each round."""

import copy
import json
import pickle
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.workflow import Context, JsonPickleSerializer, JsonSerializer
from loopguard_llama_index import guard_agent
from loopguard_llama_index._run import STORE_KEY, Attached, Run
from loopguard_llama_index_kit import Scripted, Watched, different

ROUNDS = 4


def turns(saved: Any) -> int:
    return saved["state"]["counters"]["turns"]


def stored(context: dict[str, Any]) -> Any:
    """What a serialised context has of the run, without any class of ours."""
    return json.loads(context["state"]["state_data"]["_data"][STORE_KEY])


async def watched_run(look: Any) -> list[Any]:
    """What `look` makes of the context in each round, from inside the tool of that round."""
    seen: list[Any] = []

    async def lookup(ctx: Context, key: str) -> str:
        """Look up."""
        seen.append(await look(handler.ctx, ctx))
        return f"result of {key}"

    agent = guard_agent(FunctionAgent(tools=[lookup], llm=Scripted(different(ROUNDS))), Watched())
    handler = agent.run("go")
    assert str(await handler) == "done"
    return seen


@pytest.mark.parametrize("serializer", [JsonSerializer, JsonPickleSerializer])
async def test_a_context_serialised_in_any_round_has_that_round(serializer: Any) -> None:
    async def look(outside: Context, ctx: Context) -> int:
        return turns(stored(outside.to_dict(serializer())))

    assert await watched_run(look) == [1, 2, 3, 4]


async def test_every_way_to_read_it_gives_what_holds_now() -> None:
    ways = {
        "by key": lambda saved: saved,
        "get": lambda saved: {"state": saved.get("state")},
        "items": lambda saved: {key: value for key, value in saved.items()},  # noqa: C416  # the very method
        "values": lambda saved: {"state": list(saved.values())[1]},
        "dict": dict,
        "unpacked": lambda saved: {**saved},
        "copied": copy.copy,
        "json": lambda saved: json.loads(json.dumps(saved)),
        "pickled": lambda saved: pickle.loads(pickle.dumps(saved)),
    }

    async def look(outside: Context, ctx: Context) -> dict[str, int]:
        saved = await ctx.store.get(STORE_KEY)
        return {name: turns(read(saved)) for name, read in ways.items()}

    assert await watched_run(look) == [dict.fromkeys(ways, number + 1) for number in range(ROUNDS)]


async def test_a_store_that_is_edited_does_not_let_go_of_it() -> None:
    async def look(outside: Context, ctx: Context) -> int:
        async with ctx.store.edit_state() as state:  # a copy of everything is put in the place of it
            state["mine"] = 1
        return turns(stored(outside.to_dict()))

    assert await watched_run(look) == [1, 2, 3, 4]


async def test_a_fault_while_it_is_read_is_not_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(outside: Context, ctx: Context) -> Any:
        with monkeypatch.context() as broken:
            broken.setattr("loopguard_core.Session.save", lambda self: 1 / 0)
            return turns(stored(outside.to_dict()))

    assert await watched_run(look) == [1, 1, 1, 1], "as it was when it was put there"


async def test_a_store_that_keeps_text_is_written_each_round() -> None:
    class Store:
        def __init__(self) -> None:
            self.texts: dict[str, str] = {}

        async def set(self, path: str, value: Any) -> None:
            self.texts[path] = json.dumps(value)

        async def get(self, path: str) -> Any:
            return json.loads(self.texts[path])

    class Kept:
        store = Store()

    run = Run(Attached(Watched(), "end"), "agent")
    for number in range(1, ROUNDS):
        asked = ToolSelection(tool_id=f"c{number}", tool_name="lookup", tool_kwargs={"key": f"K-{number}"})
        run.judge([asked], handoffs=False)
        await run.save(Kept())
        assert turns(await Kept.store.get(STORE_KEY)) == number
