"""The canonical text: RFC 8785 inside its domain, a stated answer for everything else."""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import ipaddress
import itertools
import json
import math
import pathlib
import struct
import threading
import time
import types
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pydantic
import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopguard_core._canonical import MAX_DEPTH, MAX_NODES, _plain_names, _Writer, canonical_json

few = settings(max_examples=150, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=15,
)
hashable = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=6)
    | st.fractions()
    | st.complex_numbers()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
)
odd_keys = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.dates()
odd = st.recursive(
    hashable | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(odd_keys, inner, max_size=4)
        | st.frozensets(hashable, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(lambda it: types.SimpleNamespace(it=it), inner)
    ),
    max_leaves=15,
)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mode(enum.StrEnum):
    FAST = "fast"


class Text(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Order:
    id: str
    lines: list[int]


@dataclasses.dataclass(slots=True)
class Slotted:
    id: str


class Invoice(pydantic.BaseModel):
    id: str
    total: decimal.Decimal
    due: dt.date | None = None


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Opaque:
    __slots__ = ()


class TestInsideRfc8785:
    @few
    @given(plain)
    def test_equals_the_reference_implementation(self, value: Any) -> None:
        assert canonical_json(value).encode() == rfc8785.dumps(value)

    @few
    @given(st.integers(0, 2**64 - 1))
    def test_every_double_is_written_as_ecmascript_does(self, bits: int) -> None:
        number = struct.unpack("<d", struct.pack("<Q", bits))[0]
        if math.isfinite(number):
            assert canonical_json(number).encode() == rfc8785.dumps(number)

    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (-0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (1e21, "1e+21"),
            (1e20, "100000000000000000000"),
            (-1.5e16, "-15000000000000000"),
            (123456789012345683968.0, "123456789012345680000"),
            (1e-6, "0.000001"),
            (-1.25e-5, "-0.0000125"),
            (1e-7, "1e-7"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
        ],
    )
    def test_places_of_point_and_exponent(self, number: float, expected: str) -> None:
        assert canonical_json(number) == expected
        assert canonical_json([number]) == f"[{expected}]"

    def test_one_and_one_point_zero_are_one_text(self) -> None:
        assert canonical_json({"n": 1}) == canonical_json({"n": 1.0})

    def test_keys_are_ordered_by_utf16_not_by_code_point(self) -> None:
        assert canonical_json({"\ufb33": 1, "\U0001f600": 2, "a": 3}) == '{"a":3,"\U0001f600":2,"\ufb33":1}'

    def test_only_what_must_be_escaped_is(self) -> None:
        assert canonical_json('\x00\x1f\b\t\n\f\r"\\/\x7fé€😀') == '"\\u0000\\u001f\\b\\t\\n\\f\\r\\"\\\\/\x7fé€😀"'

    @few
    @given(st.dictionaries(text, numbers, min_size=2), st.randoms())
    def test_order_of_insertion_does_not_matter(self, value: dict[str, Any], random: Any) -> None:
        pairs = list(value.items())
        random.shuffle(pairs)
        assert canonical_json(dict(pairs)) == canonical_json(value)


class TestBothPaths:
    @few
    @given(plain)
    def test_the_fast_path_writes_what_the_writer_writes(self, value: Any) -> None:
        assert canonical_json(value) == _Writer().text(value)

    @pytest.mark.parametrize("value", [{"a": [{"b": (0.5, -3)}], "é": None}, {}, {"a": []}, [], ["x"]])
    def test_plain_values_take_the_fast_path(self, value: Any) -> None:
        assert _plain_names(value) is not None
        assert canonical_json(value) == _Writer().text(value)

    @pytest.mark.parametrize(
        "value",
        [
            {1: 2},
            {Text("a"): 1},
            {"a": 1.0},
            {"a": 1e-5},
            {"a": -1e16},
            {"a": math.nan},
            {"a": math.inf},
            {"a": Level.HIGH},
            {"a": Text("x")},
            {"a": Point(1, 2)},
            {"a": collections.OrderedDict()},
            {"a": {"b": 10**30, 2: 1}},
            list(range(2_001)),
            {str(number): number for number in range(2_001)},
            {"a": [0] * 2_001},
            {"a": {str(number): number for number in range(2_001)}},
        ],
    )
    def test_what_the_c_encoder_would_write_otherwise_does_not(self, value: Any) -> None:
        assert _plain_names(value) is None

    def test_nesting_past_sixteen_levels_does_not(self) -> None:
        value: Any = []
        for _ in range(15):
            value = [value]
        assert _plain_names(value) is not None
        assert _plain_names([value]) is None

    def test_without_the_c_encoder_the_text_is_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        value = {"b": [1, 0.5, None, True], "a": {"é": "\n"}}
        expected = canonical_json(value)
        monkeypatch.setattr("loopguard_core._canonical._encode", None)
        assert canonical_json(value) == expected

    def test_text_too_long_for_the_fast_path_is_written_all_the_same(self) -> None:
        long = "x" * 1_500_000
        assert canonical_json({"a": long}) == f'{{"a":"{long}"}}'


class TestStatedAnswers:
    def test_what_is_no_number_is_a_bare_token(self) -> None:
        assert canonical_json([math.nan, math.inf, -math.inf]) == "[NaN,Infinity,-Infinity]"
        assert canonical_json(math.nan) != canonical_json("NaN")

    @pytest.mark.parametrize("number", [2**53 + 1, -(2**63) - 1, 10**30 + 1, 10**4000 + 1])
    def test_integers_are_exact(self, number: int) -> None:
        assert canonical_json(number) == str(number)
        assert canonical_json({"n": number}) == f'{{"n":{number}}}'
        assert canonical_json(number) != canonical_json(number + 1)

    @pytest.mark.parametrize("sign", ["", "-"])
    def test_integers_longer_than_python_writes_are_exact(self, sign: str) -> None:
        number = 10**5000 + 7
        expected = sign + "1" + "0" * 4999 + "7"
        assert canonical_json({"n": -number if sign else number}) == f'{{"n":{expected}}}'

    def test_integers_past_65536_bits_are_hexadecimal(self) -> None:
        assert canonical_json(2**70_000) == f'{{"$int":"0x1{"0" * 17_500}"}}'

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("1", "1"),
            ("1.0", "1"),
            ("-0", "0"),
            ("1E+2", "100"),
            ("0.10", "0.1"),
            ("1e-7", "1e-7"),
            ("NaN", "NaN"),
            ("sNaN", "NaN"),
            ("-Infinity", "-Infinity"),
            ("0.1000000000000000055", '{"$decimal":"0.1000000000000000055"}'),
            ("0.10000000000000000550", '{"$decimal":"0.1000000000000000055"}'),
            ("-1e999999", '{"$decimal":"-1E+999999"}'),
            ("1e-999999", '{"$decimal":"1E-999999"}'),
        ],
    )
    def test_decimals_are_the_number_they_equal(self, value: str, expected: str) -> None:
        assert canonical_json(decimal.Decimal(value)) == expected

    def test_surrogates_are_lower_case_escapes(self) -> None:
        assert canonical_json(["\ud83d", {"\udeff": "é\udc00"}]) == '["\\ud83d",{"\\udeff":"é\\udc00"}]'
        assert canonical_json({"a": "\ud83d"}) == '{"a":"\\ud83d"}'

    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            (1, "1"),
            (True, "true"),
            (None, "null"),
            (1.5, "1.5"),
            (2.0, "2"),
            (math.nan, "NaN"),
            (10**30, "1" + "0" * 30),
            (Colour.RED, "red"),
            (Mode.FAST, "fast"),
            (Level.HIGH, "3"),
            (Text("t"), "t"),
            (dt.date(2024, 1, 2), "2024-01-02"),
            ((1, "a"), '[1,"a"]'),
            (b"k", '{"$bytes":"aw=="}'),
        ],
    )
    def test_keys_become_the_text_json_would_write(self, key: Any, expected: str) -> None:
        assert canonical_json({key: 0}) == f"{{{json.dumps(expected)}:0}}"

    def test_keys_that_coincide_are_all_kept_in_the_order_of_their_values(self) -> None:
        for pairs in itertools.permutations([(1, "b"), ("1", "a"), (Text("0"), 9)]):
            assert canonical_json(dict(pairs)) == '{"0":9,"1":"a","1":"b"}'

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (Colour.RED, '"red"'),
            (Level.HIGH, "3"),
            (Mode.FAST, '"fast"'),
            (Text("t"), '"t"'),
            (True, "true"),
            (Point(1, 2), "[1,2]"),
            ((1, [2]), "[1,[2]]"),
            (range(3), "[0,1,2]"),
            (collections.deque([1, 2]), "[1,2]"),
            (collections.UserList([1]), "[1]"),
            (collections.OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
            (collections.ChainMap({"a": 1}, {"b": 2}), '{"a":1,"b":2}'),
            (types.MappingProxyType({"a": 1}), '{"a":1}'),
            ({3, 1, "a"}, '["a",1,3]'),
            (frozenset({(2, 1)}), "[[2,1]]"),
            ({"b": 1, "a": 2}.keys(), '["a","b"]'),
            ({"b": 1, "a": 2}.values(), "[1,2]"),
            ({"b": 1, "a": 2}.items(), '[["a",2],["b",1]]'),
            (dt.datetime(2024, 1, 2, 3, 4, tzinfo=dt.UTC), '"2024-01-02T03:04:00+00:00"'),
            (dt.date(2024, 1, 2), '"2024-01-02"'),
            (dt.time(3, 4), '"03:04:00"'),
            (dt.timedelta(minutes=1, milliseconds=500), "60.5"),
            (dt.timedelta(hours=1), "3600"),
            (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
            (pathlib.PurePosixPath("/a/b"), '"/a/b"'),
            (ipaddress.ip_address("::1"), '"::1"'),
            (ipaddress.ip_network("10.0.0.0/8"), '"10.0.0.0/8"'),
            (b"\xff", '{"$bytes":"/w=="}'),
            (bytearray(b"\xff"), '{"$bytes":"/w=="}'),
            (memoryview(b"a-b-")[::2], f'{{"$bytes":"{base64.b64encode(b"ab").decode()}"}}'),
            (Order("o", [1]), '{"id":"o","lines":[1]}'),
            (Slotted("s"), '{"id":"s"}'),
            (Invoice(id="i", total=decimal.Decimal("1.50")), '{"due":null,"id":"i","total":1.5}'),
            (len, '{"$object":"len"}'),
            (int, '{"$object":"int"}'),
            (math, '{"$object":"math"}'),
            (dt.date, '{"$object":"datetime.date"}'),
            (json.JSONEncoder().encode, '{"$object":"json.encoder.JSONEncoder.encode"}'),
        ],
    )
    def test_values_json_has_no_words_for(self, value: Any, expected: str) -> None:
        assert canonical_json(value) == expected
        assert canonical_json({"v": [value]}) == f'{{"v":[{expected}]}}'

    def test_an_object_is_its_class_and_attributes(self) -> None:
        assert canonical_json(Plain(b=1, a=[2])) == f'{{"$object":"{__name__}.Plain","state":{{"a":[2],"b":1}}}}'

    def test_an_object_without_attributes_is_its_class_and_repr(self) -> None:
        assert canonical_json(Opaque()) == f'{{"$object":"{__name__}.Opaque","repr":"<{__name__}.Opaque object at >"}}'
        assert canonical_json(functools.partial(pow, 2)) != canonical_json(functools.partial(pow, 3))

    def test_functions_and_classes_go_by_name(self) -> None:
        assert canonical_json(canonical_json) == '{"$object":"loopguard_core._canonical.canonical_json"}'
        assert canonical_json(Plain) == f'{{"$object":"{__name__}.Plain"}}'

    def test_iterators_are_not_consumed(self) -> None:
        def count() -> Any:
            yield from range(3)

        for iterator in (count(), iter([0, 1, 2]), map(abs, [0, 1, 2])):
            assert "$object" in canonical_json({"it": iterator})
            assert list(iterator) == [0, 1, 2]


