"""The whole page: what happened in a sentence, then each recording."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from loopguard_core._identity import display_name
from loopguard_core._types import Action, Verdict
from loopguard_core.report._chart import chart
from loopguard_core.report._html import Markup, el, joined, name_of
from loopguard_core.report._loops import Loop, loops
from loopguard_core.report._rounds import timeline
from loopguard_core.report._spend import together
from loopguard_core.report._story import Story
from loopguard_core.report._words import DONE, amount, counted, ends, saved, source, span, status, subject

MAX_SECTIONS = 60
"""Recordings that are shown at length, the worst; the table has all of them."""

MAX_ROWS = 2_000
_MAX_LOOPS = 24
_ORDER = ("stop", "block", "steer", "observe", "fine")


def page(stories: Sequence[Story], *, policy: str = "") -> str:
    """A page about recordings.

    Args:
        stories: The recordings; those with the strongest verdicts, and among them those that wasted most, come first.
        policy: What they were played through, in a few words.

    Returns:
        HTML that is whole in itself: nothing is loaded, nothing is run.
    """
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rule = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=rule),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href="data:,"),
        el("title", f"loopguard report: {counted(len(stories), 'conversation')}"),
        el("style", Markup(style)),
    )
    told = [(number, story, loops(story.replayed.verdicts)) for number, story in enumerate(stories, 1)]
    told.sort(key=lambda row: (_ORDER.index(status(row[1], row[2])[0]), row[1].guarded.tokens - row[1].without.tokens))
    chosen = {number for number, _, _ in told[:MAX_SECTIONS]}
    body = el(
        "body",
        el("header", el("h1", "loopguard report"), _overview(told, policy)),
        el(
            "main",
            _table(told, chosen) if len(told) > 1 else None,
            *(_section(*row, open_=len(told) == 1) for row in told if row[0] in chosen),
            el("p", f"{len(told) - len(chosen):,} further conversations are in the table only.")
            if len(told) > len(chosen)
            else None,
        ),
        el("footer", el("p", _FOOT)),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


_FOOT = (
    "“With the guard” counts the recording up to where the policy would have ended it. A refused call or a told model"
    " may have changed what came next; a recording cannot show that, so nothing is claimed for it."
)

Row = tuple[int, Story, list[Loop]]


def _overview(told: Sequence[Row], policy: str) -> Markup:
    kinds = [status(story, found)[0] for _, story, found in told]
    looped = sum(kind != "fine" for kind in kinds)
    parts = [f"{counted(len(told), 'conversation')}, {looped:,} with a verdict, {kinds.count('stop'):,} ended early."]
    without, guarded = together(s.without for _, s, _ in told), together(s.guarded for _, s, _ in told)
    if len(told) > 1 and without.tokens:
        parts.append(f"Recorded: {amount(without)}. With the guard: {amount(guarded)}, {saved(without, guarded)} less.")
    return joined(
        el("p", " ".join(parts), class_="lead"),
        el("p", "Played through ", name_of(policy, "span"), ".", class_="aside") if policy else None,
    )


def _table(told: Sequence[Row], chosen: set[int]) -> Markup:
    heads = ("conversation", "what", "responses", "recorded", "with the guard")
    rows = []
    for number, story, found in told[:MAX_ROWS]:
        kind, words = status(story, found)
        name = name_of(story.name, "span")
        cells = (
            el("th", el("a", name, href=f"#c{number}") if number in chosen else name, scope="row"),
            el("td", el("span", words, class_=f"pill {kind}"), data_label="what"),
            el("td", f"{len(story.steps):,}", data_label="responses"),
            el("td", amount(story.without), data_label="recorded"),
            el("td", amount(story.guarded), data_label="with the guard"),
        )
        rows.append(el("tr", *cells))
    left = el("p", f"{len(told) - MAX_ROWS:,} further conversations are left out.") if len(told) > MAX_ROWS else None
    head = el("thead", el("tr", *(el("th", text, scope="col") for text in heads)))
    return joined(
        el("table", el("caption", "All conversations, the worst first"), head, el("tbody", *rows), class_="all"), left
    )


def _section(number: int, story: Story, found: list[Loop], *, open_: bool) -> Markup:
    kind, words = status(story, found)
    rounds = counted(story.replayed.rounds, "round")
    return el(
        "section",
        el("h2", name_of(story.name, "span"), id=f"h{number}"),
        el("p", el("span", words, class_=f"pill {kind}"), f" {rounds}, {counted(len(story.steps), 'response')}"),
        _facts(story, found),
        chart(story, number) if story.steps else None,
        _loops(found),
        el(
            "details",
            el("summary", f"Timeline of {counted(len(story.steps), 'response')}"),
            timeline(story),
            open=open_ or None,
            class_="whole",
        )
        if story.steps
        else None,
        id=f"c{number}",
        aria_labelledby=f"h{number}",
        class_=kind,
    )


def _facts(story: Story, found: list[Loop]) -> Markup:
    facts = [
        ("Where it repeats" if found and found[0].action is Action.OBSERVE else "Where it looped", _where(found)),
        ("What it cost", joined(el("b", amount(story.without)), " ", el("small", source(story.without)))),
        ("What the guard does", _does(story, found)),
    ]
    if story.live_end is not None:
        live = [verdict for step in story.steps for verdict in step.live]
        words = f"{counted(len(live), 'verdict')}, ended with {display_name(story.live_end.reason)}"
        facts.append(("While it ran", joined(el("b", words))))
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts), class_="facts")


def _where(found: list[Loop]) -> Markup:
    if not found:
        return joined(el("b", "Nowhere"), " ", el("small", "no detector fired"))
    worst = found[0]
    more = f" and {counted(len(found) - 1, 'other streak')} below" if len(found) > 1 else ""
    return joined(
        el("b", subject(worst), f", {span(*worst.rounds)}"),
        " ",
        el("small", f"{display_name(worst.last.detector)}, streak of {worst.last.streak}{more}"),
    )


def _does(story: Story, found: list[Loop]) -> Markup:
    replayed = story.replayed
    firsts = [verdict for action in (Action.STEER, Action.BLOCK) for verdict in _first(found, action)]
    done = {Action.STEER: "tells the model", Action.BLOCK: "refuses calls"}
    steps = [f"{done[verdict.action]} from round {verdict.round}" for verdict in firsts]
    if replayed.stop is None:
        return joined(
            el("b", "; ".join(steps) or ("notes it only" if found else "nothing")), " ", el("small", "the run goes on")
        )
    steps.append(f"ends the run {ends(story)}")
    spared = replayed.answered < len(story.steps)
    less = f"{amount(story.guarded)}: {saved(story.without, story.guarded)} less" if spared else "as the recording does"
    return joined(el("b", "; ".join(steps)), " ", el("small", less))


def _first(found: Sequence[Loop], action: Action) -> list[Verdict]:
    firsts = [verdict for loop in found if (verdict := loop.reached(action)) is not None]
    return sorted(firsts, key=lambda verdict: verdict.message_index)[:1]


def _loops(found: Sequence[Loop]) -> Markup | None:
    if len(found) < 2:  # one is told in full above
        return None
    rows = [
        el(
            "tr",
            el("th", subject(loop), scope="row"),
            el("td", span(*loop.rounds), data_label="where"),
            el("td", display_name(loop.last.detector), data_label="detector"),
            el("td", str(loop.last.streak), data_label="streak"),
            el("td", el("span", DONE[loop.action], class_=f"badge {loop.action.value}"), data_label="at most"),
        )
        for loop in found[:_MAX_LOOPS]
    ]
    heads = ("what repeats", "where", "detector", "streak", "at most")
    left = (
        el("p", f"{counted(len(found) - _MAX_LOOPS, 'further streak')} not listed", class_="aside")
        if len(found) > _MAX_LOOPS
        else None
    )
    head = el("thead", el("tr", *(el("th", text, scope="col") for text in heads)))
    return joined(el("table", el("caption", "Streaks, the worst first"), head, el("tbody", *rows)), left)
