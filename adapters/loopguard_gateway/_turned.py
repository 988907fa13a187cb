"""A response that the client does not get, or not yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loopguard_core import Stop
from loopguard_gateway._upstream import Headers
from loopguard_gateway._wire import Said


@dataclass(frozen=True, slots=True)
class Kept:
    """A response that was kept back from the client.

    Attributes:
        said: What it says.
        headers: Its headers.
        body: Its bytes.
        status: Its status; None for an event stream.
    """

    said: Said
    headers: Headers
    body: bytes
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Turned:
    """A model call whose response the client does not get.

    Attributes:
        kept: The response.
        said: What it says.
        items: The response with the results of its calls, where they were refused.
        outputs: Those results by call.
        stop: Why the run ends.
        failed: Whether the provider answered with an error.
    """

    kept: Kept | None = None
    said: Said | None = None
    items: list[Any] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    stop: Stop | None = None
    failed: bool = False
