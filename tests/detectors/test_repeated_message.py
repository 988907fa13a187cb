"""Repeated messages: the model says the same again, or says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_rounds import Run, first_at, only

from loopguard_core import Policy
from loopguard_core._history import History
from loopguard_core.detectors.repeated_message import RepeatedMessage

MESSAGE = only("repeated_message")
BOTH = pytest.mark.parametrize("resumed", [False, True])


class Talk(Run):
    """Says messages, with or without calls."""

    def say(self, text: str | None, reason: str | None = "stop", channel: Any = "content", cut: int = 0) -> str | None:
        """The action of a message; `text` None if nothing of it was passed on."""
        self._resume()
        if text is not None:
            for place in range(0, len(text) or 1, cut or len(text) or 1):
                self.session.feed_text(text[place : place + (cut or len(text))], channel)
        verdict = self.session.end_message(reason)
        return None if verdict is None else verdict.action.value


@BOTH
def test_the_default_ladder_without_calls(resumed: bool) -> None:
    """2 observe, 3 steer, never block, 5 stop."""
    talk = Talk(MESSAGE, resumed=resumed)
    found = [talk.say("I am done.") for _ in range(6)]
    assert first_at(found) == {"observe": 2, "steer": 3, "stop": 5}
    assert talk.session.verdict.streak == 5
    assert talk.session.end().reason == "doom_loop"


def test_the_default_ladder_with_differing_calls() -> None:
    """3 observe, 5 steer, and nothing stronger; and only once the calls have brought nothing new for two rounds."""
    talk = Talk(MESSAGE)
    found = []
    for number in range(12):
        found.append(talk.say("Let me look at that.", "tool_calls"))
        talk("look", {"n": number}, "nothing of note")
    assert first_at(found) == {"steer": 5}


@pytest.mark.parametrize(("streak", "action"), [(2, None), (3, "observe"), (4, "observe"), (5, "steer"), (50, "steer")])
def test_the_figures_with_differing_calls(streak: int, action: str | None) -> None:
    assert Policy().ladder_for("repeated_message", None, "with_calls").action(streak) == action


@pytest.mark.parametrize("at", range(12))
def test_one_resume_delays_it_by_a_round_at_most(at: int) -> None:
    """The words of a result that was saved before its round was closed are not saved: that round tells nothing."""
    talk = Talk(MESSAGE)
    found = []
    for number in range(12):
        found.append(talk.say("Let me look at that.", "tool_calls"))
        talk("look", {"n": number}, "nothing of note")
        if number == at:
            talk.resumed = True
            talk._resume()
            talk.resumed = False
    assert first_at(found)["steer"] in (5, 6)


def test_the_same_lead_in_before_calls_that_bring_news_is_a_habit() -> None:
    talk = Talk(MESSAGE)
    words = "amber birch cedar dahlia elder fern grape hazel iris juniper kale lemon".split()
    found = []
    for number, word in enumerate(words):
        found.append(talk.say("Let me look at that.", "tool_calls"))
        talk("read", {"n": number}, f"{word} {word[::-1]} {word * 2} grows here")
    assert first_at(found) == {}


@BOTH
@pytest.mark.parametrize("nothing", ["", " ", "\n\t ", "\u3000"])
def test_the_default_ladder_of_empty_responses(nothing: str, resumed: bool) -> None:
    """2 observe, 3 steer, never block, 5 stop."""
    talk = Talk(MESSAGE, resumed=resumed)
    found = [talk.say(nothing) for _ in range(6)]
    assert first_at(found) == {"observe": 2, "steer": 3, "stop": 5}


def test_a_response_of_calls_alone_is_neither_empty_nor_a_repeat() -> None:
    talk = Talk(MESSAGE)
    found = []
    for number in range(8):
        found.append(talk.say("", "tool_calls" if number % 2 else "stop"))
        talk("read", {"n": number}, f"text {number}")
    assert first_at(found) == {}


def test_a_surface_that_passes_no_text_on_tells_nothing() -> None:
    talk = Talk(MESSAGE)
    assert first_at([talk.say(None) for _ in range(8)]) == {}


def test_an_empty_response_of_unknown_end_tells_nothing() -> None:
    talk = Talk(MESSAGE)
    assert first_at([talk.say("", None) for _ in range(8)]) == {}


@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
def test_white_space_and_cuts_make_no_difference(cut: int) -> None:
    talk = Talk(MESSAGE)
    found = [talk.say(text, cut=cut) for text in ("I am done.", " I  am\ndone. ", "I\tam done.")]
    assert first_at(found) == {"observe": 2, "steer": 3}


def test_another_message_starts_afresh() -> None:
    talk = Talk(MESSAGE)
    found = [talk.say(text) for text in ("a", "a", "b", "a", "a", "A")]
    assert found == [None, "observe", None, None, "observe", None]


def test_how_it_reasons_does_not_count() -> None:
    talk = Talk(MESSAGE)
    found = []
    for number in range(6):
        talk.session.feed_text("I wonder.", "reasoning")
        found.append(talk.say(f"Answer {number}"))
    assert first_at(found) == {}


@BOTH
def test_a_call_announced_and_never_made(resumed: bool) -> None:
    """Seen at the next message: the provider said that calls follow, and none did."""
    talk = Talk(MESSAGE, resumed=resumed)
    found = [talk.say(f"I will now call tool {number}.", "tool_calls") for number in range(7)]
    assert first_at(found) == {"observe": 3, "steer": 4, "stop": 6}


def test_an_announced_call_that_is_made_is_none() -> None:
    talk = Talk(MESSAGE)
    found = []
    for number in range(7):
        found.append(talk.say(f"I will now call tool {number}.", "tool_calls"))
        talk("read", {"n": number}, f"text {number}")
    assert first_at(found) == {}


@pytest.mark.parametrize("reason", ["repetition", "REPETITION", "loop_detected", "repetition_detected"])
def test_a_providers_own_word_for_it(reason: str) -> None:
    talk = Talk(MESSAGE)
    assert talk.say("Once.", reason) == "steer"
    assert talk.say(None, reason) == "steer"


@pytest.mark.parametrize("reason", ["stop", "length", "end_turn", "content_filter", None, "", "no_repetition"])
def test_any_other_reason_is_none(reason: str | None) -> None:
    assert Talk(MESSAGE).say("Once.", reason) is None


def test_while_a_user_speaks_it_is_no_proof() -> None:
    """2 observe, 3 steer, and nothing stronger."""
    talk = Talk(MESSAGE)
    found = []
    for _ in range(8):
        found.append(talk.say("I cannot help with that."))
        talk.session.user_turn()
    assert first_at(found) == {"observe": 2, "steer": 3}


def test_empty_responses_count_whoever_speaks() -> None:
    talk = Talk(MESSAGE)
    found = []
    for _ in range(6):
        found.append(talk.say(""))
        talk.session.user_turn()
    assert first_at(found) == {"observe": 2, "steer": 3, "stop": 5}


def test_a_message_that_failed_is_written_anew() -> None:
    talk = Talk(MESSAGE)
    talk.say("I am done.")
    talk.session.feed_text("I am done.")
    talk.session.model_call_failed()
    assert talk.say("Something else.") is None
    assert talk.say("I am done.") is None


def test_a_message_that_failed_leaves_nothing_behind() -> None:
    talk = Talk(MESSAGE)
    assert talk.say("I am done.") is None
    talk.session.feed_text("I am")
    talk.session.model_call_failed()
    assert talk.say("I am done.") == "observe"


def test_very_long_messages_are_compared_by_what_fits() -> None:
    talk = Talk(MESSAGE)
    long = "x" * 200_000
    assert [talk.say(long), talk.say(long + "y")] == [None, "observe"]
    assert len(str(talk.session.save())) < 32 * 1024


def test_a_saved_state_that_is_none_is_not_taken_up() -> None:
    good = RepeatedMessage(History()).save()
    for state in (
        None,
        5,
        [],
        [1],
        [[], *good[1:]],
        [*good[:3], "x", *good[4:]],
        [*good[:5], [-1]],
        [*good[:1], 5, *good[2:]],
    ):
        with pytest.raises(ValueError, match=r"."):
            RepeatedMessage(History()).restore(state)


APOLOGIES = (
    "Sorry for the delay, I am issuing the refund for order 7730912 now, please wait a moment.",
    "Sorry, I am now issuing the refund for order 7730912, please wait.",
    "I am sorry, the refund for order 7730912 is being issued now, please wait a moment.",
    "Sorry about that! Issuing the refund for order 7730912 now. Please wait.",
    "My apologies for the wait, I am issuing the refund for order 7730912 now.",
)
CHINESE = (
    "非常抱歉给您带来不便，我马上为您处理订单 7730912 的退款，请稍候。",
    "很抱歉让您久等，我马上为您处理订单 7730912 的退款，请稍候。",
    "非常抱歉，我现在就为您处理订单 7730912 的退款，请稍候。",
    "抱歉让您久等了，我马上为您处理订单 7730912 的退款，请您稍候。",
    "非常抱歉给您带来不便，我马上处理订单 7730912 的退款，请稍候。",
)


@BOTH
@pytest.mark.parametrize(("messages", "at"), [(APOLOGIES, 3), (CHINESE, 4)])
def test_the_same_in_other_words_without_a_call(messages: tuple[str, ...], at: int, resumed: bool) -> None:
    """3 observe, 4 steer, and nothing stronger: words alone are no proof. Too many new words begin a new count."""
    talk = Talk(MESSAGE, resumed=resumed)
    found = []
    for message in messages:
        found.append(talk.say(message))
        talk.session.user_turn()
    assert first_at(found) == {"observe": at, "steer": at + 1}


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param(
            [f"Correct! Next word: what is \u201c{word}\u201d in Swedish?" for word in "house bread water key".split()]
            * 1,
            id="a quiz",
        ),
        pytest.param(
            [f"正确！下一题：{word}用英语怎么说？" for word in ("苹果", "面包", "窗户", "钥匙", "自行车")],
            id="a quiz in Chinese",
        ),
        pytest.param([f"The export is still running, {n} % are done." for n in (12, 31, 47, 63, 88)], id="a status"),
        pytest.param(["Done.", "Done!", "OK, done.", "Done again.", "Done."], id="too short to say"),
        pytest.param([" ".join(f"draft{n}word" for n in range(70)) + f" version{n}" for n in range(6)], id="a draft"),
    ],
)
def test_what_is_said_alike_and_is_not_the_same(messages: list[str]) -> None:
    talk = Talk(MESSAGE)
    found = []
    for message in messages:
        found.append(talk.say(message))
        talk.session.user_turn()
    assert first_at(found) == {}


def test_a_call_in_between_makes_an_announcement_true() -> None:
    talk = Talk(MESSAGE)
    found = []
    for number, message in enumerate(APOLOGIES):
        found.append(talk.say(message))
        talk("refund", {"step": number}, f"step {number} of the refund is done")
    assert first_at(found) == {}


def test_a_step_in_a_user_interface_with_the_same_words_beside_it() -> None:
    """A step alone may well be made again; the same call with the same words is no progress."""
    talk = Talk(MESSAGE)
    found = []
    for _ in range(7):
        found.append(talk.say("Next goal: scroll down to see more flights.", "tool_calls"))
        talk("scroll_down", {}, "Scrolled down the page by one page")
    assert first_at(found) == {"steer": 5}


def test_what_changes_by_itself_is_no_new_word() -> None:
    talk = Talk(MESSAGE)
    found = []
    for number in range(8):
        found.append(talk.say("Let me check the most recent logs.", "tool_calls"))
        talk(
            "query_logs",
            {"to": f"08:14:{number + 10}"},
            {"entries": [], "took_ms": 20 + number, "query_id": f"q{number}"},
        )
    assert first_at(found)["steer"] == 5


class TestOnceMoreOnRequest:
    LINES = tuple(f'{10 * n} PRINT "STEP{chr(65 + n)}{chr(70 + n)}"' for n in range(8))

    def answers(self, listings: list[str]) -> list[str | None]:
        talk = Talk(MESSAGE)
        found = []
        for listing in listings:
            found.append(talk.say(f"Here is the whole program:\n\n```basic\n{listing}\n```"))
            talk.session.user_turn()
        return found

    def test_code_that_grows_is_what_was_asked_for(self) -> None:
        assert self.answers(["\n".join(self.LINES[: 4 + n]) for n in range(5)]) == [None] * 5

    def test_the_same_code_in_other_order_is_not(self) -> None:
        rotated = ["\n".join(self.LINES[n:] + self.LINES[:n]) for n in range(6)]
        assert "steer" in self.answers(rotated)
