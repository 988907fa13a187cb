"""Secrets: what a client of the gateway shows to say which key it spends on. Kept apart from the accounting.

A secret is 256 random bits, so its plain SHA-256 digest cannot be guessed back, and finding one by its digest gives
nothing away through timing. Only the digest is stored.
"""

from __future__ import annotations

import hashlib
import secrets

from loopguard_core._closing import Closing
from loopguard_core.keys._errors import LedgerValueError
from loopguard_core.keys._names import KEY_PREFIX, check_name, shown_name
from loopguard_core.keys._store import SecretStore

_BYTES = 32
_MAX_SECRET = 256


class Keyring(Closing):
    """Which secret belongs to which key. Made by `open_keyring`; every method may raise `LedgerError`."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store

    def create(self, key: str, *, replace: bool = False) -> str:
        """Make a secret for a key. It is returned this once and cannot be read again.

        Args:
            key: Name of the key.
            replace: Whether to do so for a key that has one, whose old secret then opens nothing any more.

        Raises:
            LedgerValueError: The key has a secret and `replace` is False, or its name cannot be used.
        """
        secret = KEY_PREFIX + secrets.token_urlsafe(_BYTES)
        if replace:
            self._store.replace(check_name(key), _digest(secret))
        elif not self._store.put(check_name(key), _digest(secret)):
            raise LedgerValueError(
                f"key = {shown_name(key)}: it has a secret already; replace it (`--replace`), or take another name"
            )
        return secret

    def verify(self, secret: object) -> str | None:
        """The name of the key a secret belongs to; None if to none. What clients send may be given as it is."""
        if not isinstance(secret, str) or len(secret) > _MAX_SECRET or not secret.startswith(KEY_PREFIX):
            return None
        return self._store.find(_digest(secret))

    def revoke(self, key: str) -> bool:
        """Forget the secret of a key, whose limit and spending stay; False if it has none."""
        return self._store.drop(check_name(key))

    def names(self) -> list[str]:
        """Names of the keys that have a secret, sorted."""
        return self._store.holders()

    def close(self) -> None:
        """Close files and connections."""
        self._store.close()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
