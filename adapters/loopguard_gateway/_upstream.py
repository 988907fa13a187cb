"""The provider: which headers go there and come back, and what its failures are called."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
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

HIDDEN = b"[the provider's key]"


@dataclass(frozen=True, slots=True)
class Target:
    """One request as the client sent it, without its body."""

    method: str
    path: str
    query: str
    headers: Headers


class Upstream:
    """Sends requests to the provider. The provider's key is put in here, and nowhere else."""

    def __init__(self, settings: Settings) -> None:
        self._address = settings.upstream
        self._key = settings.upstream_key
        timeout = httpx.Timeout(settings.silence_timeout, connect=settings.connect_timeout)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=settings.max_concurrent)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False)
        for name in list(self._client.headers):  # the client's own headers go, and none of httpx's
            del self._client.headers[name]

    async def send(self, target: Target, body: bytes, *, stream: bool) -> httpx.Response:
        """Send a request, and wait for the head of its answer.

        Raises:
            Refused: There was none.
        """
        url = f"{self._address}{target.path}" + (f"?{target.query}" if target.query else "")
        request = self._client.build_request(
            target.method, url, headers=self._sent(target.headers, stream=stream), content=body or None
        )
        try:
            return await self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise trouble(error) from None

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
        await self._client.aclose()


def trouble(error: Exception) -> Refused:
    """What a client is told of a failure; the error's own text may hold an address."""
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return upstream_trouble(502, "cannot be reached")
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return upstream_trouble(504, "did not answer in time")
    if isinstance(error, httpx.RemoteProtocolError):
        return upstream_trouble(502, "broke off, or sent what is no HTTP")
    return upstream_trouble(502, "cut the connection")


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """The headers that `Connection` says are meant for one hop."""
    values = [value.decode("latin-1") for name, value in headers if name.lower() == b"connection"]
    return frozenset(part.strip().lower() for value in values for part in value.split(","))


def _is_kept_back(name: bytes, dropped: frozenset[str]) -> bool:
    text = name.decode("latin-1").lower()
    return text in _NOT_SENT or text in dropped or text.startswith(_NOT_SENT_PREFIXES)
