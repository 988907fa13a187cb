"""A provider's or gateway's answer that a spending limit on a key is reached, told from every other error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

SOURCES = frozenset({"openrouter_key_limit", "openrouter_credits", "loopguard_key_limit"})
"""`error.metadata.limit_source` of the answers meant here."""

_PAYMENT_REQUIRED = 402
_MAX_CHAIN = 8
_MAX_TEXT = 65_536
_IN_TEXT = re.compile(r"limit_source[\\\"']*\s*[:=]\s*[\\\"']*(?:" + "|".join(sorted(SOURCES)) + r")\b")


def is_key_limit(error: BaseException | None) -> bool:
    """Whether a model call failed because a spending limit is reached: HTTP 402 with a `limit_source` known here.

    Clients are told by what they look like, so none has to be installed: `openai` and its relatives (`status_code`,
    `body`), `httpx` and `requests` (`response`), and errors that wrap one of them. Never raises, and asks nobody.

    Args:
        error: What the client raised.
    """
    return any(_says_so(link) for link in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it was raised from."""
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen and len(seen) < _MAX_CHAIN:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _says_so(error: BaseException) -> bool:
    response = _attribute(error, "response")
    bodies = [body for body in _bodies(error, response) if body is not None]
    statuses = [_attribute(error, name) for name in ("status_code", "status", "http_status", "code")]
    statuses += [_attribute(response, name) for name in ("status_code", "status")]
    statuses += [part.get("code") for body in bodies for part in _parts(body)]
    if not any(status == _PAYMENT_REQUIRED or status == str(_PAYMENT_REQUIRED) for status in map(_plain, statuses)):
        return False
    if any(_source(part) in SOURCES for body in bodies for part in _parts(body)):
        return True
    return _IN_TEXT.search(_text(error)) is not None


def _bodies(error: BaseException, response: Any) -> Iterator[Any]:
    yield _parsed(_attribute(error, "body"))
    read = _attribute(response, "json")
    if callable(read):
        try:
            yield read()
        except Exception:  # noqa: BLE001  # a stream that was not read, no JSON, a client of some other kind
            yield None
    elif isinstance(response, Mapping):
        yield response


def _parts(body: Any) -> Iterator[Mapping[str, Any]]:
    """The whole answer, and its `error`; clients keep the one or the other."""
    if isinstance(body, Mapping):
        yield body
        inner = body.get("error")
        if isinstance(inner, Mapping):
            yield inner


def _source(part: Mapping[str, Any]) -> str | None:
    metadata = part.get("metadata")
    source = metadata.get("limit_source") if isinstance(metadata, Mapping) else None
    return source if isinstance(source, str) else None


def _parsed(body: Any) -> Any:
    if isinstance(body, str | bytes) and len(body) <= _MAX_TEXT:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
    return body


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001  # a property of somebody's client
        return None


def _plain(status: Any) -> Any:
    return status if isinstance(status, int | str) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except Exception:  # noqa: BLE001  # see above
        return ""
