"""Files of lines that only their owner may read: one a name, appended to, never followed through a link."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import xxhash

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_NAME = 40
# Where the system has them: what lies there may be somebody's link or pipe.
_NO_LINK_NO_WAIT = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class PrivateLines:
    """A directory of such files.

    Args:
        directory: Made at the first line, for the owner alone. One that is there already is taken as it is.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def path_of(self, name: str) -> Path:
        """The file of a name. Names may hold anything; different ones have different files."""
        told_apart = xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass"))
        readable = _UNSAFE.sub("_", name[: 2 * _MAX_NAME])[:_MAX_NAME].strip("-_") or "session"
        return self._directory / f"{readable}-{told_apart}.jsonl"

    def append(self, name: str, lines: str, max_bytes: int | None) -> bool:
        """Append lines, all of them or none.

        Args:
            name: Whose file.
            lines: ASCII; each ends with its newline. Nothing is done where there are none.
            max_bytes: Bytes the file may have; None for no bound.

        Returns:
            False if it would become too large.

        Raises:
            OSError: It cannot be written.
        """
        if not lines:
            return True
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = lines.encode("ascii")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK_NO_WAIT
        file = os.open(self.path_of(name), flags, 0o600)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("not a regular file")
            if stat.S_IMODE(status.st_mode) & 0o077 and hasattr(os, "fchmod"):
                os.fchmod(file, 0o600)
            if max_bytes is not None and status.st_size + len(data) > max_bytes:
                return False
            written = 0
            try:
                written = os.write(file, data)
            finally:
                if written != len(data):  # half a line would make the file unreadable
                    os.truncate(file, status.st_size)
            if written != len(data):
                raise OSError("there is no room for it")
            return True
        finally:
            os.close(file)
