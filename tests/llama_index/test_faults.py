"""Whatever breaks on our side, the run goes on; and what is missing is said with its remedy."""

import subprocess
import sys
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from loopguard_llama_index import LoopGuardStop, _hooks, _run, _scratchpad, _turn, guard_agent
from loopguard_llama_index_kit import Counted, Scripted, Watched, call, deaf, go


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a fault of ours")


async def abroken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (_run.Run, "judge", broken),
        (_run.Run, "start", broken),
        (_run.Run, "returned", broken),
        (_run.Run, "save", abroken),
        (_run.LoopDetectedEvent, "of", broken),
        (_scratchpad.Scratchpad, "tell", abroken),
        (_scratchpad.Scratchpad, "untell", abroken),
        (_scratchpad.Scratchpad, "entries", abroken),
        (_turn.translate, "usage_of", broken),
        (_turn.translate, "finish_reason", broken),
        (_turn.Turn, "_cuts", broken),
        (_hooks.registry, "started", broken),
    ],
)
async def test_a_fault_of_ours_ends_no_run(
    where: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(where, name, fault)
    guard = Watched({"ladder": {"steer": 2, "block": 4, "stop": 9}})
    llm = Scripted(lambda asked: [call(key="SECRET-1")] if asked.rounds < 6 else ["done"])
    ran = await go(guard_agent(FunctionAgent(tools=[Counted().tool], llm=llm), guard))
    assert (ran.text, ran.error) == ("done", None)
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("name", ["answer_calls", "last_words", "finish"])
async def test_a_run_that_cannot_be_closed_is_still_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, tool = Watched(), Counted()
    monkeypatch.setattr(_hooks, name, abroken)
    ran = await go(guard_agent(FunctionAgent(tools=[tool.tool], llm=Scripted(deaf())), guard))
    assert ran.error is None
    assert (len(tool.ran), guard.reasons) == (2, ["doom_loop"])
    assert len(guard.model_calls) == 6


def test_the_stop_survives_pickling() -> None:
    import pickle

    from loopguard_core import Stop

    stop = pickle.loads(pickle.dumps(LoopGuardStop(Stop("doom_loop", None, "[loopguard] ended"))))
    assert (stop.reason, str(stop)) == ("doom_loop", "[loopguard] ended")


def test_without_the_sdk_the_import_names_the_command() -> None:
    code = (
        "import sys\n"
        "sys.modules['llama_index'] = None\n"
        "try:\n    import loopguard_llama_index\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'loopguard-core[llama-index]'" in done.stdout
