"""What happens to a request: who sends it, is there room, what does it say; then `_exchange` answers it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from loopguard_gateway._client import Client, ClientGone
from loopguard_gateway._errors import Refused, bad_request, unauthorized
from loopguard_gateway._exchange import Exchange
from loopguard_gateway._gateway import Gateway
from loopguard_gateway._passed import pass_on
from loopguard_gateway._watch import Watch
from loopguard_gateway._wire import Wire

_LARGE = 256 * 1024
"""Bytes from which a request is parsed in a thread, so that it holds up nobody else's stream."""
_MAX_RUN = 128


class Proxy:
    """The ASGI application of one endpoint.

    Args:
        gateway: The gateway.
        wire: Its protocol; None passes requests on that cost nothing.
    """

    def __init__(self, gateway: Gateway, wire: Wire | None) -> None:
        self._gateway = gateway
        self._wire = wire
        self._name = "other" if wire is None else wire.name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        client = Client(scope, receive, send, self._gateway.settings)
        outcome = "ok"
        try:
            outcome = await self._serve(client, scope)
        except Refused as refused:
            outcome = refused.label
            await _told(client, refused)
        except ClientGone:
            outcome = "client_gone"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001  # the client is told, and the others are served
            outcome = "fault"
            self._gateway.guard.faults.note("gateway request", error)
            await _told(client, Refused(500, "the gateway failed; its log says why", label="fault"))
        finally:
            self._gateway.metrics.requests.labels(self._name, outcome).inc()

    async def _serve(self, client: Client, scope: Scope) -> str:
        gateway = self._gateway
        secret = client.secret
        key = await gateway.till.key_of(secret) if secret else None
        if key is None:
            raise unauthorized()
        run = _run_name(client.header(b"x-loopguard-session"))
        with gateway.place(self._name):
            raw = await client.body()
            return await _unless_gone(client, lambda: self._answer(client, scope, key, run, raw))

    async def _answer(self, client: Client, scope: Scope, key: str, run: str | None, raw: bytes) -> str:
        gateway, wire = self._gateway, self._wire
        target = client.target(_path(scope))
        if wire is None:
            return await pass_on(gateway, client, target, raw)
        body = await asyncio.to_thread(_parsed, raw) if len(raw) > _LARGE else _parsed(raw)
        asked = wire.asked(body)
        watch = Watch(gateway.guard, gateway.conversations, gateway.metrics, wire, asked, key, run)
        try:
            watch.find()
            return await Exchange(gateway, client, wire, asked, watch, target, key, raw).run()
        finally:
            watch.close()


async def _unless_gone(client: Client, answer: Callable[[], Awaitable[str]]) -> str:
    """Answer, unless the client goes away; then what is under way is broken off, and has been seen to when this ends.

    Raises:
        ClientGone: It did.
    """
    work = asyncio.ensure_future(answer())
    gone = asyncio.ensure_future(client.gone())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        return work.result()
    finally:
        for task in (work, gone):
            if not task.done():
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await work
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await gone


async def _told(client: Client, refused: Refused) -> None:
    """Answer with an error, unless an answer has begun: `_streaming` ends a stream with an error of its own."""
    with contextlib.suppress(ClientGone):
        if not client.started:
            await client.refuse(refused)
        else:
            await client.finish()


def _path(scope: Scope) -> str:
    """The path at the provider, as the client wrote it."""
    raw = scope.get("raw_path") or scope["path"].encode()
    return str(raw.partition(b"?")[0].decode("latin-1")).removeprefix("/v1")


def _parsed(raw: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(raw)
    except RecursionError:
        raise bad_request("the request's body is nested too deeply") from None
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise bad_request(f"the request's body is not JSON{where}") from None
    if not isinstance(body, dict):
        raise bad_request("the request's body must be a JSON object")
    return body


def _run_name(header: str | None) -> str | None:
    if header is None or not header.strip():
        return None
    if len(header) > _MAX_RUN or not header.isprintable():
        raise bad_request(f"x-loopguard-session must be at most {_MAX_RUN} printable characters")
    return header.strip()
