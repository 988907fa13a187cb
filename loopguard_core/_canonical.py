r"""The canonical text of a value: RFC 8785 (JCS), made total.

Two values that mean the same have the same text, in every process. `canonical_json` answers for every Python object: it
never raises (an `Exception` out of an object's own code is answered, interrupts pass), always ends, and does a bounded
amount of work. What JSON has no words for is answered like this:

- NaN and the infinities are the bare tokens `NaN`, `Infinity`, `-Infinity`: unlike any string.
- Numbers have the ECMAScript form, so `1` and `1.0` are one text. Integers are exact at any size; those that Python
  refuses to write (`sys.set_int_max_str_digits`) are `{"$int": "0x..."}` beyond 65,536 bits.
- `Decimal`: the text of the equal integer, or of the float that is written the same; else `{"$decimal": "..."}`.
- Surrogates (Python joins real pairs, so each one is lone) are written as lower-case escapes: `\ud83d`.
- A key that is no string becomes the text JSON would write for it: `1`, `true`, `null`, `1.5`, `[1,2]`; what JSON
  writes as a string (an enum's value, a date) becomes that string. Keys that coincide are all kept, in the order of
  their values' texts.
- Mappings, dataclasses and pydantic models (anything with a `model_dump` method) are objects; sequences, named tuples
  included, are arrays; sets and dictionary views are arrays sorted by canonical text; an enum is its value.
- Dates and times are ISO 8601 strings, a `timedelta` its seconds; UUIDs, paths and IP addresses are strings.
- Bytes are `{"$bytes": base64}`; classes, functions and modules `{"$object": name}`. Any other object, iterators (never
  consumed) included, is `{"$object": class, "state": its attributes}`, or without attributes `{"$object": class,
  "repr": repr without 0x... addresses}`. What cannot be read because its own code raises is `{"$unreadable": class}`.
- A container inside itself is `{"$cycle": n}`, where n levels up is the same container; one inside 64 others is
  `{"$depth": 64}`. After 200,000 members (1,024 characters of text count as one more) the rest of each open container
  is `{"$size": 200000}`, and so is a whole set in which they run out: it has no order to be cut in.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json.encoder
import math
import pathlib
import re
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from itertools import islice
from operator import itemgetter
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 200_000

_CHARS_PER_NODE = 1024
# Within these the C encoder cannot meet a limit above, and no cycle can hide.
_FAST_DEPTH = 16
_FAST_NODES = 2_000  # on each level
_FAST_CHARS = 1_000_000

_SIZE = f'{{"$size":{MAX_NODES}}}'
_ADDRESS = re.compile("0x[0-9a-fA-F]+")
_ATOMS = frozenset({str, int, bool, type(None)})
_STRINGS = frozenset({str})
_ROOTS = frozenset({dict, list})
_EXACT = decimal.Context(decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
_IP = (ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network)
_quote = json.encoder.encode_basestring
_encode: Callable[[Any, int], Iterable[str]] | None
try:  # json's own C encoder, set up once: markers, default, encoder, indent, two separators, sort, skip keys, allow nan
    _encode = json.encoder.c_make_encoder(None, None, _quote, None, ":", ",", True, False, False)  # type: ignore[attr-defined]
except (AttributeError, TypeError):
    _encode = None  # an interpreter without it, or with another one


def canonical_json(value: object) -> str:
    """Return the canonical text of any value; the module's text says what becomes of it.

    Returns:
        RFC 8785 (JCS) text without surrogates: it can always be encoded as UTF-8.
    """
    try:
        if _encode is not None and type(value) in _ROOTS and (names := _plain_names(value)) is not None:
            text = "".join(_encode(value, 0))
            if len(text) <= _FAST_CHARS:
                if text.isascii():
                    return text
                joined = "".join(names)
                if joined.isascii() or max(joined) < "\ud800":  # up to there, code point order is UTF-16 order
                    return _escaped(text)
    except (TypeError, ValueError, RuntimeError):
        pass  # an integer too long for Python's own limit, or another thread changed the value: the writer copes
    return _Writer().text(value)


def _plain_names(value: Any) -> Iterable[str] | None:  # noqa: C901 - the hot path: small functions would double it
    """The names of all fields, if the C encoder writes a value as JCS does; None if it may not.

    It does where all is of plain JSON types, shallow and small, without odd numbers or keys, and the names sort alike
    in both, which is left to the caller: names in an ASCII text do.
    """
    members = value.values() if type(value) is dict else value
    if len(members) > _FAST_NODES:
        return None
    if _ATOMS.issuperset(map(type, members)):  # nearly every call's arguments
        fields = value if type(value) is dict else ()
        return fields if _STRINGS.issuperset(map(type, fields)) else None
    names = list(value) if type(value) is dict else []
    depth = 1
    while True:
        boxes: list[Any] = []
        for member in members:
            kind = type(member)
            if kind is str or kind is int:
                continue
            if kind is dict or kind is list or kind is tuple:
                boxes.append(member)
            # In this range Python and ECMAScript write fractions alike.
            elif kind not in _ATOMS and (kind is not float or not 1e-4 <= abs(member) < 1e16 or not member % 1):
                return None
        depth += 1
        members = []
        for box in boxes:
            if type(box) is dict:
                names += box
                members += box.values()
            else:
                members += box
            if len(members) > _FAST_NODES or depth > _FAST_DEPTH:
                return None
        if _ATOMS.issuperset(map(type, members)):
            return names if _STRINGS.issuperset(map(type, names)) else None


class _Writer:
    """Writes one value of any kind. `path` holds the ids of the open containers, `left` the members still allowed."""

    def __init__(self) -> None:
        self.left = MAX_NODES
        self.path: list[int] = []

    def text(self, value: Any) -> str:
        kind = type(value)
        if self.left < 0:
            return _SIZE
        if kind is str and len(value) < _CHARS_PER_NODE:
            return _quoted(value)
        try:
            if kind in _BUILTIN:
                return _BUILTIN[kind](self, value)
            # By real type, not isinstance: a proxy that only claims a class breaks that class's own methods.
            for classes, write in _KINDS:
                if issubclass(kind, classes):
                    return write(self, value)
            return self.other(value, kind)
        except Exception:  # noqa: BLE001 - the value's own code may raise anything
            return _tagged("unreadable", _quoted(_name_of(kind)))

    def counted(self, text: str) -> str:
        self.left -= len(text) // _CHARS_PER_NODE
        return text

    def inside(self, value: Any, write: Callable[[Any], str]) -> str:
        path = self.path
        if id(value) in path:
            return _tagged("cycle", str(len(path) - path.index(id(value))))
        if len(path) >= MAX_DEPTH:
            return _tagged("depth", str(MAX_DEPTH))
        path.append(id(value))
        try:
            return write(value)
        finally:
            path.pop()

    def mapping(self, value: Mapping[Any, Any]) -> str:
        pairs = dict.items(value) if isinstance(value, dict) else islice(value.items(), MAX_NODES + 1)
        rows = [(key if type(key) is str else self.key(key), member) for key, member in pairs]
        if not rows or self.left <= 0:
            return _SIZE if rows else "{}"
        names = {name for name, _ in rows}
        joined = "".join(names)
        by_name, quote = (itemgetter(0), _quote) if joined.isascii() else (_by_utf16, _quoted)
        rows.sort(key=by_name)
        kept = rows[: self.left]
        self.left -= len(kept)
        written = [(name, self.text(member)) for name, member in kept]
        self.counted(joined)
        if len(names) < len(rows):
            written.sort(key=lambda row: (*_by_utf16(row), row[1]))
        parts = [f"{quote(name)}:{text}" for name, text in written]
        if len(kept) < len(rows):
            parts.append(_SIZE[1:-1])
        return "{" + ",".join(parts) + "}"

    def key(self, key: object) -> str:
        text = self.text(key)
        return str(json.loads(text)) if text[0] == '"' else text

    def array(self, values: Iterable[Any]) -> str:
        members = list(islice(values, self.left + 1))
        if not members or not self.left:
            return _SIZE if members else "[]"
        kept = members[: self.left]
        self.left -= len(kept)
        parts = [self.text(member) for member in kept]
        if len(kept) < len(members):
            parts.append(_SIZE)
        return "[" + ",".join(parts) + "]"

    def unordered(self, values: Iterable[Any]) -> str:
        members = list(islice(values, self.left + 1))
        self.left -= len(members)
        parts = sorted(map(self.text, members))
        if not parts or self.left > 0:
            return "[" + ",".join(parts) + "]"
        self.left = 0  # by how much it was overdrawn hangs on the order of the set
        return _SIZE

    def other(self, value: Any, kind: type) -> str:
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            return self.inside(value, lambda it: self.mapping({name: getattr(it, name) for name in names}))
        if callable(getattr(kind, "model_dump", None)):
            return self.inside(value, lambda it: self.text(it.model_dump()))
        name = _quoted(_name_of(kind))
        # Without attributes of its own, an object's repr may still tell it from others: partial(f, 1), ValueError("x").
        if kind.__dictoffset__ and vars(value):
            return self.inside(value, lambda it: _tagged("object", f'{name},"state":{self.mapping(vars(it))}'))
        return _tagged("object", f'{name},"repr":{self.text(_ADDRESS.sub("", repr(value)))}')


def _by_utf16(row: tuple[str, Any]) -> tuple[bytes, str]:
    # The name itself too: a pair of surrogates and the character they would join to have the same UTF-16.
    return row[0].encode("utf-16-be", "surrogatepass"), row[0]


def _tagged(tag: str, text: str) -> str:
    return f'{{"${tag}":{text}}}'


def _quoted(value: str) -> str:
    return _escaped(_quote(value))


def _escaped(text: str) -> str:
    # Only surrogates cannot be encoded, and Python's escape for them is JSON's.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _int_text(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # longer than Python will write; decimal does, in time that must not grow without end
        return str(decimal.Decimal(value)) if value.bit_length() <= 65_536 else _tagged("int", f'"{value:#x}"')


def _float_text(value: float) -> str:
    """Write a float as ECMAScript does: Python's digits are the same, only the places of point and exponent differ."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    mantissa, _, exponent = repr(value or 0.0).partition("e")  # -0.0 is 0
    if not exponent:
        return mantissa.removesuffix(".0")
    power = int(exponent)
    if power < -6 or power >= 21:
        return f"{mantissa}e{power:+d}"
    digits = mantissa.lstrip("-").replace(".", "")
    shown = digits.ljust(power + 1, "0") if power > 0 else "0." + "0" * (-power - 1) + digits
    return "-" + shown if value < 0 else shown


