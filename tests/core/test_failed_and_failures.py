"""Which outputs are failures, where they come from, and whether two are alike."""

from __future__ import annotations

from typing import Any

import pytest

from loopguard_core._failed import judge_error, nothing_done
from loopguard_core._failures import TRANSIENT, Failure, classify, counts_of, root_of, words_of

FAILED: list[Any] = [
    "<error_details>\nNo sufficiently similar match found at line: 12",
    "<tool_use_error>String to replace not found</tool_use_error>",
    "PreToolUse:Bash hook error: [no-force.sh]: BLOCKED: not allowed by policy",
    "╷\n│ Error: No valid credential sources found\n│",
    "Command `rm -rf /` was blocked by your policy",
    "The tool call was denied",
    "Tool call not executed: blocked by policy",
    "Not executed.",
    "bash: blocked by the sandbox",
    {"code": "ERR_NOT_FOUND", "message": "x"},
    {"code": "EACCES", "message": "x"},
    "<!DOCTYPE html><html><title>Just a moment...</title><script>go();</script></html>",
    "<html><title>Attention Required! | Cloudflare</title></html>",
    (
        "Just a moment...\nVerify you are human by completing the action below.\nThe site reviews the security of your "
        "connection"
    ),
    "[sandbox] command not executed: denied by policy rule `no-delete` (request b68babb0). Ask the user.",
    "Call denied by your permissions.",
    "Permission to use Bash with command npm install lodash@^4 has been denied.",
    "Request for /etc/shadow was blocked",
    "Action executed.\nRootWebArea 'Attention Required! | Cloudflare'\n[9] heading 'Sorry, you have been blocked'",
    {"code": 42210000, "message": "market is closed; order rejected", "request_id": "cc2c5a48"},
    {"code": "ORDER_REJECTED", "message": "not today"},
    {"code": -32602, "message": "no such method"},
    {"fehler": "PERIODE_GESCHLOSSEN", "meldung": "Buchung abgelehnt."},
    {"erreur": "hors ligne"},
    "InvalidToolArguments: Unterminated string in JSON at position 440. The call was not executed.",
    "AccessDenied: User is not authorized to perform s3:PutObject",
    "botocore.NoSuchBucket: The bucket does not exist",
    "401 UNAUTHENTICATED: access token expired",
    "npm error code ECONNRESET\nnpm error network aborted",
    "Error: x",
    "error: x",
    "ERROR x",
    "[ERROR] x",
    "Exception: x",
    "fatal error: x",
    "Tool error: x",
    "TimeoutError: x",
    "requests.exceptions.ConnectionError(x)",
    "  Error: leading space",
    "Traceback (most recent call last):\n  File",
    "Error",
    "failed: x",
    "Failure: x",
    "fatal: not a git repository",
    "denied: x",
    "错误: x",
    "エラー：x",
    "HTTP 500",
    "HTTP/1.1 404 Not Found",
    "404 Not Found",
    "503 Service Unavailable",
    "could not open x",
    "Couldn't find it",
    "cannot read x",
    "unable to connect",
    "failed to fetch",
    "permission denied",
    "Access denied",
    "no such file or directory",
    "command not found",
    "connection refused",
    "operation not permitted",
    "request timed out",
    "rate limit exceeded",
    "too many requests",
    "unknown tool x",
    "unauthorized",
    "curl: (6) Could not resolve host: x",
    "bash: line 1: cannot open x",
    "net::ERR_NAME_NOT_RESOLVED",
    "page.goto: net::ERR_X",
    "EACCES: permission denied, open 'x'",
    "ECONNREFUSED: connection refused",
    "sudo: a password is required",
    "f() missing 1 required positional argument: 'x'",
    "f() got an unexpected keyword argument 'x'",
    "cat: x: No such file or directory",
    "bash: foo: command not found",
    "cd: x: Not a directory",
    "x is not a valid tool, try one of",
    "1 validation error for Model",
    ";; connection timed out; no servers could be reached",
    "API error code: 5",
    "db error: 5",
    "getaddrinfo ENOTFOUND api.x.test",
    "connect ECONNREFUSED 127.0.0.1:80",
    "socket hang up",
    {"error": "x"},
    {"errors": ["x"]},
    {"isError": True},
    {"is_error": 1},
    {"success": False},
    {"ok": False},
    {"status": "error"},
    {"status": "FAILED"},
    {"status": "failure"},
    {"status": 500},
    {"status_code": 404},
    {"statusCode": 400},
    {"exit_code": 1, "stderr": "x"},
    {"returncode": 2, "stderr": "x", "stdout": ""},
    '{"error": "x"}',
    ' {"success": false}',
    '{"status": 503}',
    ValueError("x"),
    KeyboardInterrupt(),
    OSError(),
    "building\n" * 5 + "error: could not compile",
    "downloading\n" * 40 + "ERROR No matching distribution",
]
FINE: list[Any] = [
    # What calls bring that went well, or what was looked up: nine of these in a row are no failure.
    {"code": "RUNNING", "message": "job is running"},
    {"code": "IN_PROGRESS", "message": "working", "details": "10 %"},
    {"code": "BUSY", "message": "printing page 3"},
    {"code": 1000, "message": "sent"},
    {"code": "10000", "message": "Success"},
    {"code": "0000", "message": "success"},
    {"code": "queued", "message": "Queued. Thank you."},
    {"code": 800, "message": "clear sky"},
    {"code": "SAVE20", "message": "20 % off", "title": "Autumn"},
    {"code": "a1b", "message": "Fix failing test", "timestamp": 1},
    "Request 1000 (Ana, laptop) was denied by Ivo on 1 May: over budget",
    "Request for leave was denied",
    "Call 12: the customer's card was declined; he paid in cash",
    "Operation log. 2 uploads were blocked, 98 passed",
    "Command reference. DROP is not permitted on replicas.",
    "Execution plan: step 2 was refused by QA and redone. All done.",
    "TC-104: not executed",
    "10.0.0.4 -> 10.9.0.1:443: blocked by rule 12",
    "Claim 7 (Ana): denied by policy exclusion 9, see there",
    "Requests blocked by a firewall rule are listed on page 4",
    "Not executed in 2024: three contracts " + "and more " * 40 + "\nPage 3\n- 9",
    "Not executed: three contracts\nPage 3\n- 9",
    "PaymentFailed: order 1003, 10.50 EUR",
    "RequestsRejected: 3 RequestsAccepted: 300",
    "AuthTimeout: 0 today, SessionExpired: 3, all fine",
    "MissingHeartbeat (sensor 3): resolved",
    "ImagePullFailed: pod 3; later pulled and running",
    (
        "import React from 'react';\nexport function Gate() {\n  setTimeout(() => ok(), 100);\n"
        "  return <h1>Verify you are human</h1>; // captcha of Cloudflare\n}\n"
    ),
    "How to get past pages that ask you to verify you are human",
    "Accessories: 3 found",
    "Request log: 3 entries, none refused",
    "Access points: 4",
    "Actions: build, test",
    {"code": 0, "message": "ok"},
    {"code": 200, "message": "success"},
    {"code": "SUCCESS", "message": "done"},
    {"code": "DE", "message": "Germany", "capital": "Berlin"},
    {"code": True, "message": "x"},
    {"code": None, "message": "x"},
    {"code": "", "message": "x"},
    {"fehler": None, "meldung": "alles gut"},
    "Failover: enabled",
    "InvalidationList (3 entries)",
    "3 of 40 steps were not needed",
    "10:00 connection denied by rule 4\n10:01 connection denied by rule 4",
    "Plan: the change was not executed yet\nit will be tomorrow",
    "",
    " ",
    "ok",
    "no error: all is well",
    "no errors found",
    "zero errors",
    "0 errors",
    "8 failed, 2 passed",
    "Errors: 0 found here",
    "the error was fixed",
    "An error-free day",
    "connect every one of them",
    "socket hangs",
    "errorless",
    "Erroneous",
    "without error: x",
    "5000 rows",
    "404",
    "500 rows updated",
    "404 files changed",
    "450 items",
    "successfully failed over",
    "failover done",
    "I cannot say",
    "It could not be better",
    "See the exception list",
    "Failed tests: none",
    "exceptional",
    "can",
    "not found in cache, fetched",
    "rate limits are documented here",
    {"error": None},
    {"error": ""},
    {"errors": []},
    {"isError": False},
    {"success": True},
    {"ok": True},
    {"ok": None},
    {"success": 0},
    {"status": "ok"},
    {"status": 200},
    {"status": 399},
    {"status": True},
    {"status": "500"},
    {"status_code": "404"},
    {"exit_code": 1},
    {"exit_code": 1, "stdout": "x", "stderr": "y"},
    {"exit_code": 0, "stderr": "warning"},
    {"exit_code": "1"},
    {},
    [],
    None,
    5,
    0,
    False,
    [{"error": "x"}],
    '[{"error": "x"}]',
    '{"error": "x"',
    '{"error": null}',
    "{" * 50_000,
    b"Error: x",
    {"result": {"error": "x"}},
    object(),
]


