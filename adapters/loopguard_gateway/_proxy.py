"""What happens to a request: who sends it, is there room, what does it say; then `_exchange` answers it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from loopguard_gateway._client import Client, ClientGone
from loopguard_gateway._errors import Refused, bad_request, unauthorized
from loopguard_gateway._exchange import Exchange
from loopguard_gateway._gateway import Gateway
from loopguard_gateway._passed import pass_on
from loopguard_gateway._request import PART_BYTES, containers, parsed, parts
from loopguard_gateway._room import Share
from loopguard_gateway._upstream import Target
from loopguard_gateway._watch import Watch
from loopguard_gateway._wire import Wire

_LARGE = 256 * 1024
"""Bytes from which a request is parsed in a thread, so that it holds up nobody else's stream for long."""
_MAX_RUN = 128
_NAME = re.compile(r"[A-Za-z0-9._:@+~-]+")


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
        target = client.target(_model_path(scope["path"]) if self._wire is None else self._wire.path)
        with gateway.place(self._name) as share:
            raw = await client.body(share)
            return await _unless_gone(client, lambda: self._answer(client, target, share, key, run, raw))

    async def _answer(self, client: Client, target: Target, share: Share, key: str, run: str | None, raw: bytes) -> str:
        gateway, wire = self._gateway, self._wire
        if wire is None:
            return await pass_on(gateway, client, target, share, raw)
        most = parts(raw) * PART_BYTES
        share.take(most)
        body = await asyncio.to_thread(parsed, raw) if len(raw) > _LARGE else parsed(raw)
        share.give(most - containers(body) * PART_BYTES)
        asked = wire.asked(body)
        watch = Watch(gateway.guard, gateway.conversations, gateway.metrics, wire, asked, key, run)
        with gateway.conversations.serving(key, run):
            try:
                watch.find()
                return await Exchange(gateway, client, share, wire, asked, watch, target, key, raw).run()
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


def _model_path(path: str) -> str:
    """Where one model or the list of them is at the provider.

    Raises:
        Refused: The path would lead out of there: to files, to stored answers, to whatever the provider's key opens.
    """
    names = path.removeprefix("/v1/models").removeprefix("/").split("/")
    if path == "/v1/models":
        return "/models"
    if not all(_NAME.fullmatch(name) and name.strip(".") for name in names):
        raise Refused(404, "the name of a model has letters, digits and . _ : @ + ~ - only", label="unknown")
    return "/models/" + "/".join(names)


def _run_name(header: str | None) -> str | None:
    if header is None or not header.strip():
        return None
    if len(header) > _MAX_RUN or not header.isprintable():
        raise bad_request(f"x-loopguard-session must be at most {_MAX_RUN} printable characters")
    return header.strip()
