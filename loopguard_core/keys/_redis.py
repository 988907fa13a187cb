"""The Redis store: for a fleet. The scripts are in `_redis_scripts`; this file is connections, errors and types."""

from __future__ import annotations

import os
import re
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from loopguard_core.keys import _redis_scripts as scripts
from loopguard_core.keys._errors import LedgerError, LedgerValueError
from loopguard_core.keys._periods import Reset, check_reset
from loopguard_core.keys._store import Account, Clock, Held, milliseconds

_TIMEOUT = 1.5
"""Seconds for connecting, and for each answer; `?socket_timeout=` in the address changes it."""

_RETRIES = 2
_DEFAULT_PREFIX = "loopguard"
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RedisLink:
    """A connection pool and the scripts sent through it.

    Usable from many threads and after a fork. A step whose answer was lost is sent again, twice at most; every script
    can be run twice without counting twice.

    Args:
        url: `redis://`, `rediss://` or `unix://`; besides redis-py's own options `?prefix=` sets ledgers apart.

    Raises:
        LedgerError: The redis library is not installed.
        LedgerValueError: The address cannot be used.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis
            from redis.backoff import ExponentialBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise LedgerError(
                "a redis:// store needs the redis library: pip install 'loopguard-core[redis]'"
            ) from error
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = query.pop("prefix", _DEFAULT_PREFIX)
        if not _PREFIX.fullmatch(prefix):
            raise LedgerValueError("store: prefix must be 1 to 64 letters, digits, dots, dashes or underscores")
        self._tag = f"{{{prefix}}}"
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._response_error: type[Exception] = redis.ResponseError
        self._refused: type[Exception] = redis.AuthenticationError
        url = f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(query)}"

        def client() -> Any:
            pool = redis.ConnectionPool.from_url(
                url,
                socket_timeout=_TIMEOUT,
                socket_connect_timeout=_TIMEOUT,
                health_check_interval=30,
                retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), _RETRIES),
                decode_responses=True,
            )
            # A client given a pool leaves it alone when it is collected, see `after_fork_in_child`.
            return redis.Redis(connection_pool=pool)

        try:
            self._client = client()
        except (ValueError, TypeError) as error:
            raise LedgerValueError(f"store = {self.address}: cannot be used ({error}); correct the address") from None
        self._new_client = client
        self._scripts: dict[str, Any] = {}
        _links.add(self)

    def key(self, *parts: str) -> str:
        """A Redis key of this ledger. The braces put all of them in one slot of a cluster."""
        return ":".join((self._tag, *parts))

    def script(self, source: str) -> Callable[[Sequence[str], Sequence[object]], Any]:
        """A script; it is sent by its hash, and whole where the server does not have it (any more)."""

        def run(keys: Sequence[str], args: Sequence[object]) -> Any:
            registered = self._scripts.get(source)
            if registered is None:
                registered = self._scripts[source] = self._client.register_script(source)
            with self.translated():
                return registered(keys=keys, args=args)

        return run

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn redis-py's errors into ours."""
        try:
            yield
        except self._errors as error:
            raise LedgerError(f"{self.address} {self._said(error)}") from error

    def _said(self, error: Exception) -> str:
        text = str(error)
        if isinstance(error, self._refused) or text.startswith("NOPERM"):
            return "refused the user or password; correct the address of the store, or the user's permissions"
        if isinstance(error, self._response_error):
            if text.startswith("OOM") or "maxmemory" in text:
                return "is out of memory; give it more, and set maxmemory-policy noeviction"
            if text.startswith("READONLY"):
                return "is a read-only replica; name the primary"
            if text.startswith(("MOVED", "CLUSTERDOWN")):
                return f"does not serve this ledger's slot of the cluster ({text[:80]}); name the node that does"
            return f"answered with an error: {text[:200]}"
        if "[SSL: CERTIFICATE_VERIFY_FAILED]" in text:
            return "has a certificate that nothing here trusts; name its authority with ?ssl_ca_certs=FILE"
        encrypted = ", and that it speaks TLS there" if self.address.startswith("rediss:") else ""
        return f"cannot be reached ({type(error).__name__}); check that it runs, and the address{encrypted}"

    def members(self, key: str) -> list[str]:
        """The members of a set, sorted."""
        with self.translated():
            return sorted(self._client.smembers(key))

    def field(self, key: str, field: str) -> str | None:
        """A field of a hash."""
        with self.translated():
            value = self._client.hget(key, field)
        return None if value is None else str(value)

    def fields(self, key: str) -> list[str]:
        """The fields of a hash, sorted."""
        with self.translated():
            return sorted(self._client.hkeys(key))

    def put(self, key: str, text: str, milliseconds: int) -> None:
        """Keep a text for so long."""
        with self.translated():
            self._client.set(key, text, px=milliseconds)

    def get(self, key: str) -> str | None:
        """The text that is kept."""
        with self.translated():
            text = self._client.get(key)
        return None if text is None else str(text)

    def drop(self, key: str) -> bool:
        """Forget a text; False if there was none."""
        with self.translated():
            return bool(self._client.delete(key))

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        with self.translated():
            self._client.connection_pool.disconnect()

    def after_fork_in_child(self) -> None:
        """Start afresh, with no lock that a thread of the parent may have held at that moment.

        The pool of redis-py notices a fork too, but asks for such a lock when it does.
        """
        self._client = self._new_client()
        self._scripts = {}


