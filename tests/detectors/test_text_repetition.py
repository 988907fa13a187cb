"""Repeated text: what is left alone, near repetition and passages, messages and counters, the cost of the state."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from text_samples import PREAMBLE, WORDS, cuts, healthy, paraphrase, prose, read

from loopguard_core import Action, Detector, LoopGuard, Policy, hookimpl
from loopguard_core.detectors._retries import Retries
from loopguard_core.detectors.text_repetition import TextRepetition

# -- what is left alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(healthy()))
@pytest.mark.parametrize(
    "frame", ["{}", PREAMBLE + "{}\n\nThat is all of it.", PREAMBLE + "```\n{}\n```\nThat is all of it."]
)
def test_repetition_somebody_asked_for(kind: str, frame: str) -> None:
    assert read(frame.replace("{}", healthy()[kind])) == []


def test_nothing_is_judged_before_min_chars() -> None:
    assert read("!" * 511) == []
    assert read("word " * 600, detector=TextRepetition(min_chars=2000))[0].char == 2048
    assert read("no. " * 200, detector=TextRepetition(min_chars=0))[0].char == 384


def test_a_file_written_again_after_other_text_is_not_cut() -> None:
    file = "".join(f"def {a}_{b}(x):\n    return x + {len(a)}\n\n" for a in WORDS for b in WORDS[:3])
    assert cuts(read(f"```\n{file}```\nNow the same with one change:\n```\n{file}```\n")) == []


# -- near repetition and passages ------------------------------------------------------------------------------


def test_paraphrase_is_told_once_a_message_and_never_cut() -> None:
    detector = TextRepetition()
    (first,) = read(prose(600) + paraphrase(), detector=detector)
    assert (first.kind, first.abort, first.streak) == ("near", False, 1)
    assert first.evidence["variety"] <= 0.17
    (second,) = read(prose(600) + paraphrase(), detector=detector)
    assert (second.streak, second.since) == (2, first.since)


def test_a_passage_written_again_is_noted_when_it_ends() -> None:
    passage = prose(1700, seed=5)
    text = prose(800, seed=6) + passage + prose(900, seed=7) + passage + prose(500, seed=8)
    for size in (4, 0):
        (found,) = read(text, size)
        assert (found.kind, found.abort, found.streak) == ("passage", False, 1)
        assert 1600 < found.evidence["run"] <= 1764
    (at_end,) = read(text[:-500])
    assert at_end.kind == "passage"
    assert read(text.replace(passage, passage[:1300])) == []


# -- channels, messages, counters ------------------------------------------------------------------------------


def test_channels_are_read_apart_and_only_those_wanted() -> None:
    detector = TextRepetition()
    loop = "Wait, I should check that again. " * 60
    for at in range(0, len(loop), 50):  # each channel alone is no loop
        assert detector.feed_text(prose(3000)[at : at + 50], "content") is None
        assert detector.feed_text(loop[at : at + 50], "arguments") is None
    assert detector.end_message(None) is None
    assert read(loop, detector=detector, channel="reasoning")[0].evidence["channel"] == "reasoning"
    assert read(loop, detector=TextRepetition(channels=("content",)), channel="reasoning") == []
    assert read(loop, detector=TextRepetition(channels=("arguments",)), channel="arguments")[0].abort


def test_after_a_cut_the_rest_of_the_message_is_not_read() -> None:
    detector = TextRepetition()
    loop = "Wait, I should check that again. " * 60
    (cut,) = read(loop + paraphrase() + loop, detector=detector)
    assert cut.abort
    detector.feed_text(loop, "content")
    assert detector.feed_text(loop, "reasoning") is None
    detector.end_message(None)
    assert cuts(read(loop, detector=detector, channel="reasoning"))


def test_cuts_are_counted_until_the_user_speaks() -> None:
    detector = TextRepetition()
    loop = "Wait, I should check that again. " * 60
    assert [read(loop, detector=detector)[0].streak, len(read(prose(3000), detector=detector))] == [1, 0]
    (second,) = read(loop, detector=detector)  # a healthy message in between takes nothing back
    assert (second.streak, second.since) == (2, 3)
    detector.user_turn()
    assert read(loop, detector=detector)[0].streak == 1


@pytest.mark.parametrize("boundary", [lambda d: d.begin_message(), lambda d: d.user_turn()])
def test_a_message_that_broke_off_is_dropped(boundary: Callable[[TextRepetition], object]) -> None:
    detector = TextRepetition()
    half = "Wait, I should check that again. " * 8
    detector.feed_text(prose(600) + half, "content")
    boundary(detector)
    assert read(half + prose(600), detector=detector) == []


def test_counters_are_saved_and_text_is_not() -> None:
    detector = TextRepetition()
    loop = "Wait, I should check that again. " * 60
    read(loop, detector=detector)
    read(paraphrase(), detector=detector)
    detector.feed_text(loop[:400], "content")
    state = json.loads(json.dumps(detector.save()))
    assert len(json.dumps(state)) < 100
    again = TextRepetition()
    again.restore(state)
    assert again.save() == state
    assert read(loop, detector=again)[0].streak == 2


@pytest.mark.parametrize(
    "state",
    [
        None,
        3,
        {},
        [],
        [1],
        [1, 2, 3, 4],
        [1, 0, [0], [0, 0]],
        ["1", 0, [0, 0], [0, 0]],
        [1, -1, [0, 0], [0, 0]],
    ],
)
def test_a_state_that_makes_no_sense_is_refused(state: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        TextRepetition().restore(state)


def test_evidence_and_words_never_quote_the_text() -> None:
    passage = prose(1700, seed=5)
    texts = ["zebra crossing ahead. " * 100, paraphrase(), passage + prose(900, seed=7) + passage + prose(99)]
    for text in texts:
        for finding in read(text):
            assert set(finding.evidence) <= {"channel", "unit", "repeats", "run", "drifting", "variety"}
            said = TextRepetition().describe(finding, None)
            assert said[0].islower()
            assert not said.endswith(".")
            assert not set(said.split()) & {"zebra", "crossing", "begin"}


# -- preset dsh ------------------------------------------------------------------------------------------------


def test_dsh_a_passage_of_512_in_the_last_8192_is_enough() -> None:
    passage = prose(620, seed=5)
    text = prose(900, seed=6) + passage + prose(6000, seed=7) + passage + prose(300, seed=8)
    assert read(text) == []
    (found,) = read(text, detector=TextRepetition.dsh())
    assert (found.kind, found.abort, found.streak) == ("passage", False, 1)
    assert 512 <= found.evidence["run"] < 600
    far = prose(900, seed=6) + passage + prose(8500, seed=7) + passage
    assert read(far, detector=TextRepetition.dsh()) == []
    assert (
        read(prose(900, seed=6) + passage[:440] + prose(900, seed=7) + passage[:440], detector=TextRepetition.dsh())
        == []
    )


def test_dsh_passages_cuts_and_others_share_the_retries() -> None:
    retries = Retries()
    detector = TextRepetition.dsh(retries=retries)
    passage = prose(900, seed=5)
    (first,) = read(passage + prose(2000, seed=7) + passage, detector=detector)
    assert (first.kind, first.streak) == ("passage", 1)
    assert retries.take() == 2
    assert read("Wait, I should check that again. " * 60, detector=detector)[0].streak == 3


# -- in a guard, and its cost ----------------------------------------------------------------------------------


class Adds:
    """Adds the detector as a plugin would."""

    @hookimpl
    def detectors(self, policy: Policy) -> list[Detector]:
        return [TextRepetition(policy.text.min_chars, policy.text.channels)]


def test_in_a_guard_the_first_cut_steers_and_the_second_ends_the_run() -> None:
    policy = {"detectors": {"text_repetition": {"enabled": True}}}
    with LoopGuard(policy, plugins=[Adds()]) as guard:
        session = guard.session()
        loop = "Wait, I should check that again. " * 60
        seen = []
        for _ in range(2):
            seen.append(session.before_model_call())
            verdicts = [session.feed_text(loop[at : at + 4]) for at in range(0, len(loop), 4)]
            (verdict,) = [verdict for verdict in verdicts if verdict is not None]
            assert verdict.abort
            session.end_message()
            session.after_model_call()
        assert verdict.action is Action.STOP
        assert seen[0].steer == ()
        assert "times in a row" in seen[1].steer[0]
        assert session.before_model_call().stop is not None
        assert session.end().reason == "doom_loop"


@pytest.mark.parametrize("name", ["prose", "chinese", "emoji", "paraphrase"])
def test_the_state_of_a_channel_is_small_however_long_the_message(name: str) -> None:
    rng = random.Random(2)
    text = {
        "prose": prose(40_000),
        "chinese": "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(40_000)),
        "emoji": "".join(chr(rng.randint(0x1F300, 0x1F9FF)) for _ in range(40_000)),
        "paraphrase": paraphrase(40_000),
    }[name]
    detector = TextRepetition()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for at in range(0, len(text), 64):
        detector.feed_text(text[at : at + 64], "content")
    held = tracemalloc.get_traced_memory()[0] - before
    detector.end_message(None)
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 300 * 1024
    assert left < 8 * 1024
