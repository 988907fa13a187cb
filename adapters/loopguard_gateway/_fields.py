"""Fields of a request that decide what it may cost. What a provider might take for a number or a yes must be one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopguard_gateway._errors import bad_request


def number(body: Mapping[str, Any], field: str) -> int | None:
    """A count; None where there is none, or one below 1, which some take for as many as there may be.

    Raises:
        Refused: It is something else.
    """
    value = body.get(field)
    if isinstance(value, float) and value.is_integer():  # some languages have no other numbers
        value = int(value)
    if value is not None and type(value) is not int:
        raise bad_request(f"`{field}` must be a whole number")
    return value if value is not None and value > 0 else None


def flag(body: Mapping[str, Any], field: str) -> bool:
    """A yes or no.

    Raises:
        Refused: It is something else.
    """
    value = body.get(field)
    if value is not None and type(value) is not bool:
        raise bad_request(f"`{field}` must be true or false")
    return value is True
