"""Names of keys. They end up in logs, errors, terminals and databases, so they are checked where they come in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loopguard_core._policy_errors import shown
from loopguard_core.keys._errors import LedgerValueError

MAX_NAME = 128
"""Characters a name may have."""

MAX_KEYS = 16
"""Keys one model call may count on."""

KEY_PREFIX = "lg-"
"""What the secrets begin with that `Keyring.create` makes."""

_OUR_SECRET = re.compile(r"lg-[A-Za-z0-9_-]{43}")
_LOOKS_SECRET = re.compile(r"(?:lg|sk|pk|rk|xai|gsk|ghp|hf|key|AIza|AKIA)[-_A-Za-z0-9]{20,}|[A-Za-z0-9+/_=-]{40,}")


def check_name(name: object) -> str:
    """The name itself.

    Raises:
        LedgerValueError: It is no text, empty, too long, holds characters that do not print, or is a secret.
    """
    if not isinstance(name, str):
        raise LedgerValueError(f"key = {shown(type(name).__name__)}: a key's name must be text")
    if not name:
        raise LedgerValueError('key = "": a key\'s name must not be empty')
    if len(name) > MAX_NAME:
        raise LedgerValueError(f"key = {shown_name(name)}: a key's name has at most {MAX_NAME} characters")
    if not name.isprintable():
        raise LedgerValueError(f"key = {shown_name(name)}: a key's name must hold printable characters only")
    if name != name.strip():
        raise LedgerValueError(f"key = {shown_name(name)}: a key's name must not begin or end with a space")
    if _OUR_SECRET.fullmatch(name):
        raise LedgerValueError(
            f"key = {shown_name(name)}: this is a key's secret; give the key's name, which Keyring.verify finds"
        )
    return name


def check_names(keys: object) -> tuple[str, ...]:
    """The names of one call, each once, in the order given.

    Raises:
        LedgerValueError: One cannot be used, or there are none or too many.
    """
    if isinstance(keys, str):
        return (check_name(keys),)
    if not isinstance(keys, Sequence):
        raise LedgerValueError(f"keys = {shown(type(keys).__name__)}: must be a key's name or a list of names")
    names = tuple(dict.fromkeys(check_name(key) for key in keys))
    if not names:
        raise LedgerValueError("keys = []: at least one key is needed")
    if len(names) > MAX_KEYS:
        raise LedgerValueError(f"keys = a list of {len(names)}: a call counts on at most {MAX_KEYS} keys")
    return names


def shown_name(name: str) -> str:
    """A name for logs and errors: short, printable, and cut where somebody used a secret for a name."""
    return shown(f"{name[:6]}... (looks like a secret)" if _LOOKS_SECRET.fullmatch(name) else name)
