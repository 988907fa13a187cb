"""Whether an output is a failure, where the SDK did not say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from loopguard_core._failures import root_of
from loopguard_core._walls import is_wall

_HEAD = 256
_JSON_LIMIT = 64 * 1024
_FAILED_WORDS = frozenset({"error", "failed", "failure"})
_EXIT_CODES = ("exit_code", "exitCode", "returncode", "return_code", "exit_status")
_TAIL = 600
_EXIT_CODE = re.compile(
    r"\b(?:exit|exited|return)(?:ed)?(?: with)?(?: exit)?(?: code| status)?:? -?[1-9]", re.IGNORECASE
)
_CAUSE = re.compile(
    r"no space left|disk quota exceeded|out of memory|cannot allocate memory|permission denied|operation not permitted"
    r"|connection (?:refused|reset|timed out)|could not resolve|name resolution|network is unreachable|timed out"
    r"|too many requests|rate limit|unauthorized|authentication failed|access denied|certificate verify failed",
    re.IGNORECASE,
)
# The last line of a longer output, where installers and compilers say what went wrong.
_FAILURE_END = re.compile(r"(?:error|fatal)\b[^\n]{0,20}: |(?-i:ERROR|FATAL) |.{0,40}\[errno -?\d+\]", re.IGNORECASE)
_HTTP_ERROR = 400
_LONGEST_CODE = 80

# Such as: Error: x / TimeoutError: x / requests.exceptions.ConnectionError(x) / [ERROR] x / Traceback (most recent
_ERROR_TEXT = re.compile(
    r"[\s╷│]*(?:<(?:\w{1,24}_)?errors?(?:_\w{1,24})?>"
    r"|\[?(?:fatal |internal |tool |execution |runtime )?(?:error|exception)\]?(?:[:!(\s]|$)"
    r"|an? (?:\w{1,20} )?(?:error|exception) (?:occurred|was raised|happened)"
    r"|(?!no |zero |without )(?:[\w-]{1,24} ){1,3}error(?: code)?\s?[:(#-]?\s?(?:-?\d|:|$)"
    r"|(?:[\w.]+\.)?\w*(?:Error|Exception)\s*[:(]"
    r"|traceback \(most recent call last\))",
    re.IGNORECASE,
)
_NOTHING_DONE = re.compile(
    r"\bnot found\b|\bno (?:exact )?match(?:es)?\b|\b(?:did|does) not (?:match|exist|appear)\b"
    r"|\bno (?:changes|occurrences|replacements|edits) (?:were |was )?(?:made|applied|found)"
    r"|\b0 (?:replacements|changes)\b|\bmade no (?:changes|edits)\b"
    r"|\bnothing (?:was |to )?(?:changed?|replaced?|commit)\b",
    re.IGNORECASE,
)
# What shells, HTTP libraries and tool runners write that does not say "error", at the beginning of a text or after the
# program's name ("curl: (6) Could not resolve host"). In lower case, so that the first letter alone settles most.
# What was asked for, perhaps with its name: a request of somebody else's is what was looked up.
_ASKED = (
    r"(?:permission|access|request|(?:tool |function )?call|command|tool(?: use)?|operation|action|execution)"
    r"(?: (?:to )?(?:'[^'\n]{1,120}'|`[^`\n]{1,120}`|\"[^\"\n]{1,120}\")| for (?=\S*[/.:\\])\S{1,120})?"
)
_PHRASES = (
    r"(?:could not|couldn't|cannot|can't|unable to|failed to|permission denied|access denied|command not found"
    r"|no such (?:file|host|tool|function)|connection (?:refused|reset|timed out|closed|aborted)"
    r"|operation not permitted|(?:request|connection|operation) timed out|rate limit exceeded|too many requests"
    r"|(?:the |this |your )?(?:permission to (?:use|run|call|access|write|read|edit|execute)\b[^\n]{0,160}?"
    rf"|{_ASKED}) (?:has been |was |is )"
    r"(?:denied|rejected|declined|blocked|refused|not (?:allowed|permitted|executed|performed))"
    r"|unknown tool|unauthorized|tool (?:call|use) (?:was )?(?:rejected|failed|aborted|refused))\b"
)
# How the words behind a status code begin: "404 Not Found", and not "500 rows".
_STATUS_WORDS = (
    r"(?:bad |unauth|payment |forbidden|not |method |proxy |request |conflict|gone\b|length |precondition"
    r"|payload |content |uri |unsupported|range |expectation|unprocessable|locked|failed |too |upgrade |internal "
    r"|service |gateway|http |(?:client |server )?error)"
)
_FAILURE_TEXT = re.compile(
    rf"{_PHRASES}|(?:failed|failure|fatal|denied|错误|失败|エラー)\s*[:：(]|http(?:/[\d.]+)?\s[45]\d\d\b"
    rf"|[45]\d\d\s+{_STATUS_WORDS}|net::err_\w|sudo: |npm err(?:or|!) |;; connection timed out"
    r"|[\w:.-]{1,60} hook (?:error|failed|blocked|declined)\b"
    r"|getaddrinfo |connect e(?:conn|timedout|netun|hostun|acces)|socket hang up"
)
_AFTER_NAME = re.compile(
    rf"[\w./-]{{1,40}}:\s(?:line \d+:\s)?(?:\(\d+\)\s)?(?:{_PHRASES}|net::err_\w|no space left|a password is required)"
)
_ARGUMENTS = re.compile(r"[\w.]{1,60}\(\) (?:missing|got an unexpected|takes) ")
# One line that ends in what went wrong ("cat: x: No such file or directory"), or says so of the call itself.
_FAILURE_LINE = re.compile(
    r"[^\n]{1,160}: (?:no such file or directory|permission denied|command not found|(?:is|not) a directory)\s*(?:\n|$)"
    r"|[^\n]{0,60}\b(?:validation failed|validation error|is not a valid tool)\b",
    re.IGNORECASE,
)
# A text of one line that says of the call itself that it was kept from running.
_KEPT_FROM = re.compile(
    rf"\W{{0,3}}(?:\[[\w .-]{{1,24}}\] ?|(?-i:[a-z_.]{{2,40}}: ))?"
    rf"(?:(?:the |this |your )?{_ASKED}(?: (?:has been|was|is))?[ :-]{{1,3}})?"
    r"(?:not (?:executed|performed)(?=\W*$|[:;,(.]| (?:because|by|due|as|since|-))"
    r"|(?:denied|blocked|rejected) by (?:the |a |an |your )?(?:[\w-]+ )?"
    r"(?:policy|policies|rules?|sandbox|guardrails?|permissions?|administrator)\b(?! \w+ \d| \d))",
    re.IGNORECASE,
)
# A name made of words that say what is wrong, as libraries give their errors: `AccessDenied: x`, `InvalidToolInput: x`.
_ERROR_NAME = re.compile(
    r"\s*(?:\w+\.)*(?:(?:Invalid|Missing|Unknown|Illegal|Unsupported|Unexpected|NoSuch)[A-Z]\w{2,40}"
    r"|[A-Z]\w{2,40}(?:Fail(?:ed|ure)|Denied|NotFound|Timeout|TimedOut|Expired|Refused|Unavailable|Exceeded|Rejected))"
    r"\s?[:(]"
)


# Further down, as editors that check before they write say it.
_NOT_APPLIED = re.compile(r"\b(?:changes?|edits?|patch) (?:have|has|were|was) not (?:been )?applied\b", re.I)
# How errors are called in objects, in a few more languages.
_ERROR_FIELDS = (
    "error",
    "errors",
    "isError",
    "is_error",
    "fehler",
    "erreur",
    "errore",
    "erro",
    "fout",
    "ошибка",
    "错误",
)
# An object of nothing but these says what went wrong, where its code says that something did.
_ENVELOPE = frozenset(
    """code message msg detail details reason status type timestamp time path request_id requestid trace_id traceid
    instance title hint help documentation_url""".split()
)
_ERROR_CODE = re.compile(
    r"[45]\d\d|-\d{4,6}|E[A-Z]{4,12}"
    r"|(?i:.*(?:err(?:or)?\b|err_|_err|fail|invalid|denied|not_?found|forbidden|unauthori|exceeded|time[d_]?_?out"
    r"|unavailable|missing|expired|conflict|rejected|bad_?request|unsupported|exception|aborted|refused|illegal"
    r"|unknown|no_?such|internal|throttl|too_?many|locked|violation|mismatch).*)"
)
_ERROR_MESSAGE = re.compile(
    r"\b(?:errors?|fail\w*|rejected|denied|declined|refused|invalid|cannot|can't|could not|unable to|exceeded|forbidden"
    r"|missing|expired|not (?:allowed|permitted|authori\w+|found|enabled|supported|valid|available|exist))\b",
    re.IGNORECASE,
)
_STATUSES = ("status", "status_code", "statusCode")
_TELLING_FIELDS = frozenset({*_ERROR_FIELDS, *_EXIT_CODES, *_STATUSES, "code", "success", "ok"})


def nothing_done(output: Any) -> bool:
    """Whether what a call that changes things returned says that it changed nothing: that is a failure of such a call.

    Its first line says "not found", "no match", "no changes", "0 replacements" or the like, or it goes on to say that
    the changes have not been applied.
    """
    if not isinstance(output, str):
        return False
    head = output[:_HEAD].lstrip()
    if " not " in output.lower()[: 2 * _TAIL] and _NOT_APPLIED.search(output[: 2 * _TAIL]):
        return True
    return _NOTHING_DONE.search(head.partition("\n")[0]) is not None


def judge_error(output: Any) -> bool:
    """Whether an output is a failure.

    The one rule: an exception; an object (or the text of a JSON object) with a truthy `error`, `errors`, `isError` or
    `is_error` (or the like in a few languages), with `success` or `ok` false, with `status` "error", "failed" or
    "failure", with a numeric `status`, `status_code` or `statusCode` of 400 and more, or with nothing but the `code`
    of an error (or one of 400 and more whose `message` speaks of an error) and what belongs to it; or text that begins
    as failures do: with "Error", "Exception", "SomethingError:", "Traceback (most recent call last)", "failed:",
    "fatal:", an HTTP status of 400 and more with its words, "could not ...", "permission denied" and the like, perhaps
    after a program's name, or a name such as `AccessDenied:` or `InvalidInput:` before a message that reads like one;
    or whose first line ends in "No such file or directory" or its kin; or a text of one line that says of the call
    that it was "not executed" or is "denied by policy"; or a text of several lines whose last one begins with "error:
    " or "fatal: "; or a page that stands in place of the one asked for, because the reader was blocked or is to prove
    that he is human; or an object with an exit code other than 0 and nothing but `stderr`. Anything else is a success:
    that tests failed is what their tool was asked to find out.
    """
    if isinstance(output, str):
        return _text_failed(output)
    if isinstance(output, BaseException):
        return True
    return isinstance(output, Mapping) and _object_failed(output)


def _text_failed(output: str) -> bool:
    head = output[:_HEAD]
    words = head.lower().lstrip()
    if words[:1] == "{" and len(output) <= _JSON_LIMIT:
        return _json_failed(output)
    # Looking for the words first is faster than the patterns, and nearly always settles it; a letter is found
    # faster still.
    if _FAILURE_TEXT.match(words):
        return True
    telling = ("v" in words and "valid" in words) or "not " in words or " by " in words
    if ":" in words and ": " in words:
        if _AFTER_NAME.match(words) or _named_error(head):
            return True
        telling = telling or "directory" in words or "denied" in words or "not found" in words
    if "(" in words and "() " in words and _ARGUMENTS.match(words):
        return True
    named = "error" in words or ("x" in words and "exception" in words) or ("k" in words and "traceback" in words)
    if named and _ERROR_TEXT.match(head):
        return True
    if telling and (_FAILURE_LINE.match(head) or ("\n" not in output.rstrip() and _KEPT_FROM.match(head))):
        return True
    if "\n" in output:
        return _ends_in_failure(output) or is_wall(output)
    return "<" in words and is_wall(output)


def _named_error(head: str) -> bool:
    """Whether a text begins with the name of an error: one with a module before it, or with a message that reads so.

    Names of events and of figures are made the same way: `PaymentFailed: order 1003`.
    """
    name = _ERROR_NAME.match(head)
    return name is not None and ("." in name[0] or root_of(head[name.end() :]) != "other")


def _ends_in_failure(text: str) -> bool:
    tail = text[-_TAIL:].rstrip()
    code = False
    # What a tool runner writes below the output, in brackets: where it ran, and the code the program left with.
    while tail.endswith("]") and (start := tail.rfind("\n") + 1) and tail[start] == "[":
        code = code or _EXIT_CODE.search(tail, start) is not None
        tail = tail[:start].rstrip()
    # A code alone says little (tests failed, no line matched), and much beside a cause that lies outside the program.
    if code and _CAUSE.search(tail):
        return True
    return _FAILURE_END.match(tail, tail.rfind("\n") + 1) is not None


def _json_failed(text: str) -> bool:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and _object_failed(parsed)


def _tells_an_error(fields: Mapping[Any, Any]) -> bool:
    """Whether an object with a code and a message holds nothing else, and the code is known as one of an error."""
    code = fields["code"]
    if isinstance(code, bool) or not isinstance(code, int | str) or len(fields) > len(_ENVELOPE):
        return False
    message, code = fields["message"], str(code)[:_LONGEST_CODE]
    if _ERROR_CODE.fullmatch(code) is None:
        if not code.isdigit() or int(code) < _HTTP_ERROR or not isinstance(message, str):
            return False
        if _ERROR_MESSAGE.search(message[:_HEAD]) is None:
            return False
    return all(str(name).lower() in _ENVELOPE for name in fields)


def _object_failed(fields: Mapping[Any, Any]) -> bool:
    if _TELLING_FIELDS.isdisjoint(fields):  # as most objects
        return False
    if any(fields.get(name) for name in _ERROR_FIELDS):
        return True
    if "code" in fields and "message" in fields and _tells_an_error(fields):
        return True
    if fields.get("success") is False or fields.get("ok") is False:
        return True
    # Programs leave with a code for many reasons ("no line matched"); what they write beside it tells.
    code = next((fields[name] for name in _EXIT_CODES if name in fields), 0)
    if type(code) is int and code != 0 and fields.get("stderr") and not fields.get("stdout"):
        return True
    for name in _STATUSES:
        status = fields.get(name)
        if isinstance(status, str) and status.casefold() in _FAILED_WORDS:
            return True
        if isinstance(status, int) and not isinstance(status, bool) and status >= _HTTP_ERROR:
            return True
    return False
