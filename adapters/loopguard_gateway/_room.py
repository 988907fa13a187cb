"""Memory for what clients send and for whole answers: bounded for all requests of a process together."""

from __future__ import annotations

from loopguard_gateway._errors import busy


class Room:
    """So many bytes.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int) -> None:
        self.free = most

    def share(self) -> Share:
        """What one request takes of it."""
        return Share(self)


class Share:
    """What one request takes. Given back as a whole, once."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._taken = 0

    def take(self, size: int) -> None:
        """Take so many bytes more. Raises `Refused` where there are not as many."""
        if size > self._room.free:
            raise busy()
        self._room.free -= size
        self._taken += size

    def give(self, size: int) -> None:
        """So many bytes of it were too many."""
        self._room.free += size
        self._taken -= size

    def give_back(self) -> None:
        """The request is over."""
        self._room.free += self._taken
        self._taken = 0
