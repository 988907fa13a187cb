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
                # A picture is not read as the text it is sent as; text that only begins like one is.
                tokens += IMAGE_TOKENS - _inline(value.get("image_url")) // _BYTES_PER_TOKEN
        elif isinstance(value, list):
            rest += value
    return max(1, tokens)


def _inline(picture: Any) -> int:
    """Characters of a picture that is sent along, and not by its address."""
    url = picture.get("url") if isinstance(picture, dict) else picture
    return len(url) if isinstance(url, str) and url.startswith("data:image/") else 0


def reported(usage: Usage | None) -> bool:
    """Whether a provider said what a call used, so that it can be priced: a total alone cannot."""
    return usage is not None and (
        usage.cost is not None or (usage.input_tokens is not None and usage.output_tokens is not None)
    )


class Heard:
    """Counts what came of a response, for one that never reports its usage."""

    def __init__(self) -> None:
        self.tokens = 0

    def add(self, text: str) -> None:
        """A piece of it."""
        self.tokens += estimate_tokens(text)

    def garbage(self, size: int) -> None:
        """Bytes of it that cannot be read."""
        self.tokens += -(-size // _BYTES_PER_TOKEN)
