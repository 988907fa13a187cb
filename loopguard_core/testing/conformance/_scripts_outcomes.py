"""Scripts about what calls return: polls, mutations, results that change, and what a policy says of its tools."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from loopguard_core.testing.conformance._personas import call
from loopguard_core.testing.conformance._script import Script
from loopguard_core.testing.conformance._scripts_evidence import NAMES, timed_out
from loopguard_core.testing.conformance._story import Seen, climb, story

SAME = "with the same arguments"
UNCHANGED = f"{SAME} in"


def overdue(arguments: Mapping[str, Any], ran: int) -> str:
    """A healthy tool that has one thing to say."""
    return "invoice INV-2291 is overdue"


def stamped(arguments: Mapping[str, Any], ran: int) -> str:
    """The same result each time, with a new id, a new time and a new duration."""
    return json.dumps(
        {
            "request_id": str(uuid.uuid5(uuid.NAMESPACE_URL, str(ran))),
            "fetched_at": f"2026-03-0{ran + 1}T10:00:0{ran}Z",
            "took": f"{12 + ran} ms",
            "status": "overdue",
        }
    )


def dated(arguments: Mapping[str, Any], ran: int) -> str:
    """A result in which the time is what was asked for."""
    return f"the last backup is of 2026-03-01T10:00:{10 + ran}Z and was verified in full"


def counted(arguments: Mapping[str, Any], ran: int) -> str:
    """A result with one field that says something, and two that always change."""
    return json.dumps({"status": "overdue", "queue": 17 * ran + 3, "views": ran})


def fewer(arguments: Mapping[str, Any], ran: int) -> str:
    """A result that gets better."""
    return f"{9 - ran} invoices are still open"


def job(steps: int) -> Any:
    """A job that is done after some polls."""
    return lambda arguments, ran: "status: done" if ran >= steps else "status: running"


_POLL = call("job_status", {"query": "job-7"})
_MAIL = call("send_email", {"query": "ann@example.com"})
_LEDGER = call("ledger", {"query": "INV-2291"})
_POLLED = climb("repeated_call.poll", 6, *("observe",) * 6, "STEER", "steer")
_STOPPED_AT_SIX = climb("repeated_call", 2, "observe", "block", "block", "block", "stop")
_STOPPED_AT_FOUR = climb("repeated_call.mutation", 2, "observe", "block", "stop")

OUTCOMES: tuple[Script, ...] = (
    story(
        "poll without change",
        "Asking whether something is done is given time: seen at 6 rounds without change, told at 12, not refused.",
        rounds=(_POLL,) * 13,
        tools={"job_status": job(99)},
        seen=_POLLED,
        says="what it asks about did not change",
        features=NAMES,
    ),
    story(
        "poll that finishes",
        "A poll that finishes within five rounds is left alone.",
        rounds=(_POLL,) * 5,
        tools={"job_status": job(4)},
        features=NAMES,
    ),
    story(
        "a mutation repeated",
        "What sends, pays or deletes does it again with every repeat: refused at the third request, ended at the next.",
        rounds=(_MAIL,) * 4,
        tools={"send_email": lambda arguments, ran: "sent"},
        seen=_STOPPED_AT_FOUR,
        says=UNCHANGED,
        features=NAMES,
    ),
    story(
        "results that only look new",
        "Fresh ids, times and durations do not make a result new.",
        rounds=(call(),) * 6,
        tools={"fetch": stamped},
        seen=_STOPPED_AT_SIX,
        says=UNCHANGED,
    ),
    story(
        "results that change",
        "The same call with a new result each time is noted before its first change is known, and then left alone.",
        rounds=(call(),) * 5,
        tools={"fetch": fewer},
        seen=climb("repeated_call", 2, "observe"),
        says=UNCHANGED,
    ),
    story(
        "work in between",
        "A successful new mutation in between starts afresh what had accumulated: reading again after it is no loop.",
        rounds=[part for number in range(6) for part in (call(), call("update_invoice", {"n": number}))],
        tools={"fetch": overdue, "update_invoice": lambda arguments, ran: f"saved version {ran}"},
        features=NAMES,
    ),
    story(
        "an old mutation in between",
        "The same mutation again is no news: nothing starts afresh, and both calls are refused at their third request.",
        rounds=((call(), _MAIL) * 4)[:8],
        tools={"fetch": overdue, "send_email": lambda arguments, ran: "sent"},
        seen=(
            Seen(4, "repeated_call.mutation", "observe", 2),
            Seen(5, "repeated_call", "observe", 2),
            Seen(6, "repeated_call.mutation", "block", 3),
            Seen(7, "repeated_call", "block", 3),
            Seen(8, "repeated_call.mutation", "stop", 4),
        ),
        says=UNCHANGED,
        features=NAMES,
    ),
    story(
        "two loops in one run",
        "Each of two loops is told about once, at its own third round.",
        rounds=(call(),) * 4 + (call("read_file", {"query": "notes"}),) * 4,
        tools={"fetch": overdue, "read_file": lambda arguments, ran: "the notes are short"},
        seen=(
            *climb("repeated_call", 2, "observe", "STEER", "steer"),
            *climb("repeated_call", 6, "observe", "STEER", "steer", streak=2),
        ),
        says=UNCHANGED,
        policy={"ladder": {"steer": 3, "block": False, "stop": 9}},
        features=NAMES,
    ),
    story(
        "one call of a fan-out",
        "Only the offending call of a round is refused, in its own place; those beside it run.",
        rounds=[
            (
                call("read_file", {"query": f"page {number}"}),
                call(),
                call("read_file", {"query": f"note {number}"}),
            )
            for number in range(5)
        ],
        tools={"fetch": overdue, "read_file": lambda arguments, ran: f"{arguments['query']} has text of its own"},
        seen=climb("repeated_call", 2, "observe", "block", "block", "block", call=1),
        says=UNCHANGED,
        features=NAMES,
    ),
    story(
        "preset strict",
        "Preset strict tells the model where the default notes, and refuses one round earlier.",
        rounds=(call(),) * 6,
        tools={"fetch": overdue},
        seen=climb("repeated_call", 2, "BLOCK", "block", "block", "block", "stop"),
        says=UNCHANGED,
        policy={"preset": "strict"},
    ),
    story(
        "preset patient",
        "Preset patient gives a failure that may pass by itself until round 6, and the advice is to wait.",
        rounds=(call(),) * 10,
        tools={"fetch": timed_out},
        seen=climb("repeated_call.transient", 2, *("observe",) * 4, *("block",) * 4, "stop"),
        says="failed in the same way",
        policy={"preset": "patient"},
    ),
    story(
        "a tool the policy says mutates",
        "`traits` says what a name does not: a repeat of a tool that mutates is ended at the fourth request.",
        rounds=(_LEDGER,) * 4,
        tools={"ledger": lambda arguments, ran: "entry written"},
        seen=_STOPPED_AT_FOUR,
        says=UNCHANGED,
        policy={"tools": {"ledger": {"traits": ["mutates"]}}},
        features=NAMES,
    ),
    story(
        "a tool the policy says polls",
        "`traits` makes any tool a poll, which is given time.",
        rounds=(_LEDGER,) * 13,
        tools={"ledger": lambda arguments, ran: "balance 120"},
        seen=_POLLED,
        says="what it asks about did not change",
        policy={"tools": {"led*": {"traits": ["polls"]}}},
        features=NAMES,
    ),
    story(
        "times that are masked",
        "Without a word in the policy a new time makes no result new.",
        rounds=(call(),) * 6,
        tools={"fetch": dated},
        seen=_STOPPED_AT_SIX,
        says=UNCHANGED,
    ),
    story(
        "times that count",
        "`maskers = []` masks nothing: where the time is what was asked for, a new one is news.",
        rounds=(call(),) * 5,
        tools={"fetch": dated},
        seen=climb("repeated_call", 2, "observe"),
        says=UNCHANGED,
        policy={"tools": {"fetch": {"maskers": []}}},
        features=NAMES,
    ),
    story(
        "the fields that count",
        "`result_key` names the fields of a result that count; what changes beside them is no news.",
        rounds=(call(),) * 6,
        tools={"fetch": counted},
        seen=_STOPPED_AT_SIX,
        says=UNCHANGED,
        policy={"tools": {"fetch": {"result_key": ["status"]}}},
        features=NAMES,
    ),
)
