"""Fingerprints: fixed-length names for call identities."""

from __future__ import annotations

import hashlib
from typing import Literal

import xxhash

from loopguard_core._canonical import canonical_json

Algorithm = Literal["xxh3_128", "sha256"]

_MAX_KEY_BYTES = hashlib.blake2b.MAX_KEY_SIZE


def digest(data: bytes, algorithm: Algorithm = "xxh3_128") -> str:
    """Return the lower-case hex hash of some bytes.

    Args:
        data: What to hash.
        algorithm: `xxh3_128` (fast, the default) or `sha256` (comparable with other implementations).

    Raises:
        ValueError: If the algorithm is none of these.
    """
    if algorithm == "xxh3_128":
        return xxhash.xxh3_128_hexdigest(data)
    if algorithm == "sha256":
        return hashlib.sha256(data, usedforsecurity=False).hexdigest()
    raise ValueError(f"unknown fingerprint algorithm {algorithm!r}: use 'xxh3_128' or 'sha256'")


def fingerprint(tool: str, key: object, algorithm: Algorithm = "xxh3_128") -> str:
    r"""Return the fingerprint of a call: the hash of the tool's name, a newline and the canonical text of its key.

    Args:
        tool: The tool's name. It comes from the model: surrogates in it are encoded as they are (`surrogatepass`).
            A newline in it does no harm, as there is none in canonical text.
        key: What of the arguments counts; any value.
        algorithm: See `digest`.

    Returns:
        Lower-case hex: 32 characters for `xxh3_128`, 64 for `sha256`.

    Raises:
        ValueError: If the algorithm is unknown.
    """
    return digest(f"{tool}\n{canonical_json(key)}".encode("utf-8", "surrogatepass"), algorithm)


def keyed(fp: str, key: bytes) -> str:
    """Return what may leave the process in place of a fingerprint: without the key it cannot be guessed from arguments.

    Args:
        fp: A fingerprint.
        key: The secret. Longer than 64 bytes, its own hash is used.

    Returns:
        32 characters of lower-case hex.

    Raises:
        ValueError: If the key is empty, as the result could then be guessed.
    """
    if not key:
        raise ValueError("an empty key does not hide a fingerprint: give at least one byte, better 16")
    if len(key) > _MAX_KEY_BYTES:
        key = hashlib.blake2b(key).digest()
    return hashlib.blake2b(fp.encode("utf-8", "surrogatepass"), key=key, digest_size=16).hexdigest()
