"""The client's side of one request: reading its body, and writing an answer, within bounds of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import unquote

from starlette.types import Receive, Scope, Send

from loopguard_gateway._errors import Refused, bad_request, slow_client, too_large
from loopguard_gateway._room import Share
from loopguard_gateway._settings import Settings
from loopguard_gateway._upstream import Headers, Target

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


def bearer(authorization: str | None) -> str:
    """The token in a header `Authorization`; empty where there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class ClientGone(Exception):  # noqa: N818  # no fault
    """The client went away, or stopped reading."""


class Client:
    """One request of a client.

    Attributes:
        started: Whether it has the head of an answer.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self.started = False
        self._scope = scope
        self._receive = receive
        self._send = send
        self._settings = settings

    def target(self, path: str) -> Target:
        """The request, to be sent on: without the client's own key, wherever it was put besides.

        Args:
            path: Its path at the provider.

        Raises:
            Refused: The key is in the address.
        """
        query, secret = self._scope.get("query_string", b"").decode("latin-1"), self.secret
        if secret in unquote(query):
            raise bad_request("the key must not be in the address: the header Authorization is its place")
        headers = [(name, value) for name, value in self._scope["headers"] if secret.encode("latin-1") not in value]
        return Target(self._scope["method"], path, query, headers)

    def header(self, name: bytes) -> str | None:
        """A header, where the client sent it."""
        return next((value.decode("latin-1") for key, value in self._scope["headers"] if key == name), None)

    @property
    def secret(self) -> str:
        """The bearer token; empty where there is none."""
        return bearer(self.header(b"authorization"))

    async def body(self, share: Share) -> bytes:
        """The whole body.

        Args:
            share: Where the memory for it is taken.

        Raises:
            Refused: It is too large, did not come in time, or there is no room for it.
            ClientGone: It never came whole.
        """
        most = self._settings.max_body
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and (len(length) > 15 or int(length) > most):
            raise too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    piece = message.get("body", b"")
                    if len(body) + len(piece) > most:
                        raise too_large(most)
                    share.take(2 * len(piece))  # it is parsed too
                    body += piece
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise slow_client(self._settings.body_timeout) from None

    async def gone(self) -> None:
        """Wait until the client goes away."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # -- answering ---------------------------------------------------------------------------------------------

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of an answer."""
        self.started = True
        await self._write({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, body: bytes) -> None:
        """Send a piece of it."""
        if body:
            await self._write({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self, body: bytes = b"") -> None:
        """Send the last piece."""
        await self._write({"type": "http.response.body", "body": body, "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.finish(body)

    async def refuse(self, refused: Refused) -> None:
        """Send an answer of the gateway's own."""
        own = [(name.encode(), value.encode("latin-1", "replace")) for name, value in refused.headers.items()]
        await self.answer(refused.status, [(b"content-type", JSON), *own], refused.body())

    async def _write(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._settings.send_timeout):
                await self._send(message)
        except (TimeoutError, OSError):
            raise ClientGone from None
