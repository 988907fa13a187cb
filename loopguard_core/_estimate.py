"""How many tokens a text has, where nobody reports it."""

from __future__ import annotations

BYTES_PER_TOKEN = 3
"""Of UTF-8. Code, JSON and Chinese come to about this many; English prose has four to five, and is estimated high."""


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: for a stream that was cut or reported no usage, or a request to be sent.

    Rather too many than too few, because limits are held against it. No tokenizer is needed; what a provider reports
    is better and always wins.

    Args:
        text: Everything that was sent or received, tool arguments and reasoning included.
    """
    return tokens_of_bytes(text_bytes(text))


def tokens_of_bytes(count: int) -> int:
    """The same for so many bytes of UTF-8."""
    return -(-count // BYTES_PER_TOKEN)


def text_bytes(text: str) -> int:
    """How many bytes of UTF-8 a text has."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
