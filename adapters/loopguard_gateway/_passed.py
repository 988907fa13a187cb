"""Requests that cost nothing and are passed on: the list of models."""

from __future__ import annotations

import logging

import httpx

from loopguard_gateway._client import Client
from loopguard_gateway._errors import upstream_trouble
from loopguard_gateway._gateway import Gateway
from loopguard_gateway._settings import Settings
from loopguard_gateway._upstream import Target, trouble

_FAILED = 400
_UNAUTHORIZED = 401

_log = logging.getLogger("loopguard")


async def pass_on(gateway: Gateway, client: Client, target: Target, body: bytes) -> str:
    """Send a request on, and its answer back."""
    async with gateway.upstream.answer(target, body, stream=False) as response:
        answer = await whole(response, gateway.settings)
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
    if status >= _FAILED:
        answer = gateway.upstream.hidden(answer)
    await client.answer(status, [*gateway.upstream.returned(response), *(extra or [])], answer)


async def whole(response: httpx.Response, settings: Settings) -> bytes:
    """An answer that is not streamed, as sent.

    Raises:
        Refused: It broke off, or is too large.
    """
    body = bytearray()
    try:
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > settings.max_answer:
                raise upstream_trouble(502, f"sent more than {settings.max_answer} bytes")
    except httpx.HTTPError as error:
        raise trouble(error) from None
    return bytes(body)
