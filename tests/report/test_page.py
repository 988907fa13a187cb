"""What the report says, and that nothing a recording holds can do anything in it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from looping_recordings import HOSTILE, loop, saved, work

from loopguard_core import LoopGuard, Policy, ToolCall, Usage
from loopguard_core.recorder import FileRecorder
from loopguard_core.report import Reporter, page
from loopguard_core.report._loops import loops

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """A page taken apart: texts, elements with their attributes; every element must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(*files: Path, policy: Any = None, arguments: bool = False) -> Page:
    with Reporter(Policy.from_mapping(policy or {}), arguments=arguments) as reporter:
        return Page(page([reporter.story(file) for file in files], policy="preset default"))


def test_where_it_looped_what_it_cost_and_what_the_guard_does_are_on_top(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "run.json", loop(20, cost=True)))
    facts = shown.text[shown.text.index("Where it looped") : shown.text.index("Timeline")]
    assert "fetch_invoice , rounds 1 to 20" in facts
    assert "212k tokens, $0.20 tokens as recorded; dollars as recorded" in facts
    assert "refuses calls from round 3; ends the run at round 6 21.6k tokens, $0.0600: 70 % less" in facts


def test_estimates_are_marked_and_unknown_dollars_said(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "run.json", loop(8, usage=False)))
    assert "about " in shown.text
    assert "tokens estimated from the text; no cost recorded, and no price known for the model" in shown.text
    assert "$" not in shown.text


def test_the_figures_are_those_of_the_recording(tmp_path: Path) -> None:
    with Reporter(Policy()) as reporter:
        story = reporter.story(saved(tmp_path / "run.json", loop(10, cost=True)))
    assert (story.without.tokens, str(story.without.cost)) == (sum(1000 * n + 100 for n in range(1, 11)), "0.10")
    assert (story.guarded.tokens, str(story.guarded.cost)) == (sum(1000 * n + 100 for n in range(1, 7)), "0.06")
    assert not story.without.tokens_estimated
    assert not story.without.cost_estimated


def test_an_estimate_counts_everything_said_before_each_call(tmp_path: Path) -> None:
    with Reporter(Policy()) as reporter:
        story = reporter.story(saved(tmp_path / "run.json", loop(5, usage=False)))
    tokens = [spent.tokens for spent in story.spent]
    steps = {later - earlier for earlier, later in itertools.pairwise(tokens)}
    assert len(steps) <= 2  # grows by the same each time, but for rounding
    assert min(steps) > 20


def test_a_limit_ends_before_the_call_it_forbids(tmp_path: Path) -> None:
    file = saved(tmp_path / "run.json", work(10))
    with Reporter(Policy.from_mapping({"limits": {"turns": 4}})) as reporter:
        story = reporter.story(file)
    assert story.replayed.answered == 4
    assert "Limit on turns: ends at round 4" in report(file, policy={"limits": {"turns": 4}}).text


def test_every_verdict_has_its_evidence_and_what_was_told(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "run.json", loop(4)))
    assert "detector repeated_call rung block streak 3 evidence rounds 1 to 3 call c2" in shown.text
    assert "In place of the call’s result: [loopguard] This call was not executed" in shown.text


def test_what_the_model_is_told_before_a_response_is_shown(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "run.json", loop(4)), policy={"ladder": {"steer": 2, "block": 3, "stop": 6}})
    assert "Told the model: [loopguard] `fetch_invoice` was requested" in shown.text
    assert "tells the model from round 2; refuses calls from round 3" in shown.text


def test_a_healthy_recording_says_so(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "run.json", work(6)))
    assert "No loop 6 rounds, 7 responses" in shown.text
    assert "Nowhere no detector fired" in shown.text


def test_several_are_listed_the_worst_first(tmp_path: Path) -> None:
    files = [
        saved(tmp_path / "a.json", work(3)),
        saved(tmp_path / "b.json", loop(3)),
        saved(tmp_path / "c.json", loop(9)),
    ]
    shown = report(*files)
    order = [shown.text.index(name) for name in ("c.json", "b.json", "a.json")]
    assert order == sorted(order)
    assert "3 conversations, 2 with a verdict, 1 ended early." in shown.text
    ids = {attributes["id"] for _, attributes in shown.elements if "id" in attributes}
    assert {link["href"] for link in shown.all("a")} <= {f"#{name}" for name in ids}


