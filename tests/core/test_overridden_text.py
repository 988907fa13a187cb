"""What a plugin makes of a verdict about text."""

from __future__ import annotations

import pytest

from loopguard_core import Action, LoopGuard, Verdict

LOOP = "I will check the log file now and then I will come back to you. "


def first_verdict(guard: LoopGuard) -> Verdict:
    session = guard.session()
    session.before_model_call()
    return next(verdict for _ in range(400) if (verdict := session.feed_text(LOOP)))


@pytest.mark.parametrize(("answer", "cut"), [(None, True), (Action.STEER, True), (Action.OBSERVE, False)])
def test_who_lets_the_model_go_on_lets_its_stream_go_on(answer: Action | None, cut: bool) -> None:
    assert first_verdict(LoopGuard(on_loop=lambda event: answer)).abort is cut
