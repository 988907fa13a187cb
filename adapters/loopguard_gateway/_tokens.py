"""How many tokens a request may have: for what is reserved, so rather too many than too few."""

from __future__ import annotations

from typing import Any

from loopguard_core import Usage, estimate_tokens

IMAGE_TOKENS = 16_384
"""What a picture counts at most; providers charge a few hundred to a few thousand tokens for one."""

UNKNOWN_CONTEXT = 32_768
"""What a conversation that the provider keeps is taken to have, where the gateway does not know it."""

_BYTES_PER_TOKEN = 3  # as `estimate_tokens` counts
_IMAGES = ("image_url", "input_image")


def sent_tokens(size: int, body: Any) -> int:
    """An estimate for a request.

    Args:
        size: Its bytes.
        body: The same, parsed.
    """
    tokens = -(-size // _BYTES_PER_TOKEN)
    rest = [body]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            rest += value.values()
            if value.get("type") in _IMAGES:
                tokens += IMAGE_TOKENS
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, str) and value.startswith("data:image/"):
            tokens -= len(value) // _BYTES_PER_TOKEN  # a picture is not read as the text it is sent as
    return max(1, tokens)


def reported(usage: Usage | None) -> bool:
    """Whether a provider said what a call used."""
    return usage is not None and (
        usage.cost is not None
        or usage.total_tokens is not None
        or (usage.input_tokens is not None and usage.output_tokens is not None)
    )


class Heard:
    """Counts what came of a response, for one that never reports its usage."""

    def __init__(self) -> None:
        self.tokens = 0

    def add(self, text: str) -> None:
        """A piece of it."""
        self.tokens += estimate_tokens(text)
