"""The cumulative cost curve with and without the guard, as SVG inside the page.

The curves are stretched to the width there is, text is not: it is as readable on a phone as on a desk.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate

from loopguard_core._ladder import RANK, RUNGS
from loopguard_core._types import Action
from loopguard_core.report._html import Markup, el, joined
from loopguard_core.report._story import Story
from loopguard_core.report._words import DONE, amount, counted, dollars, short

MAX_POINTS = 240
"""Points of a curve, and pieces of the strip below it."""

_SIZE = 1000
_HEIGHT = 220
_TOP, _BOTTOM = 26, 46
_STRIP = 12


def chart(story: Story, number: int) -> Markup:
    """The figure of one recording with at least one response.

    Args:
        story: The recording.
        number: Tells its ids apart from others' on the page.
    """
    total = len(story.steps)
    priced = story.without.cost is not None and story.without.cost > 0
    values = [spent.cost or Decimal(0) if priced else Decimal(spent.tokens) for spent in story.spent]
    sums = [float(value) for value in accumulate(values, initial=Decimal(0))]
    most = sums[-1] or 1.0
    end = story.replayed.answered
    ends_early = story.replayed.stop is not None
    guarded = [(at / total, sums[at] / most) for at in _places(0, end)]
    rest = [(at / total, sums[at] / most) for at in _places(end, total)]
    curves = [_area(guarded, "kept"), _line(guarded, "kept")]
    if ends_early and end < total:
        curves = [_area(rest, "wasted"), _line(rest, "wasted"), *curves]
    whole = dollars(story.without.cost) if priced and story.without.cost is not None else f"{short(int(most))} tokens"
    picture = el(
        "svg",
        el("title", f"Cumulative {'cost' if priced else 'tokens'}, with and without the guard", id=f"t{number}"),
        el("desc", _description(story), id=f"d{number}"),
        _stretched(joined(*curves), _TOP, _HEIGHT - _TOP - _BOTTOM),
        _stretched(joined(*_strip(story)), _HEIGHT - _BOTTOM + 4, _STRIP),
        el("line", x1="0", x2="100%", y1=_TOP, y2=_TOP, class_="grid"),
        el("line", x1="0", x2="100%", y1=_HEIGHT - _BOTTOM, y2=_HEIGHT - _BOTTOM, class_="grid"),
        el("text", whole, x="0", y=_TOP - 8),
        el("text", "response 1", x="0", y=_HEIGHT - 12),
        el("text", f"{total:,}", x="100%", y=_HEIGHT - 12, text_anchor="end"),
        _mark(story, total),
        class_="chart",
        role="img",
        width="100%",
        height=_HEIGHT,
        aria_labelledby=f"t{number} d{number}",
    )
    key = [("kept", "with the guard"), *([("wasted", "without")] if ends_early and end < total else [])]
    legend = joined(*(el("span", el("i", class_=f"key {kind}"), words) for kind, words in key))
    found = {verdict.action for step in story.steps for verdict in step.verdicts}
    rungs = [el("span", el("i", class_=f"key rung {rung.value}"), DONE[rung]) for rung in RUNGS if rung in found]
    return el("figure", picture, el("figcaption", legend, *rungs), class_="curve")


def _description(story: Story) -> str:
    whole = f"The recording took {amount(story.without)} in {counted(len(story.steps), 'response')}."
    if story.replayed.stop is None:
        return f"{whole} The guard would not have ended it."
    end = counted(story.replayed.answered, "response")
    return f"{whole} With the guard it would have ended after {end} and {amount(story.guarded)}."


def _places(first: int, last: int) -> list[int]:
    """Both ends, and evenly what fits between them."""
    step = max(1, -(-(last - first) // MAX_POINTS))
    return [*range(first, last, step), last]


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x * _SIZE:.1f},{(1 - y) * _SIZE:.1f}" for x, y in places)


def _line(places: Sequence[tuple[float, float]], kind: str) -> Markup:
    return el("polyline", points=_points(places), class_=f"line {kind}", vector_effect="non-scaling-stroke")


def _area(places: Sequence[tuple[float, float]], kind: str) -> Markup:
    floor = [(places[0][0], 0.0), *places, (places[-1][0], 0.0)]
    return el("polygon", points=_points(floor), class_=f"area {kind}")


def _stretched(content: Markup, y: int, height: int) -> Markup:
    box = f"0 0 {_SIZE} {_SIZE}"
    return el("svg", content, x="0", y=y, width="100%", height=height, viewBox=box, preserveAspectRatio="none")


def _strip(story: Story) -> list[Markup]:
    """The strongest rung of each response, or of each few."""
    total = len(story.steps)
    each = max(1, -(-total // MAX_POINTS))
    pieces = [el("rect", x=0, y=0, width=_SIZE, height=_SIZE, class_="quiet")]
    for first in range(0, total, each):
        actions = [v.action for step in story.steps[first : first + each] for v in step.verdicts]
        if actions:
            width = min(each, total - first) / total * _SIZE
            strongest: Action = max(actions, key=RANK.__getitem__)
            at, wide = f"{first / total * _SIZE:.1f}", f"{max(width * 0.92, 1):.1f}"
            pieces.append(el("rect", x=at, y=0, width=wide, height=_SIZE, class_=f"rung {strongest.value}"))
    return pieces


def _mark(story: Story, total: int) -> Markup | None:
    """Where the guard would have ended it."""
    if story.replayed.stop is None:
        return None
    share = story.replayed.answered / total
    x = f"{share * 100:.1f}%"
    late = share > 0.5  # the half with more room to its left
    words = f"ends after {story.replayed.answered:,}"
    return joined(
        el("line", x1=x, x2=x, y1=_TOP - 4, y2=_HEIGHT - _BOTTOM, class_="mark"),
        el(
            "text",
            words,
            x=x,
            dx="-6" if late else "6",
            y=_TOP - 8 if late else _TOP + 15,
            text_anchor="end" if late else "start",
        ),
    )