def test_nothing_is_empty_where_nothing_was_said(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "run.json", [{"role": "user", "content": "hi"}]))
    assert "0 rounds, 0 responses" in shown.text
    assert shown.all("svg") == []


def test_no_arguments_unless_asked_for_and_no_secrets_then(tmp_path: Path) -> None:
    file = saved(tmp_path / "run.json", loop(6))
    assert "INV-2291" not in report(file).html
    asked = report(file, arguments=True)
    assert "INV-2291" in asked.html
    assert "hunter2" not in asked.html


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))
def test_hostile_names_are_text_and_short(tmp_path: Path, name: str) -> None:
    messages = loop(7, tool=name)
    for message in messages:
        for call in message.get("tool_calls", []):
            call["id"] = name + call["id"]
        if "tool_call_id" in message:
            message["tool_call_id"] = name + message["tool_call_id"]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(messages), encoding="ascii")
    with Reporter(Policy()) as reporter:
        story = reporter.story(path)
    html = page([story], policy=name)
    assert not {tag for tag, _ in Page(html).elements} & {"script", "img", "b1", "iframe"}
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069\x00-\x08\x1b]", html)
    html.encode("utf-8")
    assert "a" * 400 not in html


def test_a_hostile_file_name_is_text(tmp_path: Path) -> None:
    file = saved(tmp_path / "<img src=x onerror=alert(1)>\u202e.json", loop(3))
    shown = report(file)
    assert shown.all("img") == []
    assert "\u202e" not in shown.html


