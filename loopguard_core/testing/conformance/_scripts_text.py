"""Scripts about what the model writes: text that repeats itself, and messages that say the same again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopguard_core._advice import advice_for
from loopguard_core.testing.conformance._personas import DONE, call, for_rounds, user_text
from loopguard_core.testing.conformance._record import Record
from loopguard_core.testing.conformance._script import Expected, Script
from loopguard_core.testing.conformance._scripts_evidence import NAMES
from loopguard_core.testing.conformance._scripts_loops import assert_closed
from loopguard_core.testing.conformance._scripts_outcomes import overdue
from loopguard_core.testing.conformance._story import NEXT, climb, story
from loopguard_core.testing.personas import MARK, ChatRequest, Reply

SENTENCE = "I have now checked the configuration again and will go on with the next step soon. "
REPEATED = SENTENCE * 60
"""About 5,000 characters of which the first 83 say everything."""

PROMISE = "Thought: I will read the invoice and then report on it."
"""A promise instead of a call or an answer, as a model that writes its steps down puts it."""

_CUT_BY = 1_000
_LIST = "\n".join(
    f"{number}. {verb} the {noun} before {month} and tell {whom}."
    for number, (verb, noun, month, whom) in enumerate(
        zip(
            ("Read", "Count", "Sign", "Send", "Check", "File", "Copy", "Sort", "Print", "Close", "Open", "Move") * 4,
            ("invoice", "ledger", "letter", "receipt", "budget", "memo", "order", "quote") * 6,
            ("March", "April", "May", "June", "July", "August", "autumn", "spring", "winter", "Easter", "noon") * 5,
            ("Ann", "the board", "nobody", "Bo's team", "the auditor", "Cy", "sales") * 7,
            strict=False,
        ),
        1,
    )
)


_CHAPTERS = (
    "the harbour at dawn", "a letter from Lisbon", "snow on the pass", "the clerk explains", "two brothers argue",
    "market day", "an old map", "rain without end", "the ferry sinks", "what Clara saw", "a trial begins", "peace",
)  # fmt: skip


def chapter(arguments: Mapping[str, Any], ran: int) -> str:
    """A book in which no chapter is like another."""
    return f"{arguments['path']}: {_CHAPTERS[ran % len(_CHAPTERS)]}"


def _asked_again(request: ChatRequest) -> bool:
    return user_text(request) == NEXT


def _listens(request: ChatRequest) -> Reply:
    told = any(MARK in text for role in ("user", "tool") for text in request.texts(role))
    return Reply(text=DONE) if told or _asked_again(request) else Reply(text=REPEATED)


def _never_listens(request: ChatRequest) -> Reply:
    return Reply(text=DONE) if _asked_again(request) else Reply(text=REPEATED)


def _with_a_call(request: ChatRequest) -> Reply:
    reply = _listens(request)
    return Reply(text=reply.text, tool_calls=(call(),)) if reply.text == REPEATED else reply


def _promises(request: ChatRequest) -> Reply:
    return Reply(text=DONE) if _asked_again(request) else Reply(text=PROMISE)


def _told_once(record: Record) -> None:
    [told] = record.told(2)
    assert told.startswith(MARK)
    advice = advice_for("text_repetition", None)
    assert advice.why in told
    assert advice.ways in told
    assert SENTENCE not in told, "quotes what was written"
    written = [str(message.get("content")) for message in record.requests[1]["messages"]]
    assert not any(REPEATED in text for text in written), "the model is sent all of the repeated text again"


def _first_cut(record: Record) -> None:
    first = record.recorder.loops[0]
    assert (first.detector, first.action.value, first.streak) == ("text_repetition", "steer", 1)
    assert first.abort
    assert first.channel == "content"
    assert first.char is not None
    assert first.char <= _CUT_BY


def _cut(record: Record, expected: Expected) -> None:
    _first_cut(record)
    assert len(record.recorder.loops) == 1
    _told_once(record)
    assert record.turns[0].text == DONE
    assert (record.end.reason, record.end.model_calls, record.end.turns) == ("complete", 2, 0)
    assert record.end.verdict is None
    assert record.executions == [], "a call in a message that was cut is not made"
    if "history" in expected.features:
        assert record.turns[-1].text == DONE


def _cut_twice(record: Record, expected: Expected) -> None:
    _first_cut(record)
    assert [event.action.value for event in record.recorder.loops if event.abort] == ["steer", "stop"]
    _told_once(record)
    first_turn = len(record.requests) - ("history" in expected.features)
    assert first_turn == 2, "it is asked once more, and not again"
    assert (record.end.reason, record.end.model_calls) == ("doom_loop", 2)
    assert record.end.verdict is not None
    assert (record.end.verdict.detector, record.end.verdict.channel) == ("text_repetition", "content")
    assert_closed(record.turns[0], expected, "doom_loop")
    assert len(record.turns[0].text or "") < len(REPEATED)
    if "history" in expected.features:
        assert record.turns[-1].text == DONE
        assert [end.reason for end in record.recorder.ends] == ["doom_loop", "complete"]


def _left_alone(record: Record, expected: Expected) -> None:
    assert record.recorder.loops == []
    assert record.turns[0].text == _LIST
    assert (record.end.reason, record.end.model_calls) == ("complete", 1)


def _said_again(record: Record, expected: Expected) -> None:
    found = [(event.detector, event.action.value, event.streak) for event in record.recorder.loops]
    middle = [("repeated_message", expected.performs("steer"), streak) for streak in (3, 4)]
    assert found == [("repeated_message", "observe", 2), *middle, ("repeated_message", "stop", 5)]
    counts = record.told_counts("user")
    assert counts == [0, 0, 0, int(expected.steers), 0], counts
    if expected.steers:
        assert advice_for("repeated_message", None).ways in record.told(4, "user")[0]
    assert record.end.reason == "doom_loop"
    assert record.end.verdict is not None
    assert record.end.verdict.detector == "repeated_message"
    assert (record.end.turns, record.end.model_calls) == (0, 5)


def _said_beside(record: Record, expected: Expected) -> None:
    found = [(event.detector, event.action.value, event.streak) for event in record.recorder.loops]
    first = found[0][2] if found else 0
    assert first in (5, 6), "told at the fifth message, or as soon as some rounds after the first brought nothing"
    steer = expected.performs("steer")
    last = found[-1][2]
    assert last in (7, 8), "a surface that only sees the run while tools are called does not hear its last message"
    assert found == [("repeated_message", steer, streak) for streak in range(first, last + 1)], found
    assert record.ran("fetch") == 8, "nothing is refused"
    told = record.told_counts("user")
    assert told == [int(expected.steers and number == first + 1) for number in range(1, 10)], told
    if expected.steers:
        assert advice_for("repeated_message", "with_calls").ways in record.told(first + 1, "user")[0]
    assert record.end.reason == "complete"


_LEAD_IN = "Let me look at the next one."
_READS = frozenset({"reads_text"}) | NAMES

TEXT: tuple[Script, ...] = (
    Script(
        name="text that repeats itself",
        rule="The stream is cut, the model is told once why, and goes on.",
        persona=_listens,
        tools={"fetch": overdue},
        then=NEXT,
        needs=frozenset({"text"}),
        features=frozenset({"text"}),
        check=_cut,
    ),
    Script(
        name="text that repeats itself again",
        rule="After one cut and one word to the model, the second cut ends the run.",
        persona=_never_listens,
        tools={"fetch": overdue},
        then=NEXT,
        needs=frozenset({"text"}),
        features=frozenset({"text"}),
        check=_cut_twice,
    ),
    Script(
        name="a call behind text that repeats itself",
        rule="A call in a message that was cut is not made.",
        persona=_with_a_call,
        tools={"fetch": overdue},
        then=NEXT,
        needs=frozenset({"text"}),
        features=frozenset({"text"}),
        check=_cut,
    ),
    Script(
        name="a long list",
        rule="A long text whose lines are alike and differ is neither cut nor noted.",
        persona=lambda request: Reply(text=_LIST),
        tools={"fetch": overdue},
        needs=frozenset({"text"}),
        features=frozenset({"text"}),
        check=_left_alone,
    ),
    Script(
        name="the same promise again",
        rule="The same message without a call: seen at 2, told at 3, ended at 5.",
        persona=_promises,
        tools={"fetch": overdue},
        needs=frozenset({"stop"}),
        features=frozenset({"asks_on"}),
        check=_said_again,
    ),
    Script(
        name="the same words beside calls",
        rule="The same words beside calls that bring nothing new: the model is told once, and nothing is refused.",
        persona=for_rounds(8, lambda n: (call(arguments={"query": f"invoice {n}"}),), text=_LEAD_IN),
        tools={"fetch": overdue},
        policy={"detectors": {"stagnation": {"enabled": False}}},
        features=_READS,
        check=_said_beside,
    ),
    story(
        "a habit of words",
        "The same words before each of twelve calls that bring something new are a habit, and left alone.",
        rounds=[call("read_file", {"path": f"chapter {number}"}) for number in range(12)],
        tools={"read_file": chapter},
        words=_LEAD_IN,
        features=_READS,
    ),
    story(
        "the same words beside a poll",
        "Words count beside differing calls alone: beside a poll it is the poll that is judged, with all its time.",
        rounds=(call("job_status", {"query": "job-7"}),) * 7,
        tools={"job_status": lambda arguments, ran: "status: running"},
        seen=climb("repeated_call.poll", 6, "observe", "observe"),
        says="what it asks about did not change",
        words="Let me see whether it is done.",
        features=_READS,
    ),
)