def _decimal_text(value: decimal.Decimal) -> str:
    if not value.is_finite():
        return "NaN" if value.is_nan() else "-Infinity" if value.is_signed() else "Infinity"
    # Beyond this a few characters would unfold into megabytes of digits.
    if value.adjusted() < 4000 and value == value.to_integral_value():
        return _int_text(int(value))
    nearest = float(value)
    if decimal.Decimal(repr(nearest)) == value:
        return _float_text(nearest)
    return _tagged("decimal", f'"{value.normalize(_EXACT)}"')  # 1.10 is 1.1


def _name_of(thing: Any) -> str:
    try:
        name = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__qualname__
        module = getattr(thing, "__module__", None)
        return f"{module}.{name}" if module and module != "builtins" else str(name)
    except Exception:  # noqa: BLE001 - metaclasses may raise anything
        return "?"


_KINDS: tuple[tuple[type | tuple[type, ...], Callable[[_Writer, Any], str]], ...] = (
    (type(None), lambda *_: "null"),
    (bool, lambda _, it: "true" if it else "false"),
    (enum.Enum, lambda writer, it: writer.text(it.value)),
    (int, lambda writer, it: writer.counted(_int_text(int.__index__(it)))),
    (float, lambda _, it: _float_text(float.__float__(it))),
    (str, lambda writer, it: writer.counted(_quoted(str.__str__(it)))),
    (Mapping, lambda writer, it: writer.inside(it, writer.mapping)),
    ((bytes, bytearray, memoryview), lambda w, it: _tagged("bytes", w.text(base64.b64encode(bytes(it)).decode()))),
    ((AbstractSet, ValuesView), lambda writer, it: writer.inside(it, writer.unordered)),
    (Sequence, lambda writer, it: writer.inside(it, writer.array)),
    (decimal.Decimal, lambda writer, it: writer.counted(_decimal_text(it))),
    ((dt.date, dt.time), lambda _, it: _quoted(it.isoformat())),
    (dt.timedelta, lambda _, it: _float_text(it.total_seconds())),
    ((uuid.UUID, pathlib.PurePath, *_IP), lambda _, it: _quoted(str(it))),
    (_NAMED, lambda _, it: _tagged("object", _quoted(_name_of(it)))),
)
_BUILTIN = {
    kind: next(write for classes, write in _KINDS if issubclass(kind, classes))
    for kind in (str, int, type(None), bool, float, dict, list, tuple)
}
