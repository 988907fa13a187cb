"""What a policy says of one tool: traits, maskers and result keys; and what an MCP server says of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from scripted_rounds import Run, actions, first_at, only

from loopguard_core import Policy, PolicyError

MUTATION = {"observe": 2, "block": 3, "stop": 4}
REPEAT = {"observe": 2, "block": 3, "stop": 6}
POLL = {"observe": 6, "steer": 12, "block": 30}


def repeating(
    settings: dict[str, Any], results: Any = "text", times: int = 7, hints: Any = None, tool: str = "frobnicate"
) -> dict[str, int]:
    """When each action is first taken, where a tool with these settings is asked for again and again."""
    run = Run(only("repeated_call", tools={tool: settings}))
    results = results if callable(results) else (lambda _, same=results: same)
    return first_at(actions([run(tool, {"path": "a"}, results(number), hints=hints) for number in range(times)]))


class TestTraits:
    @pytest.mark.parametrize(
        ("traits", "expected", "times"),
        [
            ([], REPEAT, 7),
            (["reads"], REPEAT, 7),
            (["mutates"], MUTATION, 7),
            (["polls"], POLL, 31),
            (["reads", "polls"], POLL, 31),
            (["waits"], {}, 20),
            (["exempt"], {}, 20),
        ],
    )
    def test_each(self, traits: list[str], expected: dict[str, int], times: int) -> None:
        assert repeating({"traits": traits}, times=times) == expected

    def test_they_beat_the_name(self) -> None:
        assert repeating({"traits": ["reads"]}, tool="send_email") == REPEAT
        assert repeating({"traits": ["mutates"]}, tool="read_file") == MUTATION
        assert repeating({"traits": []}, tool="send_email") == REPEAT, "none is also said"

    def test_they_beat_arguments_and_results(self) -> None:
        run = Run(only("repeated_call", tools={"bash": {"traits": ["reads"]}}))
        assert first_at(actions([run("bash", {"command": "sleep 5"}, "x") for _ in range(4)])) == {
            "observe": 2,
            "block": 3,
        }
        assert repeating({"traits": ["reads"]}, '{"status": "running"}') == REPEAT

    def test_a_declared_mutation_is_an_epoch(self) -> None:
        run = Run(only("repeated_call", tools={"frobnicate": {"traits": ["mutates"]}}))
        found = []
        for number in range(8):
            found.append(run("run_tests", {}, "3 failed"))
            run("frobnicate", {"n": number}, f"frobnicated {number}")
        assert first_at(actions(found)) == {}

    def test_declared_delegates(self) -> None:
        run = Run(only("repeated_call", tools={"sales": {"traits": ["delegates"]}}))
        found = []
        for _ in range(8):
            found.append(run("sales", {}, "handed over"))
            run.news()
        assert first_at(actions(found)) == {}

    def test_patterns_and_exact_names(self) -> None:
        run = Run(only("repeated_call", tools={"x_*": {"traits": ["exempt"]}, "x_y": {"traits": ["reads"]}}))
        assert first_at(actions([run("x_z", {}, "t") for _ in range(9)])) == {}
        assert first_at(actions([run("x_y", {}, "t") for _ in range(7)])) == REPEAT

    @pytest.mark.parametrize("traits", [["read"], ["mutate"], "reads", [5], [None]])
    def test_an_unknown_one_is_an_error(self, traits: Any) -> None:
        with pytest.raises(PolicyError, match="traits"):
            Policy(tools={"t": {"traits": traits}})


class TestAnnotations:
    @pytest.mark.parametrize(
        ("hints", "expected"),
        [
            ({"readOnlyHint": True}, REPEAT),
            ({"readOnlyHint": False}, MUTATION),
            ({"destructiveHint": True}, MUTATION),
            ({"idempotentHint": True}, REPEAT),
            ({"title": "x"}, REPEAT),
            ({}, REPEAT),
            (None, REPEAT),
        ],
    )
    def test_what_a_server_says(self, hints: Any, expected: dict[str, int]) -> None:
        assert repeating({}, hints=hints) == expected

    def test_they_beat_the_name(self) -> None:
        assert repeating({}, hints={"readOnlyHint": True}, tool="send_email") == REPEAT
        assert repeating({}, hints={"readOnlyHint": False}, tool="read_file") == MUTATION

    def test_the_policy_beats_them(self) -> None:
        assert repeating({"traits": ["reads"]}, hints={"destructiveHint": True}) == REPEAT
        assert repeating({"traits": ["mutates"]}, hints={"readOnlyHint": True}) == MUTATION

    def test_that_it_only_reads_makes_it_no_less_of_a_poll(self) -> None:
        run = Run(only("repeated_call"))
        found = [
            run("get_job_status", {"id": "j"}, '{"status": "running"}', hints={"readOnlyHint": True}) for _ in range(31)
        ]
        assert first_at(actions(found)) == POLL

    def test_one_server_may_say_other_things_than_another(self) -> None:
        """The same name, with other annotations in the same process."""
        run = Run(only("repeated_call"))
        assert "stop" not in first_at(actions([run("x", {}, "t", hints={"readOnlyHint": True}) for _ in range(4)]))
        run = Run(only("repeated_call"))
        assert first_at(actions([run("x", {}, "t", hints={"readOnlyHint": False}) for _ in range(4)])) == MUTATION

    @pytest.mark.parametrize("hints", [5, "readOnlyHint", [1], {"readOnlyHint": []}, {1: 2}, object()])
    def test_odd_ones_are_never_an_exception(self, hints: Any) -> None:
        run = Run(only("repeated_call"))
        for _ in range(3):
            run("x", {}, "t", hints=hints)


class TestMaskers:
    def at(self, number: int) -> str:
        return f"at 2026-11-30T16:25:{number:02}Z pid={number}: 3 rows"

    def test_all_by_default(self) -> None:
        assert repeating({}, self.at) == REPEAT

    def test_none_where_the_time_is_the_payload(self) -> None:
        assert "block" not in repeating({"maskers": []}, self.at)

    def test_a_search_that_is_declared_is_still_one(self) -> None:
        """What the policy or an MCP server says of it takes no mask away."""
        scores = lambda number: f"Install guide, score 0.{90 - number}"  # noqa: E731
        assert repeating({}, scores, hints={"readOnlyHint": True}, tool="search_docs") == REPEAT
        assert repeating({"traits": ["reads"]}, scores, tool="search_docs") == REPEAT

    def test_some(self) -> None:
        assert "block" not in repeating({"maskers": ["timestamps"]}, self.at), "the pid changes"
        assert repeating({"maskers": ["timestamps", "transport"]}, self.at) == REPEAT

    def test_a_function(self) -> None:
        assert repeating({"maskers": [lambda text: text[-6:]]}, self.at) == REPEAT
        assert "block" not in repeating({"maskers": [lambda text: text]}, self.at)

    def test_a_function_beside_names(self) -> None:
        masks = [lambda text: text.replace("x", ""), "timestamps", "transport"]
        assert repeating({"maskers": masks}, lambda n: self.at(n) + "x" * n) == REPEAT

    def test_one_that_raises_is_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken(text: str) -> str:
            raise RuntimeError(text)

        with caplog.at_level(logging.WARNING):
            assert repeating({"maskers": [broken, "timestamps", "transport"]}, self.at) == REPEAT
        assert "masker" in caplog.text
        assert "RuntimeError" in caplog.text
        assert "rows" not in caplog.text, "results are never logged"

    @pytest.mark.parametrize("answer", [None, 5, b"x", [], object])
    def test_one_that_returns_no_text(self, answer: Any) -> None:
        assert repeating({"maskers": [lambda _: answer]}, self.at) == REPEAT

    @pytest.mark.parametrize("masks", [["times"], ["timestamp"], "timestamps", [5], [None]])
    def test_an_unknown_one_is_an_error(self, masks: Any) -> None:
        with pytest.raises(PolicyError, match="maskers"):
            Policy(tools={"t": {"maskers": masks}})

    def test_the_error_names_the_nearest(self) -> None:
        with pytest.raises(PolicyError, match="did you mean 'timestamps'"):
            Policy(tools={"t": {"maskers": ["timestamp"]}})


class TestResultKey:
    def result(self, number: int) -> dict[str, Any]:
        return {"status": "idle", "weather": f"weather {number * 31}"}

    def test_all_fields_by_default(self) -> None:
        assert "block" not in repeating({}, self.result)

    def test_some_fields(self) -> None:
        assert repeating({"result_key": ["status"]}, self.result) == REPEAT
        assert "block" not in repeating({"result_key": ["weather"]}, self.result)

    def test_of_a_text_that_is_an_object(self) -> None:
        assert repeating({"result_key": ["status"]}, lambda n: json.dumps(self.result(n))) == REPEAT

    def test_a_result_without_any_of_them_counts_whole(self) -> None:
        assert "block" not in repeating({"result_key": ["nope"]}, self.result)
        assert repeating({"result_key": ["nope"]}, "not even an object") == REPEAT
        assert repeating({"result_key": ["status"]}, [1, 2]) == REPEAT

    def test_a_function(self) -> None:
        assert repeating({"result_key": lambda result: result["status"]}, self.result) == REPEAT
        assert "block" not in repeating({"result_key": lambda result: result["weather"]}, self.result)

    def test_one_that_raises_is_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            assert "block" not in repeating({"result_key": lambda result: result["nope"]}, self.result)
        assert "result key" in caplog.text
        assert "KeyError" in caplog.text
        assert "weather" not in caplog.text

    @pytest.mark.parametrize("answer", [None, 5, object(), float("nan"), b"x", {1, 2}])
    def test_one_that_returns_anything(self, answer: Any) -> None:
        assert repeating({"result_key": lambda _: answer}, self.result) == REPEAT

    def test_whether_it_failed_is_judged_from_the_whole(self) -> None:
        run = Run(only("repeated_failure", tools={"convert": {"result_key": ["code"]}}))
        found = [run("convert", {"n": n}, {"error": "odd", "code": 5}) for n in range(4)]
        assert first_at(actions(found)) == {"observe": 3, "steer": 4}

    @pytest.mark.parametrize("key", ["status", [], [5], [""], 5, False])
    def test_what_is_none_is_an_error(self, key: Any) -> None:
        with pytest.raises(PolicyError, match="result_key"):
            Policy(tools={"t": {"result_key": key}})


def test_a_ladder_of_the_tool_beats_the_detectors() -> None:
    assert repeating({"traits": ["mutates"], "ladder": {"block": 2, "stop": 3}}) == {"block": 2, "stop": 3}


def test_none_of_it_matters_where_results_are_not_looked_at() -> None:
    run = Run({"preset": "openrouter", "tools": {"x": {"traits": ["mutates"], "result_key": ["a"], "maskers": []}}})
    assert first_at(actions([run("x", {}, f"{number}") for number in range(7)])) == REPEAT
