"""Repeated calls where results are looked at: polls, mutations, waits, epochs, expiry, the probe after a block."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_rounds import NOTHING, Run, actions, first_at, only, shown

REPEATED = only("repeated_call")
BOTH = pytest.mark.parametrize("resumed", [False, True])
RUNNING = '{"status": "running"}'


@BOTH
def test_the_default_ladder(resumed: bool) -> None:
    """2 observe, 3 block, 6 stop; each with its streak."""
    run = Run(REPEATED, resumed=resumed)
    found = [run("read_file", {"path": "a"}, "text") for _ in range(7)]
    assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 6}
    assert [decision.streak for decision in found] == [1, 2, 3, 4, 5, 6, 7]


@BOTH
@pytest.mark.parametrize(
    ("tool", "error"),
    [
        ("bash", "npm error code ECONNRESET"),
        ("bash", "curl: (7) Failed to connect to h port 443: Connection refused"),
        ("run_update", "Error: deadlock detected, transaction was rolled back"),
        ("run_update", "Error: database is locked"),
    ],
)
def test_a_broken_connection_of_a_command_and_a_transaction_given_up_have_a_third_try(
    tool: str, error: str, resumed: bool
) -> None:
    """2 observe, 4 block, 6 stop."""
    run = Run(REPEATED, resumed=resumed)
    found = [run(tool, {"command": "npm ci"}, error) for _ in range(7)]
    assert first_at(actions(found)) == {"observe": 2, "block": 4, "stop": 6}
    patient = Run("patient", resumed=resumed)
    found = [patient(tool, {"command": "npm ci"}, error) for _ in range(11)]
    assert first_at(actions(found)) == {"observe": 2, "block": 6, "stop": 10}


def test_other_tools_that_lose_their_connection_have_none() -> None:
    run = Run(REPEATED)
    found = [run("fetch_invoice", {"id": "7"}, "Error: connection refused") for _ in range(7)]
    assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 6}


class TestMutations:
    """2 observe, 3 block, 4 stop: every repeat does it again."""

    @BOTH
    @pytest.mark.parametrize("tool", ["send_email", "pay_invoice", "delete_file"])
    def test_the_default_ladder(self, tool: str, resumed: bool) -> None:
        run = Run(REPEATED, resumed=resumed)
        found = [run(tool, {"to": "ann"}, {"id": number, "sent": True}) for number in range(5)]
        assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 4}

    def test_a_step_in_a_user_interface_tells_nothing_by_ok(self) -> None:
        """6 observe, 12 steer."""
        run = Run(REPEATED)
        found = [run("click", {"element": "next"}, "ok") for _ in range(14)]
        assert first_at(actions(found)) == {"observe": 6, "steer": 12}

    def test_one_whose_short_answer_has_changed_before_does_tell(self) -> None:
        run = Run(REPEATED)
        places = ["38%; 24 cards", "71%; 48 cards", *["100%; 61 cards"] * 4]
        found = [run("browser_scroll", {"dy": 1600}, f"scrolled; position {place}") for place in places]
        assert actions(found)[3:] == [None, "observe", "block"]

    def test_one_that_shows_the_page_does(self) -> None:
        run = Run(REPEATED)
        found = [run("click", {"element": "next"}, "The page: " + "words and more words. " * 20) for _ in range(6)]
        assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 4}

    def test_a_failing_mutation_is_as_any_failing_call(self) -> None:
        run = Run(REPEATED)
        found = [run("send_email", {"to": "ann"}, "Error: no such person as Ann") for _ in range(7)]
        assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 6}

    def test_what_was_read_in_between_and_had_changed_starts_afresh(self) -> None:
        run = Run(REPEATED)
        found = []
        for number in range(8):
            found.append(run("press_button", {}, "ok"))
            run("read_screen", {}, f"screen {number * 31} of the tour")
        assert first_at(actions(found)) == {}

    def test_what_was_read_in_between_and_had_not_does_not(self) -> None:
        run = Run(REPEATED)
        found = []
        for _ in range(5):
            found.append(run("send_email", {"to": "ann"}, "sent"))
            run("read_screen", {}, "the same screen")
        assert first_at(actions(found))["block"] == 3


class TestPolls:
    """6 observe, 12 steer, 30 block: rounds without change."""

    @BOTH
    @pytest.mark.parametrize(
        ("tool", "arguments", "result"),
        [
            ("get_job_status", {"job_id": "j"}, RUNNING),
            ("check_status", {}, "still running"),
            ("fetch", {"id": "j"}, "in progress"),
            ("get_job", {"job_id": "j"}, RUNNING),
            ("bash", {"command": "kubectl get pods"}, "web-1   Pending"),
            ("bash", {"command": "sleep 5; cat log"}, "nothing yet"),
            ("get_result", {"handle": "j", "wait_s": 30}, "nothing"),
        ],
    )
    def test_the_default_ladder(self, tool: str, arguments: Any, result: str, resumed: bool) -> None:
        run = Run(REPEATED, resumed=resumed)
        found = [run(tool, arguments, result) for _ in range(31)]
        assert first_at(actions(found)) == {"observe": 6, "steer": 12, "block": 30}

    @pytest.mark.parametrize(
        ("tool", "arguments", "result"),
        [
            ("run_job", {"job_id": "j"}, "running"),  # it starts things
            ("get_job_status", {"job_id": "j"}, '{"status": "done"}'),
            ("get_job_status", {"job_id": "j"}, '{"status": "failed"}'),
            ("summarize", {"text": "words " * 40}, "in progress"),  # no handle
            ("bash", {"command": "./run.sh"}, "running"),  # not known to read
            ("read_file", {"path": "a"}, "text"),
        ],
    )
    def test_no_poll(self, tool: str, arguments: Any, result: str) -> None:
        run = Run(REPEATED)
        assert first_at(actions([run(tool, arguments, result) for _ in range(4)]))["block"] == 3

    def test_a_poll_that_moves_on_is_never_told(self) -> None:
        run = Run(REPEATED)
        found = [run("get_job_status", {"job_id": "j"}, f'{{"status": "running", "done": {n}}}') for n in range(40)]
        assert first_at(actions(found)) == {}

    def test_once_it_is_done_asking_again_is_repeating(self) -> None:
        run = Run(REPEATED)
        for _ in range(4):
            run("get_job_status", {"job_id": "j"}, RUNNING)
        found = [run("get_job_status", {"job_id": "j"}, '{"status": "done"}') for _ in range(5)]
        assert "block" in first_at(actions(found))


class TestWaits:
    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [("sleep", {"seconds": 5}), ("wait", {}), ("bash", {"command": "sleep 10"}), ("pause", {})],
    )
    def test_they_are_exempt(self, tool: str, arguments: Any) -> None:
        run = Run()
        found = [run(tool, arguments, "slept") for _ in range(40)]
        assert first_at(actions(found)) == {}

    def test_looking_again_after_a_wait_is_a_poll(self) -> None:
        run = Run(REPEATED)
        found = []
        for _ in range(12):
            found.append(run("read_file", {"path": "out.log"}, "nothing yet"))
            run("sleep", {"seconds": 5}, "slept")
        assert first_at(actions(found)) == {"observe": 6, "steer": 12}

    def test_doing_it_again_after_a_wait_is_not(self) -> None:
        run = Run(REPEATED)
        found = []
        for _ in range(4):
            found.append(run("send_email", {"to": "ann"}, "sent"))
            run("sleep", {"seconds": 5}, "slept")
        assert first_at(actions(found))["block"] == 3


class TestFailuresThatMayPass:
    def test_they_are_as_any_other_by_default(self) -> None:
        run = Run(REPEATED)
        assert first_at(actions([run("fetch", {"u": 1}, "HTTP 503") for _ in range(7)])) == {
            "observe": 2,
            "block": 3,
            "stop": 6,
        }

    def test_patient_gives_them_time(self) -> None:
        """2 observe, 6 block, 10 stop; with ids and dates that change."""
        run = Run(only("repeated_call", preset="patient"))
        found = [run("fetch", {"u": 1}, f"HTTP 503 request_id=r{n} at 2026-11-30T16:25:{n:02}Z") for n in range(11)]
        assert first_at(actions(found)) == {"observe": 2, "block": 6, "stop": 10}

    def test_patient_is_not_patient_with_the_others(self) -> None:
        run = Run(only("repeated_call", preset="patient"))
        assert first_at(actions([run("fetch", {"u": 1}, "HTTP 401") for _ in range(7)])) == {
            "observe": 2,
            "block": 3,
            "stop": 6,
        }

    def test_trying_again_after_a_wait_is_what_they_ask_for(self) -> None:
        run = Run(REPEATED)
        found = []
        for _ in range(12):
            found.append(run("fetch", {"u": 1}, "HTTP 503"))
            run("sleep", {"seconds": 5}, "slept")
        assert first_at(actions(found)) == {"observe": 6, "steer": 12}


class TestChanging:
    """6 observe, 12 steer: the same arguments and never the same result, nothing else new in between.

    The second request is at 2 as that of any call, because one result is no change yet.
    """

    @staticmethod
    def changing(found: list[Any]) -> dict[str, int]:
        rows = [d.action.value if d.verdict and "different_results" in d.verdict.evidence else None for d in found]
        return first_at(rows)

    @BOTH
    def test_the_default_ladder(self, resumed: bool) -> None:
        run = Run(REPEATED, resumed=resumed)
        found = [run("draw_card", {}, f"card {n * 31}") for n in range(14)]
        assert self.changing(found) == {"observe": 6, "steer": 12}
        assert first_at(actions(found)) == {"observe": 2, "steer": 12}
        assert shown(found[5]) == ("repeated_call", "observe", 6)

    def test_other_news_in_between_starts_afresh(self) -> None:
        run = Run(REPEATED)
        found = []
        for number in range(14):
            found.append(run("draw_card", {}, f"card {number * 31}"))
            run.news()
        assert self.changing(found) == {}

    def test_a_mutation_does_its_work(self) -> None:
        run = Run(REPEATED)
        assert self.changing([run("append_line", {}, f"wrote line {n * 31}") for n in range(14)]) == {}


class TestEpochs:
    @BOTH
    def test_a_new_mutation_starts_afresh(self, resumed: bool) -> None:
        """Edit and test, with the same failing tests: the work goes on."""
        run = Run(REPEATED, resumed=resumed)
        found = []
        for number in range(10):
            found.append(run("run_tests", {}, "3 failed"))
            run("edit_file", {"path": "a", "line": number}, f"edited {number}")
        assert first_at(actions(found)) == {}

    def test_a_failed_mutation_changes_nothing(self) -> None:
        run = Run(REPEATED)
        found = []
        for number in range(4):
            found.append(run("run_tests", {}, "3 failed"))
            run("edit_file", {"path": "a", "line": number}, "Error: no such line")
        assert first_at(actions(found))["block"] == 3

    def test_the_same_mutation_again_changes_nothing(self) -> None:
        run = Run(only("repeated_call", ladder={"stop": False}))
        found = []
        for _ in range(5):
            found.append(run("run_tests", {}, "3 failed"))
            run("edit_file", {"path": "a", "line": 1}, "edited")
        assert "block" in first_at(actions(found))

    def test_a_mutation_is_no_epoch_for_itself(self) -> None:
        run = Run(REPEATED)
        assert first_at(actions([run("send_email", {"to": "ann"}, "sent") for _ in range(4)]))["stop"] == 4

    def test_an_unknown_tool_is_no_epoch(self) -> None:
        run = Run(REPEATED)
        found = []
        for number in range(4):
            found.append(run("run_tests", {}, "3 failed"))
            run("frobnicate", {"n": number}, f"frobnicated {number}")
        assert first_at(actions(found))["block"] == 3


class TestExpiry:
    @BOTH
    @pytest.mark.parametrize(("rounds", "streak"), [(0, 3), (1, 3), (6, 3), (8, 1), (20, 1)])
    def test_a_streak_ends_after_eight_rounds_of_news(self, rounds: int, streak: int, resumed: bool) -> None:
        run = Run(only("repeated_call", ladder={"block": False, "stop": False}), resumed=resumed)
        run("read_file", {"path": "a"}, "text")
        run("read_file", {"path": "a"}, "text")
        run.news(rounds)
        assert run("read_file", {"path": "a"}, "text").streak == streak

    def test_rounds_without_news_do_not_end_it(self) -> None:
        run = Run(only("repeated_call", ladder={"block": False, "stop": False}))
        run("read_file", {"path": "a"}, "text")
        run("read_file", {"path": "a"}, "text")
        for number in range(20):
            run("find_user", {"n": number}, "not found")
        assert run("read_file", {"path": "a"}, "text").streak == 3

    @BOTH
    def test_a_refused_call_is_let_through_once(self, resumed: bool) -> None:
        run = Run(REPEATED, resumed=resumed)
        found = [run("read_file", {"path": "a"}, "text") for _ in range(4)]
        assert [decision.blocked for decision in found] == [False, False, True, True]
        run.news(8)
        probe = run("read_file", {"path": "a"}, "text")
        assert (probe.blocked, probe.streak) == (False, 1)
        again = run("read_file", {"path": "a"}, "text")
        assert (again.blocked, again.streak) == (True, 5)

    @BOTH
    def test_a_probe_that_brings_something_new_starts_afresh(self, resumed: bool) -> None:
        run = Run(REPEATED, resumed=resumed)
        for _ in range(4):
            run("read_file", {"path": "a"}, "text")
        run.news(8)
        assert not run("read_file", {"path": "a"}, "another text").blocked
        assert run("read_file", {"path": "a"}, "another text").streak == 1
        assert run("read_file", {"path": "a"}, "another text").streak == 2


class TestDelegates:
    def test_handing_over_counts_if_nothing_new_happened_between(self) -> None:
        run = Run(REPEATED)
        found = [run("transfer_to_billing", {}, "handed over") for _ in range(3)]
        assert first_at(actions(found)) == {"observe": 2, "block": 3}

    def test_it_does_not_where_something_did(self) -> None:
        run = Run(REPEATED)
        found = []
        for _ in range(8):
            found.append(run("transfer_to_billing", {}, "handed over"))
            run.news()
        assert first_at(actions(found)) == {}


class TestOutcomesOfOneRound:
    def test_a_result_that_never_came_counts_as_unchanged(self) -> None:
        run = Run(REPEATED)
        assert first_at(actions([run("read_file", {"path": "a"}, NOTHING) for _ in range(4)])) == {
            "observe": 2,
            "block": 3,
        }

    def test_there_and_back_is_no_news(self) -> None:
        """A result that goes back and forth between two values ends a streak and is no news to others."""
        run = Run(REPEATED)
        found = [run("get_light", {}, ("on", "off")[number % 2]) for number in range(14)]
        assert "block" not in first_at(actions(found))

    @pytest.mark.parametrize(
        "texts",
        [
            [f'{{"request_id": "r{n}", "rows": 3}}' for n in range(3)],
            [f"done in 0.{n}s, 3 rows" for n in range(3)],
            ["the page", "No visible change.", "unchanged"],
            [f"2026-11-30 16:25:{n:02},123 INFO idle" for n in range(3)],
        ],
    )
    def test_what_changes_by_itself_counts_as_the_same(self, texts: list[str]) -> None:
        run = Run(REPEATED)
        assert first_at(actions([run("read_log", {}, text) for text in texts])) == {"observe": 2, "block": 3}


def test_equal_results_do_not_keep_the_next_from_being_masked() -> None:
    run = Run(only("repeated_call", ladder={"block": False, "stop": False}))
    texts = [f"at 2026-11-30T16:25:0{n}Z pid={n} idle, 3 rows" for n in (1, 1, 2, 2, 3)]
    assert [run("read_file", {"path": "a"}, text).streak for text in texts] == [1, 2, 3, 4, 5]


def test_several_results_of_one_call_after_a_resume() -> None:
    """One of them failed with what may pass by itself."""
    told = []
    for resumed in (False, True):
        run = Run(only("repeated_call"), resumed=resumed)
        call = ("read_file", {"path": "a"})
        told.append([run.round((*call, "text"), (*call, "HTTP 503"))[0].message for _ in range(4)])
    assert told[0] == told[1]


def test_what_the_model_is_told_quotes_no_argument_and_no_result() -> None:
    run = Run(REPEATED)
    found = [run("read_file", {"path": "hunter2"}, "swordfish") for _ in range(3)]
    text = found[-1].message + json.dumps(dict(found[-1].verdict.evidence))
    assert "hunter2" not in text
    assert "swordfish" not in text
    assert text.startswith("[loopguard]")


class TestPollsByName:
    """`*_status` says that it is a poll; what it returns says whether anything is under way."""

    @BOTH
    def test_a_settled_state_is_told_soon(self, resumed: bool) -> None:
        """3 observe, 4 steer, 30 block."""
        run = Run(REPEATED, resumed=resumed)
        found = [run("order_status", {"order": "NL-88213"}, '{"state": "SHIPPED"}') for _ in range(31)]
        assert first_at(actions(found)) == {"observe": 3, "steer": 4, "block": 30}

    def test_one_that_is_running_is_a_poll(self) -> None:
        run = Run(REPEATED)
        found = [run("order_status", {"order": "NL-88213"}, RUNNING) for _ in range(13)]
        assert first_at(actions(found)) == {"observe": 6, "steer": 12}

    def test_one_that_has_moved_before_is_a_poll(self) -> None:
        run = Run(REPEATED)
        found = [run("order_status", {"order": 1}, state) for state in ("PICKED", "PACKED", *["SHIPPED"] * 6)]
        assert "steer" not in actions(found)

    def test_waiting_in_between_makes_it_a_poll(self) -> None:
        run = Run(REPEATED)
        found = []
        for _ in range(6):
            run("sleep", {"seconds": 60}, "")
            found.append(run("order_status", {"order": 1}, "SHIPPED"))
        assert "steer" not in actions(found)


class TestPictures:
    """Two pictures of one screen are hardly ever equal to the bit."""

    @BOTH
    def test_alike_ones_are_told_of_and_never_refused(self, resumed: bool) -> None:
        run = Run(REPEATED, resumed=resumed)
        found = [
            run("computer", {"action": "screenshot"}, f"[image/png 1280x720, {83096 + n} bytes, sha256:fdd1000{n}d3e7]")
            for n in range(9)
        ]
        assert first_at(actions(found)) == {"observe": 2, "steer": 5}

    def test_equal_ones_are_the_same_result(self) -> None:
        run = Run(REPEATED)
        found = [run("screenshot", {}, "[image/png 1280x720, 83096 bytes, sha256:fdd10003]") for _ in range(6)]
        assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 6}

    def test_a_page_that_names_a_picture_is_none(self) -> None:
        run = Run(REPEATED)
        page = '<img src="logo.png"> The invoice is paid. Served at 2026-11-30T16:25:2{n}Z'
        found = [run("fetch_page", {"url": "https://a.example"}, page.replace("{n}", str(n))) for n in range(6)]
        assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 6}

    def test_a_step_between_two_is_a_reason_to_look(self) -> None:
        run = Run(REPEATED)
        found = []
        for n in range(9):
            run("click", {"x": n, "y": 2}, f"clicked at {n}, and the page shows another dialog now")
            found.append(run("screenshot", {}, f"[image/png 1280x720, {83096 + n} bytes, sha256:fdd1000{n}d3e7]"))
        assert actions(found) == [None] * 9


class TestChecks:
    """A test may end differently the next time, so a passing one may be run again; a failing one has said its say."""

    @BOTH
    @pytest.mark.parametrize(
        ("tool", "arguments"), [("run_tests", {}), ("bash", {"command": "cd app && pytest -q tests/test_a.py"})]
    )
    def test_a_passing_one(self, tool: str, arguments: Any, resumed: bool) -> None:
        """2 observe, 3 steer, 6 block, 8 stop."""
        run = Run(REPEATED, resumed=resumed)
        found = [run(tool, arguments, f"12 passed in 0.{n}s") for n in range(8)]
        assert first_at(actions(found)) == {"observe": 2, "steer": 3, "block": 6, "stop": 8}

    def test_a_failing_one(self) -> None:
        run = Run(REPEATED)
        found = [run("run_tests", {}, f"1 failed, 11 passed in 0.{n}s") for n in range(6)]
        assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 6}


class TestThingsLookedAtTogether:
    """One gauge of several may stand still while the others move."""

    @staticmethod
    def watch(moving: int, rounds: int = 8) -> list[str | None]:
        run = Run(REPEATED)
        found = []
        for number in range(rounds):
            others = [("read_gauge", {"name": n}, f"reading {number * 7 + n} of gauge {n}") for n in range(moving)]
            found.append(run.round(("read_gauge", {"name": "phase"}, "phase is paused as planned"), *others)[0])
        return actions(found)

    def test_among_two_that_move_it_is_a_poll(self) -> None:
        assert first_at(self.watch(2, 13)) == {"observe": 2, "steer": 12}

    def test_one_that_fails_is_not_looked_at(self) -> None:
        run = Run(REPEATED)
        found = []
        for number in range(4):
            others = [("read_gauge", {"name": n}, f"reading {number * 7 + n} of gauge {n}") for n in range(2)]
            found.append(run.round(("read_gauge", {"name": "phase"}, "Error: no such gauge"), *others)[0])
        assert first_at(actions(found))["block"] == 3

    @pytest.mark.parametrize("moving", [0, 1])
    def test_alone_or_beside_one_it_is_not(self, moving: int) -> None:
        assert first_at(self.watch(moving))["block"] == 3


class TestPagesWithoutArguments:
    def test_the_next_page_each_time_is_no_search_for_another_answer(self) -> None:
        run = Run(REPEATED)
        words = ("ledger", "router", "cache", "fence", "socket", "planner", "lease", "index", "token", "vault", "probe")
        pages = [
            "\n".join(
                f"{n}{line} {words[n * line % 11]}-{words[(n + line) % 11]} {words[(n - line) % 11]}"
                for line in range(12)
            )
            for n in range(16)
        ]
        assert set(actions(run("read_output", {}, page) for page in pages)) <= {None, "observe"}

    def test_one_value_that_changes_is(self) -> None:
        run = Run(REPEATED)
        found = [run("get_uptime", {}, f"the machine is up, and {n + 3} users are on it") for n in range(14)]
        assert first_at(actions(found)) == {"observe": 2, "steer": 12}

    def test_a_door_on_the_left_is_no_progress(self) -> None:
        """Words such as `left` tell of progress only beside a figure."""
        run = Run(REPEATED)
        looks = ("dented", "scratched", "bent", "broken", "marked", "worn", "soiled")
        found = [run("describe_image", {"image": 3}, f"The left front door is {looks[n % 7]} {n}.") for n in range(14)]
        assert first_at(actions(found))["steer"] == 12


@pytest.mark.parametrize("state", ["en cours", "en attente", "in Bearbeitung", "en curso", "em andamento", "in corso"])
def test_what_is_under_way_is_so_in_other_languages(state: str) -> None:
    run = Run(REPEATED)
    found = [run("liste_taches", {"tableau": "relecture"}, [{"n": 7, "etat": state}]) for _ in range(13)]
    assert first_at(actions(found)) == {"observe": 6, "steer": 12}


def test_a_customer_who_is_active_is_not_under_way() -> None:
    run = Run(REPEATED)
    found = [run("getVehicle", {"id": "VAN-12"}, {"id": "VAN-12", "status": "active"}) for _ in range(6)]
    assert first_at(actions(found)) == {"observe": 2, "block": 3, "stop": 6}
