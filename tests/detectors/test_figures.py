"""Exact figures, the facts verdicts carry and the words they are told in: what mutation testing found untested."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_rounds import NOTHING, Run, actions, first_at, only, shown

from loopguard_core._history import History
from loopguard_core.detectors import Detector, Finding
from loopguard_core.detectors.cycle import MAX_PERIOD, Cycle
from loopguard_core.detectors.repeated_call import RepeatedCall
from loopguard_core.detectors.repeated_failure import RepeatedFailure
from loopguard_core.detectors.repeated_message import RepeatedMessage
from loopguard_core.detectors.rephrased_search import LOOK_BACK, NEW_SHARE, RephrasedSearch
from loopguard_core.detectors.stagnation import MIN_NOTHING_NEW, Stagnation
from loopguard_core.detectors.text_repetition import DSH_PASSAGE, MIN_CHARS, TextRepetition

ROOTS = {"root": "network"}
LONG = "The same forty characters and more of a result."


def test_figures_of_the_contract() -> None:
    assert (MAX_PERIOD, MIN_NOTHING_NEW, NEW_SHARE, LOOK_BACK, MIN_CHARS, DSH_PASSAGE) == (8, 12, 0.25, 3, 512, 512)


# -- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("detector", "finding", "said"),
    [
        (RepeatedCall(1, History()), Finding(3, 1), "in 3 rounds in a row and its result did not change"),
        (RepeatedCall(1), Finding(3, 1), "in 3 rounds in a row"),
        (RepeatedCall(1, History()), Finding(6, 1, kind="changing"), "and returned something else each time"),
        (
            RepeatedCall(1, History()),
            Finding(6, 1, kind="changing", evidence={"acknowledged": True}),
            "in 6 rounds in a row",
        ),
        (RepeatedCall(1, History()), Finding(6, 1, kind="poll"), "and what it asks about did not change"),
        (RepeatedCall(1, History()), Finding(6, 1, kind="transient"), "and failed in the same way"),
        (Cycle(History()), Finding(4, 1, evidence={"period": 1}), "4 times, other calls between"),
        (
            Cycle(History()),
            Finding(4, 1, evidence={"period": 2}),
            "part of the same 2 steps in the same order, 4 times",
        ),
        (RepeatedFailure(History()), Finding(3, 1, evidence=ROOTS), "failed in 3 rounds in a row with different"),
        (RepeatedFailure(History()), Finding(3, 1, kind="cross_tool", evidence=ROOTS), "failed with several tools"),
        (Stagnation(History()), Finding(3, 1, kind="rephrased"), "asked to send the same thing 3 times"),
        (
            Stagnation(History()),
            Finding(3, 1, kind="rephrased", evidence={"question": True}),
            "asked the same thing 3 times",
        ),
        (
            Stagnation(History()),
            Finding(3, 1, kind="rephrased", evidence={"thought": True}),
            "the same thought 3 times",
        ),
        (RephrasedSearch(), Finding(2, 1, evidence={"repeats": 2, "new_keywords": 0}), "without a new keyword (2 such"),
        (
            RephrasedSearch(),
            Finding(2, 1, evidence={"repeats": 2, "new_keywords": 1, "keywords": 9}),
            "with 1 new of 9 keywords (2 such",
        ),
        (
            TextRepetition(),
            Finding(1, 1, evidence={"channel": "reasoning", "unit": 9, "repeats": 60}),
            "60 times in a row",
        ),
        (TextRepetition(), Finding(2, 1, evidence={"drifting": True}), "but for a counter, as in a message before"),
        (TextRepetition(), Finding(3, 1, evidence={}), "in a row, as in 2 messages before"),
        (
            TextRepetition(),
            Finding(2, 1, kind="near", evidence={"channel": "content"}),
            "the answer goes on in other words",
        ),
        (RepeatedMessage(History()), Finding(2, 1, kind="empty"), "2 responses in a row were empty"),
        (RepeatedMessage(History()), Finding(2, 1), "the last 2 responses said the same and made no call"),
        (RepeatedMessage(History()), Finding(2, 1, kind="reworded"), "said the same in other words and made no call"),
        (RepeatedMessage(History()), Finding(5, 1, kind="with_calls"), "and the calls beside it brought nothing new"),
        (RepeatedMessage(History()), Finding(2, 1, evidence={"what": "announced"}), "announced a call and made none"),
        (RepeatedMessage(History()), Finding(3, 1, evidence={"what": "finish_reason"}), "ended a response because it"),
    ],
)
def test_what_is_said(detector: Detector, finding: Finding, said: str) -> None:
    assert said in detector.describe(finding, "look")


def test_the_first_cut_is_said_without_earlier_ones() -> None:
    text = TextRepetition().describe(Finding(1, 1, evidence={"unit": 9, "repeats": 60, "drifting": False}), None)
    assert text.endswith("60 times in a row")


# -- cycles ---------------------------------------------------------------------------------------------------------

A, B = ("read_file", {"path": "a"}, "text of a"), ("read_file", {"path": "b"}, "text of b")
JOB = ("get_job_status", {"job_id": "j1"}, '{"status": "running"}')


@pytest.mark.parametrize("resumed", [False, True])
def test_a_cycle_says_where_it_began_and_how_far_it_reaches(resumed: bool) -> None:
    run = Run(only("cycle"), resumed=resumed)
    run.news(2)
    found = [run.round([A, B][step % 2])[0] for step in range(12)]
    evidence = [found[at].verdict.evidence for at in (3, 5, 7)]  # type: ignore[union-attr]
    assert [(e["period"], e["laps"], e["since_round"], e["rounds"]) for e in evidence] == [
        (2, 2, 3, 4),
        (2, 3, 3, 6),
        (2, 4, 3, 8),
    ]


def test_a_lap_half_of_which_waits_is_given_time() -> None:
    run = Run(only("cycle"))
    found = [run.round([JOB, A][step % 2])[0] for step in range(16)]
    assert first_at(actions(found)) == {"observe": 12}


def test_a_lap_a_third_of_which_waits_is_not() -> None:
    run = Run(only("cycle"))
    found = [run.round([JOB, A, B][step % 3])[0] for step in range(12)]
    assert "block" in first_at(actions(found))


@pytest.mark.parametrize(("second", "blocked"), [("HTTP 503", 12), ("HTTP 404 Not Found", 8)])
def test_of_failures_all_must_be_passing_ones(second: str, blocked: int) -> None:
    run = Run(only("cycle", preset="patient"))
    found = [
        run(("fetch_a", "fetch_b")[step % 2], {"u": step % 2}, ("HTTP 503", second)[step % 2]) for step in range(14)
    ]
    assert first_at(actions(found))["block"] == blocked


def test_however_long_a_cycle_goes_on_the_model_is_told_once() -> None:
    policy = only("cycle")
    policy["detectors"]["cycle"]["ladder"] = {"block": False, "stop": False}
    run = Run(policy)
    told = 0
    for step in range(160):
        run.round([A, B][step % 2])
        told += len(run.session.before_model_call().steer)
        run.session.after_model_call()
    assert told == 1


# -- repeated calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resumed", [False, True])
def test_a_summary_spares_a_count_once_a_streak(resumed: bool) -> None:
    run = Run(only("repeated_call"), resumed=resumed)
    run.round(A)
    streaks = []
    for _ in range(4):
        run.session.compacted()
        streaks.append(run.round(A)[0].streak)
    assert streaks == [1, 2, 3, 4]
    assert run("get_price", {"of": "x"}, "12").streak == 1


@pytest.mark.parametrize("resumed", [False, True])
def test_results_that_are_never_the_same_are_counted(resumed: bool) -> None:
    run = Run(only("repeated_call"), resumed=resumed)
    found = [run("get_quote", {"of": "x"}, f"The {word} quote") for word in "red blue green pink grey gold".split()]
    # That the first two differ is only known once the second is there.
    assert [decision.streak for decision in found] == [1, 2, 1, 1, 1, 1]
    assert first_at(actions(found[2:])) == {"observe": 4}
    verdict = found[-1].verdict
    assert verdict is not None
    assert (verdict.evidence["rounds"], verdict.evidence["different_results"]) == (6, 5)


def test_what_a_mutation_returns_anew_is_its_work() -> None:
    run = Run(only("repeated_call"))
    words = "red blue green pink grey gold black".split()
    found = [run("create_ticket", {"of": "x"}, f"Made the {word} ticket") for word in words]
    assert first_at(actions(found[2:])) == {}


def test_the_model_is_told_by_what_came_back() -> None:
    told = set()
    for result in ("text of a", "Error: no such file", "[]"):
        run = Run(only("repeated_call"))
        told.add([run("read_file", {"path": "a"}, result).message for _ in range(3)][-1])
    assert len(told) == 3
    assert None not in told


@pytest.mark.parametrize(("text", "blocked"), [("HTTP 503", 6), ("HTTP 404 Not Found", 3), ("Error: it is broken", 3)])
def test_patient_waits_longer_for_the_same_call_only_where_it_may_pass(text: str, blocked: int) -> None:
    run = Run(only("repeated_call", preset="patient"))
    found = [run("fetch_page", {"url": "u"}, text) for _ in range(8)]
    assert first_at(actions(found))["block"] == blocked


def test_a_streak_ends_where_the_world_changed_and_counts_on_where_it_did_not() -> None:
    run = Run(only("repeated_call"))
    run.round(A)
    assert run.round(A)[0].streak == 2
    run("write_file", {"path": "c", "content": "new"}, "wrote 1 line")
    assert run.round(A)[0].streak == 1
    run("look_around", {}, "nothing")
    assert run.round(A)[0].streak == 2


# -- failures -------------------------------------------------------------------------------------------------------


def test_failures_of_several_tools_say_since_when_and_go_on_after_news_elsewhere_ended_them() -> None:
    run = Run(only("repeated_failure"))
    found = [run(f"fetch_{n % 3}", {"n": n}, "connection refused") for n in range(4)]
    assert shown(found[3]) == ("repeated_failure", "observe", 3)
    assert found[3].verdict is not None
    assert found[3].verdict.evidence["since_round"] == 1
    run.news()
    assert run("fetch_0", {"n": 9}, "connection refused").verdict is None


def test_refused_rounds_go_on_counting_and_rounds_without_a_result_do_not() -> None:
    policy = only("repeated_failure", ladder={})
    policy["detectors"]["repeated_failure"] = {"ladder": {"observe": 2, "block": 3, "stop": 9}}
    run = Run(policy)
    found = [run("deploy", {"n": n}, "connection refused") for n in range(6)]
    assert [shown(decision) for decision in found[2:]] == [
        ("repeated_failure", "observe", 2),
        *(("repeated_failure", "block", streak) for streak in (3, 4, 5)),
    ]
    quiet = Run(only("repeated_failure"))
    for number in range(2):
        quiet("deploy", {"n": number}, "connection refused")
    quiet("deploy", {"n": 2}, NOTHING)
    assert shown(quiet("deploy", {"n": 3}, "connection refused")) == ("repeated_failure", "observe", 2)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(("text", "blocked"), [("HTTP 503 Service Unavailable", 7), ("403 Forbidden", 6)])
def test_patient_waits_longer_only_for_what_may_pass(text: str, blocked: int, resumed: bool) -> None:
    run = Run(only("repeated_failure", preset="patient"), resumed=resumed)
    found = [run("fetch", {"n": n}, text) for n in range(10)]
    assert first_at(actions(found))["block"] == blocked


@pytest.mark.parametrize(
    ("text", "streaks"), [("connection refused", [0, 3, 4]), ("SyntaxError: invalid syntax", [0, 0, 2])]
)
def test_a_change_elsewhere_mends_files_and_no_network(text: str, streaks: list[int]) -> None:
    run = Run(only("repeated_failure"))
    for number in range(2):
        run("deploy", {"n": number}, text, failed=True)
    run("write_file", {"path": "c", "content": "new"}, "wrote 1 line")
    found = [run("deploy", {"n": number}, text, failed=True).verdict for number in range(2, 5)]
    assert [0 if verdict is None else verdict.streak for verdict in found] == streaks


def test_a_success_without_news_does_not_end_what_fails_everywhere() -> None:
    run = Run(only("repeated_failure"))
    run("look", {}, "all is well")
    for number in range(3):
        run(f"fetch_{number}", {"n": number}, "connection refused")
    run("look", {}, "all is well")
    verdict = run("fetch_4", {"n": 4}, "connection refused").verdict
    assert verdict is not None
    assert (verdict.streak, verdict.evidence["since_round"]) == (3, 2)


def test_one_message_from_several_tools_is_one_failure_whatever_its_kind() -> None:
    run = Run(only("repeated_failure"))
    found = [run(f"tool_{n}", {"n": n}, "Error: the quota service is down for repairs", failed=True) for n in range(4)]
    assert shown(found[3]) == ("repeated_failure", "observe", 3)


# -- stagnation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "found"), [(31, {}), (32, {"observe": 4, "steer": 6})])
def test_the_same_result_has_to_say_something(size: int, found: dict[str, int]) -> None:
    words = ["invoice", "order", "parcel", "refund", "coupon", "claim", "letter", "note"]
    run = Run(only("stagnation"))
    seen = [run("read_record", {"subject": word}, "abcdefgh" * (size // 8) + "x" * (size % 8)) for word in words]
    assert first_at(actions(seen)) == found


@pytest.mark.parametrize(
    "results",
    [
        [f"Report of 2026-11-30T10:00:0{n}Z: nothing in stock anywhere." for n in range(8)],
        [f"{first}\n{second}" for first, second in [("red shoes, size 40", "blue shoes, size 41")] * 4],
        [("one\ntwo\nthree lines of stock", "three lines of stock\ntwo\none")[n % 2] + " " * 8 for n in range(8)],
    ],
    ids=["times", "equal", "order"],
)
def test_near_identical_needs_results_alike_but_not_to_the_letter(results: list[str]) -> None:
    run = Run(only("stagnation"))
    found = [run("lookup_stock", {"query": "x", "attempt": n}, result) for n, result in enumerate(results)]
    assert first_at(actions(found))["block"] == 4


@pytest.mark.parametrize(("second", "ends"), [("no route to host", False), ("403 Forbidden", True)])
def test_near_identical_failures_have_to_be_alike(second: str, ends: bool) -> None:
    run = Run(only("stagnation"))
    for number in range(2):
        run("lookup_stock", {"query": "x", "attempt": number}, f"Error: no route to host (try {number})", failed=True)
    run("lookup_stock", {"query": "x", "attempt": 2}, f"Error: {second} (try 2)", failed=True)
    after = run("lookup_stock", {"query": "x", "attempt": 3}, "Error: no route to host (try 3)", failed=True)
    assert (shown(after) == ("stagnation", "block", 4)) is not ends


SHOES = ("red shoes", "Red Shoes", "red  shoes", "shoes, red", "RED shoes!", "(red) shoes", "red, shoes", "Shoes RED")


def asked_for_shoes(results: list[str]) -> dict[str, int]:
    """The same query to the word; whether it is one thing shows by the results alone."""
    run = Run(only("stagnation"))
    found = [run("lookup_stock", {"query": query}, result) for query, result in zip(SHOES, results, strict=False)]
    assert not run.guard.faults.counts
    return first_at(actions(found))


@pytest.mark.parametrize(
    "results",
    [
        [LONG] * 8,
        [f"Report of 2026-11-30T10:00:0{n}Z: nothing in stock anywhere." for n in range(8)],
        [("first line of the stock\nand a second", "and a second\nfirst line of the stock")[n % 2] for n in range(8)],
    ],
    ids=["equal", "times", "order"],
)
def test_the_same_words_are_one_thing_where_results_are_alike(results: list[str]) -> None:
    assert asked_for_shoes(results)["block"] in (4, 5)


@pytest.mark.parametrize(
    "results",
    [
        [f"Report of stock in hall {word} and nowhere else." for word in "red blu grn pnk gry gld wht blk".split()],
        [f"{'x' * 30 * n} nothing in stock anywhere." for n in range(8)],
        [("one two", "two one")[n % 2] for n in range(8)],
        ["Error: no route to host", "Error: 403 Forbidden"] * 4,
    ],
    ids=["another word", "longer", "short", "other failures"],
)
def test_the_same_words_are_several_things_where_results_are_not(results: list[str]) -> None:
    assert "block" not in asked_for_shoes(results)


def test_a_question_about_one_thing_that_runs_is_a_poll_and_no_stagnation() -> None:
    run = Run(only("stagnation"))
    row = [run("get_export", {"id": "e1", "attempt": n}, '{"status": "in_progress", "of": "export"}') for n in range(5)]
    assert first_at(actions(row)) == {}
    run = Run(only("stagnation"))
    row = [run("get_export", {"id": "e1", "attempt": n}, '{"status": "complete!!", "of": "export"}') for n in range(5)]
    assert first_at(actions(row))["block"] == 4


@pytest.mark.parametrize(
    "result", ["No results were found in the whole catalogue.", '{"status": "pending", "of": "it all"}']
)
def test_a_result_that_says_nothing_was_there_or_is_to_come_is_not_the_same_result(result: str) -> None:
    run = Run(only("stagnation"))
    words = ["invoice", "order", "parcel", "refund", "coupon", "claim", "letter"]
    assert first_at(actions([run("read_record", {"subject": word}, result) for word in words])) == {}


def test_rounds_without_news_are_several_things_with_results() -> None:
    run = Run(only("stagnation"))
    run.news()
    found = [run(f"find_{n % 5}", {"n": n}, "not found") for n in range(14)]
    verdict = found[12].verdict
    assert verdict is not None
    assert (verdict.evidence["rounds"], verdict.evidence["since_round"]) == (12, 2)
    alone = Run(only("stagnation"))
    alone.news()
    assert first_at(actions([alone("find", {"n": 1}, "not found") for _ in range(20)])) == {}
    silent = Run(only("stagnation"))
    silent.news()
    for number in range(8):
        silent(f"find_{number % 5}", {"n": number}, "not found")
    assert first_at(actions([silent(f"find_{n % 5}", {"n": n}, NOTHING) for n in range(8, 24)])) == {}


# -- searches -------------------------------------------------------------------------------------------------------


def searched(*queries: str) -> list[tuple[str, str | None, int] | None]:
    run = Run(only("rephrased_search"))
    return [shown(run("web_search", {"query": query}, NOTHING)) for query in queries]


def test_a_quarter_of_new_keywords_is_a_new_search() -> None:
    first = "alpine glacier melting records"
    assert searched(first, "alpine glacier melting velocity") == [None, None]
    assert searched(f"{first} europe", "alpine glacier melting records velocity") == [None, None]  # a first repeat
    again = searched(
        f"{first} europe", "alpine glacier records europe velocity", "glacier records europe melting velocity"
    )
    assert again[-1] == ("rephrased_search", "steer", 2)


def test_a_quarter_of_new_keywords_again_and_again_is_none_either() -> None:
    assert (
        searched(*(f"alpine glacier melting {word}" for word in "records velocity satellite history".split()))
        == [None] * 4
    )


@pytest.mark.parametrize(
    ("results", "told", "resumed"),
    [
        (["red blue green"] * 4, True, False),
        (["red blue green"] * 4, True, True),
        # What comes back in the round a run is saved in is not known after it, and what is not known counts.
        (["red", "blue", "green", "pink"], False, False),
    ],
)
def test_a_little_new_counts_where_results_overlap(results: list[str], told: bool, resumed: bool) -> None:
    run = Run(only("rephrased_search"), resumed=resumed)
    base = "alpine glacier melting records satellite"
    found = []
    for word, result in zip("history velocity europe summer".split(), results, strict=True):
        page = json.dumps([{"title": f"{name} stones", "url": f"https://x.example/{name}"} for name in result.split()])
        found.append(run("web_search", {"query": f"{base} {word}"}, page))
    assert bool(first_at(actions(found))) is told


def test_the_shared_retry_is_saved() -> None:
    run = Run(only("rephrased_search", preset="dsh"), resumed=True)
    queries = ("alpine glacier melting", "melting glacier alpine", "glacier alpine melting", "glacier melting alpine")
    found = [run("web_search", {"query": query}, NOTHING) for query in queries]
    assert first_at(actions(found)) == {"steer": 2, "stop": 3}


def test_a_search_repeated_says_since_when() -> None:
    run = Run(only("rephrased_search"))
    run("web_search", {"query": "one thing entirely"}, NOTHING)
    run("web_search", {"query": "alpine glacier melting"}, NOTHING)
    run("web_search", {"query": "melting glacier alpine"}, NOTHING)
    verdict = run("web_search", {"query": "glacier alpine melting"}, NOTHING).verdict
    assert verdict is not None
    evidence = verdict.evidence
    assert (evidence["repeats"], evidence["keywords"], evidence["new_keywords"]) == (2, 3, 0)
    assert evidence["since_round"] == 3


# -- messages --------------------------------------------------------------------------------------------------------


def said(*messages: str, reasons: Any = "stop", thoughts: bool = False) -> dict[str, int]:
    """Where what was done about messages without a call."""
    run = Run(only("repeated_message"))
    found = []
    for number, message in enumerate(messages):
        if thoughts:
            run.session.feed_text(f"Thought number {number}.", "reasoning")
        run.session.feed_text(message)
        verdict = run.session.end_message(reasons)
        found.append(None if verdict is None else verdict.action.value)
    assert not run.guard.faults.counts
    return first_at(found)


UPLOAD = "I am still waiting for the archive upload to the backup server to complete".split()


def test_the_same_message_is_the_same_however_it_thinks_and_whatever_ended_it() -> None:
    assert said(*["I am done."] * 5, thoughts=True) == {"observe": 2, "steer": 3, "stop": 5}
    assert said(*["I am done."] * 5, reasons=None) == {"observe": 2, "steer": 3, "stop": 5}


def test_the_same_words_in_another_order_are_the_same_in_other_words() -> None:
    assert said(*(" ".join(UPLOAD[n:] + UPLOAD[:n]) for n in range(5))) == {"observe": 3, "steer": 4}


def test_another_number_or_another_word_in_one_place_gets_on() -> None:
    assert said(*(f"Uploaded batch {n} of the archive to the backup server" for n in (3, 14, 25, 36, 47))) == {}
    assert said(*(f"Uploaded the {n} part of the archive to the server" for n in "red blue green pink".split())) == {}
    turned = [" ".join([*UPLOAD[n:], *UPLOAD[:n], f"{n}7"]) for n in range(5)]
    assert said(*turned) == {}


def test_messages_of_few_words_are_not_compared_by_them() -> None:
    assert (
        said("archive upload waiting", "upload waiting archive", "waiting archive upload", "archive waiting upload")
        == {}
    )


def test_a_repeated_lead_in_counts_only_where_calls_bring_no_new_words() -> None:
    for results, at in ((["nothing of note in here"] * 9, {"steer": 5}), ([f"{n}x" for n in range(9)], {})):
        run = Run(only("repeated_message"))
        found = []
        for number, result in enumerate(results):
            run.session.feed_text("Let me look at that.")
            verdict = run.session.end_message("tool_calls")
            found.append(None if verdict is None else verdict.action.value)
            run("look", {"n": number}, result)
        assert first_at(found) == at
        assert not run.guard.faults.counts


# -- saved state ----------------------------------------------------------------------------------------------------

SCRIPTS: dict[str, list[Any]] = {
    "cycle": [A, B] * 3,
    "repeated_failure": [(f"fetch_{n % 3}", {"n": n}, "connection refused") for n in range(6)],
    "stagnation": [
        *(("lookup_stock", {"query": "x", "attempt": n}, LONG) for n in range(3)),
        *(("read_record", {"subject": word}, LONG) for word in ("invoice", "order", "parcel")),
        *(("edit_file", {"path": "a", "old_string": o, "new_string": n}, "done") for o, n in ("xy", "yx", "xy")),
        *(("read_file", {"path": "b", "offset": n * 10, "limit": 10}, f"{n} {LONG}") for n in (0, 1, 0)),
    ],
    "rephrased_search": [
        ("web_search", {"query": query}, "red blue green yellow stones")
        for query in ("alpine glacier melting", "melting glacier alpine", "glacier alpine melting")
    ],
    "repeated_call": [A, A, B, A],
}


def test_what_has_seen_nothing_is_saved_and_taken_up_too() -> None:
    run = Run({}, resumed=True)
    run.round(A)
    run.round(B)
    assert run.session.turns == 2
    assert not run.guard.faults.counts


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_saved_and_taken_up_is_saved_alike(name: str) -> None:
    run = Run(only(name))
    for call in SCRIPTS[name]:
        run.round(call)
    run.session.begin_round([])
    state = json.loads(json.dumps(run.session.save()))
    again = run.guard.session(state=state).save()
    assert again["detectors"] == state["detectors"]
    assert again["detectors"][name]
    assert not run.guard.faults.counts