def _name(value: Any) -> str:
    return repr(value).partition(" object at ")[0][:40]  # an address would be another one in each process


@pytest.mark.parametrize("output", FAILED, ids=_name)
def test_a_failure(output: Any) -> None:
    assert judge_error(output) is True


@pytest.mark.parametrize("output", FINE, ids=_name)
def test_no_failure(output: Any) -> None:
    assert judge_error(output) is False


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("429 Too Many Requests", "rate"),
        ("Rate limit reached for gpt", "rate"),
        ("RESOURCE_EXHAUSTED: quota", "rate"),
        ("HTTP 429", "rate"),
        ("401 Unauthorized", "auth"),
        ("status: 403", "auth"),
        ("HTTP/1.1 401", "auth"),
        ("invalid api key provided", "auth"),
        ("EACCES: permission denied", "auth"),
        ("sudo: a password is required", "auth"),
        ("No space left on device", "resource"),
        ("OSError: [Errno 24] Too many open files", "resource"),
        ("Read timed out.", "timeout"),
        ("context deadline exceeded", "timeout"),
        ("HTTP 504", "timeout"),
        ("ETIMEDOUT", "timeout"),
        ("getaddrinfo ENOTFOUND api.x.test", "network"),
        ("curl: (6) Could not resolve host: x", "network"),
        ("connect ECONNREFUSED 127.0.0.1:80", "network"),
        ("dial tcp: lookup x: no such host", "network"),
        ("socket hang up", "network"),
        ("net::ERR_INTERNET_DISCONNECTED", "network"),
        ("503 Service Unavailable", "unavailable"),
        ("502 Bad Gateway", "unavailable"),
        ("HTTP 500", "unavailable"),
        ("overloaded_error", "unavailable"),
        ("sqlite3.OperationalError: database is locked", "contention"),
        ("deadlock detected, transaction rolled back", "contention"),
        ("401 UNAUTHENTICATED: access token expired", "auth"),
        ("google.auth.exceptions.RefreshError: ('invalid_grant: Token has been expired or revoked.')", "auth"),
        ("GaxiosError: invalid_grant", "auth"),
        ("Your session has expired, log in again", "auth"),
        ("1 validation error for Order", "validation"),
        ("TypeError: f() missing 1 required positional argument: 'x'", "validation"),
        ("Unknown tool: foo", "unknown_tool"),
        ("status 422", "validation"),
        ("amount must be a number", "validation"),
        ("SyntaxError: invalid syntax", "validation"),
        ("404 Not Found", "not_found"),
        ("No such file or directory: 'x'", "not_found"),
        ("user does not exist", "not_found"),
        ("ENOENT", "not_found"),
        ("文件不存在", "not_found"),
        ("权限不足", "auth"),
        ("something odd happened", "other"),
        ("", "other"),
        ("read 429 rows", "other"),
        ("order 404 was odd", "other"),
        ("page 500 is blank", "other"),
    ],
)
def test_the_root(text: str, root: str) -> None:
    assert root_of(text) == root