def test_the_page_forbids_itself_everything_but_its_own_style(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "run.json", loop(7)))
    (policy,) = [m["content"] for m in shown.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    style = shown.html[shown.html.index("<style>") + 7 : shown.html.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert "url(" not in style
    assert "@import" not in style
    loading = [
        a for _, attributes in shown.elements for a in attributes if a in ("src", "srcset", "style") or a[:2] == "on"
    ]
    assert loading == []
    assert all((a["href"] or "").startswith(("#", "data:,")) for a in shown.all("a") + shown.all("link"))


def test_pictures_have_a_title_and_a_description(tmp_path: Path) -> None:
    shown = report(saved(tmp_path / "a.json", loop(7)), saved(tmp_path / "b.json", loop(8)))
    pictures = [svg for svg in shown.all("svg") if "role" in svg]
    named = {attributes.get("id") for _, attributes in shown.elements}
    assert len(pictures) == 2
    for picture in pictures:
        assert set((picture["aria-labelledby"] or "").split()) <= named
    assert "With the guard it would have ended after 6 responses" in shown.text
    ids = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("messages", [loop(5_000), work(5_000)], ids=["loop", "work"])
def test_a_long_recording_gives_a_small_page(tmp_path: Path, messages: list[dict[str, Any]]) -> None:
    shown = report(saved(tmp_path / "run.json", messages))
    assert len(shown.html) < 200_000
    assert "responses left out" in shown.text
    assert len(shown.all("li")) < 200


def test_many_recordings_give_a_bounded_page(tmp_path: Path) -> None:
    file = saved(tmp_path / "run.json", loop(7))
    with Reporter(Policy()) as reporter:
        story = reporter.story(file)
    html = page([story] * 3_000)
    assert html.count("<section") == 60
    assert "1,000 further conversations are left out." in html
    assert len(html) < 3_000_000


def test_a_round_of_very_many_calls_is_cut(tmp_path: Path) -> None:
    calls = [{"id": f"c{n}", "function": {"name": f"tool_{n}", "arguments": "{}"}} for n in range(3_000)]
    shown = report(saved(tmp_path / "run.json", [{"role": "assistant", "tool_calls": calls}]))
    assert "and 2988 more" in shown.text


def test_a_text_loop_is_placed_in_its_response(tmp_path: Path) -> None:
    repeated = "The sky is blue because of scattering. " * 200
    shown = report(
        saved(tmp_path / "run.json", [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": repeated}])
    )
    assert "the text, before the first round" in shown.text
    assert "text content, character" in shown.text


def rounds_of(calls: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Rounds of one call each: tool, arguments, result."""
    messages: list[dict[str, Any]] = []
    for number, (tool, arguments, result) in enumerate(calls):
        call = {"id": f"c{number}", "function": {"name": tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return messages


def test_a_cycle_is_one_loop_however_long_it_goes_on(tmp_path: Path) -> None:
    lap = [("read_file", f'{{"path": "{name}.py"}}', f"import {name}") for name in "abcdefg"]
    played = Reporter(Policy()).story(saved(tmp_path / "run.json", rounds_of(lap * 30)))
    found = loops(played.replayed.verdicts)
    assert [loop.last.detector for loop in found] == ["cycle"]
    assert found[0].rounds == (1, 210)


def test_a_loop_of_several_tools_names_them(tmp_path: Path) -> None:
    lap = [(f"open_{name}", "{}", f"{name}: unchanged") for name in "abcdef"]
    policy = {"detectors": {"repeated_call": {"enabled": False}}}
    shown = report(saved(tmp_path / "run.json", rounds_of(lap * 6)), policy=policy)
    assert re.search(r"(open_\w ?, ){2}open_\w +and 3 more", shown.text), shown.text[:600]


def test_equal_calls_that_begin_again_later_are_another_loop(tmp_path: Path) -> None:
    again = [("fetch_invoice", "{}", "Error: 504")] * 3
    user = [{"role": "user", "content": "Try again."}]
    file = saved(tmp_path / "run.json", [*rounds_of(again), *user, *rounds_of(again)])
    found = loops(Reporter(Policy()).story(file).replayed.verdicts)
    assert [loop.rounds for loop in found if loop.last.detector == "repeated_call"] == [(1, 3), (4, 6)]


def test_a_run_without_calls_ends_after_a_response(tmp_path: Path) -> None:
    repeated = {"role": "assistant", "content": "The sky is blue because of scattering. " * 200}
    shown = report(saved(tmp_path / "run.json", [{"role": "user", "content": "Why?"}, repeated, repeated]))
    assert "Loop: ends after response 2" in shown.text


def test_what_happened_live_stands_beside_the_replay(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path)
    with LoopGuard(plugins=[recorder]).session("run-1") as session:
        for number in range(4):
            session.before_model_call("m")
            session.end_message()
            session.after_model_call("m", Usage(100, 10))
            (decision,) = session.begin_round([ToolCall(f"c{number}", "fetch", {})])
            if not decision.blocked:
                session.record_result(f"c{number}", "Error: timed out")
    shown = report(Path(recorder.path_of("run-1")))
    assert "While it ran 3 verdicts, ended with complete" in shown.text
    assert "While it ran: repeated_call refused (3)" in shown.text


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))
def test_hostile_lines_of_a_recording_are_text_and_short(tmp_path: Path, name: str) -> None:
    verdict = {"detector": name or "d", "action": "block", "streak": 2, "round": 1, "message_index": 1, "tool": name}
    verdict |= {"message": name * 5, "evidence": {name: name, "at_rounds": [name, 1, True], "since_round": name}}
    recorded = [
        {"role": "loopguard", "type": "session", "session_id": name},
        {"role": "loopguard", "type": "verdict", **verdict},
        {"role": "loopguard", "type": "end", "reason": name or "r", "message": name},
        *loop(3),
    ]
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in recorded), encoding="ascii")
    shown = report(file)
    assert "While it ran" in shown.text
    assert not {tag for tag, _ in shown.elements} & {"script", "img", "iframe"}
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069\x00-\x08\x1b]", shown.html)
    assert "a" * 1_200 not in shown.html  # what was told may be long, names not


def test_pages_are_the_same_each_time(tmp_path: Path) -> None:
    file = saved(tmp_path / "run.json", loop(7))
    assert report(file).html == report(file).html
