"""Counters folded away, so that `Step 17` and `Step 18` are the same text.

Folding replaces every run of decimal digits, of any script, by one `0`, and the Chinese ordinal after `第` likewise.
Everything else stays as it is, character for character. The text arrives in blocks; a run that crosses the border of
two blocks is folded as one, so the result depends on the text alone.
"""

from __future__ import annotations

import re

COUNTER = "0"
"""What a counter is folded to."""

_TO_ZERO = {digit: ord("0") for digit in range(ord("1"), ord("9") + 1)}
_ZEROS = re.compile("00+")
_ORDINAL = "[零〇一二三四五六七八九十百千两兩]"
# A numeral is an ordinary Chinese character (一起, 三角); only after the ordinal mark is it surely a counter.
_MARK = "第"
_COUNTERS = re.compile(rf"\d+|(?<={_MARK}){_ORDINAL}+")
_DIGITS = re.compile(r"\d+")
_REST_OF_DIGITS = re.compile(r"\d+")
_REST_OF_ORDINAL = re.compile(f"{_ORDINAL}+")
_ENDS_IN_ORDINAL = re.compile(f"{_MARK}{_ORDINAL}*$")


class CounterFold:
    """Folds a text block by block."""

    __slots__ = ("_owed", "_pending")

    def __init__(self) -> None:
        self._pending: re.Pattern[str] | None = None  # what would go on with a counter that the last block began
        self._owed = ""  # what such a counter is still to be replaced by

    def fold(self, block: str) -> str:
        """The folded block; as long as the block or shorter, and possibly empty.

        A block of digits alone is kept as it is: a flood of digits must not shrink to nothing.
        """
        digits_go_on = self._pending is _REST_OF_DIGITS
        if not block.isascii():
            return self._fold_any(block)
        self._pending = None
        folded = block.translate(_TO_ZERO)
        if COUNTER not in folded:
            return folded
        if "0" <= block[-1] <= "9":
            self._pending = _REST_OF_DIGITS
            if block.isdecimal():
                return block
        if digits_go_on and folded[0] == COUNTER:
            folded = folded.lstrip(COUNTER)
        return _ZEROS.sub(COUNTER, folded) if "00" in folded else folded

    def _fold_any(self, block: str) -> str:
        pending, owed, self._pending = self._pending, self._owed, None
        if block[-1].isdecimal():
            self._pending = _REST_OF_DIGITS
            if block.isdecimal():
                return block
        begun = ""
        if pending is not None and (rest := pending.match(block)):
            block, begun = block[rest.end() :], owed if pending is _REST_OF_ORDINAL else ""
            if not block:
                self._pending, self._owed = pending, ""
                return begun
        if _MARK not in block:  # four times as fast as looking for both
            return begun + (_DIGITS.sub(COUNTER, block) if _DIGITS.search(block) else block)
        if ordinal := _ENDS_IN_ORDINAL.search(block):
            self._pending = _REST_OF_ORDINAL
            self._owed = COUNTER if len(ordinal[0]) == 1 else ""
        return begun + _COUNTERS.sub(COUNTER, block)
