"""What every tool is shown: scripts of rounds, each a list of calls with their results. Standard library only.

A loop must be caught (the model told, a call refused or the run ended) before whatever repeats has repeated six times:
five repeats are what it may take at most. A healthy run may not be stopped; being told something there is a nag. These
rules were fixed before anything was run, and the scripts know nothing of any tool's thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

REPEATS = 5
"""How often a loop may repeat before it must have been caught."""


@dataclass(frozen=True)
class Call:
    tool: str
    args: dict[str, Any]
    result: str
    failed: bool = False


Round = list[Call]


@dataclass(frozen=True)
class Scenario:
    """One script.

    Attributes:
        name: Short, for the table.
        kind: `loop` or `healthy`.
        what: What happens in it.
        rounds: The calls of each round with their results, in order.
        by: A loop must be caught at the latest in this round, from 1.
        traits: What a user would declare of a tool where a tool's README asks for it: polls, reads, mutates, runs.
    """

    name: str
    kind: Literal["loop", "healthy"]
    what: str
    rounds: list[Round]
    by: int | None = None
    traits: dict[str, str] = field(default_factory=dict)


ROUNDS = 16
"""Rounds of a loop."""

_ORDER = '{"order": "A-1007", "state": "shipped", "carrier": "DHL", "items": 3}'
_HITS = (
    "1. Setting up connection pools (docs.example.com/pool) 2. Pool exhaustion explained (blog.example.org/pools) "
    "3. Tuning max_overflow (example.net/overflow)"
)
_SEARCHES = (
    "postgres connection pool exhausted",
    "connection pool exhausted postgres fix",
    "how to fix postgres connection pool exhausted",
    "postgres pool exhausted connections fix",
    "fix exhausted postgres connection pool",
    "exhausted connection pool postgres how to fix",
    "postgres fix: connection pool exhausted",
    "how fix exhausted pool connections postgres",
    "connection pool exhausted in postgres, fix",
    "postgres exhausted connection pool how to",
    "pool of connections exhausted postgres fix",
    "postgres connection pool exhausted how fix",
)
_TICKETS = ("Printer offline", "Printer is offline", "Office printer down", "Printer not reachable")


def _identical() -> list[Round]:
    return [[Call("get_order", {"order": "A-1007"}, _ORDER)] for _ in range(ROUNDS)]


def _volatile() -> list[Round]:
    return [
        [
            Call(
                "get_balance",
                {"account": "A-17"},
                f'{{"balance": "120.00", "request_id": "req_{number * 7919 % 65536:04x}{number * 104729 % 65536:04x}",'
                f' "served_at": "2026-03-02T10:{number:02d}:{number * 13 % 60:02d}Z",'
                f' "took_ms": {80 + number * 7 % 23}}}',
            )
        ]
        for number in range(ROUNDS)
    ]


def _polling() -> list[Round]:
    running = [
        [Call("job_status", {"job": "j-91"}, f'{{"status": "running", "done": {number * 40}, "of": 600}}')]
        for number in range(1, 15)
    ]
    return [
        [Call("start_job", {"input": "orders.csv"}, '{"job": "j-91"}')],
        *running,
        [Call("job_status", {"job": "j-91"}, '{"status": "done", "done": 600, "of": 600}')],
        [Call("get_report", {"job": "j-91"}, "600 orders, 12 without a customer")],
    ]


def _paging() -> list[Round]:
    return [
        [
            Call(
                "list_orders",
                {"page": page, "per_page": 3},
                f'{{"page": {page}, "orders": ["A-{page * 31 + 1000}", "B-{page * 17 + 400}", "C-{page * 53 + 70}"]}}',
            )
        ]
        for page in range(1, 19)
    ]


def _cycle() -> list[Round]:
    a = Call("read_file", {"path": "src/app.py"}, "import config\n\nprint(config.PORT)\n")
    b = Call("list_dir", {"path": "src"}, "app.py\nconfig.py\n")
    return [[a] if number % 2 == 0 else [b] for number in range(ROUNDS)]


def _fan_out() -> list[Round]:
    calls = [
        Call("get_metric", {"name": name}, f"{name}: 0.9{digit}") for digit, name in enumerate(("cpu", "io", "net"))
    ]
    return [list(calls) for _ in range(ROUNDS)]


def _one_batch() -> list[Round]:
    equal = [Call("get_order", {"order": "A-1007"}, _ORDER) for _ in range(4)]
    return [equal, [Call("get_customer", {"customer": 55}, '{"customer": 55, "name": "Ada Ng"}')]]


def _failing() -> list[Round]:
    error = "Error: 422 Unprocessable Entity: field 'queue' is required"
    return [
        [
            Call(
                "create_ticket",
                {"title": _TICKETS[number % len(_TICKETS)], "body": f"See floor {number // 4 + 1}", "prio": number % 3},
                error,
                failed=True,
            )
        ]
        for number in range(ROUNDS)
    ]


def _rephrased() -> list[Round]:
    return [[Call("web_search", {"query": query}, _HITS)] for query in _SEARCHES]


def _jitter() -> list[Round]:
    spellings = ("INV-2291", "inv-2291", "INV 2291", " INV-2291", "Inv-2291", "INV_2291", "#INV-2291", "inv 2291")
    return [
        [
            Call(
                "fetch_invoice",
                {"invoice_id": spellings[number % len(spellings)], "attempt": number + 1},
                "Error: 504 Gateway Timeout: the billing service gave no answer within 30 seconds",
                failed=True,
            )
        ]
        for number in range(ROUNDS)
    ]


def _edit_test() -> list[Round]:
    rounds: list[Round] = []
    for left in range(8, -1, -1):
        path = f"src/part_{left % 3}.py"
        body = f"def step_{left}(value):\n    return value * {left + 2}\n"
        rounds.append([Call("write_file", {"path": path, "content": body}, f"wrote {len(body)} bytes to {path}")])
        output = f"{left} failed, {40 - left} passed" if left else "40 passed"
        rounds.append([Call("run_tests", {"path": "tests"}, output, failed=left > 0)])
    return rounds


def _third_try() -> list[Round]:
    busy = Call("get_order", {"order": "A-1007"}, "Error: 503 Service Unavailable, try again shortly", failed=True)
    return [[busy], [busy], [Call("get_order", {"order": "A-1007"}, _ORDER)]]


_KINDS = ("billing", "search", "export", "login", "mail", "report", "import", "quota", "audit", "theme")


def _long() -> list[Round]:
    rounds: list[Round] = []
    for number in range(40):
        module = f"{_KINDS[number % 10]}/{'abcd'[number // 10]}{number * 37 % 91}.py"
        words = f"{_KINDS[number * 3 % 10]} {_KINDS[number * 7 % 10]} {number * 61 % 97}"
        rounds.append([Call("read_file", {"path": module}, f"# {words}\nLIMIT = {number * 113 % 401}\n")])
        edit = {"path": module, "old": f"LIMIT = {number * 113 % 401}", "new": f"LIMIT = {number * 211 % 997}"}
        rounds.append([Call("edit_file", edit, f"replaced 1 occurrence in {module}")])
        passed = 200 + number
        rounds.append([Call("run_tests", {"path": f"tests/{module}"}, f"{passed} passed in {module}")])
    return rounds


_SOURCE = {"read_file": "reads", "list_dir": "reads", "write_file": "mutates", "edit_file": "mutates"}

SCENARIOS = (
    Scenario(
        "identical calls",
        "loop",
        "one call, one result, again and again",
        _identical(),
        1 + REPEATS,
        {"get_order": "reads"},
    ),
    Scenario(
        "volatile result",
        "loop",
        "one call; only ids, clocks and durations in its result change",
        _volatile(),
        1 + REPEATS,
        {"get_balance": "reads"},
    ),
    Scenario("A-B-A-B", "loop", "two calls in turns, results unchanged", _cycle(), 2 * (1 + REPEATS), _SOURCE),
    Scenario(
        "same batch",
        "loop",
        "the same three parallel calls in every round, results unchanged",
        _fan_out(),
        1 + REPEATS,
        {"get_metric": "reads"},
    ),
    Scenario(
        "same failure",
        "loop",
        "other arguments each time, the same error",
        _failing(),
        1 + REPEATS,
        {"create_ticket": "mutates"},
    ),
    Scenario(
        "rephrased search",
        "loop",
        "the same words in another order, the same hits",
        _rephrased(),
        1 + REPEATS,
        {"web_search": "reads"},
    ),
    Scenario(
        "argument jitter",
        "loop",
        "case, punctuation and an attempt number change, the same error",
        _jitter(),
        1 + REPEATS,
        {"fetch_invoice": "reads"},
    ),
    Scenario(
        "polling",
        "healthy",
        "a job is polled 15 times, gets on and ends",
        _polling(),
        None,
        {"job_status": "polls", "get_report": "reads", "start_job": "mutates"},
    ),
    Scenario("paging", "healthy", "18 pages, each with other content", _paging(), None, {"list_orders": "reads"}),
    Scenario(
        "one batch",
        "healthy",
        "four equal calls in parallel, once",
        _one_batch(),
        None,
        {"get_order": "reads", "get_customer": "reads"},
    ),
    Scenario(
        "edit and test",
        "healthy",
        "nine edits, the tests after each; fewer fail each time",
        _edit_test(),
        None,
        _SOURCE | {"run_tests": "runs"},
    ),
    Scenario(
        "third try", "healthy", "two timeouts in a row, then it works", _third_try(), None, {"get_order": "reads"}
    ),
    Scenario(
        "long run",
        "healthy",
        "120 rounds of reading, editing and testing forty files",
        _long(),
        None,
        _SOURCE | {"run_tests": "runs"},
    ),
)


def timing_round(number: int) -> Round:
    """A round for timing: about 200 bytes of arguments, never the same twice."""
    arguments = {
        "query": f"weather in city {number:06d} and its surroundings for the next days",
        "path": f"/srv/data/reports/{number:06d}.json",
        "limit": 10,
        "lang": "en",
        "note": f"{number * 2654435761 % 2**32:08x}" * 6,
    }
    return [Call("fetch_forecast", arguments, f"{number * 48271 % 1009} hPa, wind {number * 69621 % 97} km/h, dry")]
