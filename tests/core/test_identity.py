"""From a tool call to its loop key."""

from __future__ import annotations

import asyncio
import enum
import gc
import json
import types
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopguard_core._canonical import canonical_json
from loopguard_core._identity import EXEMPT, LoopKey, display_name, loop_key_of, normalize, parse_arguments

few = settings(max_examples=150, deadline=None, database=None)


class Mode(enum.StrEnum):
    FAST = "FAST"


class TestParseArguments:
    @pytest.mark.parametrize("arguments", [None, "", " \n", b""])
    def test_nothing_is_an_empty_object(self, arguments: Any) -> None:
        assert parse_arguments(arguments) == {}

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ('{"a": 1}', {"a": 1}),
            (' {"a": 1}\n', {"a": 1}),
            (b'{"a": "\xc3\xa9"}', {"a": "é"}),
            (b'{"a": "\xff"}', {"a": "\ufffd"}),
            (bytearray(b"[]"), []),
            (memoryview(b"[]"), []),
            ('{"a": 1, "a": 2}', {"a": 2}),
            ("[1]", [1]),
            ("5", 5),
            ("null", None),
        ],
    )
    def test_json_text_is_parsed(self, arguments: Any, expected: Any) -> None:
        assert parse_arguments(arguments) == expected

    @pytest.mark.parametrize(
        "arguments",
        [
            "{'a': 1}",
            ' {"a": ',
            "\ufeff{}",
            '{"n": ' + "9" * 5_000 + "}",
            "[" * 200_000,
            json.dumps("x" * 1_000_000),
        ],
        ids=["quotes", "cut", "byte order mark", "long integer", "deep", "large"],
    )
    def test_what_is_no_json_we_read_stays_as_it_is(self, arguments: str) -> None:
        assert parse_arguments(arguments) is arguments

    def test_bytes_that_are_no_json_become_text(self) -> None:
        assert parse_arguments(b"\xff{") == "\ufffd{"

    @pytest.mark.parametrize("arguments", [{"a": 1}, [1], 5, object()])
    def test_values_stay_as_they_are(self, arguments: Any) -> None:
        assert parse_arguments(arguments) is arguments

    @few
    @given(st.text() | st.binary())
    def test_no_text_raises(self, arguments: Any) -> None:
        parse_arguments(arguments)


def same(first: str, second: str, *names: str) -> bool:
    return bool(normalize(first, names) == normalize(second, names))


