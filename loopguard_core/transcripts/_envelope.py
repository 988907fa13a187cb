"""What lies around the messages: an object with `messages`, a bare list, or one message a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from loopguard_core.transcripts._model import Document, TranscriptError

T = TypeVar("T")


def glimpse(document: Document) -> Iterator[Mapping[str, Any]]:
    """Every object that could be a message, for a look at the form. Never raises."""
    for _, member in document.members():
        if isinstance(member, dict):
            within = member.get("messages")
            yield from (one for one in within if isinstance(one, dict)) if isinstance(within, list) else (member,)


def opened(document: Document) -> tuple[Mapping[str, Any], Document]:
    """The one conversation a file holds: the object around it, empty for a bare list, and its messages.

    Raises:
        TranscriptError: It holds several: which one a verdict is about could not be said.
    """
    conversations = [
        (line, member) for line, member in document.members() if isinstance(member, dict) and "messages" in member
    ]
    if not conversations:
        return {}, document
    if len(conversations) > 1:
        each = ", one a line" if document.lines else ""
        raise TranscriptError(f"holds {len(conversations)} conversations{each}; put each into a file of its own")
    line, found = conversations[0]
    if isinstance(document.value, list) and len(document.value) > 1:
        raise TranscriptError("holds a conversation and other things beside it", line=line)
    if not isinstance(found["messages"], list):
        raise TranscriptError("`messages` is not a list", line=line)
    return found, Document(found["messages"])


def read_each(messages: Document, read: Callable[[Any], Iterable[T] | None], noun: str = "message") -> tuple[T, ...]:
    """Read messages in order; errors say which one it was.

    Args:
        messages: The messages.
        read: Reads one, into none, one or several; or keeps them itself.
        noun: What a message is called in this form.

    Raises:
        TranscriptError: One cannot be read.
    """
    read_so_far: list[T] = []
    for number, (line, message) in enumerate(messages.members(), 1):
        try:
            read_so_far.extend(read(message) or ())
        except TranscriptError as error:
            subject = "this" if line else f"{noun} {number}"
            raise TranscriptError(f"{subject} {error.reason}", line=line) from None
    return tuple(read_so_far)
