"""What the sessions of one guard are put together from: detectors, a memory of results, a budget, money."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from loopguard_core._allowed import Allowed
from loopguard_core._budget import Budget
from loopguard_core._built_in import BUILT_IN
from loopguard_core._calls import Identifier
from loopguard_core._history import History
from loopguard_core._money import Money
from loopguard_core._policy_parts import KeySettings
from loopguard_core._prices import warm_soon
from loopguard_core._scoring import Scorer
from loopguard_core._session import Session
from loopguard_core._session_state import Origin
from loopguard_core._surface import ANYWHERE, Surface
from loopguard_core._traits import Nature
from loopguard_core.detectors import Detector
from loopguard_core.detectors._retries import Retries

if TYPE_CHECKING:
    from loopguard_core._guard import LoopGuard
    from loopguard_core.keys._source import Claim, KeySource

_process_key = secrets.token_bytes(16)
"""Keys fingerprints that leave this process, where the policy names no key."""


class SessionMaker:
    """Makes the sessions of one guard.

    Args:
        guard: The guard, with its policy and plugins.
        allowed: Calls that are let through, in all sessions.

    Attributes:
        keys: The store of keys; None until a policy or a session names one.

    Raises:
        LedgerError: The library for the store of the policy's key is not installed.
    """

    def __init__(self, guard: LoopGuard, allowed: Allowed) -> None:
        self._guard = guard
        self._policy = guard.policy
        self._allowed = allowed
        self._natures: dict[tuple[str, Any], Nature] = {}
        # Arguments alone need no memory of results: that is the reference, to the letter and at its price.
        alone = [name for name in BUILT_IN if self._policy.detector_enabled(name)] == ["repeated_call"]
        self._wants_history = not alone or self._policy.outcomes == "aware"
        self.keys: KeySource | None = None
        if guard.enabled and self._policy.key is not None:
            self.keys = _key_source(self._policy.key)
        elif guard.enabled and self._policy.limits.cost is not None:
            warm_soon()

    def session(
        self,
        origin: Origin,
        parent: Session | None,
        surface: Surface | None,
        escalation_model: str | None,
        key: str | Sequence[str] | None,
    ) -> Session:
        """A new session; the arguments are those of `LoopGuard.session`.

        Raises:
            LedgerValueError: A key's name cannot be used.
            LedgerError: The library for the keys' store is not installed.
        """
        guard, policy = self._guard, self._policy
        if escalation_model is None:
            escalation_model = policy.escalation.models.get(origin.adapter or "default")
        perform = partial((surface or ANYWHERE).perform, escalation=escalation_model is not None)
        identifier = Identifier(
            policy, guard.plugins, lambda label, text: guard.faults.note(label, text=text), self._natures
        )
        history = History()
        detectors = self._detectors(history)
        scorer = Scorer(
            policy,
            identifier,
            detectors,
            guard.faults,
            perform,
            self._fingerprint_key(),
            self._allowed,
            history if self._wants_history else None,
        )
        claims = self._claims(parent, key) if guard.enabled else ()
        outer = None if parent is None else parent.budget
        budget = Budget(policy.limits, guard.new_clock(), outer, keyed=bool(claims))
        return Session(
            guard,
            origin,
            parent=parent,
            scorer=scorer,
            budget=budget,
            escalation_model=escalation_model,
            money=self._money(budget, claims, parent) if guard.enabled and budget.counts_usage else None,
        )

    def _detectors(self, history: History) -> list[Detector]:
        policy = self._policy
        retries = Retries()
        own = [make(policy, history, retries) for name, make in BUILT_IN.items() if policy.detector_enabled(name)]
        return own + [d for d in self._guard.plugins.detectors(policy) if policy.detector_enabled(d.name)]

    def _fingerprint_key(self) -> bytes | None:
        privacy = self._policy.privacy
        if privacy.plain_fingerprints:
            return None
        if privacy.fingerprint_key is not None:
            return privacy.fingerprint_key.get_secret_value().encode("utf-8")[:64]
        return _process_key

    def _claims(self, parent: Session | None, key: str | Sequence[str] | None) -> tuple[Claim, ...]:
        """The keys a run spends on: those of the run around it, the policy's, and what the code names."""
        around = () if parent is None or parent.money is None else tuple(parent.money.claims)
        if key is None and self._policy.key is None:
            return around
        if self.keys is None:
            self.keys = _key_source(None)
        from loopguard_core.keys._source import Claim

        return (*around, Claim(self.keys, self.keys.keys(key)))

    def _money(self, budget: Budget, claims: Sequence[Claim], parent: Session | None) -> Money:
        unpriced = self._policy.limits.unpriced
        around = None if parent is None or parent.money is None else parent.money.rate
        rate = unpriced if isinstance(unpriced, Decimal) else around
        if not claims:
            return Money(budget, (), (), rate)
        from loopguard_core.keys._source import meters_of

        return Money(budget, claims, meters_of(claims), rate)


def _key_source(settings: KeySettings | None) -> KeySource:
    # Only where there is a key: it loads SQLite, and the price list.
    from loopguard_core.keys._source import KeySource

    source = KeySource(settings)
    warm_soon()
    return source
