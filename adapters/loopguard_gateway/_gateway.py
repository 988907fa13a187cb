"""What all requests of one gateway share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loopguard_core import LoopGuard, PolicyLike, Usage, as_guard
from loopguard_gateway._conversations import Conversations
from loopguard_gateway._errors import busy
from loopguard_gateway._metrics import Metrics
from loopguard_gateway._room import Room, Share
from loopguard_gateway._settings import OnStop, Settings, SettingsError
from loopguard_gateway._surfaces import GATEWAY
from loopguard_gateway._till import Till
from loopguard_gateway._upstream import Upstream

_log = logging.getLogger("loopguard")


class Gateway:
    """One gateway: its settings and everything that lives as long as it does.

    Args:
        policy: What `as_guard` takes. A guard must not spend on a key of its own.
        settings: The settings.

    Raises:
        LoopGuardError: Policy or store cannot be used.
    """

    def __init__(self, policy: LoopGuard | PolicyLike, settings: Settings) -> None:
        guard = as_guard(policy)
        if guard is policy and guard.policy.key is not None:
            raise SettingsError("policy: give the policy, not a guard that spends on its key: the gateway counts money")
        self.settings = settings
        self.till = Till(settings.store, guard.policy, settings.hold_ttl)
        # The gateway itself holds and counts money: a session that did so too would count it twice.
        self.guard = guard if guard.policy.key is None else LoopGuard(guard.policy.model_copy(update={"key": None}))
        self.guard.attach(GATEWAY)
        self.upstream = Upstream(settings)
        self.metrics = Metrics()
        self.conversations = Conversations(self.guard, settings.max_sessions)
        self._running = 0
        self._room = Room(settings.max_memory)

    @property
    def on_stop(self) -> OnStop:
        """How a run ends."""
        return self.settings.on_stop or self.guard.policy.on_stop.how

    @contextmanager
    def place(self, endpoint: str) -> Iterator[Share]:
        """One of the places for requests, and what it takes in memory. Raises `Refused` where all are taken."""
        if self._running >= self.settings.max_concurrent:
            raise busy()
        began = time.monotonic()
        self._running += 1
        self.metrics.running.inc()
        share = self._room.share()
        try:
            yield share
        finally:
            share.give_back()
            self._running -= 1
            self.metrics.running.dec()
            self.metrics.seconds.labels(endpoint).observe(time.monotonic() - began)
            self.metrics.sessions.set(len(self.conversations))

    def counted(self, usage: Usage) -> None:
        """A model call was counted."""
        self.metrics.tokens.labels("input").inc(usage.input_tokens or 0)
        self.metrics.tokens.labels("output").inc(usage.output_tokens or 0)
        self.metrics.dollars.inc(float(usage.cost or 0))
        if usage.estimated:
            self.metrics.estimated.inc()

    async def open(self) -> None:
        """Get ready."""
        await self.till.open()
        _log.info("The gateway spends on keys in %s", self.till.address)

    async def close(self) -> None:
        """Count what is still to be counted, and let go of everything."""
        self.conversations.close()
        await self.upstream.close()
        await self.till.close()
        await self.guard.adrain()
        self.guard.close()
