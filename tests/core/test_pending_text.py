"""Pieces of a stream are handed on in whole blocks, in order, with nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopguard_core._pending_text import BLOCK, PendingText


@given(st.lists(st.tuples(st.sampled_from(["content", "reasoning"]), st.text(max_size=200)), max_size=60))
def test_nothing_is_lost_and_blocks_are_whole(pieces: list[tuple[str, str]]) -> None:
    pending = PendingText()
    read = {"content": "", "reasoning": ""}
    for channel, delta in pieces:
        text = pending.add(delta, channel)
        if text is not None:
            assert text
            assert len(text) % BLOCK == 0
            read[channel] += text
        fed = "".join(part for where, part in pieces[: len(pieces)] if where == channel)
        assert fed.startswith(read[channel])
    for channel, text in pending.rest():
        assert len(text) < BLOCK
        read[channel] += text
    assert read == {name: "".join(part for where, part in pieces if where == name) for name in read}
    assert pending.rest() == []


def test_a_block_is_handed_on_with_the_piece_that_completes_it() -> None:
    pending = PendingText()
    answers = [pending.add("1234", "content") for _ in range(40)]
    assert [n for n, text in enumerate(answers, 1) if text is not None] == [16, 32]
    assert pending.add("x" * 1000, "content") == "1234" * 8 + "x" * 992
