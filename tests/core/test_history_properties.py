"""What holds for every transcript: same verdicts, also when saved and resumed; bounded state; nothing raises."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core import LoopGuard, Session, ToolCall
from loopguard_core._ladder import DETECTORS

MAX_BYTES = 32 * 1024
few = settings(max_examples=40, deadline=None, derandomize=True, database=None)

TOOLS = [
    (
        "read_file",
        [{"path": "a"}, {"path": "b"}, {"path": "a", "page": 1}, {"path": "a", "page": 2}, {"path": "A", "attempt": 1}],
    ),
    (
        "edit_file",
        [{"path": "a", "old_string": "x", "new_string": "y"}, {"path": "a", "old_string": "y", "new_string": "x"}],
    ),
    (
        "write_file",
        [{"path": "a", "content": "one"}, {"path": "a", "content": "two"}, {"path": "a", "content": "one two"}],
    ),
    (
        "send_email",
        [
            {"to": "ann", "body": "Your order 5 was delayed by the storm."},
            {"to": "ann", "body": "The storm delayed your order 5."},
        ],
    ),
    ("get_job_status", [{"job_id": "j"}]),
    (
        "bash",
        [
            {"command": "ls"},
            {"command": "ls && ls"},
            {"command": "rm x"},
            {"command": "sleep 5"},
            {"command": "sleep 5; ls"},
        ],
    ),
    (
        "web_search",
        [{"query": "tidal turbine cost"}, {"query": "cost of tidal turbines"}, {"query": "wind farms in Denmark"}],
    ),
    ("transfer_to_sales", [{}, {"reason": "because"}]),
]
RESULTS: list[Any] = [
    "text of the file, and more of it than a few words",
    "text of the file, and more of it than a few words",
    "other",
    "ok",
    "",
    "[]",
    "not found",
    "HTTP 503",
    "Error: it is odd",
    "1 validation error: name is required",
    '{"status": "running"}',
    '{"status": "done"}',
    "at 2026-11-30T16:25:20Z pid=5 idle",
    "at 2026-11-30T16:25:21Z pid=6 idle",
    "3 failed",
    "2 failed",
    "unchanged",
    None,
    {"id": 1, "n": 2},
    {"id": 2, "n": 2},
    "long text " * 400,
    "long text " * 400 + "!",
]
calls = st.sampled_from([(tool, arguments) for tool, several in TOOLS for arguments in several])
results = st.sampled_from(RESULTS)
rounds = st.lists(st.tuples(calls, results), min_size=1, max_size=3)
between = st.sampled_from(["user_turn", "compacted", "empty", "said", "said", "again"])
steps = st.lists(rounds, min_size=1, max_size=6).flatmap(
    # What is drawn is run several times over, so that there is something to find.
    lambda lap: st.lists(
        st.sampled_from(lap) | st.sampled_from(lap) | st.sampled_from(lap) | between, min_size=4, max_size=24
    )
)


def play(session: Session, step: Any) -> list[Any]:
    """One step of a transcript; what was decided, as far as it may be compared."""
    if step == "user_turn":
        session.user_turn()
        return []
    if step == "compacted":
        session.compacted()
        return []
    if isinstance(step, str):
        session.feed_text(
            "" if step == "empty" else "I will look at that now." if step == "said" else "Again: I am done."
        )
        verdict = session.end_message("stop")
        return [] if verdict is None else [verdict]
    decisions = session.begin_round([ToolCall(f"c{place}", *call) for place, (call, _) in enumerate(step)])
    for place, (_, result) in enumerate(step):
        session.record_result(f"c{place}", decisions[place].message if decisions[place].blocked else result)
    return [(d.action, d.streak, d.duplicate, d.blocked, d.message, d.verdict) for d in decisions]


def guard(**more: Any) -> LoopGuard:
    return LoopGuard({"privacy": {"plain_fingerprints": True}, **more})


def text_of(session: Session) -> str:
    text = json.dumps({**session.save(), "seconds": 0}, allow_nan=False, separators=(",", ":"))
    assert len(text.encode()) <= MAX_BYTES
    return text


@few
@given(steps)
def test_the_same_transcript_gives_the_same_verdicts(transcript: list[Any]) -> None:
    one, other = guard().session(), guard().session()
    assert [play(one, step) for step in transcript] == [play(other, step) for step in transcript]
    assert text_of(one) == text_of(other)


def differences(transcript: list[Any], detectors: list[str], stops: list[int]) -> list[Any]:
    """The first step at which a session resumed at each of the stops decides otherwise than a live one."""
    several = guard(detectors={name: {"enabled": name in detectors} for name in DETECTORS})
    live, resumed = several.session(), several.session()
    for place, step in enumerate(transcript):
        if place in stops:
            resumed = several.session(state=json.loads(text_of(resumed)))
        one, other = play(live, step), play(resumed, step)
        if one != other:
            return [place, step, one, other]
    return []


RESUMABLE = ["repeated_call", "cycle", "repeated_failure", "rephrased_search", "text_repetition", "repeated_message"]
RANK = [None, "observe", "steer", "escalate", "block", "stop"]


@pytest.mark.parametrize("detector", RESUMABLE)
@few
@given(steps, st.data())
def test_a_resumed_session_decides_like_a_live_one(detector: str, transcript: list[Any], data: st.DataObject) -> None:
    stops = data.draw(st.lists(st.integers(0, len(transcript)), max_size=4))
    assert differences(transcript, [detector], stops) == []


@few
@given(steps, st.data())
def test_where_arguments_are_compared_a_resumed_session_may_miss_but_never_adds(
    transcript: list[Any], data: st.DataObject
) -> None:
    """`stagnation` compares arguments, and saved state holds only a hash of them that knows fewer likenesses."""
    stops = data.draw(st.lists(st.integers(0, len(transcript)), max_size=4))
    found = differences(transcript, ["stagnation"], stops)
    if found:
        one, other = (max((RANK.index(row[0]) for row in decided), default=0) for decided in found[2:])
        assert other < one or found[2][0][1] == found[3][0][1], found


@few
@given(steps)
def test_saving_does_not_change_what_is_saved(transcript: list[Any]) -> None:
    several = guard()
    session = several.session()
    for step in transcript:
        play(session, step)
        assert text_of(session) == text_of(session)
        again = several.session(state=json.loads(text_of(session)))
        assert text_of(again) == text_of(session)


# -- bounds -------------------------------------------------------------------------------------------------------


def hostile(seed: int) -> Iterator[list[tuple[str, Any, Any]]]:
    """Rounds a hostile model could ask for: names, arguments and results of every size, and many of them."""
    chance = random.Random(seed)
    words = [
        "get_",
        "\0",
        "é",
        "\ud800",
        "名",
        "x" * 500,
        "bash",
        "write_file",
        "edit_file",
        "web_search",
        "status",
        "'",
        '"',
        "\\",
    ]
    for number in range(150):
        found = []
        for _ in range(chance.choice([1, 1, 2, 5, 60])):
            name = chance.choice(words) + (str(chance.randrange(200)) if chance.random() < 0.7 else "")
            value = chance.choice(
                [number, "x" * chance.randrange(3000), "a b " * chance.randrange(50), None, [[1] * 5] * 3, "\ud800"]
            )
            arguments = {
                chance.choice(["path", "page", "q", "old_string", "content", "query", "command"]): value,
                "path": "p",
                "n": number % 7,
            }
            if chance.random() < 0.2:
                arguments |= {"old_string": str(value)[:5], "new_string": str(number)}
            result = chance.choice(
                [
                    "x" * chance.randrange(20_000),
                    f"Error {number} odd",
                    "",
                    number,
                    {"error": str(value)},
                    "\ud800",
                    "same",
                ]
            )
            found.append((name, arguments, result))
        yield found


@pytest.mark.parametrize("seed", range(3))
def test_state_is_bounded_whatever_the_model_asks_for(seed: int) -> None:
    session = guard().session()
    for number, calls_of_round in enumerate(hostile(seed)):
        decisions = session.begin_round(
            [ToolCall(f"c{n}", name, args) for n, (name, args, _) in enumerate(calls_of_round)]
        )
        for n, (_, _, result) in enumerate(calls_of_round):
            session.record_result(f"c{n}", decisions[n].message if decisions[n].blocked else result)
        session.feed_text("x" * (number * 100))
        session.end_message("stop")
        if number % 10 == 0:
            text_of(session)
    text_of(session)
    assert _held(session._scorer) < 400_000


def _held(root: Any) -> int:
    """Bytes of everything a session's detectors and history hold, without what the process shares."""
    seen: set[int] = set()
    pending, total = [root.history, *root.detectors], 0
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, type) or callable(value):
            continue
        seen.add(id(value))
        total += sys.getsizeof(value)
        if isinstance(value, Mapping):
            pending.extend([*value.keys(), *value.values()])
        elif isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
            pending.extend(value)
        else:
            pending.extend(vars(value).values() if hasattr(value, "__dict__") else ())
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            pending.extend(getattr(value, name) for name in slots if hasattr(value, name))
    return total