def test_which_roots_may_pass() -> None:
    assert set(TRANSIENT) == {"rate", "timeout", "network", "contention", "unavailable"}
    assert classify("HTTP 429", "HTTP 429").transient
    assert not classify("HTTP 401", "HTTP 401").transient


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8 failed", (8,)),
        ("3 failed, 1 error in 5s", (3, 1)),
        ("Found 12 errors", (12,)),
        ("errors: 3", (3,)),
        ("2 type errors", (2,)),
        ("5 issues remaining", (5,)),
        ("all good", ()),
        ("1 error " * 20, (1,) * 8),
    ],
)
def test_how_much_is_wrong(text: str, counts: tuple[int, ...]) -> None:
    assert counts_of(text) == counts


@pytest.mark.parametrize(
    ("now", "before", "better"),
    [
        ((8,), (9,), True),
        ((9,), (9,), False),
        ((10,), (9,), False),
        ((3, 1), (4, 1), True),
        ((3, 2), (4, 1), False),
        ((0,), (1,), True),
        ((), (9,), False),
        ((9,), (), False),
    ],
)
def test_a_falling_count_is_progress(now: tuple[int, ...], before: tuple[int, ...], better: bool) -> None:
    assert Failure("other", "x", now).better_than(Failure("other", "x", before)) is better


