"""What a call returned, and whether that is news.

This is the one place that judges outcomes. An outcome is kept as a hash, never as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from loopguard_core._canonical import canonical_json

OWN_WORDS = "[loopguard]"
"""How everything loopguard puts before a model begins."""

REFUSED = f"{OWN_WORDS} This call was not executed"
"""How everything begins that stands in place of a result."""

_WITHIN = 96  # SDKs put a word like "Observation: " or "Error: " before a result
_EDGE = 64 * 1024
_JSON_LIMIT = 64 * 1024
_HEAD = 256

# Such as: Error: x / TimeoutError: x / requests.exceptions.ConnectionError(x) / [ERROR] x / Traceback (most recent
_ERROR_TEXT = re.compile(
    r"\s*(?:\[?(?:fatal |internal |tool )?(?:error|exception)\]?(?:[:!(\s]|$)"
    r"|(?:[\w.]+\.)?\w*(?:Error|Exception)\s*[:(]"
    r"|traceback \(most recent call last\))",
    re.IGNORECASE,
)
_FAILED_WORDS = frozenset({"error", "failed", "failure"})
_HTTP_ERROR = 400


@dataclass(slots=True)
class Outcome:
    """What all calls of one identity returned in one round.

    Attributes:
        digest: Hash of the results; equal digests are the same outcome.
        failed: True if any of the results was an error.
    """

    digest: str
    failed: bool = False


def is_own_words(output: Any) -> bool:
    """Whether an output is loopguard's refusal rather than a tool's answer."""
    return isinstance(output, str) and REFUSED in output[:_WITHIN]


def judge_error(output: Any) -> bool:
    """Whether an output is a failure, where the SDK did not say.

    The one rule: an exception; an object (or the text of a JSON object) with a truthy `error`, `errors`, `isError` or
    `is_error`, with `success` or `ok` false, with `status` "error", "failed" or "failure", or with a numeric
    `status`, `status_code` or `statusCode` of 400 and more; or text that begins with "Error", "Exception",
    "SomethingError:" or "Traceback (most recent call last)". Anything else is a success.
    """
    if isinstance(output, str):
        head = output[:_HEAD]
        if head.lstrip()[:1] == "{" and len(output) <= _JSON_LIMIT:
            return _json_failed(output)
        # Looking for the words first is faster than the pattern, and nearly always settles it.
        words = head if head.islower() else head.lower()
        return ("error" in words or "exception" in words or "traceback" in words) and (
            _ERROR_TEXT.match(head) is not None
        )
    if isinstance(output, BaseException):
        return True
    return isinstance(output, Mapping) and _object_failed(output)


def _json_failed(text: str) -> bool:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and _object_failed(parsed)


def _object_failed(fields: Mapping[Any, Any]) -> bool:
    if any(fields.get(name) for name in ("error", "errors", "isError", "is_error")):
        return True
    if fields.get("success") is False or fields.get("ok") is False:
        return True
    for name in ("status", "status_code", "statusCode"):
        status = fields.get(name)
        if isinstance(status, str) and status.casefold() in _FAILED_WORDS:
            return True
        if isinstance(status, int) and not isinstance(status, bool) and status >= _HTTP_ERROR:
            return True
    return False


def result_digest(output: Any, failed: bool) -> str:
    """Hash one result: its canonical text, of which the first and last 64 KB count, and whether it failed."""
    text = output if isinstance(output, str) else _text_of(output)
    if len(text) > 2 * _EDGE:
        text = f"{text[:_EDGE]}\0{len(text)}\0{text[-_EDGE:]}"
    data = text.encode("utf-8", "surrogatepass")
    return ("!" if failed else "=") + xxhash.xxh3_64_hexdigest(data)


def _text_of(output: Any) -> str:
    if isinstance(output, BaseException):
        return f"{type(output).__qualname__}: {output}"
    return canonical_json(output)


def combine(digests: Sequence[str]) -> Outcome | None:
    """An identity's outcome in a round: the sorted set of what its calls returned; None if nothing was recorded."""
    distinct = sorted(set(digests)) if len(digests) > 1 else digests
    if not distinct:
        return None
    failed = distinct[0].startswith("!")
    if len(distinct) == 1:
        return Outcome(distinct[0], failed)
    return Outcome("+" + xxhash.xxh3_64_hexdigest("\n".join(distinct).encode()), failed)


def changed(before: str | None, after: Outcome | None) -> bool:
    """Whether an outcome is news against the same identity's last one.

    A first outcome has nothing to differ from, and one that was never recorded counts as unchanged.
    """
    return before is not None and after is not None and before != after.digest
