"""What the gateway itself answers when it does not pass a request on, in the form OpenAI's clients read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loopguard_core import Stop

KEY_LIMIT = {"limit_source": "loopguard_key_limit"}

_NO_RETRY = {"x-should-retry": "false"}


class Refused(Exception):  # noqa: N818  # an answer, and no fault
    """A request that is answered by the gateway.

    Attributes:
        status: HTTP status.
        message: What the client is told: never a key, a text or an address of ours.
        metadata: What a program is told.
        headers: Further headers.
        label: What it counts as in the metrics.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        label: str,
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.label = label
        self.metadata = metadata
        self.headers = dict(headers or {})

    def error(self) -> dict[str, Any]:
        """The error's own object."""
        error: dict[str, Any] = {"code": self.status, "message": self.message}
        return error if self.metadata is None else {**error, "metadata": dict(self.metadata)}

    def body(self) -> bytes:
        """The answer's body."""
        return json.dumps({"error": self.error()}).encode()


class ProviderError(Exception):
    """What a provider answered in place of a response, in the form `loopguard_core.is_key_limit` reads.

    Attributes:
        status_code: HTTP status.
        body: The answer's body; None where it cannot be read.
    """

    def __init__(self, status_code: int, body: bytes | None) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code
        self.body = body


def unauthorized() -> Refused:
    """No key of this gateway was shown."""
    text = "this gateway asks for a key of its own (lg-...), which `loopguard key create NAME` makes, as a bearer token"
    return Refused(401, text, label="unauthorized", headers={"www-authenticate": "Bearer"})


def key_limit(message: str) -> Refused:
    """A key has no money left for this call."""
    return Refused(402, message, label="key_limit", metadata=KEY_LIMIT, headers=_NO_RETRY)


def unpriced(model: str | None) -> Refused:
    """Nobody knows what the call would cost, and its key has a limit."""
    named = "a model without a name" if model is None else f"the model {model[:64]!r}"
    text = (
        f"the price of {named} is not known, so the key's limit cannot hold for it; whoever runs the gateway gives such"
        " models a price with limits.unpriced in the policy (US dollars a million tokens)"
    )
    return Refused(403, text, label="unpriced", metadata={"reason": "loopguard_unpriced"}, headers=_NO_RETRY)


def bad_request(message: str) -> Refused:
    """The request cannot be read."""
    return Refused(400, message, label="bad_request")


def too_large(limit: int) -> Refused:
    """The request's body is too large."""
    text = f"the request has more than {limit} bytes, the most this gateway takes"
    return Refused(413, text, label="too_large", headers={"connection": "close"})


def too_complex(limit: int) -> Refused:
    """The request's body would take too much room once it is parsed."""
    text = f"the request has more than {limit} brackets and commas, the most this gateway takes"
    return Refused(413, text, label="too_large")


def slow_client(seconds: float) -> Refused:
    """The client did not send its request in time."""
    text = f"the request did not arrive within {seconds:g} s"
    return Refused(408, text, label="slow_client", headers={"connection": "close", **_NO_RETRY})


def busy() -> Refused:
    """Too many requests at once."""
    return Refused(503, "the gateway has as many requests as it takes; try again", label="busy", headers=_again(1))


def store_trouble() -> Refused:
    """The ledger cannot be used."""
    text = "the key cannot be checked, because the gateway's ledger cannot be used at the moment; its log says why"
    return Refused(503, text, label="store_error", headers=_again(5))


def upstream_trouble(status: int, what: str) -> Refused:
    """The provider gave no answer that could be passed on."""
    return Refused(status, f"the provider {what}", label="upstream_error")


def too_long(limit: int) -> Refused:
    """The provider's answer is too large."""
    return upstream_trouble(502, f"sent more than {limit} bytes")


def stopped(stop: Stop) -> Refused:
    """Loopguard ended the run, and is to say so with an error. Asking again meets the same end."""
    metadata: dict[str, Any] = {"reason": stop.reason}
    if stop.verdict is not None:
        metadata["detector"] = stop.verdict.detector
    return Refused(400, stop.message, label="stopped", metadata=metadata, headers=_NO_RETRY)


def _again(seconds: int) -> dict[str, str]:
    return {"retry-after": str(seconds)}
