"""Fingerprints agree with the reference figures and hide what leaves the process."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

import pytest
import xxhash

from loopguard_core._canonical import canonical_json
from loopguard_core._fingerprint import digest, fingerprint, keyed

REFERENCE = pathlib.Path(__file__).parents[1] / "data" / "conformance" / "fingerprints.jsonl"
# Not `splitlines`: the texts hold other line separators.
LINES = [json.loads(line) for line in REFERENCE.read_text(encoding="utf-8").strip().split("\n")]


def test_the_reference_figures_are_all_there() -> None:
    assert len(LINES) == 200


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["sha256"][:8])
def test_canonical_text_and_sha256_equal_the_reference(line: dict[str, Any]) -> None:
    arguments = json.loads(line["arguments_json"])
    assert canonical_json(arguments) == line["canonical"]
    assert fingerprint(line["tool"], arguments, "sha256") == line["sha256"]


def test_golden_figure() -> None:
    assert fingerprint("fetch_invoice", {"invoice_id": "INV-2291"}, "sha256").startswith("64be4614c5ea3e26")


def test_the_default_is_xxh3_128_of_tool_newline_and_canonical_text() -> None:
    assert fingerprint("search", {"q": "é", "n": 1.0}) == xxhash.xxh3_128_hexdigest('search\n{"n":1,"q":"é"}'.encode())
    assert digest(b"x") == xxhash.xxh3_128_hexdigest(b"x")


def test_sha256_is_taken_of_the_bytes() -> None:
    assert digest(b"x", "sha256") == hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize("algorithm", ["xxh3_128", "sha256"])
def test_surrogates_in_a_tool_name_are_told_apart_and_never_raise(algorithm: Any) -> None:
    assert fingerprint("\ud800", {}, algorithm) != fingerprint("\ud801", {}, algorithm)


def test_tool_and_key_are_not_run_together() -> None:
    assert fingerprint("a\n1", 2) != fingerprint("a", [1, 2])
    assert fingerprint("a", "b") != fingerprint('a\n"b"', "")


def test_an_unknown_algorithm_is_named_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"'md5'.*'xxh3_128'.*'sha256'"):
        fingerprint("a", {}, "md5")  # type: ignore[arg-type]


def test_keyed_needs_the_key() -> None:
    shown = keyed("64be", b"k" * 16)
    assert shown == hashlib.blake2b(b"64be", key=b"k" * 16, digest_size=16).hexdigest()
    assert shown != keyed("64be", b"l" * 16)
    assert len(shown) == 32


def test_keys_longer_than_blake2b_takes_count_in_full() -> None:
    assert keyed("64be", b"k" * 100) != keyed("64be", b"k" * 99 + b"l")


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ValueError, match="empty key"):
        keyed("64be", b"")
