"""Scripts about each kind of evidence for a loop but the identical call, which has its own: see `_scripts_loops`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopguard_core.testing.conformance._personas import QUERY, call
from loopguard_core.testing.conformance._script import Script
from loopguard_core.testing.conformance._story import Seen, climb, story
from loopguard_core.testing.personas import ScriptedCall

NAMES = frozenset({"tool_names"})

_FACTS = {
    "a": "invoice a is overdue since the third of May",
    "b": "invoice b was paid on the ninth of June, in full",
}
_CONFIG = "retries = 3, timeout = 30, endpoint = billing.internal"
_SERVICES = "billing, mailer, ledger and nothing else"
_DEFAULT_PAGE = "The default page: choose a customer in the list on the left."


def timed_out(arguments: Mapping[str, Any], ran: int) -> str:
    """A tool that times out, whatever it is asked."""
    return "Error: the billing service timed out"


def refused_connection(arguments: Mapping[str, Any], ran: int) -> str:
    """A tool that cannot reach the network."""
    return "Error: connection refused"


def fact(arguments: Mapping[str, Any], ran: int) -> str:
    """A tool that says the same about the same invoice."""
    return _FACTS[str(arguments["query"])]


def found(arguments: Mapping[str, Any], ran: int) -> str:
    """A search whose two best entries are always the same."""
    return f"Stuck agents: https://a.example/1\nWhy loops: https://b.example/2\nOther: https://c.example/{ran}"


def _invoice(name: str) -> ScriptedCall:
    return call(arguments={"query": name})


def _search(words: str) -> ScriptedCall:
    return call("web_search", {"query": words})


def _edit(old: str, new: str) -> ScriptedCall:
    return call("edit_file", {"path": "app.py", "old_string": old, "new_string": new})


_TO_AND_FRO = (_edit("a = 1", "a = 2"), _edit("a = 2", "a = 1")) * 3
_CYCLE_OF_TWO = (
    Seen(4, "cycle", "observe", 2),
    Seen(5, "cycle", "observe", 2),
    Seen(6, "cycle", "steer", 3, told=True),
    Seen(7, "cycle", "steer", 3),
    Seen(8, "cycle", "block", 4),
    Seen(9, "cycle", "block", 4),
    Seen(10, "cycle", "block", 5),
    Seen(11, "cycle", "block", 5),
    Seen(12, "cycle", "stop", 6),
)
_TOOLS = ("fetch", "read_file", "list_orders", "get_balance")

EVIDENCE: tuple[Script, ...] = (
    story(
        "cycle of two calls",
        "Two calls in turn, results unchanged: seen in lap 2, told in lap 3, refused in lap 4, ended in lap 6.",
        rounds=(_invoice("a"), _invoice("b")) * 6,
        tools={"fetch": fact},
        seen=_CYCLE_OF_TWO,
        says="part of the same 2 steps in the same order",
    ),
    story(
        "cycle of two tools",
        "The same with two tools, where the identical call is not looked for.",
        rounds=(call("read_config"), call("list_services")) * 6,
        tools={"read_config": lambda arguments, ran: _CONFIG, "list_services": lambda arguments, ran: _SERVICES},
        seen=_CYCLE_OF_TWO,
        says="part of the same 2 steps in the same order",
        policy={"detectors": {"repeated_call": {"enabled": False}}},
        features=NAMES,
    ),
    story(
        "two tools in turn",
        "Rounds of another tool do not reset a streak: each of the two is refused at its own third request.",
        rounds=((call("read_config"), call("list_services")) * 6)[:11],
        tools={"read_config": lambda arguments, ran: _CONFIG, "list_services": lambda arguments, ran: _SERVICES},
        seen=(
            Seen(3, "repeated_call", "observe", 2),
            Seen(4, "repeated_call", "observe", 2),
            *(Seen(number, "repeated_call", "block", (number + 1) // 2) for number in range(5, 11)),
            Seen(11, "repeated_call", "stop", 6),
        ),
        says="with the same arguments",
        features=NAMES,
    ),
    story(
        "one tool failing with changing arguments",
        "A tool that fails for one reason whatever it is asked: seen after 2 failing rounds, told after 3, refused "
        "after 5, ended after 8.",
        rounds=[_invoice(f"invoice {number}") for number in range(9)],
        tools={"fetch": timed_out},
        seen=climb(
            "repeated_failure.transient",
            3,
            *("observe", "STEER", "steer", "block", "block", "block", "stop"),
            streak=2,
        ),
        says="with different arguments, because of timeouts",
    ),
    story(
        "one root error across tools",
        "Four tools in turn that all fail for one reason: seen after 3 failing rounds, told after 5, ended after 10.",
        rounds=[call(_TOOLS[number % 4], {"query": f"part {number}"}) for number in range(11)],
        tools=dict.fromkeys(_TOOLS, refused_connection),
        seen=climb(
            "repeated_failure.cross_tool",
            4,
            *("observe", "observe", "STEER", "steer", "steer", "steer", "steer", "stop"),
            streak=3,
        ),
        says="with several tools, all because of the network",
        features=NAMES,
    ),
    story(
        "an invented field",
        "The same request with a field nobody asked for is the same request: refused by round 4, ended at 7.",
        rounds=[
            call(),
            *(
                call(arguments={**QUERY, "reason": reason})
                for reason in ("to check it", "once more", "to be sure", "just so", "as asked", "again")
            ),
        ],
        tools={"fetch": lambda arguments, ran: "invoice INV-2291 is overdue"},
        seen=climb("stagnation.near_identical", 2, *("observe", "STEER", "block", "block", "block", "stop"), streak=2),
        says="with changes that do not matter",
        features=NAMES,
    ),
    story(
        "the same result for other arguments",
        "A result that does not depend on the arguments: seen after 3, told after 5, and no proof of a loop.",
        rounds=[_invoice(f"customer {number}") for number in range(7)],
        tools={"fetch": lambda arguments, ran: _DEFAULT_PAGE},
        seen=climb("stagnation.same_result", 4, *("observe", "observe", "STEER", "steer"), streak=3),
        says="for different arguments",
    ),
    story(
        "edits that undo each other",
        "An edit and its opposite in turn: seen at the second undo, told at the third, refused from the fourth on.",
        rounds=_TO_AND_FRO,
        tools={"edit_file": lambda arguments, ran: "edited"},
        seen=climb("stagnation.undo", 3, *("observe", "STEER", "block", "block"), streak=2),
        says="took back an earlier edit",
        features=NAMES,
    ),
    story(
        "rephrased searches",
        "The same search in other words: seen at the first repeat, told at the second, never refused.",
        rounds=[
            _search("loop detection for agents"),
            _search("detecting loops in agents"),
            _search("agents loop detection"),
            _search("detection of agent loops"),
        ],
        tools={"web_search": found},
        seen=climb("rephrased_search", 3, "observe", "STEER", streak=1),
        says="in other words",
        features=NAMES,
    ),
    story(
        "searches that go on",
        "Searches that each ask about something new are left alone, though they share their subject.",
        rounds=[
            _search(f"invoice {subject}")
            for subject in ("number", "due date", "late fee", "tax rate", "reminder letter", "payment terms")
        ],
        tools={"web_search": lambda arguments, ran: f"https://a.example/{arguments['query'].replace(' ', '-')}"},
        features=NAMES,
    ),
)
