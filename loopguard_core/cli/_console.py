"""Where the commands print."""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    """A console whose reader may go away, as `head` does: rich would exit with a status that means findings."""

    def on_broken_pipe(self) -> None:
        """Let `main` end the command quietly."""
        raise BrokenPipeError
