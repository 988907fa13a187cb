"""`assert_no_loop`, the recorder, and the pytest fixtures around them."""

import json
import pathlib

import pytest

from loopguard_core import LoopGuard, ToolCall
from loopguard_core.testing import Recorder, assert_no_loop

pytest_plugins = ["pytester"]

BARE = ("-p", "no:cacheprovider", "-p", "no:asyncio")
CASES = pathlib.Path(__file__).parent.parent / "data" / "cases"


def looping(rounds: int) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
    for number in range(rounds):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "fetch", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "Error: timeout"})
    return messages


def test_a_healthy_conversation_passes() -> None:
    assert_no_loop(looping(2))
    assert_no_loop({"messages": looping(2)})
    assert_no_loop(CASES / "field-f01-poll-build-changing.json")


def test_a_loop_fails_and_the_text_says_where() -> None:
    with pytest.raises(AssertionError, match="round 3: block by repeated_call"):
        assert_no_loop(looping(4))


def test_the_policy_decides() -> None:
    assert_no_loop(looping(4), policy={"tools": {"fetch": {"loop_key": False}}})


def test_a_file_may_be_named_by_a_text(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(looping(6)))
    with pytest.raises(AssertionError):
        assert_no_loop(str(file))


def test_the_recorder_keeps_every_event() -> None:
    recorder = Recorder()
    with LoopGuard(plugins=[recorder]).session() as session:
        for _ in range(6):
            session.after_model_call()
            session.begin_round([ToolCall("c", "fetch", {})])
    assert recorder.ladder() == ["observe 2", "block 3", "block 4", "block 5", "stop 6"]
    assert [end.reason for end in recorder.ends] == ["doom_loop"]
    assert len(recorder.model_calls) == 6


def test_the_fixtures_are_there_without_an_import(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(assert_no_loop, loopguard_recorder):
            assert_no_loop([{"role": "user", "content": "hi"}])
            assert loopguard_recorder.loops == []
        """
    )
    pytester.runpytest(*BARE).assert_outcomes(passed=1)


def test_pytest_starts_without_the_core(pytester: pytest.Pytester) -> None:
    """It costs every start half a second, and coverage of the core, unless a fixture is asked for."""
    pytester.makepyfile(
        """
        import sys

        AT_START = "loopguard_core" in sys.modules

        def test_it(request):
            assert not AT_START
            assert "loopguard_core" not in sys.modules
            request.getfixturevalue("assert_no_loop")
            assert "loopguard_core" in sys.modules
        """
    )
    pytester.runpytest_subprocess(*BARE).assert_outcomes(passed=1)
