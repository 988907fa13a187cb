"""Whatever a policy is made of, it is a policy, or a `PolicyError` that says where: never anything else."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import tomllib
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loopguard_core import LoopGuard, Policy, PolicyError, ToolCall, as_guard
from loopguard_core._policy_file import load_policy
from loopguard_core.cli._policy_format import as_json, as_toml

KEYS = """
    preset enabled shadow outcomes fingerprints ladder plugins detectors limits tools text escalation on_stop key
    privacy turns cost tokens seconds tool_calls reserve unpriced observe steer escalate block stop loop_key normalize
    traits maskers result_key min_chars channels retries max models langchain how name limit reset store on_store_error
    fingerprint_key include_arguments include_results plain_fingerprints repeated_call repeated_call.poll cycle
    stagnation.pages web_search check_* [ max_turns doom_loop
    """.split()
WORDS = """
    default openrouter dsh patient strict observe aware ignore xxh3_128 sha256 warn deny nfkc casefold whitespace
    punctuation reads mutates polls waits delegates exempt content reasoning arguments end answer raise monthly none
    sqlite:///budget.db redis://host/0 redis://:secret@host:port/0 0.50 40 uuids timestamps
    """.split()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 50)
    | st.integers()
    | st.sampled_from([-(10**30), math.nan, math.inf, 0.5, Decimal("sNaN"), Decimal("1e999999"), b"\xff", ...])
    | st.builds(lambda: 10**5000)
    | st.floats()
    | st.decimals()
    | st.sampled_from(WORDS)
    | st.text(max_size=5)
    | st.sampled_from(["\x1b[31m", "a\nb", "\ud800", "x" * 5000, "[" * 50])
    | st.sampled_from([dt.datetime(2026, 11, 30, tzinfo=dt.UTC), dt.date(2026, 11, 30), print, int, object()])
)
NAMES = st.sampled_from(KEYS) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES, inner, max_size=4)
        | st.frozensets(st.integers(), max_size=2)
        | st.tuples(inner)
    ),
    max_leaves=12,
)
# Most documents that are put together at random fail at once; those that differ from a sound one in little get further.
SOUND: dict[str, Any] = {
    "preset": "default",
    "ladder": {"observe": 2, "block": 3, "stop": 6},
    "detectors": {"cycle": {"enabled": True, "ladder": {"steer": 3}}, "repeated_call.poll": {"ladder": {"stop": 60}}},
    "limits": {"turns": 40, "cost": 0.5, "tokens": 2, "seconds": 900, "tool_calls": 3, "reserve": True, "unpriced": 15},
    "tools": {
        "web_search": {"loop_key": ["query"], "normalize": ["nfkc"], "result_key": ["status"], "maskers": ["uuids"]},
        "check_*": {"loop_key": False, "traits": ["polls"], "ladder": {"block": False}},
    },
    "text": {"min_chars": 512, "channels": ["content"], "retries": 1},
    "escalation": {"max": 2, "models": {"langchain": "m"}},
    "on_stop": {"how": "end"},
    "privacy": {"include_arguments": False, "fingerprint_key": "0123456789abcdef"},
    "key": {"name": "agents", "limit": 25, "reset": "monthly", "store": "sqlite:///:memory:", "on_store_error": "deny"},
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))


PLACES = list(places(SOUND))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of a table with one place replaced, or renamed where `new` is a pair that says so."""
    first, *rest = place
    if rest:
        return {**value, first: changed(value[first], tuple(rest), new)}
    if isinstance(new, Renamed):
        return {new.name if key == first else key: inner for key, inner in value.items()}
    return {**value, first: new}


class Renamed:
    def __init__(self, name: Any) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Renamed({self.name!r})"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def made(mapping: Any, source: str = "agent.toml") -> Policy | None:
    """The policy, or None after an error that says where, one line a problem."""
    try:
        return Policy.from_mapping(mapping, source=source)
    except PolicyError as error:
        lines = str(error).splitlines()
        assert lines
        for line in lines:
            assert line.startswith(f"{source}: ")
            assert line.isprintable()
            assert 15 < len(line) - len(source) < 1_000
        return None


def usable(policy: Policy) -> None:
    """It can be shown, and guards a run."""
    for hazard in policy.hazards():
        assert isinstance(hazard, str)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        json.loads(as_json(policy, "agent.toml"))
        tomllib.loads(as_toml(policy, "agent.toml"))
    assert policy.model_json_schema()
    if policy.plugins:
        return  # to be found among installed packages: another test's
    with LoopGuard(policy.model_copy(update={"key": None})) as guard:
        session = guard.session()
        for _ in range(3):
            session.before_model_call()
            session.feed_text("x", "content")
            session.begin_round([ToolCall("1", "web_search", {"query": "a"})])
            session.record_result("1", {"status": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"})
        session.end()
        assert all(name.startswith(("usage without", "loop key of")) for name in guard.faults.counts)


@settings(max_examples=150, deadline=None)
@given(VALUES | st.dictionaries(NAMES, VALUES, max_size=5))
def test_any_mapping_is_a_policy_or_an_error_that_says_where(mapping: Any) -> None:
    policy = made(mapping)
    if policy is not None:
        usable(policy)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.builds(Renamed, NAMES)), min_size=1, max_size=2))
