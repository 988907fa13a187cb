"""What all requests of one gateway share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loopguard_core import LoopGuard, Policy, PolicyLike, Usage, resolve_policy
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
        rules = policy.policy if isinstance(policy, LoopGuard) else resolve_policy(policy)
        if isinstance(policy, LoopGuard) and rules.key is not None:
            raise SettingsError("policy: give the policy, not a guard that spends on its key: the gateway counts money")
        self.settings = settings
        self.till = Till(settings.store, rules, settings.hold_ttl)
        self.guard = policy if isinstance(policy, LoopGuard) else LoopGuard(_for_sessions(rules))
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


def _for_sessions(policy: Policy) -> Policy:
    """A policy without what the gateway itself does: a session that held and counted money too would count it twice."""
    for hazard in policy.hazards():
        if hazard.startswith("key."):  # nobody else says it once the key is gone
            _log.warning("policy: %s", hazard)
    limits = policy.limits
    if limits.cost is None:  # of sessions nothing is priced then, and the guard would say that `unpriced` does nothing
        limits = limits.model_copy(update={"unpriced": "warn"})
    return policy.model_copy(update={"key": None, "limits": limits})
