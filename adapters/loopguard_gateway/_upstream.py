"""The provider: which headers go there and come back, and what its failures are called."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from loopguard_gateway._coding import accepted
from loopguard_gateway._errors import Refused, upstream_trouble
from loopguard_gateway._settings import Settings

_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade"),
    }
)
_NOT_SENT = _HOP | frozenset(
    {
        *("host", "content-length", "expect", "authorization", "api-key", "x-api-key", "cookie", "accept-encoding"),
        # Whose account pays is not the client's to say, nor is where it sits the provider's to know.
        *("openai-organization", "openai-project", "forwarded", "via", "x-real-ip"),
    }
)
_NOT_SENT_PREFIXES = ("x-forwarded-", "x-loopguard-")
_NOT_RETURNED = _HOP | frozenset({"set-cookie", "content-length", "alt-svc", "strict-transport-security"})

Headers = list[tuple[bytes, bytes]]

_POOL = 8
"""Requests at once in one pool of connections. httpx looks at all connections of a pool, each against all others, and
asks the operating system about each, whenever a request begins or ends; with hundreds in one pool that takes most of
the gateway's time."""

_STATUSES = (200, 599)
_WAY_TO_THE_PARSER = ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state")

HIDDEN = b"[the provider's key]"


@dataclass(frozen=True, slots=True)
class Target:
    """One request as the client sent it, without its body."""

    method: str
    path: str
    query: str
    headers: Headers


@dataclass(slots=True)
class _Pool:
    client: httpx.AsyncClient
    running: int = 0


class Upstream:
    """Sends requests to the provider. The provider's key is put in here, and nowhere else."""

    def __init__(self, settings: Settings) -> None:
        self._address = settings.upstream
        self._key = settings.upstream_key
        self._timeout = httpx.Timeout(settings.silence_timeout, connect=settings.connect_timeout)
        self._tls = httpx.create_ssl_context()
        self._pools: list[_Pool] = []

    @asynccontextmanager
    async def answer(self, target: Target, body: bytes, *, stream: bool) -> AsyncIterator[httpx.Response]:
        """Send a request, and wait for the head of its answer.

        The rest can be read by `pieces` as long as the context is open; httpx's own ways to read it would hand the
        connection on before this has looked at it.

        Raises:
            Refused: There was none.
        """
        pool = self._pool()
        pool.running += 1
        try:
            response = await self._send(pool.client, target, body, stream=stream)
            try:
                yield response
            finally:
                if _sent_more(response):
                    await response.extensions["network_stream"].aclose()
                await response.aclose()
        finally:
            pool.running -= 1

    async def _send(self, client: httpx.AsyncClient, target: Target, body: bytes, *, stream: bool) -> httpx.Response:
        url = f"{self._address}{target.path}" + (f"?{target.query}" if target.query else "")
        try:
            headers = self._sent(target.headers, stream=stream)
            request = client.build_request(target.method, url, headers=headers, content=body or None)
            response = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise trouble(error) from None
        if not _STATUSES[0] <= response.status_code <= _STATUSES[1]:
            await response.aclose()
            raise upstream_trouble(502, "broke off, or sent what is no HTTP")
        return response

    def _pool(self) -> _Pool:
        """The first pool with room: connections are few and warm where there is little to do."""
        for pool in self._pools:
            if pool.running < _POOL:
                return pool
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_POOL)
        client = httpx.AsyncClient(timeout=self._timeout, limits=limits, follow_redirects=False, verify=self._tls)
        for name in list(client.headers):  # the client's own headers go, and none of httpx's
            del client.headers[name]
        self._pools.append(_Pool(client))
        return self._pools[-1]

    def _sent(self, headers: Headers, *, stream: bool) -> Headers:
        dropped = _named_by_connection(headers)
        sent = [(name, value) for name, value in headers if not _is_kept_back(name, dropped)]
        asked = next((value.decode("latin-1") for name, value in headers if name == b"accept-encoding"), None)
        sent.append((b"accept-encoding", accepted(asked, stream=stream).encode()))
        if self._key is not None:
            sent.append((b"authorization", f"Bearer {self._key}".encode()))
        return sent

    def returned(self, response: httpx.Response) -> Headers:
        """The headers of an answer that the client gets."""
        dropped = _named_by_connection(response.headers.raw)
        kept = [(name.lower(), value) for name, value in response.headers.raw]
        return [
            (name, self.hidden(value))
            for name, value in kept
            if name.decode("latin-1") not in _NOT_RETURNED and name.decode("latin-1") not in dropped
        ]

    def hidden(self, text: bytes) -> bytes:
        """A text without the provider's key, which providers may quote in an error."""
        return text if self._key is None or len(self._key) < 8 else text.replace(self._key.encode(), HIDDEN)

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.client.aclose()


def pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body of an answer as it comes, and as it was sent."""
    if not isinstance(response.stream, httpx.AsyncByteStream):
        raise TypeError("the answer has no stream")
    return aiter(response.stream)


def trouble(error: Exception) -> Refused:
    """What a client is told of a failure; the error's own text may hold an address."""
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return upstream_trouble(502, "cannot be reached")
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return upstream_trouble(504, "did not answer in time")
    if isinstance(error, httpx.RemoteProtocolError):
        return upstream_trouble(502, "broke off, or sent what is no HTTP")
    return upstream_trouble(502, "cut the connection")


def _sent_more(response: httpx.Response) -> bool:
    """Whether bytes follow the answer. On a connection that is used again they would be the next client's answer."""
    found: object = response.stream
    for name in _WAY_TO_THE_PARSER:  # httpx does not look, and offers nobody else to
        found = getattr(found, name, None)
    return bool(getattr(found, "trailing_data", (b"",))[0])


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """The headers that `Connection` says are meant for one hop."""
    values = [value.decode("latin-1") for name, value in headers if name.lower() == b"connection"]
    return frozenset(part.strip().lower() for value in values for part in value.split(","))


def _is_kept_back(name: bytes, dropped: frozenset[str]) -> bool:
    text = name.decode("latin-1").lower()
    return text in _NOT_SENT or text in dropped or text.startswith(_NOT_SENT_PREFIXES)