class Raising:
    def __repr__(self) -> str:
        raise RuntimeError

    __slots__ = ()


class RaisingMapping(collections.UserDict):
    def items(self) -> Any:
        raise OSError


class RaisingModel:
    def model_dump(self) -> Any:
        raise ValueError


class RaisingMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise ValueError


class Nameless(metaclass=RaisingMeta):
    def __repr__(self) -> str:
        raise ValueError

    __slots__ = ()


class Endless(collections.abc.Sequence):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        return index

    def __iter__(self) -> Any:
        return itertools.count()


class EndlessMapping(collections.UserDict):
    def items(self) -> Any:
        return ((number, number) for number in itertools.count())


class EndlessModel:
    def model_dump(self) -> Any:
        return [EndlessModel()]


class SameHash(tuple):
    """Sets hold these in the order of insertion."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1


class Liar:
    """Claims to be a string."""

    __slots__ = ()

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return str


class RaisingClass:
    __slots__ = ()

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise ValueError


def turned(value: Any) -> Any:
    """Return a copy whose dictionaries and sets were filled the other way round."""
    if isinstance(value, dict):
        return {key: turned(member) for key, member in reversed(value.items())}
    if isinstance(value, (list, tuple)):
        return [turned(member) for member in value]
    return frozenset(reversed(list(value))) if isinstance(value, frozenset) else value


class TestTotal:
    @few
    @given(odd)
    def test_odd_values_have_a_text_that_no_order_of_insertion_changes(self, value: Any) -> None:
        assert canonical_json(turned(value)) == canonical_json(value)
        canonical_json(value).encode()

    @pytest.mark.parametrize("kind", [Raising, RaisingMapping, RaisingModel])
    def test_what_raises_is_unreadable(self, kind: type) -> None:
        assert canonical_json({"a": kind(), "b": 1}) == f'{{"a":{{"$unreadable":"{__name__}.{kind.__name__}"}},"b":1}}'

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Nameless(),  # its class cannot even be named
            Liar,
            RaisingClass,
            threading.Lock,
            lambda: list[int],
            lambda: NotImplemented,
            lambda: ...,
            lambda: 1j,
            object,
            lambda: ValueError("x"),
            lambda: {Opaque(): 1},
            types.SimpleNamespace,
            lambda: struct.Struct("i"),
            lambda: memoryview(b""),
        ],
    )
    def test_weird_objects_have_an_answer(self, make: Callable[[], Any]) -> None:
        assert canonical_json([make()]) == f"[{canonical_json(make())}]"

    def test_a_released_memoryview_is_unreadable(self) -> None:
        view = memoryview(bytearray(1))
        view.release()
        assert canonical_json(view) == '{"$unreadable":"memoryview"}'

    def test_interrupts_are_not_swallowed(self) -> None:
        class Interrupting:
            __slots__ = ()

            def __repr__(self) -> str:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            canonical_json(Interrupting())


class TestCycles:
    def test_a_cycle_says_how_many_levels_up_it_leads(self) -> None:
        outer: dict[str, Any] = {}
        outer["self"] = outer
        outer["list"] = [outer]
        assert canonical_json(outer) == '{"list":[{"$cycle":2}],"self":{"$cycle":1}}'

    def test_an_object_can_hold_itself(self) -> None:
        value = Plain()
        value.me = value
        assert canonical_json(value) == f'{{"$object":"{__name__}.Plain","state":{{"me":{{"$cycle":1}}}}}}'

    def test_the_same_container_twice_is_no_cycle(self) -> None:
        shared: list[int] = [1]
        assert canonical_json({"a": shared, "b": [shared]}) == '{"a":[1],"b":[[1]]}'


class TestBounds:
    def test_a_container_inside_64_others_is_cut(self) -> None:
        value: Any = 7
        for _ in range(MAX_DEPTH):
            value = [value]
        assert canonical_json(value) == "[" * 64 + "7" + "]" * 64
        assert canonical_json([value]) == "[" * 64 + '{"$depth":64}' + "]" * 64

    def test_depth_may_be_any(self) -> None:
        value: Any = {}
        for _ in range(100_000):
            value = {"a": value}
        assert canonical_json(value).count("{") == 65

    def test_the_rest_of_a_long_array_is_one_entry(self) -> None:
        assert canonical_json(list(range(MAX_NODES))).endswith(",199999]")
        assert canonical_json(range(10**12)).endswith(',199999,{"$size":200000}]')

    def test_the_rest_of_a_large_object_is_one_entry_after_the_first_keys(self) -> None:
        value = {f"{number:06}": 0 for number in reversed(range(MAX_NODES + 5))}
        assert canonical_json(value).startswith('{"000000":0,')
        assert canonical_json(value).endswith('"199999":0,"$size":200000}')

    def test_a_set_too_large_is_left_out_whole(self) -> None:
        assert canonical_json(set(range(MAX_NODES + 1))) == '{"$size":200000}'
        assert canonical_json([{(1, number) for number in range(100_000)}]) == '[{"$size":200000}]'

    def test_the_order_of_a_set_does_not_show_where_members_run_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("loopguard_core._canonical.MAX_NODES", 6)
        short, long = SameHash((1, 2)), SameHash(("x" * 9_216,))
        assert canonical_json([{short, long}, 5]) == canonical_json([{long, short}, 5])

    @pytest.mark.parametrize("value", [Endless(), EndlessMapping()])
    def test_endless_containers_end(self, value: Any) -> None:
        assert canonical_json(value).count('"$size":200000') == 1

    def test_a_model_that_dumps_models_without_end_ends(self) -> None:
        assert '{"$depth":64}' in canonical_json(EndlessModel())

    def test_shared_structure_is_not_unfolded_without_end(self) -> None:
        value: Any = "laugh"
        for _ in range(60):
            value = [value, value]
        began = time.monotonic()
        assert len(canonical_json(value)) < 5_000_000
        assert time.monotonic() - began < 5

    @pytest.mark.parametrize("long", ["x" * 102_400, b"x" * 102_400, {"x" * 102_400: 1}, {2**400_000}])
    def test_shared_text_is_not_unfolded_without_end(self, long: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("loopguard_core._canonical.MAX_NODES", 5_000)
        assert len(canonical_json([long] * 2_500)) < 3_000_000

    def test_one_long_text_is_exact(self) -> None:
        assert canonical_json(["x" * 3_000_000]) != canonical_json(["x" * 2_999_999 + "y"])