_links: weakref.WeakSet[RedisLink] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for link in list(_links):
        link.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class RedisStore:
    """Limits, spending and holds in Redis.

    Args:
        url: The address.
        clock: Seconds since 1970; None takes the server's time, so that no client's clock matters.
    """

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._link = RedisLink(url)
        self._clock = clock
        names = ("reserve", "renew", "settle", "add", "set_limit", "account", "history", "delete")
        self._steps = {name: self._link.script(scripts.PRELUDE + getattr(scripts, name.upper())) for name in names}

    @property
    def address(self) -> str:
        """Where it is."""
        return self._link.address

    def _run(self, step: str, names: Sequence[str], *args: object, done: str = "-") -> Any:
        keys = [self._link.key("names"), self._link.key("done", done)]
        for name in names:
            keys.extend(self._link.key(part, name) for part in ("key", "holds", "due", "late"))
        now = "" if self._clock is None else milliseconds(self._clock)
        return self._steps[step](keys, [now, *args])

    def set_limit(self, name: str, limit: int | None, reset: Reset) -> None:
        """Set a key's limit and reset."""
        self._run("set_limit", [name], "" if limit is None else limit, reset, name)

    def reserve(self, hold: str, names: Sequence[str], amount: int, ttl_ms: int) -> Held | Account:
        """Hold `amount` on all keys, or on none."""
        granted, *answer = self._run("reserve", names, hold, amount, ttl_ms, *names)
        if granted:
            return Held(int(answer[0]))
        number, *account = answer
        return _account(names[number - 1], account)

    def renew(self, hold: str, names: Sequence[str], ttl_ms: int) -> Held | None:
        """Hold on for `ttl_ms` from now."""
        expires = self._run("renew", names, hold, ttl_ms)
        return None if expires is None else Held(int(expires))

    def settle(self, hold: str, names: Sequence[str], spent: int) -> bool:
        """End a hold and count what was spent, on the day the hold was made."""
        return bool(self._run("settle", names, hold, spent, uuid.uuid4().hex, done=hold))

    def add(self, names: Sequence[str], spent: int) -> None:
        """Count spending of today."""
        self._run("add", names, spent, *names, done=uuid.uuid4().hex)

    def account(self, name: str) -> Account:
        """How a key stands."""
        return _account(name, self._run("account", [name]))

    def history(self, name: str, days: int) -> tuple[int, dict[int, int]]:
        """Today, and what was spent day by day."""
        today, amounts = self._run("history", [name], days)
        first = today - days + 1
        return today, {first + index: int(amount) for index, amount in enumerate(amounts) if amount}

    def names(self) -> list[str]:
        """Every key there is, sorted."""
        return self._link.members(self._link.key("names"))

    def delete(self, name: str) -> bool:
        """Forget a key."""
        return bool(self._run("delete", [name], name))

    def close(self) -> None:
        """Close the connections."""
        self._link.close()


class RedisSecrets:
    """Digests of secrets, in two hashes of their own."""

    def __init__(self, url: str) -> None:
        self._link = RedisLink(url)
        self._by_digest, self._by_name = self._link.key("secrets"), self._link.key("holders")
        self._put = self._link.script(scripts.PUT_DIGEST)
        self._drop = self._link.script(scripts.DROP_DIGEST)

    def put(self, name: str, digest: str) -> bool:
        """Remember the secret of a key that has none."""
        return bool(self._put([self._by_digest, self._by_name], [name, digest, "0"]))

    def replace(self, name: str, digest: str) -> None:
        """Remember the secret of a key in place of the one it may have."""
        self._put([self._by_digest, self._by_name], [name, digest, "1"])

    def find(self, digest: str) -> str | None:
        """The key a secret belongs to."""
        return self._link.field(self._by_digest, digest)

    def drop(self, name: str) -> bool:
        """Forget the secret of a key."""
        return bool(self._drop([self._by_digest, self._by_name], [name]))

    def holders(self) -> list[str]:
        """Keys that have a secret, sorted."""
        return self._link.fields(self._by_name)

    def close(self) -> None:
        """Close the connections."""
        self._link.close()


def _account(name: str, row: Sequence[Any]) -> Account:
    limit, reset, spent, reserved, day = row
    return Account(name, None if limit is None else int(limit), check_reset(reset), int(spent), int(reserved), int(day))


class RedisTexts:
    """Texts that expire, by name.

    Args:
        url: The address.
        kind: What they are; sets them apart from everything else at that address.
    """

    def __init__(self, url: str, kind: str) -> None:
        self._link = RedisLink(url)
        self._kind = kind

    def put(self, name: str, text: str, milliseconds: int) -> None:
        """Keep a text for so long, in place of an earlier one."""
        self._link.put(self._link.key(self._kind, name), text, milliseconds)

    def get(self, name: str) -> str | None:
        """The text; None where there is none, or no longer."""
        return self._link.get(self._link.key(self._kind, name))

    def drop(self, name: str) -> bool:
        """Forget a text; False if there was none."""
        return self._link.drop(self._link.key(self._kind, name))

    def close(self) -> None:
        """Close the connections."""
        self._link.close()
