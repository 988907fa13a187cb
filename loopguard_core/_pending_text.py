"""Streamed text on its way to the detectors: pieces of a few characters are gathered until there is a block of it.

Nearly every piece of a stream is shorter than what any detector looks at. Handing each of them to every detector costs
more than reading it; keeping it costs a list entry. Detectors get whole blocks, counted from the start of the message,
so what they say, and at which piece they say it, does not change.
"""

from __future__ import annotations

from loopguard_core._types import Channel

BLOCK = 64
"""Characters that are handed over at once."""


class _Channel:
    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.size = 0


class PendingText:
    """The unread end of each channel of the running message."""

    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[Channel, _Channel] = {}

    def add(self, delta: str, channel: Channel) -> str | None:
        """Take a piece; what is to be read now, in whole blocks, or None.

        Args:
            delta: The new text.
            channel: Where it belongs.
        """
        waiting = self._channels.get(channel)
        if waiting is None:
            waiting = self._channels[channel] = _Channel()
        waiting.pieces.append(delta)
        waiting.size = size = waiting.size + len(delta)
        if size < BLOCK:
            return None
        text = delta if len(waiting.pieces) == 1 else "".join(waiting.pieces)
        waiting.size = rest = size % BLOCK
        waiting.pieces = [text[-rest:]] if rest else []
        return text[:-rest] if rest else text

    def rest(self) -> list[tuple[Channel, str]]:
        """What is left when the message is complete, by channel; nothing is left after it.

        A channel that was fed is named even if nothing is left: an empty message is known to be empty.
        """
        left = [(channel, "".join(waiting.pieces)) for channel, waiting in self._channels.items()]
        self._channels = {}
        return left

    def clear(self) -> None:
        """Drop everything: the message will never be complete."""
        self._channels = {}
