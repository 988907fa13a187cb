"""loopguard as a gateway: an OpenAI-compatible proxy with spending limits and loop detection, for any SDK.

`create_app` makes the ASGI application, `loopguard gateway` serves it. An agent changes its base URL and its key, and
nothing else.

Read `_proxy` first, for what happens to a request; then `_exchange`, `_call` and `_streaming`, for its model calls;
`_watch` and `_conversations`, for the detection; `_till` and `_charge`, for the money.
"""

from __future__ import annotations

try:
    from loopguard_gateway._settings import Settings
    from loopguard_gateway.app import create_app
except ImportError as error:
    raise ImportError(
        "loopguard_gateway needs starlette, httpx, uvicorn and prometheus-client: pip install 'loopguard-core[gateway]'"
    ) from error

__all__ = ["Settings", "create_app"]
