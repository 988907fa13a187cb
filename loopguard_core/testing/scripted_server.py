"""An OpenAI-compatible model server on loopback that says what a persona tells it to."""

from __future__ import annotations

import ipaddress
import itertools
import threading
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from loopguard_core.testing._http import LoopbackServer
from loopguard_core.testing._wire import Completion, Price
from loopguard_core.testing.personas import (
    ChatRequest,
    Persona,
    Reply,
    ScriptedCall,
    gives_up_when_refused,
    never_listens,
    script,
)

__all__ = [
    "ChatRequest",
    "Persona",
    "Reply",
    "ScriptedCall",
    "ScriptedServer",
    "gives_up_when_refused",
    "never_listens",
    "script",
]

_POLL_SECONDS = 0.02


class ScriptedServer:
    """A scripted model behind HTTP, for demos, examples and tests with the real clients.

    It answers `POST /v1/chat/completions`, streamed or not, and `GET /v1/models`. It keeps no state about any
    conversation, so any number of them can run against one server. Use it as a context manager, or call `start` and
    `stop`. It listens on loopback only and checks no key.

    Args:
        persona: Decides what the model says.
        host: An IPv4 loopback address or `localhost`.
        port: 0 takes a free one.
        model: The name `/v1/models` lists. Requests may name any model; the answer names the same.
        price_per_million: Dollars for a million input and output tokens. Where given, `usage` carries a `cost`.

    Raises:
        ValueError: The host is not a loopback address.
    """

    def __init__(
        self,
        persona: Persona,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str = "scripted-1",
        price_per_million: Price | None = None,
    ) -> None:
        self._address = (_loopback(host), port)
        self._backend = _Backend(persona, model, price_per_million)
        self._http: LoopbackServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """What a client takes as its `base_url`.

        Raises:
            RuntimeError: The server is not running.
        """
        if self._http is None:
            raise RuntimeError("the ScriptedServer is not running: enter it with `with`, or call start()")
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the model calls so far, in the order they came; a copy."""
        return self._backend.requests()

    @property
    def usage_log(self) -> list[dict[str, Any]]:
        """The usage of every answer so far, also where the client did not ask to be told; a copy."""
        return self._backend.usage_log()

    @property
    def disconnects(self) -> int:
        """How many clients went away before their answer was all sent.

        An answer short enough for the operating system's buffers counts as sent, whether it was read or not.
        """
        return self._backend.disconnects

    def start(self) -> Self:
        """Listens from now on, in a thread of its own.

        Raises:
            RuntimeError: The server runs already.
        """
        if self._http is not None:
            raise RuntimeError("the ScriptedServer is already running")
        self._http = LoopbackServer(self._address, self._backend)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_SECONDS,), name="scripted-server", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops listening and hangs up on every client. The records stay. Harmless when not running."""
        http, thread = self._http, self._thread
        if http is None or thread is None:
            return
        http.shutdown()
        thread.join()
        http.hang_up()
        http.server_close()
        self._http = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class _Backend:
    """Asks the persona, and keeps the records."""

    def __init__(self, persona: Persona, model: str, price: Price | None) -> None:
        self.model = model
        self.disconnects = 0
        self._persona = persona
        self._price = price
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._requests: list[dict[str, Any]] = []
        self._usage_log: list[dict[str, Any]] = []

    def requests(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._requests)

    def usage_log(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._usage_log)

    def disconnected(self) -> None:
        with self._lock:
            self.disconnects += 1

    def answer(self, request: ChatRequest) -> Completion | Reply:
        with self._lock:
            self._requests.append(dict(request.raw))
            number = next(self._ids)
        reply: object = self._persona(request)
        if not isinstance(reply, Reply):
            raise TypeError(f"a persona returns a Reply, not a {type(reply).__name__}")
        if reply.status != HTTPStatus.OK:
            return reply
        model = request.raw.get("model")
        completion = Completion.build(
            request,
            reply,
            completion_id=f"chatcmpl-{number}",
            model=model if isinstance(model, str) else self.model,
            price=self._price,
        )
        # Before it is sent: a client that has its answer finds its usage in the log.
        with self._lock:
            self._usage_log.append(completion.usage)
        return completion


def _loopback(host: str) -> str:
    # Not left to the resolver, which may know another localhost, or only the IPv6 one.
    address = "127.0.0.1" if host == "localhost" else host
    try:
        allowed = ipaddress.IPv4Address(address).is_loopback
    except ValueError:
        allowed = False
    if not allowed:
        raise ValueError(f"host is {host!r}; a ScriptedServer listens on loopback only: 127.0.0.1 or localhost")
    return address
