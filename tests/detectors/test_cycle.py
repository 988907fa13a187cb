"""Cycles: the same rounds in the same order, lap after lap."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_rounds import Run, actions, first_at, only, shown

CYCLE = only("cycle")


def laps(run: Run, lap: list[Any], times: int) -> list[Any]:
    """The decisions of a lap of rounds that is run some times; a round is one call or a list of them."""
    decisions = []
    for _ in range(times):
        rounds = [calls if isinstance(calls, list) else [calls] for calls in lap]
        decisions += [run.round(*calls)[0] for calls in rounds]
    return decisions


A, B, C = (
    ("read_file", {"path": "a"}, "text of a"),
    ("read_file", {"path": "b"}, "text of b"),
    ("grep", {"x": 1}, "three matches"),
)


@pytest.mark.parametrize("period", range(2, 9))
@pytest.mark.parametrize("resumed", [False, True])
def test_the_default_ladder(period: int, resumed: bool) -> None:
    """Two laps observe, three steer, four block, six stop: at the request that completes the lap."""
    lap = [("read_file", {"path": str(step)}, f"text of {step}") for step in range(period)]
    decisions = laps(Run(CYCLE, resumed=resumed), lap, 7)
    whole = [
        decision.action.value if decision.verdict and decision.verdict.evidence["period"] == period else None
        for decision in decisions
    ]
    expected = {"observe": 2 * period, "steer": 3 * period, "block": 4 * period, "stop": 6 * period}
    assert first_at(whole) == expected
    assert shown(decisions[2 * period - 1]) == ("cycle", "observe", 2)
    # What lies between is passed over, so that the first three steps of the second lap are seen as two laps of three.
    assert first_at(actions(decisions)) == {**expected, "observe": min(2 * period, period + 3)}


def test_a_longer_lap_is_none() -> None:
    """That its first three steps came again is worth a note, and no more."""
    lap = [("read_file", {"path": str(step)}, f"text of {step}") for step in range(9)]
    assert first_at(actions(laps(Run(CYCLE), lap, 5))) == {"observe": 12}


@pytest.mark.parametrize("start", range(3))
def test_where_a_lap_begins_makes_no_difference(start: int) -> None:
    run = Run(CYCLE)
    decisions = [run.round([A, B, C][(start + step) % 3])[0] for step in range(20)]
    assert first_at(actions(decisions)) == {"observe": 6, "steer": 9, "block": 12, "stop": 18}


def test_the_model_is_told_once_in_a_cycle() -> None:
    policy = only("cycle")
    policy["detectors"]["cycle"]["ladder"] = {"block": False, "stop": False}
    run = Run(policy)
    told = 0
    for step in range(24):
        run.round([A, B][step % 2])
        told += len(run.session.before_model_call().steer)
        run.session.after_model_call()
    assert told == 1


def test_the_smallest_period_counts() -> None:
    decisions = laps(Run(CYCLE), [A, B], 4)
    assert decisions[-1].verdict.evidence["period"] == 2


def test_what_lies_between_is_passed_over_and_makes_it_no_proof() -> None:
    """Other rounds that bring news: such a cycle is told, and never refused; one or two steps are told later."""
    for steps, figures in (((A, B), {"observe": 6, "steer": 10}), ((A, B, C), {"observe": 6, "steer": 9})):
        run = Run(CYCLE)
        found = []
        for _ in range(8):
            found += [run.round(call)[0] for call in steps]
            run.news()
        assert first_at(actions(found)) == figures


def test_what_lies_between_without_news_is_passed_over() -> None:
    run = Run(CYCLE)
    found = []
    for number in range(7):
        found += [run.round(A)[0], run.round(B)[0]]
        run("find_user", {"n": number}, "not found")
    assert first_at(actions(found)) == {"observe": 4, "steer": 6, "block": 8, "stop": 12}


def test_a_result_that_changes_breaks_it() -> None:
    run = Run(CYCLE)
    found = []
    for number in range(8):
        found += [run("read_file", {"path": "a"}, f"text {number * 31}"), run("read_file", {"path": "b"}, "text of b")]
    assert "block" not in first_at(actions(found))
    assert "stop" not in first_at(actions(found))


def test_results_that_go_round_with_it_are_no_news() -> None:
    """A toggle: each call gives back in every second lap what it gave before."""
    run = Run(CYCLE)
    found = []
    for number in range(24):
        found.append(run("get_light", {}, "the light is on" if number % 4 < 2 else "the light is off"))
        found.append(run("read_switch", {}, "the switch is up"))
    assert first_at(actions(found))


def test_only_ids_and_times_differ() -> None:
    run = Run(CYCLE)
    found = []
    for number in range(12):
        found.append(
            run("read_file", {"path": "a"}, f"at 2026-11-30T16:25:{number:02}Z request_id=r{number}: nothing to do")
        )
        found.append(run("read_file", {"path": "b"}, f"<Foo at 0x7f3a2b{number:02x}> is idle"))
    assert first_at(actions(found)) == {"observe": 4, "steer": 6, "block": 8, "stop": 12}


def test_a_change_of_the_world_breaks_it() -> None:
    run = Run(CYCLE)
    found = []
    for number in range(10):
        found += [run.round(A)[0], run.round(B)[0]]
        run("write_file", {"path": "c", "content": f"line {number}"}, f"wrote {number} lines")
    assert "block" not in first_at(actions(found))


def test_parallel_calls_in_any_order_are_one_round() -> None:
    run = Run(CYCLE)
    found = []
    for number in range(12):
        pair = [A, B] if number % 3 else [B, A]
        found += [run.round(*pair)[0], run.round(C)[0]]
    assert first_at(actions(found)) == {"observe": 4, "steer": 6, "block": 8, "stop": 12}


def test_the_same_round_again_and_again_is_not_this_detectors() -> None:
    assert first_at(actions(laps(Run(CYCLE), [A], 10))) == {}
    assert first_at(actions(laps(Run(CYCLE), [[A, B]], 10))) == {}


def test_polls_are_given_time() -> None:
    """Six, twelve and thirty laps of steps that ask for what is not done yet."""
    run = Run(CYCLE)
    found = []
    for _ in range(31):
        found.append(run("get_job_status", {"job_id": "j1"}, '{"status": "running"}'))
        found.append(run("deployment_status", {"id": "d1"}, '{"status": "pending"}'))
    assert "stop" not in first_at(actions(found))
    assert first_at(actions(found)).get("observe", 99) >= 12
    assert first_at(actions(found)).get("block", 99) >= 60


def test_one_poll_in_a_long_lap_does_not_excuse_the_rest() -> None:
    run = Run(CYCLE)
    found = []
    for _ in range(7):
        found.append(run("get_job_status", {"job_id": "j1"}, '{"status": "running"}'))
        found += [run.round(call)[0] for call in (A, B, C)]
    assert "block" in first_at(actions(found))


def test_a_user_turn_starts_afresh() -> None:
    run = Run(CYCLE)
    laps(run, [A, B], 3)
    run.session.user_turn()
    assert first_at(actions(laps(run, [A, B], 3))) == {"observe": 3, "steer": 6}


def test_a_summary_spares_one_lap_once() -> None:
    run = Run(CYCLE)
    laps(run, [A, B], 2)
    run.session.compacted()
    assert first_at(actions(laps(run, [A, B], 5))) == {"observe": 2, "steer": 4, "block": 6, "stop": 10}


def test_failures_that_may_pass_have_a_row_of_their_own_in_patient() -> None:
    run = Run(only("cycle", preset="patient"))
    found = []
    for _ in range(11):
        found += [run("fetch_a", {"u": 1}, "HTTP 503"), run("fetch_b", {"u": 2}, "HTTP 503")]
    assert first_at(actions(found)) == {"observe": 3, "block": 12, "stop": 20}


def test_a_saved_state_that_is_none_is_not_taken_up() -> None:
    from loopguard_core._history import History
    from loopguard_core.detectors.cycle import Cycle

    for state in (None, 5, [], [1], [[["a"]], 0], [[["a", -1]], 0], [[["a" * 41, 1]], 0], [[], "x"]):
        with pytest.raises(ValueError, match=r"."):
            Cycle(History()).restore(state)


class TestFigures:
    """Laps of looking at the same things, in which nothing but figures moved: 2 observe, 3 steer."""

    @staticmethod
    def look(lap: int) -> list[Any]:
        return [
            ("check_credits", {}, f"credits: $4.{8213 - lap}"),
            ("list_workers", {}, f"worker-a: {lap * 3} jobs\nworker-b: {lap * 5} jobs"),
            ("review_goals", {}, "goal: create value; no new facts"),
        ]

    @pytest.mark.parametrize("resumed", [False, True])
    def test_the_default_ladder(self, resumed: bool) -> None:
        run = Run(CYCLE, resumed=resumed)
        decisions = [decision for lap in range(6) for decision in laps(run, self.look(lap), 1)]
        first = first_at(actions(decisions))
        assert (first["steer"], first.get("block"), first.get("stop")) == (9, None, None)

    def test_what_is_new_in_words_is_no_lap(self) -> None:
        run = Run(CYCLE)
        decisions = []
        for lap in range(6):
            credit, workers, _ = self.look(lap)
            goal = ("review_goals", {}, f"goal: create {('value', 'words', 'peace', 'trust', 'light', 'order')[lap]}")
            decisions += laps(run, [credit, workers, goal], 1)
        assert "steer" not in actions(decisions)

    @pytest.mark.parametrize(
        ("text", "steered"),
        [
            ('{{"parts_visible": {left}, "label": "bushing"}}', False),
            ("{left} parts remain in the bin", False),
            ("credits left: {left}, workers: 3", True),
            ("{left} tokens, workers: 3", True),
            ('{{"frame": {jump}}}', True),
            ('{{"pose": [{jitter:.7f}, {tiny}]}}', True),
        ],
    )
    def test_a_number_that_counts_down_is_work_and_what_is_used_up_is_not(self, text: str, steered: bool) -> None:
        run, decisions = Run(CYCLE), []
        for lap in range(9):
            found = text.format(
                left=40 - 3 * lap, jump=(91774, 55682, 62054, 64739, 14693, 54748, 31, 8, 700)[lap],
                jitter=0.412 + (-1) ** lap * lap * 3e-7, tiny=("-3.1e-06", "4e-07", "-2e-06")[lap % 3],
            )  # fmt: skip
            steps = [("arm_home", {}, "at home"), ("plan_grasp", {}, "planned"), ("inspect_bin", {}, found)]
            decisions += laps(run, steps, 1)
        assert ("steer" in actions(decisions)) is steered

    def test_two_steps_are_a_habit(self) -> None:
        run = Run(CYCLE)
        assert "steer" not in actions(decision for lap in range(8) for decision in laps(run, self.look(lap)[:2], 1))

    def test_whoever_waits_in_between_watches(self) -> None:
        run = Run(CYCLE)
        decisions = []
        for lap in range(6):
            run("sleep", {"seconds": 60}, "")
            decisions += laps(run, self.look(lap), 1)
        assert "steer" not in actions(decisions)
