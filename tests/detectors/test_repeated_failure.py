"""Repeated failures: of one tool with varying arguments, and of one root across tools."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_rounds import Run, actions, first_at, only, shown

from loopguard_core._history import History
from loopguard_core.detectors.repeated_failure import RepeatedFailure

FAILURE = only("repeated_failure")


def failing(run: Run, times: int, text: str = "PermissionError: it is odd", first: int = 0) -> list[Any]:
    """Rounds of one tool that fail, each with other arguments."""
    return [run("convert", {"n": number}, text.format(number=number)) for number in range(first, first + times)]


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    "text", ["Error: it is odd", "Error: '{number}' at /a/{number}.py is odd", "HTTP 403", {"error": "odd"}]
)
def test_the_default_ladder_of_one_tool(text: Any, resumed: bool) -> None:
    """Failures are seen when results come in and judged at the next request: 2 observe, 3 steer, 5 block, 8 stop."""
    run = Run(FAILURE, resumed=resumed)
    found = []
    for number in range(10):
        result = text.format(number=number) if isinstance(text, str) else text
        found.append(run("convert", {"n": number}, result))
    assert first_at(actions(found)) == {"observe": 3, "steer": 4, "block": 6, "stop": 9}
    assert shown(found[2]) == ("repeated_failure", "observe", 2)


def test_equal_arguments_are_left_to_repeated_call() -> None:
    run = Run(FAILURE)
    assert first_at(actions([run("convert", {}, "Error: odd") for _ in range(10)])) == {}


@pytest.mark.parametrize("resumed", [False, True])
def test_the_default_ladder_across_tools(resumed: bool) -> None:
    """One root, other tools and other words: 3 observe, 5 steer, never block, 10 stop."""
    run = Run(FAILURE, resumed=resumed)
    texts = [
        "curl: (6) Could not resolve host: a.test",
        "getaddrinfo ENOTFOUND b.test",
        "ConnectionError: connection refused",
    ]
    found = [run(f"tool_{number}", {"n": number}, texts[number % 3]) for number in range(12)]
    assert first_at(actions(found)) == {"observe": 4, "steer": 6, "stop": 11}
    assert found[3].verdict.evidence["root"] == "network"


def test_a_root_that_lies_in_the_arguments_does_not_count_across_tools() -> None:
    run = Run(FAILURE)
    found = [
        run(f"tool_{n}", {"n": n}, f"1 validation error for Model{'abcdefghijkl'[n]}: odd word") for n in range(12)
    ]
    assert first_at(actions(found)) == {}


def test_a_success_starts_afresh() -> None:
    run = Run(FAILURE)
    failing(run, 2)
    run("convert", {"n": 50}, "converted fifty")
    found = failing(run, 3)
    assert first_at(actions(found)) == {"observe": 3}


def test_a_falling_count_is_progress() -> None:
    run = Run(FAILURE)
    assert first_at(actions([run("fix", {"n": n}, f"Error: {40 - n} problems") for n in range(12)])) == {}
    run = Run(FAILURE)
    assert "steer" in first_at(actions([run("fix", {"n": n}, "Error: 40 problems") for n in range(12)]))


def test_a_new_mutation_starts_afresh_what_it_can_mend() -> None:
    run = Run(FAILURE)
    found = []
    for number in range(8):
        found.append(run("run_tests", {"n": number}, "Error: it is odd", failed=True))
        run("write_file", {"path": "a.py", "content": f"line {number}"}, f"wrote {number * 7} bytes more")
    assert "steer" not in first_at(actions(found))


def test_news_in_between_makes_it_no_proof() -> None:
    run = Run(FAILURE)
    found = []
    for number in range(12):
        found.append(run("convert", {"n": number}, "Error: it is odd"))
        run.news()
    assert first_at(actions(found)) == {"observe": 4, "steer": 6}


def test_other_things_that_are_not_found_are_answers() -> None:
    run = Run(FAILURE)
    found = [run("lookup_user", {"n": n}, "404 Not Found") for n in range(14)]
    assert first_at(actions(found)) == {"observe": 4, "steer": 7}


def test_arguments_that_are_wrong_in_a_new_way_each_time() -> None:
    run = Run(FAILURE)
    words = ["amount", "currency", "date", "name", "street", "town", "phone", "note", "tax", "iban"]
    found = [
        run("create_order", {"n": n}, f"validation error: {word} is required", failed=True)
        for n, word in enumerate(words)
    ]
    assert "block" not in first_at(actions(found))


def test_validation_errors_of_one_kind_are_refused() -> None:
    run = Run(FAILURE)
    found = [run("create_order", {"n": n}, "validation error: amount is required", failed=True) for n in range(9)]
    assert first_at(actions(found)) == {"observe": 3, "steer": 4, "block": 6, "stop": 9}


@pytest.mark.parametrize(
    "text", ["Error: denied by the user", "Error: unknown tool {number}", "PermissionError: no", "HTTP 401"]
)
def test_denied_and_unknown_count(text: str) -> None:
    assert first_at(actions(failing(Run(FAILURE), 9, text)))["block"] == 6


def test_another_failure_starts_afresh() -> None:
    run = Run(FAILURE)
    failing(run, 3, "Error: it is odd")
    assert first_at(actions(failing(run, 2, "Error: something else entirely", 50))) == {"steer": 1}
    assert shown(run("convert", {"n": 9}, "x")) == ("repeated_failure", "observe", 2)


def test_a_refused_round_goes_on_counting() -> None:
    run = Run(FAILURE)
    found = failing(run, 8)
    assert [decision.blocked for decision in found] == [False] * 5 + [True] * 3
    assert shown(run("convert", {"n": 99}, "x")) == ("repeated_failure", "stop", 8)


def test_a_user_turn_starts_afresh() -> None:
    run = Run(FAILURE)
    failing(run, 4)
    run.session.user_turn()
    assert first_at(actions(failing(run, 3))) == {"observe": 3}


def test_failures_that_may_pass_in_patient() -> None:
    run = Run(only("repeated_failure", preset="patient"))
    found = failing(run, 12, "HTTP 503")
    assert first_at(actions(found)) == {"observe": 3, "block": 7, "stop": 11}


def test_what_the_model_is_told_quotes_no_argument() -> None:
    run = Run(FAILURE)
    found = [run("convert", {"secret": f"hunter{n}"}, f"Error: hunter{n} is odd") for n in range(6)]
    assert "hunter" not in found[-1].message
    assert "convert" in found[-1].message


def test_tools_are_bounded() -> None:
    run = Run(FAILURE)
    for number in range(100):
        run(f"tool_{number}", {"n": 1}, "Error: odd")
        run(f"tool_{number}", {"n": 2}, "Error: odd")
    assert len(str(run.session.save())) < 32 * 1024


def test_a_saved_state_that_is_none_is_not_taken_up() -> None:
    for state in (
        None,
        5,
        [],
        [1],
        [[["a"]], None, 0],
        [[["a", []]], None, 0],
        [[], None, -1],
        [[], None, "x"],
        [[], 5, 0],
    ):
        with pytest.raises(ValueError, match=r"."):
            RepeatedFailure(History()).restore(state)


def test_a_failure_after_rounds_nobody_looked_at_begins_in_its_own_round() -> None:
    """What was changed long before it is no new argument of the same failing call."""
    run = Run(FAILURE)
    run("kubectl", {"cmd": "cordon wk-1"}, "node/wk-1 cordoned")
    run.news(12)
    found = []
    for _ in range(3):
        found.append(run("kubectl", {"cmd": "drain wk-1"}, "error: unable to drain node: global timeout reached: 1m0s"))
        run("sleep", {"seconds": 60}, "ok")
    assert [decision.verdict for decision in found] == [None] * 3


def test_one_call_that_fails_again_and_again_while_its_tool_does_other_things_well() -> None:
    """After 3 observe, after 5 steer: a push that is rejected, and a rebase in between that has nothing to do."""
    run = Run(FAILURE)
    found = []
    for number in range(6):
        rejected = f"Writing objects: 100%, {number + 9}.45 KiB, done.\nerror: failed to push some refs to 'origin'"
        found.append(run("Bash", {"command": "git push"}, rejected))
        run("Bash", {"command": "git pull --rebase"}, "Current branch is up to date.")
    assert first_at(actions(found)) == {"observe": 4, "steer": 6}
    assert "5 times in the same way with the same arguments" in run.session.before_model_call().steer[-1]


def test_arguments_put_right_one_by_one_are_left_alone_for_long() -> None:
    """Each answer names another field: 4 observe, 12 steer."""
    run = Run(FAILURE)
    fields = "nif address province price vat date name retention iban series unit contact".split()
    found = [
        run("issue_invoice", {"given": fields[:n]}, f"Error: validation failed: {field} is a required field")
        for n, field in enumerate(fields)
    ]
    assert first_at(actions(found)) == {"observe": 5}


def test_below_its_output_a_tool_runner_says_how_a_program_ended() -> None:
    below = "\n[The command completed with exit code 1.]\n[Current working directory: /work]\n[Command finished]"
    run = Run(FAILURE)
    texts = [
        "Collecting pandas\n  Downloading pandas\nERROR: Could not install: [Errno 28] No space left on device" + below,
        "Using CPython 3.11\nerror: failed to write to file\n  Caused by: No space left on device (os error 28)"
        + below,
        "#7 ERROR: failed to solve: write buildkit: no space left on device" + below,
    ]
    found = [run(tool, {"n": n}, text) for n, (tool, text) in enumerate(zip("abc", texts, strict=True))]
    found += [run("d", {}, "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device")]
    found += [run("e", {}, "ok")]
    assert [decision.verdict and decision.verdict.streak for decision in found] == [None, None, None, 3, 4]


def test_tests_that_failed_are_no_failure_of_their_tool() -> None:
    run = Run(FAILURE)
    found = [
        run(
            "execute_bash",
            {"command": f"pytest -k {n}"},
            f"F\n1 failed in 0.{n}s\n[The command completed with exit code 1.]",
        )
        for n in range(6)
    ]
    assert [decision.verdict for decision in found] == [None] * 6


class TestUnknownTools:
    """No other call makes a tool exist: news in between, and changes of the world, take nothing back."""

    @pytest.mark.parametrize("resumed", [False, True])
    @pytest.mark.parametrize(
        "text",
        [
            "Unknown tool: calendar_list",
            "ToolError: 'calendar_list' is not available in this step. Loaded tools: light_on",
            "Error: calendar_list is not a valid tool, try one of [light_on].",
        ],
    )
    def test_the_ladder_of_one_tool_holds(self, text: str, resumed: bool) -> None:
        run = Run(FAILURE, resumed=resumed)
        found = []
        for number in range(6):
            found.append(run("calendar_list", {"from": number}, text))
            run("switch_light", {"room": number}, f"the light of room {number} is on")
            run.news()
        assert first_at(actions(found)) == {"observe": 3, "steer": 4, "block": 6}

    def test_another_error_is_met_with_patience(self) -> None:
        run = Run(FAILURE)
        found = []
        for number in range(6):
            found.append(run("calendar_list", {"from": number}, "Error: the calendar is odd"))
            run.news()
        assert first_at(actions(found)) == {"observe": 4, "steer": 6}


def test_arguments_that_were_cut_off_are_one_failure_wherever_they_were_cut() -> None:
    run = Run(FAILURE)
    text = "tool call rejected: cannot decode arguments: unexpected end of JSON input at offset {number}"
    found = [run("write_file", {"content": "x" * n}, text.format(number=900 + 7 * n)) for n in range(6)]
    assert first_at(actions(found)) == {"observe": 3, "steer": 4, "block": 6}


def test_a_schema_whose_demands_come_back_is_guessed_at() -> None:
    """Other errors each time may be on their way to right; the same ones again are not."""
    missing = (
        "[start] Required; [end] Required",
        "[title] Required; [end] Required",
        "[start] Expected object, received string",
    )
    run = Run(FAILURE)
    found = [run("createEvent", {f"key{n}": n}, f"ZodError: {missing[n % 3]}") for n in range(7)]
    assert first_at(actions(found))["steer"] == 5


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("bash", "ERROR:  function f{n}() does not exist\nLINE 1: select f{n}()"),
        ("run_sql", "Error: no such function: f{n}"),
        ("compile", "error: function f{n} is not available in this scope"),
    ],
)
def test_a_function_that_is_not_there_is_no_unknown_tool(tool: str, text: str) -> None:
    """It is written next: each edit in between starts afresh."""
    run = Run(FAILURE)
    found = []
    for n in range(9):
        found.append(run(tool, {"command": f"step {n}"}, text.format(n=n)))
        run("write_file", {"path": f"f{n}.sql", "content": f"create function f{n}()"}, f"wrote {n} lines")
    assert first_at(actions(found)) == {}


@pytest.mark.parametrize("name", ["read_invoices", "mcp__billing__read_invoices"])
def test_a_function_that_is_the_tool_is_one(name: str) -> None:
    run = Run(FAILURE)
    found = []
    for n in range(6):
        found.append(run(name, {"page": n}, "Error: function read_invoices does not exist"))
        run("write_file", {"path": f"f{n}", "content": f"{n}"}, f"wrote {n} lines")
    assert first_at(actions(found)) == {"observe": 3, "steer": 4, "block": 6}
