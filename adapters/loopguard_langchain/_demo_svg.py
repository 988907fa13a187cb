"""The curve of `loopguard demo` as one SVG file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from loopguard_langchain._demo_chart import Axis, Curve, axes

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 728, 132, 384
_LEGEND_TOP, _LEGEND_STEP, _SAMPLE = 62, 22, 34

# The background is part of the picture: whoever shows it may be in the other mode than the reader's system.
_STYLE = """\
  .paper { fill: #ffffff } text { fill: #24292f; font: 14px system-ui, sans-serif } .title { font-weight: 600 }
  .grid { stroke: #d0d7de } .axis { stroke: #57606a } .curve { fill: none; stroke-width: 2.5 }
  .c0 .curve { stroke: #cf222e } .c1 .curve { stroke: #9a6700 } .c2 .curve { stroke: #0969da } .disc { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d } .axis { stroke: #8b949e }
    .c0 .curve { stroke: #ff7b72 } .c1 .curve { stroke: #e3b341 } .c2 .curve { stroke: #79c0ff } .disc { fill: #79c0ff }
  }"""


def svg_chart(curves: Sequence[Curve], label: Callable[[float, float], str], *, title: str, unit: str) -> str:
    """The curves as an SVG document, readable on light and dark and without colour.

    Args:
        curves: What is drawn; a later one lies over an earlier one.
        label: Writes a tick of the value axis; told the distance between ticks too.
        title: Stands above it, and is what a screen reader says.
        unit: Name of the value axis.
    """
    across, up = axes(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape('; '.join(curve.name for curve in curves))}</desc>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
        f'<text class="title" x="{_LEFT}" y="34">{escape(title)}</text>',
        *_grid(across, up, label, unit),
    ]
    for index, curve in enumerate(curves):
        height = _LEGEND_TOP + index * _LEGEND_STEP
        points = [(_x(call, across), _y(value, up)) for call, value in enumerate((0.0, *curve.values))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        sample = f'<path class="curve" d="M{_LEFT},{height} h{_SAMPLE}"/>{_mark(index, _LEFT + _SAMPLE / 2, height)}'
        parts += [
            f'<g class="c{index % 3}">',
            f'{sample}<text x="{_LEFT + _SAMPLE + 10}" y="{height + 5}">{escape(curve.name)}</text>',
            f'<polyline class="curve" points="{path}"/>',
            *(_mark(index, x, y) for x, y in points[1:]),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def _grid(across: Axis, up: Axis, label: Callable[[float, float], str], unit: str) -> list[str]:
    parts = []
    for tick in up.ticks:
        y = _y(tick, up)
        parts += [
            f'<path class="{"grid" if tick else "axis"}" d="M{_LEFT},{y:.1f} H{_RIGHT}"/>',
            f'<text x="{_LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{escape(label(tick, up.step))}</text>',
        ]
    parts += [
        f'<text x="{_x(tick, across):.1f}" y="{_BOTTOM + 21}" text-anchor="middle">{tick:.0f}</text>'
        for tick in across.ticks
    ]
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_BOTTOM + 42}" text-anchor="middle">model calls</text>')
    height = (_TOP + _BOTTOM) / 2
    parts.append(f'<text transform="translate(20 {height}) rotate(-90)" text-anchor="middle">{escape(unit)}</text>')
    return parts


def _mark(index: int, x: float, y: float) -> str:
    """Nothing on the first curve, a cross on the second, a disc on the third, as in the terminal."""
    if index == 0:
        return ""
    if index % 2:
        return f'<path class="curve" d="M{x - 5:.1f},{y - 5:.1f} l10,10 m0,-10 l-10,10"/>'
    return f'<circle class="disc" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _x(call: float, across: Axis) -> float:
    return _LEFT + (_RIGHT - _LEFT) * call / across.top


def _y(value: float, up: Axis) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / up.top
