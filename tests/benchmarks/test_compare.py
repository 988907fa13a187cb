"""The comparison's scripts are sound, and loopguard's own rows are as the page says. No peer is needed."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

COMPARE = Path(__file__).parents[2] / "benchmarks" / "compare"


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compare():
    """The runner, with the modules it and the drivers find beside it."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(COMPARE))
    try:
        yield load(COMPARE / "run.py", "compare_run")
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before & {"scenarios", "driver", "compare_run", "compare_loopguard"}:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def rows(compare):
    """What loopguard's own driver answers, without the timing."""
    ours = load(COMPARE / "peers" / "loopguard.py", "compare_loopguard")
    driver = sys.modules["driver"]
    return {
        preset: {
            "results": {one.name: driver.play(lambda _, p=preset: ours.Guard(p), one) for one in compare.SCENARIOS},
            "cannot": {},
            "timing": {"first": {"microseconds": 1, "ratio": 1}, "last": {"microseconds": 1, "ratio": 1}, "rounds": 50},
        }
        for preset in ("default", "patient", "openrouter")
    }


def test_scripts_are_sound(compare):
    names = [one.name for one in compare.SCENARIOS]
    assert len(names) == len(set(names))
    for one in compare.SCENARIOS:
        assert all(one.rounds), one.name
        assert (one.by is not None) == (one.kind == "loop"), one.name
        if one.by is not None:
            assert one.by < len(one.rounds), one.name
        used = {call.tool for calls in one.rounds for call in calls}
        assert set(one.traits.values()) <= {"polls", "reads", "mutates", "runs"}
        assert used <= set(one.traits), f"{one.name}: undeclared tools"
        json.dumps([[call.args for call in calls] for calls in one.rounds])


def test_a_loop_repeats_and_a_volatile_result_does_vary(compare):
    named = {one.name: one for one in compare.SCENARIOS}
    results = {calls[0].result for calls in named["volatile result"].rounds}
    assert len(results) == len(named["volatile result"].rounds)
    assert len({json.dumps(calls[0].args) for calls in named["volatile result"].rounds}) == 1
    words = {
        frozenset(calls[0].args["query"].replace(":", "").replace(",", "").split())
        for calls in named["rephrased search"].rounds
    }
    assert len(set.union(*map(set, words))) <= 10
    assert len({json.dumps(calls[0].args) for calls in named["long run"].rounds}) == len(named["long run"].rounds)


@pytest.mark.parametrize("preset", ["default", "patient"])
def test_loopguard_catches_every_loop_in_time(preset, compare, rows):
    cells = {one.name: compare.cell(one, rows[preset]) for one in compare.SCENARIOS}
    assert [name for name, text in cells.items() if text.startswith("**")] == (
        ["third try"] if preset == "default" else []
    )
    assert not any(text.startswith("nagged") for text in cells.values())
    assert compare.score(rows[preset])[:2] == (7, 6)


def test_the_reference_preset_sees_arguments_alone(compare, rows):
    cells = {one.name: compare.cell(one, rows["openrouter"]) for one in compare.SCENARIOS}
    assert {name for name, text in cells.items() if text.startswith("**")} == {
        "same failure",
        "rephrased search",
        "argument jitter",
        "polling",
        "edit and test",
        "third try",
    }


def test_the_page_has_a_row_for_each_entry_and_what_was_measured(compare, rows):
    page = compare.PAGE.read_text(encoding="utf-8")
    assert (page.count(compare.BEGIN), page.count(compare.END)) == (1, 1)
    for entry in compare.PEERS:
        name, _, version = entry.requirement.partition("==")
        assert page.count(f"| {name} {version} |") == 3
    for entry in compare.OURS:
        cells = [compare.cell(one, rows[entry.arguments[0]]) for one in compare.SCENARIOS]
        loops = [text for one, text in zip(compare.SCENARIOS, cells, strict=True) if one.kind == "loop"]
        assert f" | {' | '.join(loops)} |" in page, "run python benchmarks/compare/run.py"


def test_every_peer_has_a_driver_that_parses(compare):
    for entry in (*compare.OURS, *compare.PEERS):
        ast.parse((COMPARE / "peers" / entry.driver).read_text(encoding="utf-8"))


def test_what_came_of_a_script_is_said_in_words(compare):
    loop = compare.Scenario("loop", "loop", "", [[]], 6)
    healthy = compare.Scenario("healthy", "healthy", "", [[]])

    def said(one, told, stopped, cannot=()):
        return compare.cell(one, {"results": {one.name: {"told": told, "stopped": stopped}}, "cannot": dict(cannot)})

    assert said(loop, 2, 5) == "told 2, stopped 5"
    assert said(loop, None, 7) == "**late**: stopped 7"
    assert said(loop, None, None) == "**missed**"
    assert said(loop, None, None, {"loop": "no check"}.items()) == "not applicable"
    assert said(healthy, None, None) == "ok"
    assert said(healthy, 2, None) == "nagged: told 2"
    assert said(healthy, 2, 3) == "**false alarm**: told 2, stopped 3"