class TestNormalize:
    def test_nfkc_folds_compatible_characters(self) -> None:
        assert same("ＡＢＣ１２", "ABC12", "nfkc")
        assert not same("ABC", "abc", "nfkc")

    def test_casefold_folds_case(self) -> None:
        assert same("Straße", "STRASSE", "casefold")

    def test_whitespace_folds_runs_and_strips_the_ends(self) -> None:
        assert normalize("\u3000a \t\n\u00a0b  ", ["whitespace"]) == "a b"

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("what is the weather?", "what is the weather"),
            ("weather ?", "weather"),
            ("hello, world", "hello , world"),
            ("«weather» in “Berlin”", "weather in Berlin"),
            ("北京天气怎么样？", "北京天气怎么样"),
            ("¿qué tiempo hace?", "qué tiempo hace"),
            ("well-known", "wellknown"),
            ("version 2.", "version 2"),
        ],
    )
    def test_punctuation_makes_equal(self, first: str, second: str) -> None:
        assert same(first, second, "punctuation")

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("C++", "C"),
            ("C#", "C"),
            ("-5", "5"),
            ("–5", "5"),
            ("3.14", "314"),
            ("10:30", "1030"),
            ("50%", "50"),
            ("$5", "5"),
            ("a < b", "a > b"),
            ("a/b", "ab"),
            ("a_b", "ab"),
            ("me@example", "meexample"),
            ("SELECT *", "SELECT"),
            (".", ".."),
            ("?", "!"),
        ],
    )
    def test_punctuation_leaves_apart(self, first: str, second: str) -> None:
        assert not same(first, second, "punctuation")
        assert not same(first, second, "nfkc", "casefold", "whitespace", "punctuation")

    def test_steps_are_applied_in_the_order_given(self) -> None:
        # The ligature is two letters only after nfkc; the full stop is dropped only once it is one.
        assert normalize("ﬁ．", ["nfkc", "punctuation"]) == "fi"
        assert normalize("１．５", ["punctuation", "nfkc"]) == "1.5"
        assert normalize("ẞ", ["casefold", "nfkc"]) == "ss"

    def test_strings_are_found_in_lists_and_values_never_in_keys(self) -> None:
        value = {"A B": ["X ", ("Y ", 1)], "C": {"D": None, "E": Mode.FAST}}
        assert normalize(value, ["casefold", "whitespace"]) == {
            "A B": ["x", ("y", 1)],
            "C": {"D": None, "E": "fast"},
        }

    def test_the_value_itself_is_not_changed(self) -> None:
        value = {"a": ["X"]}
        normalize(value, ["casefold"])
        assert value == {"a": ["X"]}

    def test_without_normalizers_nothing_is_copied(self) -> None:
        value = {"a": "X"}
        assert normalize(value, []) is value

    def test_strings_inside_64_containers_are_reached_and_deeper_ones_left(self) -> None:
        value: Any = "X"
        for _ in range(64):
            value = [value]
        assert "x" in str(normalize(value, ["casefold"]))
        assert "X" in str(normalize([value], ["casefold"]))

    def test_cycles_and_shared_structure_end(self) -> None:
        cycle: list[Any] = ["X"]
        cycle += [cycle, cycle]
        assert normalize(cycle, ["casefold"])[0] == "x"

    def test_very_long_strings_stay_as_they_are(self) -> None:
        assert normalize("X" * 1_000_001, ["casefold"])[0] == "X"

    def test_an_unknown_name_is_refused_with_the_allowed_ones(self) -> None:
        with pytest.raises(ValueError, match="'stemming': use nfkc, casefold, whitespace, punctuation"):
            normalize("x", ["stemming"])

    @few
    @given(st.text(), st.permutations(["nfkc", "casefold", "whitespace", "punctuation"]))
    def test_no_text_raises(self, text: str, names: list[str]) -> None:
        assert isinstance(normalize(text, names), str)


ARGUMENTS = {
    "query": "secret Weather",
    "page": 2,
    "filter": {"region": "eu", "deep": {"x": 1}},
    "a.b": 3,
    "a": {"b": 4},
}


def key_of(loop_key: LoopKey, arguments: Any = ARGUMENTS, normalizers: tuple[str, ...] = ()) -> tuple[Any, list[str]]:
    said: list[str] = []
    key = loop_key_of("search\n", arguments, loop_key, normalizers, said.append)
    return key, said


def assert_falls_back(loop_key: LoopKey, arguments: Any = ARGUMENTS) -> None:
    key, said = key_of(loop_key, arguments)
    assert key == arguments
    assert len(said) == 1
    assert "'search?'" in said[0]
    assert "secret" not in said[0]


