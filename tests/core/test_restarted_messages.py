"""`message_restarted`: a message that somebody asks anew for, unseen by the caller."""

from __future__ import annotations

from typing import Any

from loopguard_core import Detector, Finding, Ladder, LoopGuard, hookimpl


class Reads(Detector):
    """Keeps the text of each complete message."""

    name = "reads"
    ladder = Ladder(observe=1)

    def __init__(self, kept: list[str]) -> None:
        self.kept, self.text = kept, ""

    def begin_message(self) -> None:
        self.text = ""

    def feed_text(self, delta: str, channel: str) -> Finding | None:
        self.text += delta
        return None

    def end_message(self, finish_reason: str | None) -> Finding | None:
        self.kept.append(self.text)
        self.text = ""
        return None


def test_what_was_read_is_in_no_message_and_everything_else_stays() -> None:
    kept: list[str] = []

    class Reading:
        @hookimpl
        def detectors(self, policy: Any) -> list[Detector]:
            return [Reads(kept)]

    session = LoopGuard({"escalation": {"models": {}}}, plugins=[Reading()]).session(escalation_model="strong")
    directive = session.before_model_call("m")
    session.feed_text("never said, ")
    session.message_restarted()
    assert session.before_model_call("m") is directive, "it is the same model call"
    session.feed_text("the answer")
    session.end_message()
    session.after_model_call("m")
    assert (kept, session.model_calls) == (["the answer"], 1)


def test_out_of_order_it_does_nothing() -> None:
    session = LoopGuard().session()
    session.message_restarted()
    session.message_restarted()
    assert session.end().reason == "complete"
    session.message_restarted()
