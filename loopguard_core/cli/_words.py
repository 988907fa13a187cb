"""Reads the words of a command, and says of one it does not know which command that was, and what was meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any


class Words(argparse.ArgumentParser):
    """A parser that complains itself: argparse leaves unknown words of a command to the parser of all of them."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]  # the parent's overloads say the same
        """Read the words.

        Returns:
            What they say, and none that are left: those end the program, with status 2.
        """
        known, left = super().parse_known_args(args, namespace)
        if left:
            options = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(left[0].partition("=")[0], options, n=1) if left[0][:1] == "-" else []
            self.error(f"unrecognized arguments: {' '.join(left)}" + (f"; did you mean {near[0]}?" if near else ""))
        return known, left
