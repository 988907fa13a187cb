"""The names of `loopguard_gateway`. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

from typing import assert_type

from loopguard_gateway import Settings, create_app
from starlette.applications import Starlette

from loopguard_core import LoopGuard


def apps(guard: LoopGuard) -> list[Starlette]:
    settings = Settings(upstream="https://models.example/v1", on_stop="end", max_sessions=100)
    assert_type(settings.call_timeout, float)
    app = create_app("default", upstream="https://models.example/v1", upstream_key="secret")
    assert_type(app, Starlette)
    return [app, create_app(guard, upstream=settings)]