@example([(("tools", "web_search", "maskers"), [["uuids"]])])
@example([(("tools", "web_search", "maskers"), [{}])])
@example([(("tools", "web_search", "loop_key"), "x" * 5000)])
@example([(("tools", "web_search", "loop_key"), ("default",))])
@example([(("limits", "unpriced"), [])])
@example([(("detectors", "repeated_call.poll"), Renamed("\n"))])
@example([(("ladder", "observe"), 10**5000)])
@example([(("limits", "turns"), 10**5000)])
def test_a_sound_policy_with_any_value_in_any_place(caplog: pytest.LogCaptureFixture, changes: Any) -> None:
    mapping: Any = SOUND
    for place, new in changes:
        try:
            mapping = changed(mapping, place, new)
        except (KeyError, TypeError, AttributeError):
            continue  # an earlier change took that place away
    policy = made(mapping)
    if policy is not None:
        usable(policy)
    caplog.clear()


def test_the_sound_policy_is_one() -> None:
    policy = made(SOUND)
    assert policy is not None
    usable(policy)


TEXT = as_toml(Policy.from_mapping(SOUND), "sample")
PIECES = st.sampled_from(
    ["=", "[", "]]", '"', "'''", "\n", "[tools.x]", "1e9999", "2026-11-30", "nan", "{", "\x00", "#"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=40)
    | st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 12), PIECES | st.text(max_size=3)), max_size=3)
)
def test_any_file_is_a_policy_or_an_error_that_names_it(
    tmp_path: Path, edits: bytes | list[tuple[int, int, str]]
) -> None:
    content = edits if isinstance(edits, bytes) else TEXT.encode()
    for at, length, piece in () if isinstance(edits, bytes) else edits:
        content = content[:at] + piece.encode("utf-8", "surrogatepass") + content[at + length :]
    file = tmp_path / "loopguard.toml"
    file.write_bytes(content)
    try:
        usable(load_policy(file))
    except PolicyError as error:
        for line in str(error).splitlines():
            assert line.startswith(str(file))


# What an environment can hold: anything but NUL, and bytes that are no UTF-8 as lone surrogates.
VARIABLE = st.binary(max_size=30).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))) | st.sampled_from(
    ["~nobody-of-that-name/x.toml", "~", "/", ".", "x" * 5_000, "a\nb", "loopguard.toml", *WORDS]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["CONFIG", "PRESET", "ENABLED", "CONFIGS", "\udcff"]), VARIABLE, max_size=3))
@example({"CONFIG": "~nobody-of-that-name/x.toml"})
@example({"CONFIG": "x" * 5_000})
@example({"PRESET": "\udcff"})
def test_any_environment_gives_a_guard_or_a_policy_error(variables: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(f"LOOPGUARD_{name}", value)
        with contextlib.suppress(PolicyError):
            LoopGuard().close()
        with contextlib.suppress(PolicyError):
            as_guard(None).close()