class TestLoopKey:
    def test_by_default_all_arguments_count(self) -> None:
        assert key_of(None) == (ARGUMENTS, [])

    def test_false_exempts(self) -> None:
        assert key_of(False) == (EXEMPT, [])

    def test_named_fields_that_are_present_count(self) -> None:
        assert key_of(["query", "absent"]) == ({"query": "secret Weather"}, [])

    def test_one_name_is_a_list_of_one(self) -> None:
        assert key_of("page") == ({"page": 2}, [])

    def test_a_field_that_is_none_is_present(self) -> None:
        assert key_of(["q"], {"q": None, "n": 1}) == ({"q": None}, [])

    def test_a_dotted_name_reaches_into_objects(self) -> None:
        assert key_of(["filter.region", "filter.deep.x"]) == ({"filter.region": "eu", "filter.deep.x": 1}, [])

    def test_a_field_of_that_very_name_comes_first(self) -> None:
        assert key_of(["a.b"]) == ({"a.b": 3}, [])

    @pytest.mark.parametrize("fields", [["absent"], ["filter.absent", "query.x"], []])
    def test_only_absent_fields_fall_back_with_a_warning(self, fields: list[str]) -> None:
        assert_falls_back(fields)

    @pytest.mark.parametrize("arguments", ["secret {", ["secret"], None])
    def test_fields_of_what_is_no_object_fall_back_with_a_warning(self, arguments: Any) -> None:
        assert_falls_back(["query"], arguments)

    def test_fields_are_read_from_any_mapping(self) -> None:
        assert key_of(["q.r"], types.MappingProxyType({"q": types.MappingProxyType({"r": 1})})) == ({"q.r": 1}, [])

    def test_a_function_gets_the_arguments(self) -> None:
        assert key_of(lambda arguments: arguments["page"]) == (2, [])
        assert key_of(lambda arguments: arguments, "raw") == ("raw", [])

    def test_a_function_that_returns_none_exempts(self) -> None:
        assert key_of(lambda _: None) == (EXEMPT, [])

    @pytest.mark.parametrize("key", [0, False, 0.0])
    def test_false_values_that_are_not_empty_are_keys(self, key: Any) -> None:
        assert key_of(lambda _: key) == (key, [])

    @pytest.mark.parametrize("nothing", ["", b"", {}, [], (), set(), frozenset()])
    def test_a_function_that_returns_nothing_falls_back_with_a_warning(self, nothing: Any) -> None:
        assert_falls_back(lambda _: nothing)

    def test_a_function_that_raises_falls_back_with_a_warning(self) -> None:
        def raising(arguments: Any) -> Any:
            raise ValueError(arguments["query"])

        assert_falls_back(raising)

    def test_an_async_function_falls_back_with_a_warning_and_is_closed(self) -> None:
        async def slow(arguments: Any) -> Any:
            return arguments

        with warnings.catch_warnings():
            # What else is collected here, sockets of other tests, say, is not this test's.
            warnings.filterwarnings("ignore", category=ResourceWarning)
            warnings.filterwarnings("error", category=RuntimeWarning, message="coroutine .* was never awaited")
            assert_falls_back(slow)
            gc.collect()

    def test_an_awaitable_falls_back_with_a_warning(self) -> None:
        loop = asyncio.new_event_loop()
        assert_falls_back(lambda _: loop.create_future())
        loop.close()

    def test_a_generator_falls_back_with_a_warning(self) -> None:
        """Iterators are never consumed, so all of them would be the same key."""
        assert_falls_back(lambda arguments: (value for value in arguments))

    def test_interrupts_are_not_swallowed(self) -> None:
        def interrupting(_: Any) -> Any:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            key_of(interrupting)

    def test_a_function_that_takes_things_out_does_not_change_the_call(self) -> None:
        arguments = {"q": "a", "nonce": 1}
        assert key_of(lambda given: given.pop("nonce") and given, arguments) == ({"q": "a"}, [])
        assert arguments == {"q": "a", "nonce": 1}

    def test_normalizers_apply_with_and_without_a_loop_key(self) -> None:
        expected = "secret weather"
        assert key_of(None, {"query": "Secret  Weather"}, ("casefold", "whitespace"))[0] == {"query": expected}
        assert key_of(["query"], normalizers=("casefold",))[0] == {"query": expected}
        assert key_of(lambda given: given["query"], normalizers=("casefold",))[0] == expected
        assert key_of(["absent"], normalizers=("casefold",))[0]["query"] == expected

    def test_the_key_of_any_arguments_has_a_canonical_text(self) -> None:
        assert canonical_json(key_of(["filter"])[0]) == '{"filter":{"deep":{"x":1},"region":"eu"}}'


class TestDisplayName:
    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("fetch_invoice", "fetch_invoice"),
            ("工具 2", "工具 2"),
            ("a\nb\x1b[31m", "a?b?[31m"),
            ("a\u202eb\u2066c", "a?b?c"),
            ("a\ud800b\u200b", "a?b?"),
            ("", "(unnamed)"),
            (" \n", "(unnamed)"),
            (None, "(unnamed)"),
            ("x" * 64, "x" * 64),
            ("x" * 65, "x" * 63 + "…"),
        ],
    )
    def test_is_short_and_printable(self, name: object, shown: str) -> None:
        assert display_name(name) == shown

    @few
    @given(st.text())
    def test_any_text_can_be_shown(self, name: str) -> None:
        shown = display_name(name)
        assert shown.isprintable()
        assert 0 < len(shown) <= 64
