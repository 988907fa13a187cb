"""Requests that cost nothing and are passed on: the list of models."""

from __future__ import annotations

import logging

import httpx

from loopguard_gateway._client import Client
from loopguard_gateway._coding import decoded
from loopguard_gateway._errors import too_long, upstream_trouble
from loopguard_gateway._gateway import Gateway
from loopguard_gateway._room import Share
from loopguard_gateway._settings import Settings
from loopguard_gateway._upstream import Headers, Target, pieces, trouble

_FAILED = 400
_UNAUTHORIZED = 401

_log = logging.getLogger("loopguard")


async def pass_on(gateway: Gateway, client: Client, target: Target, share: Share, body: bytes) -> str:
    """Send a request on, and its answer back."""
    async with gateway.upstream.answer(target, body, stream=False) as response:
        answer = await whole(response, gateway.settings, share)
    await returned(gateway, client, response, answer)
    return "ok" if response.status_code < _FAILED else "upstream_error"


async def returned(
    gateway: Gateway,
    client: Client,
    response: httpx.Response,
    answer: bytes,
    extra: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Send a whole answer of the provider's to the client.

    Raises:
        Refused: The provider did not accept the gateway's own key, which is nothing the client could put right.
    """
    status = response.status_code
    if status == _UNAUTHORIZED:
        _log.error("The provider refused the key it was sent (HTTP 401): see --upstream-key-env")
        raise upstream_trouble(502, "refused the gateway's own key")
    headers, answer = cleaned(gateway, response, answer)
    await client.answer(status, [*headers, *(extra or [])], answer)


def cleaned(gateway: Gateway, response: httpx.Response, answer: bytes) -> tuple[Headers, bytes]:
    """The headers and body of an answer, as received unless the provider's key is in it."""
    headers = gateway.upstream.returned(response)
    text = decoded(answer, response.headers.get("content-encoding", ""), gateway.settings.max_answer)
    if text is None or (clean := gateway.upstream.hidden(text)) == text:
        return headers, answer
    return [(name, value) for name, value in headers if name != b"content-encoding"], clean


async def whole(response: httpx.Response, settings: Settings, share: Share) -> bytes:
    """An answer that is not streamed, as sent.

    Args:
        response: The answer.
        settings: Say how large it may be.
        share: Where the memory for it is taken.

    Raises:
        Refused: It broke off, is too large, or there is no room for it.
    """
    body = bytearray()
    try:
        async for piece in pieces(response):
            share.take(len(piece))
            body += piece
            if len(body) > settings.max_answer:
                raise too_long(settings.max_answer)
    except httpx.HTTPError as error:
        raise trouble(error) from None
    return bytes(body)
