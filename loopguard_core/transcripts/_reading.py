"""From a file to a transcript: bytes, then JSON or JSONL, then the first reader that knows the form.

A further form is a module with `NAME`, `recognizes` and `read`, listed in `READERS`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

from loopguard_core.transcripts import anthropic_messages, langchain_messages, openai_chat, openai_responses, recordings
from loopguard_core.transcripts._model import Document, Transcript, TranscriptError

MAX_BYTES = 200_000_000
"""Larger files are refused: parsed, they would take several gigabytes of memory."""


class Reader(Protocol):
    """One form of recording. It gets parsed JSON and never touches the file."""

    @property
    def NAME(self) -> str:  # noqa: N802  # modules are readers, and this is a constant there
        """The form's name, for messages."""

    def recognizes(self, document: Document) -> bool:
        """Whether this looks like the form, readable or not. Called for every file, so cheap."""

    def read(self, document: Document) -> Transcript:
        """Turn the document into a transcript.

        Raises:
            TranscriptError: It looks like the form and is not.
        """


READERS: tuple[Reader, ...] = (
    recordings,
    langchain_messages,
    openai_responses,
    anthropic_messages,
    openai_chat,
)
"""The forms this release reads, the stricter ones first: the first one that recognizes a recording reads it.

The first four recognize only what no other form has; chat messages are what is left."""


def read_transcript(path: str | os.PathLike[str]) -> Transcript:
    """Read one recorded conversation.

    Args:
        path: A JSON or JSONL file in UTF-8, in a form of `READERS`.

    Raises:
        TranscriptError: It cannot be read. The text names file, line where known, and reason.
    """
    return read_recording(path)[1]


def read_recording(path: str | os.PathLike[str]) -> tuple[Document, Transcript]:
    """Read one recorded conversation, and keep what else its file says.

    Raises:
        TranscriptError: As `read_transcript`.
    """
    file = os.fspath(path)
    try:
        document = parse_document(_content(Path(file)))
        return document, transcript_of(document)
    except TranscriptError as error:
        raise TranscriptError(error.reason, line=error.line, file=file) from None


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a JSON or JSONL file that is no conversation.

    Raises:
        TranscriptError: As `read_transcript`.
    """
    file = os.fspath(path)
    try:
        return parse_document(_content(Path(file)))
    except TranscriptError as error:
        raise TranscriptError(error.reason, line=error.line, file=file) from None


def parse_transcript(content: bytes) -> Transcript:
    """Read one recorded conversation that is already in memory.

    Raises:
        TranscriptError: It cannot be read.
    """
    return transcript_of(parse_document(content))


def parse_document(content: bytes) -> Document:
    """Parse a file, whatever it holds.

    Raises:
        TranscriptError: It is neither JSON nor JSONL in UTF-8.
    """
    return _document(_decoded(content))


def transcript_of(document: Document) -> Transcript:
    """The conversation in a parsed file, read by the first reader that recognizes it.

    Raises:
        TranscriptError: None does, or it is not what it looks like.
    """
    for reader in READERS:
        if reader.recognizes(document):
            return reader.read(document)
    known = ", ".join(reader.NAME for reader in READERS)
    raise TranscriptError(f"is not a recorded conversation in a form this release reads ({known})")


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TranscriptError(f"cannot be read ({reason})") from None
    if len(content) > MAX_BYTES:
        raise TranscriptError(f"is larger than {MAX_BYTES // 1_000_000} MB; split it into one file per conversation")
    return content


def _decoded(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TranscriptError("is UTF-16, as some shells write it; save it as UTF-8")
    try:
        return content.decode("utf-8-sig")  # some editors put a mark at the front
    except UnicodeDecodeError as error:
        raise TranscriptError("is not UTF-8", line=content.count(b"\n", 0, error.start) + 1) from None


def _document(text: str) -> Document:
    if not text.strip():
        raise TranscriptError("is empty")
    try:
        return Document(_parsed(text))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise TranscriptError(f"is not JSON: {error.msg}", line=error.lineno) from None
    # More than one value: JSONL. Not `splitlines`, which also splits at characters that may stand inside a string.
    values: list[Any] = []
    numbers: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                values.append(_parsed(line, number))
            except json.JSONDecodeError as error:
                raise TranscriptError(f"is not JSON: {error.msg}", line=number) from None
            numbers.append(number)
    return Document(values, tuple(numbers))


def _parsed(text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise TranscriptError("is nested too deeply", line=line) from None
    except ValueError:  # Python refuses integers of thousands of digits
        raise TranscriptError("holds a number with too many digits", line=line) from None