def test_a_long_run_holds_no_more_than_a_short_one() -> None:
    sizes = []
    session = guard().session()
    for number in range(1200):
        session.begin_round([ToolCall("c", f"tool_{number % 97}", {"n": number, "text": "x" * 300})])
        session.record_result("c", f"{number} " + "word " * 300)
        if number in (300, 1199):
            sizes.append((_held(session._scorer), len(text_of(session))))
    assert sizes[1][0] < 1.1 * sizes[0][0]
    assert sizes[1][1] < 1.1 * sizes[0][1]


# -- odd results --------------------------------------------------------------------------------------------------


class Raises:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class OddTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Odd(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise RuntimeError

    def items(self) -> Any:
        raise RuntimeError


class Endless(dict[str, Any]):
    def items(self) -> Any:
        number = 0
        while number < 10_000_000:
            yield str(number), number
            number += 1


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


circle: list[Any] = []
circle.append(circle)
ODD: list[Callable[[], Any]] = [
    lambda: None,
    lambda: float("nan"),
    lambda: math.inf,
    lambda: -0.0,
    lambda: 10**400,
    lambda: b"bytes\xff",
    lambda: bytearray(b"x"),
    lambda: {1: 2, None: 3},
    lambda: {(1, 2): 3},
    lambda: {1, 2},
    lambda: object(),
    lambda: circle,
    lambda: nested(5000),
    Raises,
    OddTextError,
    Odd,
    lambda: Decimal("NaN"),
    lambda: "\ud800" * 10,
    lambda: "\0" * 300_000,
    lambda: "{" * 70_000,
    lambda: '{"error":' * 5000,
    lambda: type,
    lambda: len,
    lambda: (n for n in range(3)),
    lambda: memoryview(b"x"),
    lambda: ["x"] * 20_000,
    lambda: {"status": 10**5000},
    lambda: {"status": float("nan")},
    lambda: '{"status": ' + "9" * 5000 + "}",
    lambda: "1" * 100_000 + ".5",
    lambda: "٣" * 50 + " attempts",
    lambda: "१२३४५६७८९.१२३४५६७८९",
    lambda: "²³ ms",
    lambda: "1.٣٣٣٣٣٣٣٣٣",
    lambda: KeyError(),
    lambda: SystemExit(),
    lambda: NotImplemented,
    lambda: ...,
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_no_result_is_too_odd(number: int) -> None:
    """It is recorded, compared, saved and compared again; and the same one twice is a repeat wherever it can be."""
    several = guard()
    session = several.session()
    for tool in ("read_file", "send_email", "web_search", "bash"):
        for _ in range(3):
            session.begin_round([ToolCall("c", tool, {"path": "a", "query": "a b", "command": "ls"})])
            session.record_result("c", ODD[number]())
            session = several.session(state=json.loads(text_of(session)))
    assert session.begin_round([ToolCall("c", "read_file", {"path": "b"})])[0].streak == 1


@pytest.mark.parametrize("number", range(len(ODD)))
def test_no_arguments_are_too_odd(number: int) -> None:
    session = guard().session()
    for tool in ("read_file", "edit_file", "web_search", "bash", "run_sql"):
        for name in ("path", "query", "command", "page", "old_string", "content", "method"):
            for _ in range(2):
                session.begin_round(
                    [ToolCall("c", tool, {name: ODD[number](), "file": "a"}), ToolCall("d", tool, ODD[number]())]
                )
                session.record_result("c", "x")
                session.record_result("d", "x")
    text_of(session)
    assert session.begin_round([ToolCall("c", "read_file", {"path": "zz"})])[0].streak == 1


@few
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_result_and_an_argument(value: Any) -> None:
    session = guard().session()
    streaks = []
    for _ in range(3):
        streaks.append(session.begin_round([ToolCall("c", "read_file", value)])[0].streak)
        session.record_result("c", value)
    assert streaks in ([1, 2, 3], [1, 1, 1]) or streaks[0] == 1
    text_of(session)


# -- saved states that are none -----------------------------------------------------------------------------------


@few
@given(steps, st.data())
def test_a_damaged_state_is_never_an_exception(transcript: list[Any], data: st.DataObject) -> None:
    several = guard()
    session = several.session()
    for step in transcript:
        play(session, step)
    state = json.loads(text_of(session))
    for _ in range(3):
        _damage(state, data)
    resumed = several.session(state=state)
    for step in transcript:
        play(resumed, step)
    text_of(resumed)


def _damage(state: Any, data: st.DataObject) -> None:
    place: Any = state
    for _ in range(data.draw(st.integers(1, 6))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
            place[key] = data.draw(st.sampled_from([None, -1, 2**60, "x" * 100, [], {}, 1.5, True, [None], "x"]))
            return
        place = place[key]
