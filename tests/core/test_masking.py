"""What of a result changes by itself, and what of it is news."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core._failed import judge_error
from loopguard_core._failures import classify
from loopguard_core._masking import HOLE, MASKS, MAX_USER_OUTPUT, Masker, _class_of_key
from loopguard_core._outcome import Result
from loopguard_core._shell import kind_of
from loopguard_core._similar import likeness
from loopguard_core._traits import infer

mask = Masker()
mask_mutating = Masker(mutates=True)

SAME = [
    # uuids
    ("request 550e8400-e29b-41d4-a716-446655440000 done", "request 6fa459ea-ee8a-3ca4-894e-db77e160355e done"),
    ("request 550E8400-E29B-41D4-A716-446655440000 done", "request 6FA459EA-EE8A-3CA4-894E-DB77E160355E done"),
    ("key 01ARZ3NDEKTSV4RRFFQ69G5FAV stored", "key 01BX5ZZKBKACTAV9WEVGEMMVRZ stored"),
    ("run run_jr8kJ2rjyK is blocked", "run run_hQCBmJXY3j is blocked"),
    # hashes
    ("[image/png 1280x720, 83096 bytes]", "[image/png 1280x720, 83097 bytes]"),
    (
        '{"type": "image/png", "data": "iVBORw0KGgo' + "A" * 60 + '"}',
        '{"type": "image/png", "data": "iVBORw0KGgo' + "B" * 60 + '"}',
    ),
    ("commit 9f86d08 is the head of main", "commit 1b2c3d4 is the head of main"),
    ("job eu:bq_0734f38f_d4373477a3b is done", "job eu:bq_7e82c081_8136f5a1818 is done"),
    ("pod web-9f86d081 is up", "pod web-1b2c3d4e is up"),
    ("pulled sha256:9f86d081884c7d65 from the registry", "pulled sha256:1b2c3d4e5f60718 from the registry"),
    ('{"rows": 3, "etag_hash": "aa"}', '{"rows": 3, "etag_hash": "bb"}'),
    # timestamps
    ("started 2026-11-30T16:25:20Z, still waiting", "started 2026-11-30T16:25:21Z, still waiting"),
    ("started 2026-11-30 16:25:20, still waiting", "started 2026-12-01 01:00:00, still waiting"),
    ("2026-11-30 16:25:20,123 INFO no work", "2026-11-30 16:25:21,987 INFO no work"),
    ("2026-11-30T16:25:20.123456+00:00 no work", "2026-11-30T16:25:21.1+02:00 no work"),
    ("Mon Nov 30 16:25:20 2026 no work", "Tue Dec  1 16:25:20 2026 no work"),
    ("Mon, 30 Nov 2026 16:25:20 GMT no work", "Tue, 01 Dec 2026 16:25:20 GMT no work"),
    ("[30/Nov/2026:16:25:20 +0000] GET / 200", "[01/Dec/2026:16:25:20 +0000] GET / 200"),
    ("epoch 1700000000 no work", "epoch 1700000001 no work"),
    ("log in /root/2026-08-30T11_49_56_713Z-debug-0.log", "log in /root/2026-08-30T11_53_55_252Z-debug-0.log"),
    ("dump-2026-08-30_11-49-56.sql, no change", "dump-2026-08-31_09-00-01.sql, no change"),
    ("saved as sc_1764433200.png, no change", "saved as sc_1764433204.png, no change"),
    ("context.json\n02:11", "context.json\n02:12"),
    ("view 1 of this page in this session, port 8443 it is", "view 2 of this page in this session, port 8443 it is"),
    ("context left: 121,400 tokens, port 8443 it is", "context left: 120,788 tokens, port 8443 it is"),
    ('{"state": "idle", "updated_at": "yesterday"}', '{"state": "idle", "updated_at": "today"}'),
    ('{"state": "idle", "createdAt": 5}', '{"state": "idle", "createdAt": 6}'),
    # durations
    ("3 failed in 0.12s", "3 failed in 1.05s"),
    ("3 failed, took 120 ms", "3 failed, took 99 ms"),
    ("3 failed after 2 minutes", "3 failed after 3 minutes"),
    ("real 0m0.052s user", "real 1m9.001s user"),
    ("uptime 5h30m, idle", "uptime 5h31m, idle"),
    ("web-1   0/1   Pending   0   12m", "web-1   0/1   Pending   0   13m"),
    ("last deploy failed 5m ago", "last deploy failed 6m ago"),
    ("last deploy failed 3d ago", "last deploy failed 4d ago"),
    ('{"ok": 1, "durationMs": 5}', '{"ok": 1, "durationMs": 6}'),
    ('{"ok": 1, "elapsed": 0.5}', '{"ok": 1, "elapsed": 0.6}'),
    # transport
    ('{"ok": 1, "requestId": "r1"}', '{"ok": 1, "requestId": "r2"}'),
    ('{"ok": 1, "trace_id": "r1"}', '{"ok": 1, "trace_id": "r2"}'),
    ("listening, pid=4000", "listening, pid=4001"),
    ("listening (pid 4000)", "listening (pid 4001)"),
    ("ok, session: calm-river", "ok, session: wild-lake"),
    ("[1] 4000\nlistening", "[2] 4001\nlistening"),
    # ports
    ("listening on localhost:3000", "listening on localhost:3001"),
    ("listening on http://web:3000/", "listening on http://web:3001/"),
    ("listening on 10.0.0.1:54321", "listening on 10.0.0.1:54322"),
    ("listening on port 3000", "listening on port 3001"),
    # addresses
    ("<Foo object at 0x7f3a2b1c>", "<Foo object at 0x7f3a2b2d>"),
    # counters
    ("failed again (attempt 3)", "failed again (attempt 4)"),
    ("failed again, call #3", "failed again, call #4"),
    ("file read 2x this session", "file read 3x this session"),
    ("gave up after 3 retries", "gave up after 4 retries"),
    ('{"ok": 1, "read_count": 4}', '{"ok": 1, "read_count": 5}'),
    # floats
    ("mean 0.30000000000000004 of all", "mean 0.3000000000000001 of all"),
    # paths
    ("wrote /tmp/pytest-1/out.txt", "wrote /tmp/pytest-2/out.txt"),
    ("wrote /private/var/folders/ab/1/out", "wrote /private/var/folders/cd/2/out"),
    ("wrote C:\\Users\\a\\Temp\\x1.txt now", "wrote C:\\Users\\a\\Temp\\x2.txt now"),
]

NEWS = [
    ("9 failed", "8 failed"),
    ("HTTP 401", "HTTP 500"),
    ("page 1 of 5", "page 2 of 5"),
    ("report-2026-08-30.csv", "report-2026-08-31.csv"),
    ("part_decade_20", "part_decade_21"),
    ("https://x.example/pull/12 is open", "https://x.example/pull/13 is open"),
    ("issue #12 is open", "issue #13 is open"),
    ("total 5", "total 6"),
    ("rows:12345", "rows:12346"),
    ("error at app.py:1234", "error at app.py:1240"),
    ("5 minutes left", "4 minutes left"),
    ("30s remaining", "20s remaining"),
    ('{"state": "building", "remaining_time": 50}', '{"state": "building", "remaining_time": 40}'),
    ('{"state": "building", "remaining_ms": 50}', '{"state": "building", "remaining_ms": 40}'),
    ("3 attempts left", "2 attempts left"),
    ("progress 45%", "progress 46%"),
    ("price 1.25", "price 1.26"),
    ("id 123", "id 124"),
    ('{"id": 1, "name": "x"}', '{"id": 2, "name": "x"}'),
    ("version 1.2.3", "version 1.2.4"),
    ("balance 1000000", "balance 1000001"),
    ("line\n1", "line\n2"),
    ("face", "deed"),
    ("defaced facade", "effaced facade"),
    ("mean 0.300001", "mean 0.300002"),
    ("width 5m wide", "width 6m wide"),
    ("/home/a/x.txt", "/home/b/x.txt"),
    ("user abc", "user abd"),
    ("10.0.0.1 is up", "10.0.0.2 is up"),
]

ALONE = [
    ("9f86d081", "1b2c3d4e"),
    ("2026-11-30T16:25:20Z", "2026-11-30T16:25:21Z"),
    ("It is 16:25:20 now.", "It is 16:25:21 now."),
    ('{"time": "16:25:20"}', '{"time": "16:25:21"}'),
    ('{"request_id": "a1"}', '{"request_id": "a2"}'),
    ("550e8400-e29b-41d4-a716-446655440000", "6fa459ea-ee8a-3ca4-894e-db77e160355e"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_changes_by_itself_is_no_news(one: str, other: str) -> None:
    assert one != other
    assert mask(one) == mask(other)


@pytest.mark.parametrize(("one", "other"), NEWS)
def test_what_does_not_is(one: str, other: str) -> None:
    assert mask(one) != mask(other)


@pytest.mark.parametrize(("one", "other"), ALONE)
def test_a_value_that_is_the_whole_answer_is_the_answer(one: str, other: str) -> None:
    assert mask(one) == one
    assert mask(one) != mask(other)
    assert mask_mutating(one) == mask_mutating(other), "what was done is the answer of a call that does something"


def test_new_ids_are_no_news_of_a_call_that_makes_new_things() -> None:
    one, other = '{"id": 1, "name": "x"}', '{"id": 2, "name": "x"}'
    assert mask(one) != mask(other)
    assert mask_mutating(one) == mask_mutating(other)
    assert mask_mutating('{"order_id": "A", "n": 1}') == mask_mutating('{"order_id": "B", "n": 1}')
    for text in (
        "Created https://x.example/acme/runs/{n}\nSee: gh run list",
        "Opened issue #{n}",
        "ok: http://h/a/{n}?b=1",
    ):
        one, other = text.format(n=18834475701), text.format(n=18834483736)
        assert mask(one) != mask(other)
        assert mask_mutating(one.replace("18834475701", "12")) == mask_mutating(other.replace("18834483736", "13"))


def test_words_of_the_arguments_say_nothing() -> None:
    assert mask("no row 17 in t", ["17"]) == mask("no row 18 in t", ["18"])
    assert mask("no row 17 in t") != mask("no row 18 in t")


@pytest.mark.parametrize("name", MASKS)
def test_each_class_can_be_had_alone(name: Any) -> None:
    """And what is in none of the chosen classes is left as it is."""
    assert Masker([name])("9 failed") == "9 failed"


@pytest.mark.parametrize(
    ("masks", "text", "masked"),
    [
        ((), "took 5 ms at 0x7f3a2b1c", "took 5 ms at 0x7f3a2b1c"),
        (("durations",), "took 5 ms at 0x7f3a2b1c", f"took {HOLE} ms at 0x7f3a2b1c"),
        (("addresses",), "took 5 ms at 0x7f3a2b1c", f"took 5 ms at {HOLE}"),
        (("ids",), '{"id": 5, "a": 1}', '{"id": 5, "a": 1}'),
    ],
)
def test_only_the_chosen_classes_are_masked(masks: Any, text: str, masked: str) -> None:
    assert Masker(masks)(text) == masked


def test_functions_of_the_user_run_first_and_are_bounded() -> None:
    seen: list[int] = []

    def longer(text: str) -> str:
        seen.append(len(text))
        return text * 3

    masked = Masker([longer, "durations"])("x" * 200_000)
    assert seen == [MAX_USER_OUTPUT]
    assert len(masked) == MAX_USER_OUTPUT
    assert Masker([lambda text: 5])("x") == "5"  # type: ignore[arg-type, list-item, return-value]


# -- properties ---------------------------------------------------------------------------------------------------

few = settings(max_examples=150, deadline=None, derandomize=True, database=None)
PIECES = """a 1 12 9f86d08 2026-11-30 16:25:20 ,123 = : " ' { } pid id took_ 5_ms 0x7f3a /tmp/x attempt_ x
    localhost:3000 . - remaining 0.12345678 Mon Nov_30""".split()
pieces = st.sampled_from([" ", "\n", HOLE, *(piece.replace("_", " ") for piece in PIECES)])
texts = st.lists(pieces, max_size=12).map("".join) | st.text(max_size=60)


@few
@given(texts)
def test_masking_twice_masks_no_more_where_something_is_left(text: str) -> None:
    once = mask_mutating(text)
    assert mask_mutating(once) == mask_mutating(mask_mutating(once))


@few
@given(texts, st.sampled_from(["7", "8", "9"]), st.sampled_from(["7", "8", "9"]))
def test_a_plain_count_is_never_masked(text: str, one: str, other: str) -> None:
    """Whatever stands around it on other lines."""
    a, b = (mask_mutating(f"{text}\nresult: {digit} failed\n") for digit in (one, other))
    assert (a == b) == (one == other)


# -- hostile texts ------------------------------------------------------------------------------------------------

UNITS = [
    "a",
    "1",
    "a1",
    "1a",
    " ",
    "\n",
    "\t",
    "1 ",
    "0 a ",
    '"',
    "'",
    "\\",
    '\\"',
    "a=",
    "a:",
    'a="',
    "a='",
    "/a",
    "/tmp/",
    "/tmp/x:",
    "C:\\",
    "C:\\a\\Temp\\",
    "a.",
    "1.",
    "-",
    "_",
    "a_",
    "a-a",
    "1:",
    "[1] 22\n",
    "port ",
    "pid 1 ",
    "took 1.1",
    "1x ",
    "2>",
    "100%",
    "error ",
    "a error ",
    "Error(",
    "connect to ",
    "expected ",
    "tool not ",
    "status=",
    "http ((((",
    "1 fail",
    "3 a b ",
    "failed: ",
    "Jan 1",
    "1 Jan ",
    "1.1234567",
    "0xab",
    "f1",
    "12:",
    "2020-01-01T",
    "1h1m",
    "1 sec ",
    "attempt ",
    "aB",
    "a|b&&",
    "\0",
    "\0:",
    "中",
    "<<a\n",
    "`",
    "$(",
    "sh -c '",
    "status: ",
    "no such ",
    "in progress",
    "not yet ",
    "x" * 41 + "=",
    '"' + "x" * 201,
]
SIZE = 128 * 1024


def _timed(work: Callable[[], Any]) -> float:
    """Processor time, the better of two: the machine is shared."""
    times = []
    for _ in range(2):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
        if times[-1] < 0.1:
            break
    return min(times)


@pytest.mark.parametrize("kind", ["mask", "failed", "shell", "likeness"])
def test_no_pattern_blows_up(kind: str) -> None:
    """What blows up does so by orders of magnitude, so that short hostile texts show it; the longest are below."""
    work: dict[str, Callable[[str], Any]] = {
        "mask": mask_mutating,
        "failed": lambda text: (judge_error(text), classify(text, text, ["a1"])),
        "shell": lambda text: (kind_of(text), infer(text[:200]), _class_of_key(text[:41])),
        "likeness": lambda text: likeness(
            {"command": text, "body": text}, {"command": text + " && x", "body": text + "!"}, mutates=True
        ),
    }
    for unit in UNITS:
        text = (unit * (4096 // len(unit) + 1))[:4095] + "!"
        assert _timed(lambda text=text: work[kind](text)) < 2, unit


@pytest.mark.parametrize("unit", ["a", "2>", "1 ", "a='", "a-", "C:\\"])
def test_a_result_of_the_longest_kind_is_read_in_linear_time(unit: str) -> None:
    whole, half = ((unit * SIZE)[:size] for size in (SIZE, SIZE // 4))
    taken = _timed(lambda: Result(whole, True, mask_mutating).save())
    assert taken < 5
    assert taken < 8 * _timed(lambda: Result(half, True, mask_mutating).save()) + 0.05


def test_how_well_an_entry_matched_is_no_news_of_a_search() -> None:
    searching = infer("memory_search").mask
    one, other = "[1] score=0.8179 note: file first (0.7429)", "[1] score=0.8238 note: file first (0.7545)"
    assert searching(one) == searching(other)
    assert searching('{"relevance": 0.9026, "text": "a"}') == searching('{"relevance": 0.9, "text": "a"}')
    assert searching("the rate is 0.8123 today") != searching("the rate is 0.8211 today")
    # Elsewhere it is what was asked for.
    assert mask(one) != mask(other)
    assert infer("evaluate_model").mask("score=0.8179 on test") != infer("evaluate_model").mask("score=0.8238 on test")


@pytest.mark.parametrize("tool", ["set_climate", "delegate_to_reviewer"])
def test_a_revision_is_no_news_of_what_makes_one(tool: str) -> None:
    nature = infer(tool)
    masker = nature.masker(nature.traits)
    assert masker('{"ok": true, "rev": 5120}') == masker('{"ok": true, "rev": 5122}')
    assert mask('{"ok": true, "rev": 5120}') != mask('{"ok": true, "rev": 5122}')


@pytest.mark.parametrize(
    "word", ["Report2024Final", "getHTTPResponse", "INV-2291", "ISO8601", "v1.2.3", "x86_64", "SHA256"]
)
def test_a_name_somebody_chose_is_kept(word: str) -> None:
    assert mask(f"it is about {word} again") == f"it is about {word} again"
