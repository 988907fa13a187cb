"""`create_app`: the gateway as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from loopguard_core import LoopGuard, PolicyLike
from loopguard_core.keys import KeyStatus
from loopguard_gateway import _chat, _responses
from loopguard_gateway._client import bearer
from loopguard_gateway._errors import Refused, unauthorized
from loopguard_gateway._gateway import Gateway
from loopguard_gateway._metrics import CONTENT_TYPE
from loopguard_gateway._proxy import Proxy
from loopguard_gateway._settings import NAMES, Settings, SettingsError


def create_app(policy: LoopGuard | PolicyLike = None, *, upstream: str | Settings, **settings: Any) -> Starlette:
    """The gateway as an ASGI application, for a server of yours; `loopguard gateway` serves it with uvicorn.

    Serve it where only its clients can reach it: what it holds is the provider's key.

    Args:
        policy: A policy, a preset's name, a path with a suffix, a mapping; None finds the config file. A `LoopGuard`
            brings its hooks along. Its key, if it has one, counts every request of every client.
        upstream: Address of an OpenAI-compatible endpoint, such as `https://api.openai.com/v1`; or all settings.
        settings: What `Settings` takes besides, such as `upstream_key` and `store`.

    Raises:
        LoopGuardError: Policy, store or a setting cannot be used.
    """
    unknown = sorted(set(settings) - NAMES)
    if unknown:
        raise SettingsError(f"{unknown[0]}: there is no such setting; known: {', '.join(sorted(NAMES))}")
    if isinstance(upstream, Settings) and settings:
        raise SettingsError("give all settings in `upstream`, or none")
    gateway = Gateway(policy, upstream if isinstance(upstream, Settings) else Settings(upstream, **settings))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.open()
        yield
        await gateway.close()

    service = _Service(gateway)
    passed = Proxy(gateway, None)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", Proxy(gateway, _chat), methods=["POST"]),
            Route("/v1/responses", Proxy(gateway, _responses), methods=["POST"]),
            Route("/v1/models", passed, methods=["GET"]),
            Route("/v1/models/{model:path}", passed, methods=["GET"]),
            Route("/v1/key", service.key, methods=["GET"]),
            Route("/healthz", service.health, methods=["GET"]),
            Route("/readyz", service.ready, methods=["GET"]),
            Route("/metrics", service.metrics, methods=["GET"]),
        ],
        exception_handlers={404: _unknown, 405: _unknown},
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    return app


class _Service:
    """What the gateway says of itself."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def key(self, request: Request) -> Response:
        """What is left on the client's key."""
        till, secret = self._gateway.till, bearer(request.headers.get("authorization"))
        try:
            name = await till.key_of(secret) if secret else None
            if name is None:
                raise unauthorized()
            return JSONResponse({"data": _shown(await till.status(name))})
        except Refused as refused:
            return _refused(refused)

    async def health(self, _: Request) -> Response:
        """The process runs."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Requests can be served: the ledger can be used. The provider is not asked, for that may cost."""
        ready = await self._gateway.till.ready()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        """Figures for Prometheus."""
        return Response(self._gateway.metrics.text(), headers={"content-type": CONTENT_TYPE})


def _shown(status: KeyStatus) -> dict[str, Any]:
    """A key as OpenRouter shows it: amounts are numbers of US dollars."""
    remaining, limit = status.remaining, status.limit
    return {
        "label": status.key,
        "limit": None if limit is None else float(limit),
        "usage": float(status.spent),
        "reserved": float(status.reserved),
        "limit_remaining": None if remaining is None else float(remaining),
        "limit_reset": None if status.reset == "none" else status.reset,
        "resets_at": None if status.resets_at is None else status.resets_at.isoformat(),
    }


def _unknown(request: Request, _: Exception) -> Response:
    text = f"this gateway does not serve {request.method} {request.url.path[:200]}"
    return _refused(Refused(404, text, label="unknown"))


def _refused(refused: Refused) -> Response:
    headers = {"content-type": "application/json", **refused.headers}
    return Response(refused.body(), status_code=refused.status, headers=headers)
