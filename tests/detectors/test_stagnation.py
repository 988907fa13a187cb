"""Stagnation: calls that differ, and work that stands still."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_rounds import Run, actions, first_at, only, shown

from loopguard_core._ranges import range_of
from loopguard_core._shell import without_echo
from loopguard_core._similar import gist, likeness

STAGNATION = only("stagnation")
BOTH = pytest.mark.parametrize("resumed", [False, True])
LONG = "The same forty characters and more of a result."


def kinds(found: list[Any]) -> set[str]:
    """What was found, by the keys of the evidence."""
    return {name for decision in found if decision.verdict for name in decision.verdict.evidence}


class TestNearIdentical:
    """2 observe, 3 steer, 4 block, 7 stop."""

    @pytest.mark.parametrize(
        "arguments",
        [
            [
                {"query": q}
                for q in (
                    "red shoes",
                    "Red Shoes",
                    "red  shoes",
                    "shoes, red",
                    "RED shoes!",
                    "red-shoes",
                    "(red) shoes",
                )
            ],
            [{"query": "x", "attempt": n} for n in range(7)],
            [{"query": "x", "nonce": f"n{n}"} for n in range(7)],
            [{"query": "x", "requestId": f"n{n}"} for n in range(7)],
            [{"query": "x", "reason": f"because {n}"} for n in range(7)],
            [{"command": "x --all", "description": f"look {n}"} for n in range(7)],
        ],
    )
    def test_the_default_ladder(self, arguments: list[Any]) -> None:
        run = Run(STAGNATION)
        found = [run("lookup_stock", row, LONG) for row in arguments]
        first = first_at(actions(found))
        # That the first two are alike is only seen once their results are, unless a field says so.
        assert {**first, "observe": 2} == {"observe": 2, "steer": 3, "block": 4, "stop": 7}
        assert first.get("observe", 2) == 2
        if "attempt" in arguments[0]:
            assert first["observe"] == 2

    def test_it_goes_on_after_a_resume(self) -> None:
        run = Run(STAGNATION, resumed=True)
        found = [run("lookup_stock", {"query": "x", "attempt": n}, LONG) for n in range(7)]
        assert first_at(actions(found)) == {"observe": 2, "steer": 3, "block": 4, "stop": 7}

    def test_a_result_that_changes_ends_it(self) -> None:
        run = Run(STAGNATION)
        found = [run("lookup_stock", {"query": "x", "attempt": n}, f"{LONG} {n * 31}") for n in range(9)]
        assert "block" not in first_at(actions(found))

    def test_really_different_arguments_end_it(self) -> None:
        run = Run(STAGNATION)
        for number in range(3):
            run("lookup_stock", {"query": "x", "attempt": number}, LONG)
        assert not run("lookup_stock", {"query": "quite another", "attempt": 4}, "Other words.").blocked
        found = [run("lookup_stock", {"query": "x", "attempt": number}, LONG) for number in range(5, 9)]
        assert first_at(actions(found)).get("block", 4) >= 4

    def test_a_command_that_grows_by_repeating_itself(self) -> None:
        run = Run(STAGNATION)
        found = [run("bash", {"command": " && ".join(["cat a.txt"] * (n + 1))}, LONG) for n in range(9)]
        assert set(first_at(actions(found))) >= {"observe", "steer", "block"}

    def test_work_in_between_that_changed_the_world_ends_it(self) -> None:
        run = Run(STAGNATION)
        found = []
        for number in range(4):
            found.append(run("run_tests", {"attempt": number, "path": "x"}, LONG))
            run("write_file", {"path": f"f{number}", "content": f"line {number}"}, f"wrote {number * 7} bytes more")
        assert set(first_at(actions(found))) <= {"observe"}


@pytest.mark.parametrize("named", [True, False], ids=["near", "same result"])
def test_the_same_result_after_each_of_several_edits_is_work(named: bool) -> None:
    run = Run(STAGNATION)
    found = []
    for number in range(8):
        found.append(run("run_tests", {"attempt": number} if named else {"only": f"test {number * 31}"}, LONG))
        run("write_file", {"path": f"f{number}", "content": f"line {number}"}, f"wrote {number * 7} bytes more")
    assert first_at(actions(found)) == {}


@BOTH
def test_one_message_sent_again_in_new_words(resumed: bool) -> None:
    """Rephrased: 2 observe, 3 steer, and nothing stronger; after a resume its words are no longer there."""
    texts = [
        "Dear Ann, your order 5 was delayed by the storm and will arrive on Friday.",
        "Hello Ann, order 5 was delayed by the storm; it will arrive on Friday!",
        "Hi Ann, unfortunately the storm delayed your order 5, it will arrive on Friday.",
        "Ann, sorry: your order 5 was delayed by a storm and will arrive Friday.",
        "Dear Ann, because of the storm order 5 was delayed. Arrive date: Friday.",
    ]
    run = Run(STAGNATION, resumed=resumed)
    found = [run("send_email", {"to": "ann@x.test", "body": text}, "sent") for text in texts]
    assert first_at(actions(found)).get("steer", 3) == 3
    assert set(first_at(actions(found))) <= (set() if resumed else {"observe", "steer"})
    assert resumed or "steer" in first_at(actions(found))


class TestSameResult:
    """3 observe, 5 steer."""

    @BOTH
    def test_the_default_ladder(self, resumed: bool) -> None:
        """The third result in a row is seen at the request after it."""
        run = Run(STAGNATION, resumed=resumed)
        found = [
            run("get_report", {"region": word}, LONG)
            for word in ("north", "south", "east", "west", "centre", "abroad", "sea")
        ]
        assert first_at(actions(found)) == {"observe": 4, "steer": 6}

    @pytest.mark.parametrize(
        "result", ["[]", "", "not found", "0 results", "No matches found.", "null", "true", "done", "{}", "5"]
    )
    def test_empty_and_short_answers_are_no_evidence(self, result: str) -> None:
        run = Run(STAGNATION)
        assert first_at(actions([run("get_report", {"region": f"region {n * 31}"}, result) for n in range(10)])) == {}

    def test_acknowledgements_of_a_mutation_are_none(self) -> None:
        run = Run(STAGNATION)
        found = [
            run("create_row", {"name": f"name {n * 31}"}, "The row was created and saved to the table.")
            for n in range(10)
        ]
        assert first_at(actions(found)) == {}

    def test_another_result_ends_it(self) -> None:
        run = Run(STAGNATION)
        for number in range(3):
            run("get_report", {"region": f"r{number * 31}"}, LONG)
        run("get_report", {"region": "other"}, "Something else altogether was reported here.")
        assert run("get_report", {"region": "third"}, LONG).verdict is None


@BOTH
def test_rounds_that_bring_nothing_new(resumed: bool) -> None:
    """12 observe, 20 steer: rounds without any news, waiting left out."""
    run = Run(STAGNATION, resumed=resumed)
    run.news()
    found = [run(f"find_{n % 5}", {"n": n}, "not found") for n in range(24)]
    assert first_at(actions(found)) == {"observe": 13, "steer": 21}
    assert shown(found[12]) == ("stagnation", "observe", 12)


def test_waiting_is_no_stagnation() -> None:
    run = Run(STAGNATION)
    run.news()
    found = []
    for number in range(30):
        found.append(run(f"find_{number % 5}", {"n": number}, "not found"))
        run("sleep", {"seconds": 5}, "slept")
    assert first_at(actions(found)) == {}


class TestPages:
    """3 observe, 6 steer: pages in a row that had been read before."""

    @BOTH
    @pytest.mark.parametrize(
        "page",
        [
            lambda n: {"path": "a", "offset": n * 100, "limit": 100},
            lambda n: {"path": "a", "start_line": n * 100 + 1, "end_line": n * 100 + 100},
            lambda n: {"path": "a", "page": n},
            lambda n: {"path": "a", "view_range": [n * 50 + 1, n * 50 + 50]},
            lambda n: {"path": "a", "offset": n * 100},
        ],
    )
    def test_the_default_ladder(self, page: Any, resumed: bool) -> None:
        run = Run(STAGNATION, resumed=resumed)
        found = [run("read_file", page(n % 5), f"page {n % 5} of the file, with words") for n in range(12)]
        assert [decision.verdict is not None for decision in found[:7]] == [False] * 7
        pages = [d.action.value if d.verdict and "pages" in d.verdict.evidence else None for d in found]
        assert first_at(pages) == {"observe": 8, "steer": 11}

    def test_a_new_page_starts_afresh(self) -> None:
        run = Run(STAGNATION)
        for number in [0, 1, 2, 0, 1, 3]:
            run("read_file", {"path": "a", "page": number}, f"page {number}: " + LONG)
        assert [run("read_file", {"path": "a", "page": n}, f"page {n}: " + LONG).verdict for n in (0, 1)] == [
            None,
            None,
        ]

    def test_another_file_is_another_thing(self) -> None:
        run = Run(STAGNATION)
        found = [run("read_file", {"path": f"f{n}", "page": 1}, f"{n}: " + LONG) for n in range(12)]
        assert first_at(actions(found)) == {}

    def test_a_closer_look_is_no_second_sweep(self) -> None:
        run = Run(STAGNATION)
        run("read_file", {"path": "a", "start_line": 1, "end_line": 1000}, LONG)
        found = [
            run(
                "read_file",
                {"path": "a", "start_line": 10 + n, "end_line": 400 >> (2 * n)},
                f"{n}: {LONG}",
            )
            for n in range(4)
        ]
        assert first_at(actions(found)) == {}

    def test_an_edit_in_between_starts_afresh(self) -> None:
        run = Run(STAGNATION)
        found = []
        for number in range(8):
            found.append(run("read_file", {"path": "a", "page": 1}, LONG))
            run(
                "edit_file",
                {"path": "a", "old_string": f"line {number}", "new_string": "x"},
                f"edited line {number * 7}",
            )
        assert first_at(actions(found)) == {}

    @pytest.mark.parametrize(
        ("arguments", "page"),
        [
            ({"offset": 10, "limit": 5}, (10, 15)),
            ({"offset": "10", "limit": "5"}, (10, 15)),
            ({"offset": 0}, (0, 100)),
            ({"start": 3, "end": 9}, (3, 10)),
            ({"start": 9, "end": 3}, None),
            ({"view_range": [1, 5]}, (1, 6)),
            ({"view_range": [1, -1]}, None),
            ({"page": 3}, (3, 4)),
            ({"page": -1}, None),
            ({"page": True}, None),
            ({"page": 1 << 50}, None),
            ({"page": "x"}, None),
            ({"page": "１"}, None),
            ({"offset": [1], "limit": {}}, None),
            ({"from": "Berlin", "to": "Paris"}, None),
            ({"skip": 5}, None),
            ({"skip": 5, "take": 5}, (5, 10)),
            ({"start_index": 5, "max_length": 10}, (5, 15)),
            ({"view_range": [1]}, None),
        ],
    )
    def test_which_page_is_asked_for(self, arguments: dict[str, Any], page: Any) -> None:
        assert range_of(arguments) == page


class TestUndo:
    """2 observe, 3 steer, 4 block: edits that take back an earlier one."""

    @BOTH
    def test_the_default_ladder(self, resumed: bool) -> None:
        run = Run(STAGNATION, resumed=resumed)
        found = []
        for number in range(9):
            old, new = ("a = 1", "a = 2") if number % 2 == 0 else ("a = 2", "a = 1")
            found.append(run("edit_file", {"path": "a.py", "old_string": old, "new_string": new}, f"edited, {number}"))
        undone = [d.action.value if d.verdict and "undone" in d.verdict.evidence else None for d in found]
        # The second edit takes the first back; the third takes back the second; one is no habit.
        assert first_at(undone) == {"observe": 3, "steer": 4, "block": 5}

    def test_a_failed_edit_was_none(self) -> None:
        run = Run(STAGNATION)
        run("edit_file", {"path": "a.py", "old_string": "a", "new_string": "b"}, "Error: not found")
        found = [run("edit_file", {"path": "a.py", "old_string": "b", "new_string": "a"}, "edited") for _ in range(1)]
        assert first_at(actions(found)) == {}

    def test_other_files_are_apart(self) -> None:
        run = Run(STAGNATION)
        found = []
        for number in range(8):
            old, new = ("a", "b") if number % 2 == 0 else ("b", "a")
            found.append(
                run("edit_file", {"path": f"f{number}.py", "old_string": old, "new_string": new}, f"edited {number}")
            )
        assert first_at(actions(found)) == {}

    @pytest.mark.parametrize(
        ("old", "new"),
        [("old_str", "new_str"), ("search", "replace"), ("old_text", "new_text"), ("find", "replacement")],
    )
    def test_whatever_the_fields_are_called(self, old: str, new: str) -> None:
        run = Run(STAGNATION)
        found = [
            run("edit_file", {"path": "a.py", old: "ab"[n % 2], new: "ba"[n % 2]}, f"edited, {n}") for n in range(5)
        ]
        assert "block" in first_at(actions(found))


class TestRewrites:
    """6 observe, 8 steer: whole files written again, nothing that was read in between having changed."""

    @BOTH
    def test_the_default_ladder(self, resumed: bool) -> None:
        run = Run(STAGNATION, resumed=resumed)
        found = [
            run("write_file", {"path": "a.py", "content": f"{'xyz' * (9 - n)} version {n * 31}"}, "ok")
            for n in range(10)
        ]
        rewrites = [d.action.value if d.verdict and "rewrites" in d.verdict.evidence else None for d in found]
        assert first_at(rewrites) == {"observe": 6, "steer": 8}

    def test_a_file_that_grows_is_progress(self) -> None:
        run = Run(STAGNATION)
        found = [run("write_file", {"path": "a.py", "content": "line\n" * (n + 1)}, "ok") for n in range(12)]
        assert first_at(actions(found)) == {}

    def test_what_was_read_since_and_had_changed_is_progress(self) -> None:
        run = Run(STAGNATION)
        found = []
        for number in range(12):
            found.append(run("write_file", {"path": "a.py", "content": f"{number * 31} {LONG}"}, "ok"))
            run("run_tests", {}, f"{40 - number} failed")
        assert first_at(actions(found)) == {}

    def test_other_files_are_apart(self) -> None:
        run = Run(STAGNATION)
        found = [run("write_file", {"path": f"f{n}", "content": f"{n * 31} {LONG}"}, "ok") for n in range(12)]
        assert first_at(actions(found)) == {}


# -- how alike two calls are --------------------------------------------------------------------------------------

NEAR = [
    ({"q": "a b"}, {"q": "B, a!"}),
    ({"q": "x", "attempt": 1}, {"q": "x", "attempt": 2}),
    ({"q": "x"}, {"q": "x", "attempt": 2}),
    ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}),
    ({"deep": {"q": "A b"}}, {"deep": {"q": "a-b"}}),
    ("Some Text", "some text"),
    ({"q": "x", "idempotency_key": "1"}, {"q": "x", "idempotency_key": "2"}),
]
DIFFERENT = [
    ({"q": "a"}, {"q": "b"}),
    ({"q": 1}, {"q": 2}),
    ({"q": "a 1"}, {"q": "a 2"}),
    ({"q": "+"}, {"q": "-"}),
    ({"q": "a"}, {"p": "a"}),
    ({"q": True}, {"q": 1.5}),
    ({"attempt": 1}, {"attempt": 2}),
    ({}, {"q": "a"}),
    ({"q": ["a"]}, {"q": ["a", "b"]}),
    ({"title": "a"}, {"title": "b"}),
    (None, {"q": 1}),
    (["a"], ["a", "b"]),
    ({"q": "x" * 5000}, {"q": "X" * 5000}),
]


@pytest.mark.parametrize("mutates", [False, True])
@pytest.mark.parametrize(("one", "other"), NEAR)
def test_near(one: Any, other: Any, mutates: bool) -> None:
    assert likeness(one, other, mutates=mutates) == "near"
    assert likeness(other, one, mutates=mutates) == "near"


@pytest.mark.parametrize("subject", ["Signed Lease", "Signed lease - thank you", "The signed lease!"])
def test_a_message_with_another_title_that_says_the_same(subject: str) -> None:
    body = "Dear Ms Krug, please find the signed lease here: https://drive.example/f/lease.pdf Kind regards, Tobias"
    mail = {"to": "ann", "account": "mine", "subject": "Signed lease", "body": body}
    assert likeness(mail, {**mail, "subject": subject, "body": body.replace("please find", "here is")}, mutates=True)
    other = {**mail, "subject": subject + " 12", "body": body.replace("please find", "here is")}
    assert likeness(mail, other, mutates=True) is None


def test_what_an_edit_is_said_to_do_is_no_part_of_it() -> None:
    edit = {"target_file": "a.vue", "instructions": "I am going to exempt the select.", "code_edit": "if (x) y()"}
    assert likeness(edit, {**edit, "instructions": "Replace the body."}, mutates=True, writes=True) == "near"
    assert likeness(edit, {**edit, "code_edit": "if (x) z()"}, mutates=True, writes=True) is None


class TestClicksThatMiss:
    """A click a few pixels beside the last one, after which the screen is as before, is the same step."""

    @staticmethod
    def clicks(run: Run, step: int, screens: list[str]) -> list[str | None]:
        found = []
        for n in range(9):
            place = [1254 + step * (n % 3), 788 - n] if step < 12 else [step * n, 788]
            run("computer", {"action": "left_click", "coordinate": place}, "")
            found.append(run("computer", {"action": "screenshot"}, screens[n % len(screens)]))
        return actions(found)

    SCREEN = "[screenshot 1280x800] Calc, 'inventory.ods'. No dialog is open. Page {}."

    def test_on_an_unchanged_screen(self) -> None:
        assert {"steer", "block"} & set(self.clicks(Run({}), 2, [self.SCREEN.format(1)]))

    def test_on_a_screen_that_changes(self) -> None:
        assert set(self.clicks(Run({}), 2, [self.SCREEN.format(n) for n in range(9)])) <= {None, "observe"}

    def test_elsewhere(self) -> None:
        assert set(self.clicks(Run({}), 60, [self.SCREEN.format(1)])) <= {None, "observe"}


@pytest.mark.parametrize("mutates", [False, True])
@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different(one: Any, other: Any, mutates: bool) -> None:
    assert likeness(one, other, mutates=mutates) is None
    assert likeness(other, one, mutates=mutates) is None


def test_a_title_is_a_label_only_beside_a_deed() -> None:
    one, other = {"title": "first look", "command": "ls"}, {"title": "second try", "command": "ls"}
    assert likeness(one, other, mutates=False) == "near"
    assert likeness(one, other, mutates=True) is None


def test_grown() -> None:
    assert likeness({"command": "ls"}, {"command": "ls && ls"}, mutates=False) == "grown"
    assert likeness({"command": "a; b"}, {"command": "a; b; a"}, mutates=False) == "grown"
    assert likeness({"command": "a;   b"}, {"command": "a && b\n b"}, mutates=False) == "grown"
    assert likeness({"command": "a"}, {"command": "a; b"}, mutates=False) is None


def test_rephrased_needs_the_same_numbers() -> None:
    one = {"to": "a", "body": "Please pay invoice 12 before Friday, thank you."}
    other = {"to": "a", "body": "Kindly pay the invoice 12 before Friday, thanks."}
    third = {"to": "a", "body": "Kindly pay the invoice 13 before Friday, thanks."}
    assert likeness(one, other, mutates=True) == "rephrased"
    assert likeness(one, third, mutates=True) is None
    assert likeness(one, other, mutates=False) is None


@pytest.mark.parametrize(("one", "other"), [pair for pair in NEAR if pair[0] != {"tags": ["a", "b"]}])
def test_the_hash_after_a_resume_agrees(one: Any, other: Any) -> None:
    assert gist(one) == gist(other) or isinstance(one, str)


THOUGHTS = (
    "I need to decide whether to shard the events table. The key factors are size, write rate and query patterns.",
    "To decide whether to shard the events table, I should consider the key factors: size, write rate, query patterns.",
    "The decision to shard the events table depends on key factors: its size, write rate and query patterns.",
    "Let me decide whether to shard the events table; size, write rate and query patterns are key factors.",
)


def test_the_same_thought_again_and_again() -> None:
    """2 observe, 3 steer, never more: what counts the thoughts goes up by itself."""
    run = Run(STAGNATION)
    found = [
        run(
            "sequentialthinking",
            {"thought": thought, "thoughtNumber": n, "totalThoughts": 5 + n},
            f'{{"thoughtNumber": {n}, "totalThoughts": {5 + n}, "thoughtHistoryLength": {n}}}',
        )
        for n, thought in enumerate(THOUGHTS, 1)
    ]
    assert first_at(actions(found)) == {"observe": 2, "steer": 3}
    assert "was given the same thought 3 times" in run.session.before_model_call().steer[0]


def test_thoughts_that_get_on() -> None:
    run = Run(STAGNATION)
    thoughts = [
        "The table holds 2 billion rows and grows by 40 million a day, so size alone asks for shards.",
        "Writes peak at 9,000 a second; one primary takes 15,000, which leaves a year of room.",
        "Nearly every query filters by tenant, so tenant would be the shard key.",
        "Partitioning by month keeps one database and solves retention; sharding can wait.",
    ]
    found = [run("think", {"thought": thought}, "ok") for thought in thoughts]
    assert first_at(actions(found)) == {}


def todos(*rows: tuple[str, str]) -> dict[str, Any]:
    return {"todos": [{"content": content, "status": status} for content, status in rows]}


def test_a_plan_that_is_written_again_and_not_followed() -> None:
    run = Run(STAGNATION)
    plans = [
        todos(("Read the invoices controller", "pending"), ("Add page and per_page to it", "pending")),
        todos(
            ("Read the controller of invoices", "pending"), ("Add the parameters page and per_page to it", "pending")
        ),
        todos(("Read invoices controller", "pending"), ("Add page, per_page", "pending")),
    ]
    found = [run("write_todos", plan, "Updated todo list: 2 items, 0 completed") for plan in plans]
    assert first_at(actions(found)) == {"steer": 3}


def test_a_plan_that_is_followed() -> None:
    run = Run(STAGNATION)
    found = []
    for done in range(5):
        rows = [
            (f"Step {n} of the work on the invoices controller", "done" if n < done else "pending") for n in range(5)
        ]
        found.append(run("write_todos", todos(*rows), "Updated todo list"))
    assert first_at(actions(found)) == {}


def test_lists_in_another_order_are_no_poll_though_something_listed_is_in_progress() -> None:
    run = Run(STAGNATION)
    result = '{"total": 1, "issues": [{"key": "PAY-3381", "status": "In Progress"}]}'
    orders = [["a", "b", "c"], ["b", "a", "c"], ["c", "b", "a"], ["b", "c", "a"]]
    found = [run("issue_search", {"labels": order, "resolution": "Unresolved"}, result) for order in orders]
    assert first_at(actions(found)) == {"steer": 3, "block": 4}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("INV-2291", "INV2291", True),
        ("inv 2291", "INV-2291", True),
        ("1.5", "15", False),
        ("v1.5", "v15", False),
        ("A1:B2", "B1:A2", False),
        ("INV-2291", "INV-2292", False),
    ],
)
def test_a_mark_between_a_letter_and_a_digit_tells_nothing(one: str, other: str, same: bool) -> None:
    assert (likeness({"id": one}, {"id": other}, mutates=False) == "near") is same


TEST = ("run_tests", {"path": "tests/test_rounding.py"}, "1 failed: AssertionError: 10.00 != 10.01")


def edited(run: Run, number: int) -> None:
    run("edit_file", {"path": f"src/part_{number}.py", "old_string": "a", "new_string": f"b{number}"}, "edited")


def test_a_check_that_goes_on_failing_whatever_is_changed() -> None:
    """5 observe, 7 steer: each change began afresh what `repeated_call` counts."""
    run = Run(STAGNATION)
    found = []
    for number in range(9):
        found.append(run(*TEST))
        edited(run, number)
    assert first_at(actions(found)) == {"observe": 5, "steer": 7}
    assert "whatever was changed" in run.session.before_model_call().steer[-1]


def test_a_check_that_goes_on_being_fine_is_none_of_it() -> None:
    run = Run(STAGNATION)
    found = []
    for number in range(12):
        found.append(run("http_get", {"url": "https://example.org/healthz"}, '{"status": 200, "errors": 0}'))
        edited(run, number)
    assert first_at(actions(found)) == {}


def test_a_check_whose_failure_changes_begins_afresh() -> None:
    run = Run(STAGNATION)
    found = []
    for number in range(12):
        found.append(run(TEST[0], TEST[1], f"{12 - number // 3} failed: AssertionError"))
        edited(run, number)
    assert first_at(actions(found)) == {}


def test_plans_and_no_deeds() -> None:
    """3 observe, 4 steer: rounds that do nothing but write down a plan, however it is worded."""
    run = Run(STAGNATION)
    words = [
        "Take stock of it",
        "List what is public",
        "Review the surface",
        "Catalogue all items",
        "Look it over first",
    ]
    found = [
        run(
            "update_plan",
            {"plan": [{"step": text, "status": "in_progress"}, {"step": text[::-1], "status": "pending"}]},
        )
        for text in words
    ]
    assert first_at(actions(found)) == {"observe": 3, "steer": 4}


def test_a_plan_beside_work_and_a_plan_that_gets_done() -> None:
    run = Run(STAGNATION)
    found = []
    for number in range(6):
        found.append(run("update_plan", {"plan": [{"step": f"step {number}", "status": "pending"}]}))
        run.news()
    for number in range(6):
        rows = [{"step": f"step {n}", "status": "completed" if n < number else "pending"} for n in range(6)]
        found.append(run("update_plan", {"plan": rows}))
    assert first_at(actions(found)) == {}


def test_a_plan_that_the_user_wants_changed() -> None:
    run = Run(STAGNATION)
    found = []
    for number in range(6):
        found.append(run("update_plan", {"plan": [{"step": f"step {number}", "status": "pending"}]}))
        run.session.user_turn()
    assert first_at(actions(found)) == {}


class TestWordsThatAreOnlyPrinted:
    """What a command prints does nothing: `echo alpha; cat x` and `echo bravo; cat x` are one question."""

    WORDS = ("alpha", "bravo", "mango", "delta", "ember", "fjord", "gamma")

    def test_the_default_ladder(self) -> None:
        run = Run(STAGNATION)
        found = [run("bash", {"command": f"echo {w}; cat out/review.json | head"}, f"{w}\n") for w in self.WORDS]
        assert first_at(actions(found)) == {"steer": 3, "block": 4, "stop": 7}

    def test_a_result_with_more_in_it_is_news(self) -> None:
        run = Run(STAGNATION)
        found = [
            run("bash", {"command": f"echo {w}; cat out/review.json"}, f"{w}\nfinding {n * 7919}")
            for n, w in enumerate(self.WORDS)
        ]
        assert actions(found) == [None] * 7

    @pytest.mark.parametrize(
        ("command", "rest"),
        [
            ("echo a; ls", "ls"),
            ("echo 'a b' && ls && date", "ls && date"),
            ("ls\necho done", "ls"),
            ("echo a | wc", "echo a | wc"),  # there the words are the work
            ("echo a > f; ls", "echo a > f; ls"),
            ("echo $(rm x); ls", "echo $(rm x); ls"),
            ("myecho a; ls", "myecho a; ls"),
        ],
    )
    def test_which_parts_those_are(self, command: str, rest: str) -> None:
        assert without_echo(command) == rest


class TestGrowth:
    def test_a_statement_with_one_more_copy_of_its_part(self) -> None:
        run = Run(STAGNATION)
        one = "SELECT SUM(amount) AS total FROM revenue WHERE month = 10"
        found = [
            run("query", {"sql": " UNION ALL ".join([one] * n)}, {"rows": [["418220.75"]] * n, "row_count": n})
            for n in range(1, 8)
        ]
        assert first_at(actions(found))["steer"] <= 5

    def test_one_with_another_part_is_another(self) -> None:
        run = Run(STAGNATION)
        parts = [f"SELECT SUM(amount) AS total FROM revenue WHERE month = {n}" for n in range(1, 8)]
        found = [
            run("query", {"sql": " UNION ALL ".join(parts[:n])}, {"rows": [[f"{n * 7919}.75"]] * n})
            for n in range(1, 8)
        ]
        assert actions(found) == [None] * 7


class TestRenumberedElements:
    """A page that numbers its elements anew each time it is looked at makes every click another one."""

    @staticmethod
    def clicks(page: str, times: int = 6) -> list[str | None]:
        run = Run(STAGNATION)
        found = []
        for n in range(times):
            run("snapshot", {}, page.format(ref=f"n{37 * n + 401}", n=n))
            found.append(run("click", {"ref": f"n{37 * n + 401}"}, {"ok": True}))
        return actions(found)

    def test_the_same_button_again(self) -> None:
        assert first_at(self.clicks('dialog "Sale", button "Close" [ref={ref}]'))["steer"] <= 5

    def test_the_same_button_of_another_page(self) -> None:
        assert self.clicks('question {n} of the form, button "Next" [ref={ref}]') == [None] * 6

    def test_without_a_look_in_between_other_numbers_are_other_elements(self) -> None:
        run = Run(STAGNATION)
        assert actions(run("click", {"ref": f"e{n}"}, {"ok": True}) for n in range(8)) == [None] * 8


def test_pages_may_be_written_as_text() -> None:
    assert range_of({"pages": "3-7"}) == (3, 8)
    assert range_of({"lines": "10..20"}) == (10, 21)
    assert range_of({"range": "A1:D212"}) is None
    run = Run(STAGNATION)
    sweeps = [f"{5 * n + 1}-{5 * n + 5}" for n in range(6)] + [f"{5 * n + 3}-{5 * n + 7}" for n in range(6)]
    found = [run("read_pdf", {"file": "c.pdf", "pages": p}, f"the text of pages {p} and no more") for p in sweeps]
    assert first_at(actions(found)) == {"observe": 9}


def test_what_is_written_whole_need_not_be_a_file() -> None:
    run = Run(STAGNATION)
    found = [
        run("docs_replace_body", {"doc_id": "9f2", "body": f"agenda {n}: {'point ' * n}"}, {"revision": 88 + n})
        for n in range(9)
    ]
    assert first_at(actions(found)) == {"observe": 6, "steer": 8}


def test_an_equal_result_for_arguments_that_were_there_before_counts_on() -> None:
    run = Run(STAGNATION)
    prompt = "Licence key or path to licence file:\n[no new output after 10 seconds]"
    found = [run("execute_bash", {"command": key}, prompt) for key in ("y", "yes", "no", "Y", "yes", "y", "no", "y")]
    assert "steer" in actions(found)


class TestTitles:
    """A title says what a thing is about: where it and all else are the same, it is the same thing in new words."""

    WORDS = (
        "Aufzug 2 in Haus B ist ausgefallen. Bitte um Reparatur.",
        "Guten Tag, der Aufzug 2 (Haus B) steht seit heute still, bitte schicken Sie jemanden.",
        "Im Haus B funktioniert Aufzug 2 nicht mehr. Wir bitten um baldige Instandsetzung.",
        "Hallo, wir melden den Ausfall des Aufzugs 2 im Haus B und bitten um Behebung.",
    )

    def test_one_ticket_four_times(self) -> None:
        run = Run(STAGNATION)
        found = [
            run("createTicket", {"site": "B", "title": "Ausfall Aufzug 2", "description": text}, {"result": "CREATED"})
            for text in self.WORDS
        ]
        assert first_at(actions(found))["steer"] <= 4

    def test_four_tickets(self) -> None:
        run = Run(STAGNATION)
        found = [
            run("createTicket", {"site": "B", "title": f"Aufzug {n}", "description": text}, {"result": "CREATED"})
            for n, text in enumerate(self.WORDS)
        ]
        assert actions(found) == [None] * 4

    def test_four_entries_of_a_diary(self) -> None:
        """One title, and nothing in common below it."""
        run = Run(STAGNATION)
        texts = (
            "The pump was oiled at dawn.",
            "Rain; nobody came by boat.",
            "Mended nets, sold eels.",
            "Fog until noon.",
        )
        found = [
            run("create_note", {"book": "log", "title": "Daily log", "text": text}, {"result": "CREATED"})
            for text in texts
        ]
        assert actions(found) == [None] * 4


@pytest.mark.parametrize(
    ("first", "second"), [("from", "count"), ("start", "size"), ("from_row", "to_row"), ("start_page", "end_page")]
)
def test_more_names_of_a_range(first: str, second: str) -> None:
    assert range_of({first: 40, second: 80}) is not None


def test_a_caption_that_counts_is_beside_the_deed() -> None:
    run = Run(STAGNATION)
    found = [run("performAction", {"action": "rest", "caption": f"Pause {n}"}, '{"done":true}') for n in range(5)]
    assert first_at(actions(found))["steer"] == 3


def test_a_command_is_no_poll_by_what_it_prints() -> None:
    run = Run(STAGNATION)
    found = [run("pwsh", {"script": "Write-Output waiting", "displayName": f"wait {n}"}, "waiting") for n in range(5)]
    assert first_at(actions(found))["steer"] == 3


class TestStepsInAnInterface:
    """That a step answered "ok" says nothing of what it did, also where only a number names what it was done to."""

    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [
            ("browser_click", {"element": "Add to cart button", "ref": "e{n}"}),
            ("browser_type", {"element": "Amount", "ref": "e{n}", "text": "0"}),
            ("tap", {"index": "{n}", "label": "OK"}),
            ("drag", {"index": "{n}", "to": "folder A"}),
        ],
    )
    def test_one_kind_of_thing_after_the_other(self, tool: str, arguments: dict[str, str]) -> None:
        run = Run(STAGNATION)
        found = [run(tool, {k: v.format(n=n) for k, v in arguments.items()}, "ok") for n in range(9)]
        assert actions(found) == [None] * 9

    def test_where_each_of_them_shows_the_same_page(self) -> None:
        run = Run(STAGNATION)
        page = "### Page state\n- heading 'Results'\n- button 'Next page'\n- 20 rows, sorted by name, none selected" * 2
        found = [run("browser_click", {"element": "Next page", "ref": f"e{n}"}, page) for n in range(8)]
        assert first_at(actions(found)) == {"steer": 3, "block": 4, "stop": 7}


def test_words_that_are_written_into_a_file_are_not_only_printed() -> None:
    run = Run(STAGNATION)
    script = "cat > run.sh <<'EOF'\n#!/bin/sh\necho 'mode {word}'\nEOF"
    found = [run("bash", {"command": script.format(word=word)}) for word in ("dry", "fast", "slow", "safe", "full")]
    assert actions(found) == [None] * 5


def test_steps_of_which_there_is_one_more_and_a_count_that_follows_are_work() -> None:
    run = Run(STAGNATION)
    found = [
        run("execute_command", {"command": "; ".join(["forward"] * n + ["left"])}, f"steps taken: {n}; wall ahead")
        for n in range(1, 9)
    ]
    assert actions(found) == [None] * 8
