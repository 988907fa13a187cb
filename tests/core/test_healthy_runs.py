"""Runs that rules for loops once took for one: each goes on to its end without a call refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pytest

from loopguard_core import Action, DoomLoopDetected, LoopGuard, ToolCall
from loopguard_core._failures import Root
from loopguard_core._wording import Says, what_it_says
from loopguard_core.detectors.repeated_failure import _REASONS
from loopguard_core.transcripts._model import UserMessage
from loopguard_core.transcripts._telling import is_summary, is_user_turn

Round = tuple[str, Any, Any]


def verdicts(rounds: Iterable[Round], annotations: Any = None) -> list[DoomLoopDetected]:
    """What is said of a run with one call a round."""
    found: list[DoomLoopDetected] = []
    guard = LoopGuard(on_loop=found.append)
    with guard.session() as session:
        for number, (tool, arguments, result) in enumerate(rounds):
            session.begin_round([ToolCall(f"c{number}", tool, arguments, annotations=annotations)])
            session.record_result(f"c{number}", result)
    assert sum(guard.faults.counts.values()) == 0
    return found


def refused(rounds: Iterable[Round]) -> list[DoomLoopDetected]:
    return [verdict for verdict in verdicts(rounds) if verdict.action in (Action.BLOCK, Action.STOP)]


HEALTHY: dict[str, list[Round]] = {
    "a poll whose answer has a code": [
        ("job_status", {"job": 7}, {"code": "RUNNING", "message": f"at {n} %"}) for n in range(20)
    ],
    "messages sent": [("send_sms", {"to": n}, {"code": 1000, "message": "sent"}) for n in range(12)],
    "weather in twelve cities": [
        ("get_weather", {"city": n}, {"code": 800, "message": "clear sky", "details": f"{n} C"}) for n in range(12)
    ],
    "requests somebody denied": [
        ("get_request", {"id": n}, f"Request {n} (Ana, laptop) was denied by Ivo on {n} May: over budget")
        for n in range(12)
    ],
    "test cases not executed": [("get_test_case", {"id": n}, f"TC-{n}: not executed") for n in range(12)],
    "claims denied by a policy": [
        ("get_claim", {"id": n}, f"Claim {n} (Ana): denied by policy exclusion 9, letter sent") for n in range(12)
    ],
    "events whose names are like those of errors": [
        ("get_event", {"id": n}, f"PaymentFailed: order {n}, {n}.50 EUR") for n in range(12)
    ],
    "source files with the words of a bot wall": [
        (
            "read_file",
            {"path": f"{n}.tsx"},
            f"import x{n} from 'x';\nexport const A{n} = () => <h1>Verify you are human</h1>;\nsetTimeout(go, {n});",
        )
        for n in range(12)
    ],
    "fields of a form below a banner": [
        (
            "browser_type",
            {"ref": f"e{n}", "text": f"value {n}"},
            f"### Page\n- URL: http://form\n- alert: Your changes have not been saved\n- textbox {n}",
        )
        for n in range(12)
    ],
    "a queue": [("receive_message", {"queue": "orders"}, f"Order #{4711 + n}") for n in range(12)],
    "batches": [("import_batch", {}, f"Imported batch #{n}") for n in range(12)],
    "edits in words, by a strict schema": [
        ("edit_document", {"path": "a.md", "new_text": None, "instructions": task}, "Edited a.md.")
        for task in (
            "Add a table of contents.", "Shorten the second chapter.", "Translate the abstract.", "Number the figures.",
            "Remove the old licence.", "Put the links at the end.", "Rename section four.", "Correct the names.",
        )
    ],
    "a valve opened step by step": [
        step
        for n in range(12)
        for step in (("set_valve", {"position": 5 * n}, "ok"), ("read_flow", {}, "0.0 l/min"))
    ],
    "rows deleted in batches": [
        ("run_sql", {"sql": "DELETE FROM events WHERE id IN (SELECT id FROM old LIMIT 1000)"}, "DELETE 1000")
        for _ in range(30)
    ],
    "a debugger that goes on to the next stop": [
        ("gdb_command", {"cmd": "continue"}, f"Breakpoint 1, release_block (b=0x6042{n:x}0) at pool.c:77")
        for n in range(10)
    ],
    "two settings compared five times over": [
        step
        for n in range(10)
        for step in (
            ("edit_file", {"path": "a.mk", "old": "AB"[n % 2], "new": "BA"[n % 2]}, "a.mk: 1 line changed"),
            ("run", {"cmd": "./bench --json"}, {"rows": 184210 - 997 * n, "rss": 911 + 7 * n}),
        )
    ],
    "customers without orders": [
        (
            "get_customer",
            {"id": n},
            {"id": n, "name": f"Customer {n}", "phone": f"0{n}", "orders": [], "messages": []},
        )
        for n in range(30)
    ],
}  # fmt: skip


@pytest.mark.parametrize("rounds", HEALTHY.values(), ids=HEALTHY.keys())
def test_nothing_is_refused(rounds: list[Round]) -> None:
    assert refused(rounds) == []


def test_edits_to_and_fro_that_lead_where_it_was_are_refused() -> None:
    rounds = [
        step
        for n in range(10)
        for step in (
            ("edit_file", {"path": "a.py", "old": "AB"[n % 2], "new": "BA"[n % 2]}, "edited"),
            ("run", {"cmd": "./bench --json"}, {"failed": "test_a" if n % 2 else "test_b"}),
        )
    ]
    assert any(verdict.detector == "stagnation" for verdict in refused(rounds))


def test_one_row_deleted_again_and_again_is_over_once_nothing_is_deleted() -> None:
    rounds = [("run_sql", {"sql": "DELETE FROM events WHERE id = 7"}, f"DELETE {n}") for n in (1, 0, 0, 0, 0)]
    assert [verdict.streak for verdict in refused(rounds)] == [3]


def test_customers_who_have_no_orders_are_news_all_the_same() -> None:
    assert verdicts(HEALTHY["customers without orders"]) == []


def test_a_long_run_forgets_what_it_tried_long_ago() -> None:
    """So many other calls came between that the first is no longer known: it has waited for more than its turn."""
    rounds: list[Round] = []
    for lap in range(4):
        rounds.append(("start_snapshot", {}, "Error: the node is in maintenance"))
        rounds += [
            ("get_contact", {"id": 100 * lap + n}, {"id": 100 * lap + n, "name": f"N{lap}{n}"}) for n in range(60)
        ]
    assert verdicts(rounds) == []


def test_what_waits_inside_a_command_is_seen_by_how_its_answer_begins() -> None:
    command = {"command": "sleep 300 && gh run view 21388 --json status,jobs"}
    assert refused([("terminal", command, "in_progress  lint=completed unit=in_progress\n[exit code 0.]")] * 9) == []


@pytest.mark.parametrize(
    ("text", "pending"),
    [
        ("in_progress  lint=completed", True),
        ("running 9 tests\ntest a ... FAILED\ntest result: FAILED. 8 passed; 1 failed", False),
        ("A production-ready kit. Serves 1/2 of all.", False),
        ("2/3 parcels already delivered", False),
        ("See what is ready for 3.12, by 3/12 at the latest", False),
        ("5/6 ready", True),
        ("6/6 ready", False),
        ("3/5 shards healthy", True),
        ("replicas: 3/4", True),
        ('{"progress": "3/7"}', True),
        ("NAME   READY   STATUS\nweb-0  0/1     ContainerCreating", True),
        ("NAME   READY   UP-TO-DATE\nweb-0  5/5     5", False),
    ],
)
def test_what_is_under_way(text: str, pending: bool) -> None:
    assert bool(what_it_says(text) & Says.PENDING) is pending


def test_every_root_of_failures_can_be_told() -> None:
    assert set(get_args(Root)) == _REASONS.keys()


def test_a_locked_database_is_told_and_ends() -> None:
    rounds = [("run_sql", {"sql": f"UPDATE t{n} SET a = 1"}, "Error: database is locked") for n in range(8)]
    found = [verdict for verdict in verdicts(rounds) if verdict.detector == "repeated_failure"]
    assert [verdict.action for verdict in found][:4] == ["observe", "steer", "steer", "block"]
    assert "locks" in found[-1].message


@pytest.mark.parametrize(
    "annotations", [{"readOnlyHint": []}, {"destructiveHint": {}}, {"readOnlyHint": "yes"}, "odd", 7, [("a", 1)]]
)
def test_odd_annotations_say_nothing_and_hide_nothing(annotations: Any) -> None:
    found = verdicts([("fetch_invoice", {"id": 1}, "none")] * 6, annotations)
    assert found[-1].action == "stop"


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("Summary of the progress, please.", False),
        ("Summary of our conversation?", False),
        ("Summary of the earlier conversation: the user wants two reports.", True),
        ("[Summary of earlier conversation]\nThe user wants two reports.", True),
        ("This session is being continued from a previous conversation that ran out of context.", True),
    ],
)
def test_a_user_who_asks_for_a_summary_is_a_user(text: str, summary: bool) -> None:
    message = UserMessage(text)
    assert (is_summary(message), is_user_turn(message)) == (summary, not summary)
