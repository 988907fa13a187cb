"""The report in a real browser: nothing is asked for, nothing goes wrong, nothing sticks out, all can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, missing
from looping_recordings import HOSTILE, loop, saved, work

from loopguard_core import Policy
from loopguard_core.report import Reporter, page

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

WIDTHS = (360, 1100)

SCREENS = [
    pytest.param(width, dark, id=f"{width}{'-dark' if dark else '-light'}")
    for width in WIDTHS
    for dark in (False, True)
]

CONTRASTS = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const ground = element => { for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor); if (colour[3] === 255) return colour; }
    return rgb('white'); };
  const poor = [];
  for (const element of document.querySelectorAll('body *:not(svg *)')) {
    if (![...element.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) poor.push(element.className + ': ' + element.textContent.slice(0, 40));
  }
  return [...new Set(poor)];
})()
"""

OVERFLOW = """
[...document.querySelectorAll('body, body *:not(svg *)')]
  .map(e => [e, e.getBoundingClientRect()])
  .filter(([e, box]) => box.width && box.right > document.documentElement.clientWidth + 1).map(([e]) => e)
  .filter(e => !e.closest('thead')).map(e => e.tagName + '.' + e.className)
"""

OVERLAPS = """
(() => {
  const found = [];
  for (const chart of document.querySelectorAll('svg.chart')) {
    const boxes = [...chart.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (const [i, [a, x]] of boxes.entries()) for (const [b, y] of boxes.slice(i + 1))
      if (x.left < y.right && y.left < x.right && x.top < y.bottom && y.top < x.bottom) found.push(a + ' | ' + b);
    const frame = chart.getBoundingClientRect();
    for (const [a, x] of boxes) if (x.left < frame.left - 1 || x.right > frame.right + 1) found.push(a + ' is cut');
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything a report may have, everything opened in it."""
    place = tmp_path_factory.mktemp("report")
    recordings = [
        *(loop(rounds, cost=cost) for rounds in (1, 2, 4, 7, 41, 400) for cost in (False, True)),
        *(loop(7, tool=name) for name in HOSTILE),
        work(1),
        work(300),
        [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Blue is scattered. " * 300}],
        [{"role": "user", "content": "hi"}],
    ]
    with Reporter(Policy.from_mapping({"ladder": {"steer": 2}}), arguments=True) as reporter:
        stories = [
            reporter.story(saved(place / f"{number}-{'x' * 80}.json", messages))
            for number, messages in enumerate(recordings)
        ]
    file = place / "report.html"
    file.write_text(page(stories, policy=HOSTILE[0]).replace("<details", "<details open"), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_it_asks_for_nothing_and_all_of_it_can_be_read(tab: Browser, whole: Path, width: int, dark: bool) -> None:
    tab.open(whole, width=width, dark=dark)
    assert tab.requests == [whole.as_uri()]
    assert tab.complaints == []
    assert tab.evaluate("document.scripts.length") == 0
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    assert tab.evaluate(CONTRASTS) == []
    assert tab.evaluate(OVERFLOW) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.evaluate(OVERLAPS) == []
    sizes = "[...document.querySelectorAll('svg.chart text')].map(t => parseFloat(getComputedStyle(t).fontSize))"
    assert min(tab.evaluate(sizes)) >= 12


def test_the_answer_is_on_the_first_screen_of_a_phone(tab: Browser, tmp_path: Path) -> None:
    with Reporter(Policy()) as reporter:
        story = reporter.story(saved(tmp_path / "run.json", loop(41, cost=True)))
    file = tmp_path / "report.html"
    file.write_text(page([story], policy="preset default"), encoding="utf-8")
    tab.open(file, width=360, height=780)
    bottom = "Math.max(...[...document.querySelectorAll('.facts b')].map(e => e.getBoundingClientRect().bottom))"
    assert tab.evaluate(bottom) < 780
    assert tab.evaluate("document.querySelector('svg.chart').getBoundingClientRect().top") < 780
    assert tab.screenshot().startswith(b"\x89PNG")


def test_it_can_be_used_with_the_keyboard_and_heard(tab: Browser, tmp_path: Path) -> None:
    with Reporter(Policy()) as reporter:
        stories = [reporter.story(saved(tmp_path / f"{n}.json", loop(n))) for n in (7, 8)]
    file = tmp_path / "report.html"
    file.write_text(page(stories), encoding="utf-8")
    tab.open(file, width=1100)
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    known = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node}
    assert ("heading", "loopguard report") in known
    assert any(role == "image" and name.startswith("Cumulative tokens") for role, name in known)
    assert {"main", "table", "region", "list"} & {role for role, _ in known} >= {"main", "table", "region"}
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert tab.evaluate("document.activeElement.tagName") == "A"
    tab.evaluate("document.querySelector('summary').focus()")
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert tab.evaluate("document.querySelector('summary').parentElement.open")
