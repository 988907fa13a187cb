"""Preset `openrouter` gives the reference's figures for every one of its 600 scenarios."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import pytest

from loopguard_core import Decision, LoopGuard, Session, ToolCall

REFERENCE = pathlib.Path(__file__).parents[1] / "data" / "conformance" / "rounds.jsonl"
# Not `splitlines`: the texts hold other line separators.
SCENARIOS = [json.loads(line) for line in REFERENCE.read_text(encoding="utf-8").strip().split("\n")]


def guard_for(scenario: dict[str, Any]) -> LoopGuard:
    return LoopGuard({"preset": "openrouter", "ladder": scenario["ladder"] or {}})


def through_json(session: Session, guard: LoopGuard) -> Session:
    return guard.session(state=json.loads(json.dumps(session.save())))


def calls_of(round_: list[dict[str, Any]]) -> list[ToolCall]:
    return [ToolCall(f"call-{place}", call["tool"], call["args"]) for place, call in enumerate(round_)]


def figures(decisions: list[Decision]) -> list[dict[str, Any]]:
    return [
        {
            "streak": decision.streak,
            "duplicate": decision.duplicate,
            "action": None if decision.action is None else decision.action.value,
        }
        for decision in decisions
    ]


def test_all_reference_scenarios_are_there() -> None:
    assert len(SCENARIOS) == 600
    assert len({scenario["id"] for scenario in SCENARIOS}) == 600
    assert any(scenario["save_and_restore_before_round"] is not None for scenario in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["id"])
def test_every_figure_equals_the_reference(scenario: dict[str, Any]) -> None:
    guard = guard_for(scenario)
    session = guard.session()
    for number, (round_, expected) in enumerate(zip(scenario["rounds"], scenario["expect"], strict=True)):
        if scenario["save_and_restore_before_round"] == number:
            session = through_json(session, guard_for(scenario))
        assert figures(session.begin_round(calls_of(round_))) == expected
    assert not guard.faults.counts


def assert_figures_hold(scenario: dict[str, Any], session: Session, number: int, calls: list[ToolCall]) -> None:
    assert figures(session.begin_round(calls)) == scenario["expect"][number], f"{scenario['id']}, round {number}"


def test_saving_and_restoring_before_every_round_changes_no_figure() -> None:
    for scenario in SCENARIOS[::4]:
        guard = guard_for(scenario)
        session = guard.session()
        for number, round_ in enumerate(scenario["rounds"]):
            session = through_json(session, guard)
            assert_figures_hold(scenario, session, number, calls_of(round_))


def test_results_change_no_figure_because_outcomes_are_ignored() -> None:
    """Also when every result differs: this preset looks at arguments alone."""
    chance = random.Random(1)
    for scenario in SCENARIOS[::4]:
        session = guard_for(scenario).session()
        for number, round_ in enumerate(scenario["rounds"]):
            calls = calls_of(round_)
            assert_figures_hold(scenario, session, number, calls)
            for call in calls:
                session.record_result(call.id, chance.random(), is_error=chance.random() < 0.5)


def test_arguments_as_json_text_give_the_same_figures() -> None:
    """Some SDKs hand over the model's text, some the parsed values."""
    for scenario in SCENARIOS[::4]:
        session = guard_for(scenario).session()
        for number, round_ in enumerate(scenario["rounds"]):
            calls = [ToolCall(call.id, call.name, json.dumps(call.arguments)) for call in calls_of(round_)]
            assert_figures_hold(scenario, session, number, calls)
