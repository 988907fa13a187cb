"""What the gateway is told when it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal, get_args
from urllib.parse import urlsplit

from loopguard_core import LoopGuardError
from loopguard_core.keys import DEFAULT_STORE

OnStop = Literal["end", "answer", "raise"]

_TIMES = ("connect_timeout", "silence_timeout", "call_timeout", "body_timeout", "send_timeout", "hold_ttl")
_COUNTS = ("max_body", "max_answer", "max_memory", "max_concurrent", "max_sessions", "max_output_tokens")
_HOLD_TTL = (3.0, 7 * 86_400.0)


class SettingsError(LoopGuardError, ValueError):
    """A setting of the gateway that cannot be used. The text names field, value and fix."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one gateway.

    Attributes:
        upstream: Address of the OpenAI-compatible endpoint, with its version, such as `https://api.openai.com/v1`.
        upstream_key: The provider's key; None sends none, for a model of your own.
        store: Address of the ledger, where the clients' keys are too.
        on_stop: How a run ends: `end` with a closing message, `answer` with one last model call without tools, `raise`
            with an error; None takes the policy's `on_stop.how`.
        max_body: Bytes a request may have. 32 MiB: above what providers take.
        max_answer: Bytes an answer may have, as sent. 64 MiB: a stream takes some 200 bytes a token.
        max_memory: Bytes that requests and whole answers may take together in one process while they are served; the
            next ones are told to come back. 1 GiB.
        max_concurrent: Requests at once in one process; the next ones are told to come back.
        max_sessions: Conversations remembered in one process; the ones used longest ago go first. A conversation that
            was forgotten is read again from what its next request holds.
        max_output_tokens: What a request is taken to ask for at most that names no maximum. 16,384: what models of the
            last years answer at most in one go, reasoning aside.
        ask_usage: Whether the provider is asked for the usage of a stream of Chat Completions where the client does not
            ask; the report is kept back from the client. Otherwise such a stream is estimated from what is seen of it,
            and reasoning that the provider does not show is not. False: requests go on byte for byte.
        max_refusals: How often one request is answered on the model's behalf before the run is ended.
        connect_timeout: Seconds for a connection to the provider.
        silence_timeout: Seconds the provider may send nothing. 600, as the official clients wait.
        call_timeout: Seconds one model call may take in all.
        body_timeout: Seconds a client may take to send its request.
        send_timeout: Seconds a client may take to read a piece of an answer.
        hold_ttl: Seconds the money of a running call is held between two renewals: what a killed process held is back
            after that.

    Raises:
        SettingsError: One of them cannot be used.
    """

    upstream: str
    upstream_key: str | None = field(default=None, repr=False)
    store: str = field(default=DEFAULT_STORE, repr=False)
    on_stop: OnStop | None = None
    max_body: int = 32 * 1024 * 1024
    max_answer: int = 64 * 1024 * 1024
    max_memory: int = 1024 * 1024 * 1024
    max_concurrent: int = 1_000
    max_sessions: int = 10_000
    max_output_tokens: int = 16_384
    ask_usage: bool = False
    max_refusals: int = 8
    connect_timeout: float = 10.0
    silence_timeout: float = 600.0
    call_timeout: float = 3600.0
    body_timeout: float = 60.0
    send_timeout: float = 60.0
    hold_ttl: float = 300.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream", _address(self.upstream))
        if self.on_stop is not None and self.on_stop not in get_args(OnStop):
            raise SettingsError(f"on_stop = {self.on_stop!r}: must be one of {', '.join(get_args(OnStop))}")
        if self.upstream_key is not None and not (self.upstream_key.isascii() and self.upstream_key.isprintable()):
            raise SettingsError("upstream_key: a key has printable ASCII characters only; look for a line break in it")
        if not isinstance(self.ask_usage, bool):
            raise SettingsError(f"ask_usage = {self.ask_usage!r}: must be True or False")
        for name in (*_COUNTS, "max_refusals"):
            value = getattr(self, name)
            least = 0 if name == "max_refusals" else 1
            if type(value) is not int or value < least:
                raise SettingsError(f"{name} = {value!r}: must be a whole number, {least} or more")
        for name in _TIMES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise SettingsError(f"{name} = {value!r}: must be a number of seconds above 0")
        if not _HOLD_TTL[0] <= self.hold_ttl <= _HOLD_TTL[1]:
            raise SettingsError(f"hold_ttl = {self.hold_ttl!r}: must be from {_HOLD_TTL[0]:.0f} s to a week")


NAMES = frozenset(setting.name for setting in fields(Settings))


def _address(upstream: object) -> str:
    """The address without a slash at its end."""
    fix = "write an address such as https://api.openai.com/v1"
    if not isinstance(upstream, str):
        raise SettingsError(f"upstream: must be text, not {type(upstream).__name__}; {fix}")
    try:
        parts = urlsplit(upstream)
        port = parts.port
    except ValueError:
        raise SettingsError(f"upstream = {upstream[:200]!r}: is no address; {fix}") from None
    if parts.username is not None or parts.password is not None:
        raise SettingsError("upstream: must hold no user or password; give the key with --upstream-key-env")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SettingsError(f"upstream = {upstream[:200]!r}: must begin with http:// or https:// and a host; {fix}")
    if parts.query or parts.fragment or not upstream.isprintable() or " " in upstream:
        raise SettingsError(f"upstream = {upstream[:200]!r}: must have no query, fragment or space; {fix}")
    return upstream.rstrip("/")
