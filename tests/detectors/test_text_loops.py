"""Repeated text that is to be found: the corpus, the cases, three claims, loops of every period and script."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from text_samples import PREAMBLE, cuts, plan, prose, read, told

from loopguard_core import Finding, LoopGuard

DATA = Path(__file__).parents[1] / "data" / "text"
CORPUS = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
# Written without sight of the rules: loops, those found, those found in time, legitimate texts.
LATER = {"second": (80, 71, 55, 78), "third": (65, 54, 41, 65)}
CASES = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((DATA / "cases").glob("*.json"))]
# These two are about messages that equal each other, which is another detector's.
WITHIN_A_MESSAGE = [case for case in CASES if case["kind"] and not case["id"].startswith(("report-42", "report-43"))]
SENTENCE = "I have now checked the configuration again and will go on with the next step soon. "
assert len(SENTENCE) == 83
SENTENCE_82 = SENTENCE.replace("now ", "", 1).replace("soon. ", "soon now. ")[:82]


# -- the corpus ------------------------------------------------------------------------------------------------


@functools.cache
def over_corpus(size: int) -> dict[str, list[Finding]]:
    return {sample["id"]: read(sample["text"], size) for sample in CORPUS}


@pytest.mark.parametrize("size", [1, 4, 64, 0])
def test_corpus_gives_the_same_verdicts_at_every_chunk_size(size: int) -> None:
    assert over_corpus(size) == over_corpus(17)


def test_every_loop_of_the_corpus_is_found_and_nearly_all_in_time() -> None:
    loops = [sample for sample in CORPUS if sample["label"] == "loop"]
    first = {sample["id"]: told(over_corpus(64)[sample["id"]])[:1] for sample in loops}
    assert len(loops) == 46
    assert all(first.values())
    in_time = [s["id"] for s in loops if s["loop_starts_at"] <= (first[s["id"]][0].char or 0) <= s["min_chars"]]
    assert len(in_time) >= 0.93 * len(loops)


def test_nothing_legitimate_of_the_corpus_is_even_mentioned() -> None:
    legitimate = [sample["id"] for sample in CORPUS if sample["label"] != "loop"]
    assert len(legitimate) == 48
    assert [name for name in legitimate if told(over_corpus(64)[name])] == []


# -- written without sight of the rules; docs/text.md has what was found at first sight -------------------------


@functools.cache
def later(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@functools.cache
def over_later(name: str, size: int) -> dict[str, list[Finding]]:
    return {sample["id"]: read(sample["text"], size) for sample in later(name)}


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("size", [1, 64, 0])
def test_the_later_sets_give_the_same_verdicts_at_every_chunk_size(name: str, size: int) -> None:
    assert over_later(name, size) == over_later(name, 17)


@pytest.mark.parametrize("name", LATER)
def test_most_loops_of_the_later_sets_are_found(name: str) -> None:
    number, least, in_time, _ = LATER[name]
    loops = [sample for sample in later(name) if sample["label"] == "loop"]
    first = {sample["id"]: told(over_later(name, 64)[sample["id"]])[:1] for sample in loops}
    assert len(loops) == number
    assert sum(map(bool, first.values())) >= least
    assert sum(1 for s in loops if first[s["id"]] and (first[s["id"]][0].char or 0) <= s["min_chars"]) >= in_time
    assert all((found[0].char or 0) >= s["loop_starts_at"] for s in loops for found in [first[s["id"]]] if found)


@pytest.mark.parametrize("name", LATER)
def test_nothing_legitimate_of_the_later_sets_is_mentioned(name: str) -> None:
    legitimate = [sample["id"] for sample in later(name) if sample["label"] != "loop"]
    assert len(legitimate) == LATER[name][3]
    assert [one for one in legitimate if told(over_later(name, 64)[one])] == []


@pytest.mark.parametrize("case", WITHIN_A_MESSAGE, ids=lambda case: case["id"])
def test_cases(case: dict[str, Any]) -> None:
    found: list[Finding] = []
    for message in case["messages"]:
        if message["role"] == "assistant":
            found += read(message.get("reasoning_content") or "", channel="reasoning")
            found += read(message.get("content") or "")
    assert bool(told(found)) is case["loop"]
    if case["loop"]:
        assert (found[0].char or 0) <= case["expect"]["by_char"]


# -- three claims ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preamble", ["", prose(900)])
def test_a_sentence_of_82_characters(preamble: str) -> None:
    assert len(SENTENCE_82) == 82
    (finding,) = read(preamble + SENTENCE_82 * 60)
    assert finding.abort
    assert finding.evidence["unit"] == 82
    assert (finding.char or 0) - len(preamble) < 640


@pytest.mark.parametrize("size", [4, 64, 0])
@pytest.mark.parametrize("preamble", ["", PREAMBLE, prose(900)])
def test_a_plan_of_2120_characters_written_twice(preamble: str, size: int) -> None:
    (finding,) = cuts(read(preamble + plan() * 2, size))
    assert (finding.evidence["unit"], finding.evidence["repeats"]) == (2120, 2)


def test_one_sentence_hundreds_of_times() -> None:
    (finding,) = read(
        prose(700) + "Collecting the newest headlines from the sources before I write the digest...\n" * 265
    )
    assert finding.abort
    assert finding.evidence["drifting"] is False


# -- loops of every period -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit", [1, 2, 3, 5, 8, 13, 31, 63, 64, 65, 100, 127, 200, 333, 512, 1000, 2047, 3000, 4500, 6000]
)
def test_a_loop_of_any_period_is_found(unit: int) -> None:
    source = prose(unit + 50, seed=unit)[50 : 50 + unit]
    text = prose(700, seed=99) + source * max(4, 6000 // unit)
    (finding,) = cuts(read(text))
    assert finding.char is not None
    assert finding.char <= 700 + max(900, 2 * unit + 400)


@pytest.mark.parametrize(
    "lap",
    [
        lambda n: f"Attempt {n}. I will call the endpoint again and wait for the response to arrive. ",
        lambda n: f"Step {n}: Verify the configuration file and restart the worker.\n",
        lambda n: f"第{n}步，检查配置文件是否存在，如果不存在则重新创建。",
        lambda n: f"第{'一二三四五六七八九十'[n % 10]}步，检查配置文件是否存在，如果不存在则重新创建。",
        lambda n: (
            "ステップ" + "".join(chr(ord("０") + int(d)) for d in str(n)) + "：設定ファイルを確認して、再起動します。"
        ),
    ],
)
def test_a_counter_does_not_hide_a_loop(lap: Callable[[int], str]) -> None:
    found = cuts(read(prose(600) + "".join(map(lap, range(1, 150)))))
    assert len(found) == 1
    assert (found[0].char or 0) < 600 + 2000


@pytest.mark.parametrize(
    "piece",
    [
        "啊",
        "はい、",
        "다시 확인하겠습니다. ",
        "e\u0301",
        "👨‍👩‍👧 ",
        "\ud83d",
        "ฉันจะตรวจสอบอีกครั้ง ",
        "\u00a0",
        "سأتحقق مرة أخرى. ",
    ],
)
def test_every_script_and_broken_characters(piece: str) -> None:
    found = cuts(read(prose(600) + piece * 2000))
    assert len(found) == 1


def test_near_repetition_is_judged_as_soon_as_there_is_enough_of_it() -> None:
    """In Korean the window is full a little after the first look; the next one is not half a page later."""
    lines = (
        "바로 실행합니다.",
        "실행하겠습니다.",
        "린트를 실행합니다.",
        "확인합니다.",
        "린트 확인합니다.",
        "lint를 실행하겠습니다.",
    )
    text = "수정은 끝났습니다. 다음으로 린트를 확인합니다.\n" + "".join(
        f"okay, {lines[n * n % 13 % 6]}\n" for n in range(90)
    )
    session = LoopGuard().session()
    session.before_model_call()
    found = [session.feed_text(text[at : at + 16]) for at in range(0, len(text), 16)]
    first = next(verdict for verdict in found if verdict is not None)
    assert first.char is not None
    assert first.char <= 1216


# -- what a unit is made of ------------------------------------------------------------------------------------


def test_the_frames_of_a_recursion_are_no_loop_until_nobody_reads_them() -> None:
    java = "\tat org.quay.Node.depth(Node.java:48)\n\tat org.quay.Folder.depth(Folder.java:112)\n"
    python = '  File "walk.py", line 12, in visit\n    return self.visit(child)\n'
    lines = "\tanother line of some code(that, stands, here)\n\tand(a_second, one, of, them)\n"
    for frames in (java, python):
        assert read(prose(700) + frames * (2800 // len(frames))) == []
        assert cuts(read(prose(700) + frames * (4200 // len(frames))))
    assert cuts(read(prose(700) + lines * (2800 // len(lines))))


@pytest.mark.parametrize(
    ("line", "least", "most"),
    [
        ("- **v2.4.{n}** contains bug fixes and performance improvements.\n", 3_000, 3_800),
        ("[00:{n}:05] Thank you for watching.\n", 2_300, 3_900),
        ("[00:{n}:05] (music)\n", 11_000, None),
    ],
)
def test_a_version_and_a_time_are_one_counter_each(line: str, least: int, most: int | None) -> None:
    text = prose(700) + "".join(line.format(n=number) for number in range(10, 1_000))
    assert read(text[: 700 + least]) == []
    if most is not None:
        assert cuts(read(text[: 700 + most]))[0].evidence["drifting"]


def test_vowel_signs_are_part_of_their_letters() -> None:
    """Hindi is written with many: they make no prose odd."""
    whom, when, what = (
        ("आप", "बच्चे", "सभी लोग"),
        ("रोज़", "हर दिन", "ठीक से", "समय पर"),
        ("अभ्यास", "मेहनत", "दोहराव", "पढ़ाई"),
    )
    pick = random.Random(7).choice
    text = "".join(f"यह महत्वपूर्ण है कि {pick(whom)} {pick(when)} {pick(what)} करें। " for _ in range(120))
    assert [finding.kind for finding in told(read(text))] == ["near"]


def test_phrases_put_together_from_many_parts_are_found_in_a_longer_piece() -> None:
    parts = (
        ("To sum up, the novel shows that ", "Overall, the author suggests that ", "In the end we can see that "),
        ("memory is unreliable, ", "the past is never fixed, ", "we cannot trust what we remember, ", "time bends, "),
        ("and that the truth depends on who tells it. ", "and that there is no single version of events. "),
        ("This idea runs through the whole book. ", "That is what makes it so strong. ", "A theme of importance. "),
        ("Readers of every age feel it at once. ", "Few writers had dared to go there. ", "Critics have praised it. "),
    )
    pick = random.Random(7).choice
    (finding,) = told(read(prose(600) + "".join("".join(map(pick, parts)) for _ in range(60))))
    assert finding.kind == "near"
    assert 4_000 < (finding.char or 0) < 6_600


# -- counters and what only looks like them --------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["{}. ", "{}) ", "  {}. "])
def test_a_numbered_list_that_begins_again_is_found(mark: str) -> None:
    tips = ["Drink a glass of water first.", "Put the phone away while you eat.", "Take the stairs, not the lift."]
    tips += ["Tidy your desk for five minutes.", "Go out before noon.", "Read ten pages.", "Stretch your neck."]
    text = PREAMBLE + "".join(mark.format(i + 1) + tips[i % len(tips)] + "\n" for i in range(120))
    (finding,) = cuts(read(text))
    assert finding.evidence["drifting"]
    assert (finding.char or 0) < len(PREAMBLE) + 1800


def test_a_plan_in_which_only_the_day_changes_is_found() -> None:
    day = "\n### Day {}\n\n- 07:00 Have breakfast\n- 08:00 Walk through the town\n- 12:30 Lunch at a bar\n"
    day += "- 15:00 Visit a museum or gallery\n- 19:00 Dinner near the hotel\n"
    assert cuts(read(PREAMBLE + "".join(day.format(i) for i in range(1, 8)))) == []  # a week of them
    assert cuts(read(PREAMBLE + "".join(day.format(i) for i in range(1, 60)))) != []


def test_a_plan_with_other_times_each_day_is_data() -> None:
    day = "\n### Day {0}\n\n- 0{2}:{1} Have breakfast\n- 1{2}:{1} Lunch at a bar\n- 1{3}:{1} Dinner near the hotel\n"
    rng = random.Random(7)
    days = (day.format(i, rng.randint(10, 59), rng.randint(6, 9), rng.randint(7, 9)) for i in range(1, 100))
    assert cuts(read(PREAMBLE + "".join(days))) == []


@pytest.mark.parametrize(
    "line",
    [
        "**Chapter {}.** Read it and answer the questions.\n",
        "[{}/60] Compiled the module and linked it.\n",
        "Day {}: run 5 km and then rest well.\n",
    ],
)
def test_sixty_lines_that_were_asked_for_are_no_loop_and_two_hundred_are(line: str) -> None:
    assert cuts(read(PREAMBLE + "".join(line.format(i) for i in range(1, 61)))) == []
    assert cuts(read(PREAMBLE + "".join(line.format(i) for i in range(1, 201)))) != []
