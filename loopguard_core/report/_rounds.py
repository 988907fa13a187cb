"""The timeline of one recording: every response, or of a long one its ends and where verdicts begin."""

from __future__ import annotations

import json
from collections.abc import Sequence

from loopguard_core._identity import display_name
from loopguard_core._ladder import RANK
from loopguard_core._types import Action, Verdict
from loopguard_core.report._html import Markup, cut, el, joined, name_of
from loopguard_core.report._loops import evidence_rounds
from loopguard_core.report._story import Call, Step, Story
from loopguard_core.report._words import DONE, counted

MAX_SHOWN = 160
"""Responses up to which all are shown; of more, the first and the last of them, and where a verdict is a new one."""

_HEAD, _TAIL, _TURNS = 60, 40, 60
_MAX_VERDICTS = 8
_SAID = frozenset({"at_rounds", "rounds", "since_round"})  # `evidence` says it
_MAX_TEXT = 1200
_MAX_FACT = 240


def timeline(story: Story) -> Markup:
    """The list of responses; those after the end the guard makes are folded away."""
    end = story.replayed.answered
    shown = _shown(story.steps)
    reached = [step for step in shown if step.message <= end]
    past = [step for step in shown if step.message > end]
    parts = [el("ol", *_items(reached, story.steps[:end], story), class_="timeline")]
    if past:
        words = f"{counted(len(story.steps) - end, 'response')} recorded after that, which the guard spares"
        rest = el("ol", *_items(past, story.steps[end:], story), class_="timeline past")
        parts.append(el("details", el("summary", words), rest))
    return joined(*parts)


def _items(shown: Sequence[Step], steps: Sequence[Step], story: Story) -> list[Markup]:
    """The shown ones of some steps in a row, with what lies between them counted."""
    items: list[Markup] = []
    first = steps[0].message if steps else 0
    before = 0
    for step in shown:
        place = step.message - first
        items += [*_gap(steps[before:place]), _item(step, story)]
        before = place + 1
    return [*items, *_gap(steps[before:])]


def _shown(steps: Sequence[Step]) -> list[Step]:
    if len(steps) <= MAX_SHOWN:
        return list(steps)
    middle = steps[_HEAD:-_TAIL]
    turns: list[Step] = []
    known: set[tuple[str | None, ...]] = set()
    for step in middle:
        new = {(v.detector, v.action.value, v.tool, v.fingerprint) for v in step.verdicts} - known
        if new and len(turns) < _TURNS:
            turns.append(step)
        known |= new
    return [*steps[:_HEAD], *turns, *steps[-_TAIL:]]


def _gap(steps: Sequence[Step]) -> list[Markup]:
    if not steps:
        return []
    verdicts = sum(len(step.verdicts) for step in steps)
    words = f"{counted(len(steps), 'response')} left out, {counted(verdicts, 'verdict')} among them"
    return [el("li", words, class_="gap")]


def _item(step: Step, story: Story) -> Markup:
    strongest = max((v.action for v in step.verdicts), key=RANK.__getitem__, default=None)
    stop = story.replayed.stop
    ended = stop is not None and step.message == story.replayed.answered
    label = f"Round {step.round:,}" if step.round is not None else f"Response {step.message:,}"
    return el(
        "li",
        el("p", "A user spoke.", class_="aside") if step.user_spoke and step.message > 1 else None,
        *(_told(text) for text in step.told),
        el(
            "div",
            el("span", label, class_="number"),
            el("span", *_calls(step), class_="calls"),
            el("span", *(_badge(v.action, v.streak) for v in step.verdicts[:3]), class_="badges"),
            class_="row",
        ),
        *(_verdict(verdict, "While it ran: ") for verdict in step.live[:_MAX_VERDICTS]),
        *(_verdict(verdict) for verdict in step.verdicts[:_MAX_VERDICTS]),
        el("p", f"{len(step.verdicts) - _MAX_VERDICTS} further verdicts", class_="aside")
        if len(step.verdicts) > _MAX_VERDICTS
        else None,
        el("p", "With the guard the run ends here.", class_="end") if ended else None,
        class_=None if strongest is None else strongest.value,
    )


def _calls(step: Step) -> list[Markup]:
    shown = [_call(call) for call in step.calls]
    if step.more_calls:
        shown.append(el("span", f"and {step.more_calls} more", class_="more"))
    return shown or [el("span", "no calls", class_="more")]


def _call(call: Call) -> Markup:
    return el(
        "span",
        name_of(call.tool),
        el("small", call.fingerprint, title="fingerprint of the call") if call.fingerprint else None,
        el("small", f"{call.times} times") if call.times > 1 else None,
        el("bdi", el("code", call.arguments, class_="arguments")) if call.arguments is not None else None,
        class_="call",
    )


def _badge(action: Action, streak: int) -> Markup:
    return el("span", f"{DONE[action]} ", el("small", f"({streak})"), class_=f"badge {action.value}")


def _told(text: str) -> Markup:
    return el("p", el("b", "Told the model: "), cut(text, _MAX_TEXT), class_="told")


def _verdict(verdict: Verdict, when: str = "") -> Markup:
    rounds = evidence_rounds(verdict)
    facts = [
        ("detector", display_name(verdict.detector)),
        ("rung", verdict.action.value),
        ("streak", str(verdict.streak)),
        ("evidence", _listed(rounds)),
        ("call", verdict.call_id),
        ("text", None if verdict.char is None else f"{verdict.channel}, character {verdict.char:,}"),
        *(
            (key.replace("_", " "), _value(value))
            for key, value in list(verdict.evidence.items())[:12]
            if key not in _SAID
        ),
    ]
    rows = [joined(el("dt", cut(name, 40)), el("dd", cut(value, _MAX_FACT))) for name, value in facts if value]
    if verdict.action in (Action.BLOCK, Action.STOP):
        heading = "In place of the call’s result: " if verdict.action is Action.BLOCK else "At the end of the run: "
    else:
        heading = "What it says: "
    return el(
        "details",
        el(
            "summary",
            f"{when or 'Evidence: '}{display_name(verdict.detector)} ",
            _badge(verdict.action, verdict.streak) if when else None,
        ),
        el("dl", *rows),
        el("p", el("b", heading), cut(verdict.message, _MAX_TEXT), class_="told"),
    )


def _listed(rounds: Sequence[int]) -> str:
    """`rounds 1 to 4, 6`."""
    if rounds == [0]:
        return "before the first round"
    parts: list[list[int]] = []
    for number in rounds:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    words = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in parts)
    return f"{'round' if len(rounds) == 1 else 'rounds'} {words}"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
