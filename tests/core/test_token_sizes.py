"""`TokenSizes`: what a request's tools come to, worked out once for each that lives on."""

import gc

import pytest

from loopguard_core import TokenSizes, estimate_tokens


class Tool:
    def __init__(self, text: str) -> None:
        self.text = text


@pytest.fixture
def described() -> list[object]:
    return []


@pytest.fixture
def sizes(described: list[object]) -> TokenSizes:
    def text_of(thing: object) -> str:
        described.append(thing)
        return thing.text if isinstance(thing, Tool) else str(thing)

    return TokenSizes(text_of)


def test_the_same_objects_are_described_once(sizes: TokenSizes, described: list[object]) -> None:
    tools = [Tool("x" * 300), Tool("y" * 30)]
    first = sizes.of(tools)
    assert first == sizes.of(list(tools)) == estimate_tokens("x" * 300) + estimate_tokens("y" * 30)
    assert described == tools


def test_objects_that_have_the_same_id_one_after_another_are_told_apart(sizes: TokenSizes) -> None:
    for length in (30, 30_000, 300, 3):
        assert sizes.of([Tool("x" * length)]) == length // 3


def test_what_cannot_be_referred_to_weakly_is_described_each_time(sizes: TokenSizes, described: list[object]) -> None:
    for length in (30, 30_000, 300):
        assert sizes.of([{"d": "x" * length}]) == estimate_tokens(str({"d": "x" * length}))
    assert (len(described), len(sizes)) == (3, 0)


def test_nothing_is_kept_alive(described: list[object], sizes: TokenSizes) -> None:
    for _ in range(100):
        sizes.of([Tool("x")])
        described.clear()
    gc.collect()
    assert len(sizes) == 0