@pytest.mark.parametrize(
    ("one", "other", "alike", "same"),
    [
        ("file 'a.txt' is odd", "file 'b.txt' is odd", True, True),
        ("row 5 is odd", "row 6 is odd", True, True),
        ("/a/b.py is odd", "/c/d.py is odd", True, True),
        ("it is odd", "it is even", False, False),
        ("ENOTFOUND", "Could not resolve host", True, False),
        ("404 Not Found", "no such file", True, False),
        ("8 failed oddly", "7 failed oddly", True, False),
        ("401 Unauthorized", "404 Not Found", False, False),
    ],
)
def test_two_failures_that_are_alike(one: str, other: str, alike: bool, same: bool) -> None:
    first, second = classify(one, one), classify(other, other)
    assert first.like(second) is alike
    assert second.like(first) is alike
    assert first.same_as(second) is same


def test_naming_the_arguments_makes_no_failure_a_new_one() -> None:
    first = classify("cannot move alpha to beta", "cannot move alpha to beta", ["alpha", "beta"])
    second = classify("cannot move gamma to delta", "cannot move gamma to delta", ["gamma", "delta"])
    assert first.same_as(second)
    assert not first.same_as(classify("cannot move gamma to delta", "cannot move gamma to delta"))


def test_a_failure_is_saved_whole_and_nothing_else_is_taken_up() -> None:
    failure = classify("3 failed, HTTP 503", "3 failed, HTTP 503")
    assert Failure.restored(failure.save()) == failure
    for state in (
        None,
        5,
        [],
        ["rate"],
        ["nope", "x", []],
        ["rate", "x" * 41, []],
        ["rate", "x", [-1]],
        ["rate", 5, []],
        ["rate", "x", 5],
    ):
        with pytest.raises(ValueError, match=r"."):
            Failure.restored(state)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("read", {"path": "a.txt"}, ["a.txt", "read"]),
        ("ls", {"n": 12, "deep": {"x": ["yy", 1.5]}}, ["1.5", "12", "yy"]),
        ("t", {"flag": True, "none": None, "a": "b"}, []),
        ("t", "text", ["text"]),
        ("t", {"a": "x" * 201}, []),
        ("tool", None, ["tool"]),
    ],
)
def test_words_a_result_may_echo(tool: str, arguments: Any, words: list[str]) -> None:
    found = words_of(tool, arguments)
    assert sorted(found) == sorted(words)
    assert list(found) == sorted(found, key=len, reverse=True)


def test_words_are_bounded() -> None:
    assert len(words_of("tool", {str(n): f"value {n}" for n in range(1000)})) <= 32


@pytest.mark.parametrize(
    "output",
    [
        "The string to replace was not found in the file. Make sure it matches.",
        "No match found for old_string",
        "old_str did not appear verbatim",
        "0 replacements made",
        "No changes were made to the file.",
        "nothing to commit, working tree clean",
        "The apply model made no changes to the file.",
        "Your proposed edit has new errors.\nERRORS:\n- E999 IndentationError\nYour changes have NOT been applied.",
    ],
)
def test_a_change_that_changed_nothing(output: str) -> None:
    assert nothing_done(output)


@pytest.mark.parametrize(
    "output",
    [
        "edited",
        "3 replacements made",
        "File written.\nnot found: none",
        "Applied. It is not the last one.",
        {"a": 1},
        None,
        "",
    ],
)
def test_a_change_that_was_made(output: Any) -> None:
    assert not nothing_done(output)
