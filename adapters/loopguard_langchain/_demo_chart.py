"""Cumulative curves as a picture in the terminal.

The first curve is a line in braille dots, the others are single marks: they differ without colour. Where the output
cannot take Unicode, everything is ASCII.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MARKS = ("*", "x", "o")
"""How each curve is drawn. With Unicode the first one is a line."""

_BRAILLE = 0x2800
# Bit of each dot in a braille cell, by row from the top and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_CELL_ROWS, _CELL_COLUMNS = 4, 2

# With 13 rows the ticks lie at equal distances, whether there are 2, 3 or 4 of them.
_ROWS = 13
# Each in ASCII and in Unicode.
_SIDE = (("|", "+"), ("\u2502", "\u2524"))
_CORNER = ("+", "\u2514")
_FLOOR = ("-", "\u2500")

_NARROWEST, _WIDEST = 30, 80
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's curve.

    Attributes:
        name: What a legend says about it.
        values: The height after each model call, from the first to the last.
    """

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from 0 to its last tick."""

    step: float
    ticks: tuple[float, ...]

    @property
    def top(self) -> float:
        """The last tick."""
        return self.ticks[-1]

    @classmethod
    def reaching(cls, value: float, most_ticks: int, *, whole: bool = False) -> Axis:
        """Round ticks from 0 to at least `value`.

        Args:
            value: What has to fit.
            most_ticks: How many there may be, beside 0.
            whole: Whether only whole numbers make sense.
        """
        value = value if value > 0 else 1.0
        exponent = math.floor(math.log10(value / most_ticks))
        if whole:
            exponent = max(0, exponent)
        # One power of ten further always fits, so the search ends.
        steps = (step * 10.0**power for power in (exponent, exponent + 1) for step in _STEPS)
        step = next(s for s in steps if s * most_ticks >= value * (1 - 1e-9) and not (whole and s % 1))
        count = math.ceil(value / step - 1e-9)
        return cls(step, tuple(index * step for index in range(count + 1)))


def axes(curves: Sequence[Curve]) -> tuple[Axis, Axis]:
    """The axis of the model calls, and that of the values."""
    calls = max((len(curve.values) for curve in curves), default=1)
    values = max((value for curve in curves for value in curve.values), default=1.0)
    return Axis.reaching(calls, 5, whole=True), Axis.reaching(values, 4)


def text_chart(
    curves: Sequence[Curve], label: Callable[[float, float], str], *, width: int, unicode: bool
) -> list[str]:
    """The curves as lines of text, with a legend where they leave room for it.

    Args:
        curves: What is drawn; a later one lies over an earlier one.
        label: Writes a tick of the value axis; told the distance between ticks too.
        width: Columns there are.
        unicode: Whether anything but ASCII may be used.
    """
    across, up = axes(curves)
    labels = {_row(tick, up): label(tick, up.step) for tick in up.ticks}
    margin = max(map(len, labels.values()))
    columns = min(max(width, _NARROWEST), _WIDEST) - margin - 3
    marks = [f" {MARKS[index % len(MARKS)]}" for index in range(len(curves))]
    cells = _Cells(columns, across, up)
    for index, curve in enumerate(curves):
        if index == 0 and unicode:
            marks[0] = 2 * _FLOOR[unicode]
            cells.line(curve)
        else:
            cells.points(curve, marks[index].strip())
    legend = [f"{mark} {curve.name}" for mark, curve in zip(marks, curves, strict=True)]
    rows = cells.rows()
    inside = _with_legend(rows, legend)
    axis = [f"{labels.get(row, ''):>{margin}} {_SIDE[unicode][row in labels]}" for row in range(_ROWS)]
    lines = [f"{start}{row}".rstrip() for start, row in zip(axis, inside or rows, strict=True)]
    indent = " " * margin
    lines.append(f"{indent} {_CORNER[unicode]}{columns * _FLOOR[unicode]}")
    lines.append(f"{indent}  {_call_labels(across, columns)}")
    lines.append(f"{indent}  {'model calls':^{columns}}".rstrip())
    return lines if inside else [*lines, *(f"{indent} {line}" for line in legend)]


def _with_legend(rows: Sequence[str], legend: Sequence[str]) -> list[str] | None:
    """The picture with the legend in its top left corner; None if a curve is in the way."""
    width = max(map(len, legend)) + 4
    first = 1
    if any(row[:width].strip() or len(row) < width for row in rows[first : first + len(legend)]):
        return None
    with_legend = list(rows)
    for number, line in enumerate(legend, first):
        with_legend[number] = f"  {line:<{width - 2}}{rows[number][width:]}"
    return with_legend


class _Cells:
    """A grid of characters, and of braille dots beneath them."""

    def __init__(self, columns: int, across: Axis, up: Axis) -> None:
        self._columns = columns
        self._across = across
        self._up = up
        self._dots = [[0] * columns for _ in range(_ROWS)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, curve: Curve) -> None:
        """Draw a curve as a connected line from the origin."""
        points = [self._dot(call, value) for call, value in enumerate((0.0, *curve.values))]
        for (x, y), (next_x, next_y) in itertools.pairwise(points):
            steps = max(next_x - x, abs(next_y - y), 1)
            for step in range(steps + 1):
                self._set(x + round((next_x - x) * step / steps), y + round((next_y - y) * step / steps))

    def points(self, curve: Curve, mark: str) -> None:
        """Draw a mark at each model call."""
        for call, value in enumerate(curve.values, 1):
            x, y = self._dot(call, value)
            self._marks[_ROWS - 1 - y // _CELL_ROWS, x // _CELL_COLUMNS] = mark

    def rows(self) -> list[str]:
        """The picture, from the top."""
        return ["".join(self._cell(row, column) for column in range(self._columns)) for row in range(_ROWS)]

    def _cell(self, row: int, column: int) -> str:
        dots = self._dots[row][column]
        return self._marks.get((row, column)) or (chr(_BRAILLE + dots) if dots else " ")

    def _dot(self, call: float, value: float) -> tuple[int, int]:
        x = round(call / self._across.top * (self._columns * _CELL_COLUMNS - 1))
        return x, _height(value, self._up)

    def _set(self, x: int, y: int) -> None:
        row, column = _ROWS - 1 - y // _CELL_ROWS, x // _CELL_COLUMNS
        self._dots[row][column] |= _DOTS[_CELL_ROWS - 1 - y % _CELL_ROWS][x % _CELL_COLUMNS]


def _height(value: float, up: Axis) -> int:
    return round(value / up.top * (_ROWS * _CELL_ROWS - 1))


def _row(value: float, up: Axis) -> int:
    return _ROWS - 1 - _height(value, up) // _CELL_ROWS


def _call_labels(across: Axis, columns: int) -> str:
    line = [" "] * columns
    for tick in across.ticks:
        text = f"{tick:.0f}"
        at = min(round(tick / across.top * (columns - 1)), columns - len(text))
        line[at : at + len(text)] = text
    return "".join(line).rstrip()
