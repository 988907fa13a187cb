"""`LoopGuard`: one policy and its plugins, serving any number of runs at once."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from loopguard_core import _unseen
from loopguard_core._allowed import Allowed
from loopguard_core._closing import Closing
from loopguard_core._events import DoomLoopDetected, PostModelCall, SessionEnd
from loopguard_core._faults import Faults
from loopguard_core._limits import ActiveClock
from loopguard_core._plugins import PluginInfo, Plugins
from loopguard_core._policy import Policy
from loopguard_core._policy_file import apply_environment, load_policy, resolve_policy
from loopguard_core._session import Session
from loopguard_core._session_maker import SessionMaker
from loopguard_core._session_state import Origin, SessionState
from loopguard_core._surface import Surface
from loopguard_core._types import Action, EndReason

if TYPE_CHECKING:
    from loopguard_core.keys._source import KeySource

logger = logging.getLogger("loopguard")

PolicyLike = Policy | str | os.PathLike[str] | Mapping[str, Any] | None
"""A policy, a preset's name, a path with a suffix, a mapping, or None."""

MAX_PAUSED = 10_000
"""Paused sessions kept alive; older ones go on from their saved state."""

MANY_RUNNING = 10_000
"""Running sessions beyond which the log says once that there are so many. None is ever given up: nobody can tell one
that was forgotten from one whose tool takes hours, and a run that goes on must find its limits."""


class LoopGuard(Closing):
    """Watches agent runs under one policy.

    Args:
        policy: A `Policy`, a preset's name, a path with a suffix, a mapping; None for the default policy.
        plugins: Objects with `@hookimpl` methods, in the order their answers count.
        on_loop: Called with each `DoomLoopDetected`; may return an `Action` that replaces the verdict's.
        on_end: Called with each `SessionEnd`; may be `async`.
        on_model_call: Called with each `PostModelCall`; may be `async`.
        clock: A monotonic clock in seconds.

    Attributes:
        policy: The policy, read once.
        last_end: The last `SessionEnd` of any session; None before the first.
        faults: Faults of ours or of plugins that were contained.

    Raises:
        PolicyError: The policy cannot be used.
        PluginError: A plugin cannot be used.
        LedgerError: The library for the store of the policy's key is not installed.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        plugins: Iterable[object] = (),
        on_loop: Callable[[DoomLoopDetected], Action | str | None] | None = None,
        on_end: Callable[[SessionEnd], object] | None = None,
        on_model_call: Callable[[PostModelCall], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy: Policy = apply_environment(resolve_policy({} if policy is None else policy))
        self.enabled: bool = self.policy.enabled
        self.last_end: SessionEnd | None = None
        self.faults: Faults = Faults()
        self.new_clock: Callable[..., ActiveClock] = partial(ActiveClock, clock)
        self.plugins: Plugins = Plugins(self.faults)
        self.plugins.register_all(plugins)
        self.plugins.load_entry_points(self.policy.plugins)
        self.plugins.register_callables(doom_loop_detected=on_loop, session_end=on_end, post_model_call=on_model_call)
        self._lock = threading.Lock()
        self._live: dict[str, Session] = {}
        self._paused: OrderedDict[str, None] = OrderedDict()
        self._attached: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._allowed = Allowed()
        self._maker = SessionMaker(self, self._allowed)
        for hazard in self.policy.hazards():
            logger.warning("policy: %s", hazard)
        if not self.enabled:
            logger.warning("loopguard is switched off (enabled = false or LOOPGUARD_ENABLED=0): nothing is guarded")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """A guard with the policy in a TOML file.

        Args:
            path: `loopguard.toml`, or a `pyproject.toml` with `[tool.loopguard]`.
            options: What `LoopGuard` takes besides the policy.

        Raises:
            PolicyError: The file cannot be used.
        """
        return cls(load_policy(Path(path)), **options)

    # -- sessions ----------------------------------------------------------------------------------------------

    def session(
        self,
        id: str | None = None,  # noqa: A002  # the public name
        *,
        parent: Session | str | None = None,
        agent: str | None = None,
        key: str | Sequence[str] | None = None,
        state: Any = None,
        surface: Surface | None = None,
        escalation_model: str | None = None,
        framework_run_id: str | None = None,
    ) -> Session:
        """The session of one run. A live id asked for again gives the same session.

        Args:
            id: Id of the run; None makes one.
            parent: The session, or the id of a live one, this run is nested in: it shares that one's limits, and a
                stop inside reaches it.
            agent: Name of the agent.
            key: Name of a key that the run spends on, or several, besides the policy's and those of the outer run:
                all of them count, and each one's limit holds.
            state: What `Session.save` gave, to go on with a saved run.
            surface: What the place loopguard is attached to can do; None for everything.
            escalation_model: Name of the stronger model; None takes the policy's for the surface's adapter.
            framework_run_id: The SDK's own id of the run.

        Raises:
            LedgerValueError: A key's name cannot be used.
            LedgerError: The library for the keys' store is not installed.
        """
        session_id = id if id is not None else uuid.uuid4().hex
        live = self._live.get(session_id)
        if live is not None:
            return live
        outer = self._live.get(parent) if isinstance(parent, str) else parent
        if outer is None and parent is not None:
            self.faults.note("parent", text="the outer session is not live: its limits are not shared with this one")
        origin = Origin(
            session_id=session_id,
            parent_id=parent if isinstance(parent, str) else (None if parent is None else parent.id),
            agent=agent,
            adapter=None if surface is None else surface.adapter,
            framework_run_id=framework_run_id,
        )
        # Outside the lock: hooks and detectors of third parties are called here.
        session = self._maker.session(origin, outer, surface, escalation_model, key)
        if state is not None:
            session.restore(state)
        with self._lock:
            session = self._live.setdefault(session_id, session)
            running = len(self._live) - len(self._paused)
        if running > MANY_RUNNING:
            self.faults.note(
                "sessions",
                text=f"more than {MANY_RUNNING:,} are live at once, with up to 100 KB each; loopguard gives up none by"
                " itself. End those whose run is over: `with guard.session() as s`, `s.end()`, `guard.discard(id)`",
            )
        return session

    def live(self, id: str) -> Session | None:  # noqa: A002  # the public name
        """The live session of that id; None if there is none."""
        return self._live.get(id)

    def discard(self, id: str) -> None:  # noqa: A002  # the public name
        """Forget a live session without ending it: the SDK went back to an earlier point of that run."""
        with self._lock:
            session = self._live.pop(id, None)
            self._paused.pop(id, None)
        if session is not None:
            session._close_money()  # noqa: SLF001  # no part of what adapters call

    # -- letting through ---------------------------------------------------------------------------------------

    def allow(self, fingerprint: str, times: int | None = None) -> None:
        """Let a call through, whatever the ladders say of it: verdicts about it only observe. Limits still hold.

        Args:
            fingerprint: `fingerprint` of a verdict about it. Fingerprints are keyed, so one from another process fits
                only where the policy sets `privacy.fingerprint_key`.
            times: How often it is let through where it would have been refused or have ended its run, counted over all
                sessions; None for as long as this guard lives. The last 1,000 calls allowed are remembered.

        Raises:
            ValueError: Not a fingerprint, or not a number of times.
        """
        self._allowed.add(fingerprint, times)

    # -- attaching ---------------------------------------------------------------------------------------------

    def attach(self, surface: Surface, *, escalation: bool = False) -> None:
        """Say, once a surface, which rungs of the policy it cannot perform and what happens instead.

        Args:
            surface: What adapters attach to.
            escalation: Whether a stronger model was given in code.
        """
        if not self.enabled or surface.name in self._attached:
            return
        self._attached.add(surface.name)
        escalation = escalation or surface.adapter in self.policy.escalation.models
        for rung in self.policy.rungs_in_use():
            done = surface.perform(rung, escalation=escalation)
            if done is not rung:
                logger.warning("%s cannot %s: such verdicts %s instead", surface.name, rung.value, done.value)

    # -- what sessions need ------------------------------------------------------------------------------------

    def session_ended(self, session: Session, event: SessionEnd) -> None:
        """Take note that a session ended, and tell the hooks."""
        with self._lock:
            self.last_end = event
            if self._live.get(session.id) is not session:
                pass  # another run has its id, or it was given up: that one's place is not this one's
            elif event.reason == "paused":
                self._paused[session.id] = None
                while len(self._paused) > MAX_PAUSED:
                    self._live.pop(self._paused.popitem(last=False)[0], None)
            else:
                del self._live[session.id]
                self._paused.pop(session.id, None)
        if self.enabled:
            self.plugins.session_end(event)

    def session_resumed(self, session: SessionState) -> None:
        """Take note that a paused session goes on."""
        with self._lock:
            self._paused.pop(session.id, None)
            if isinstance(session, Session):
                self._live.setdefault(session.id, session)

    def end_with(self, owner: object, session: Session, reason: Callable[[], EndReason]) -> None:
        """End a session once an object that lives as long as its run is gone, unless it ended before.

        Only the last owner counts: a run that was resumed lives on with another one.

        Args:
            owner: The object.
            session: The session; it is then forgotten, so a resumed run goes on from its saved state.
            reason: Says why, as far as can be known.
        """
        session.owners += 1
        number = session.owners

        def end() -> None:
            if session.ended is None and session.owners == number:
                session.end(reason())
                self.discard(session.id)

        _unseen.when_gone(owner, end, partial(self.faults.note, "end"))

    def count(self, label: str) -> None:
        """Count something that is tolerated and not worth a log line."""
        with self._lock:
            self._counts[label] += 1

    def key_to_save(self, key: bytes | None) -> str | None:
        """The key of a process travels in saved state; a policy's does not."""
        return None if key is None or self.policy.privacy.fingerprint_key is not None else key.hex()

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def registered_plugins(self) -> tuple[PluginInfo, ...]:
        """What is registered, in order."""
        return self.plugins.registered

    @property
    def counts(self) -> dict[str, int]:
        """Things that were tolerated, by name: for tests and dashboards."""
        return dict(self._counts)

    async def adrain(self) -> None:
        """Wait for `async` hooks that run on this event loop."""
        if self.plugins.background.pending:
            await self.plugins.background.adrain()

    def close(self, timeout: float | None = 5.0) -> None:
        """Let go of the keys' store, and wait for what still runs: settling with it, `async` hooks, unseen ends.

        Args:
            timeout: The most seconds to wait for hooks and unseen ends.
        """
        _unseen.drain(timeout)
        self.plugins.background.drain(timeout)
        if self._keys is not None:
            self._keys.ledger.close()

    @property
    def _keys(self) -> KeySource | None:
        return self._maker.keys


def as_guard(guard: LoopGuard | PolicyLike) -> LoopGuard:
    """What every adapter does with its `guard` argument.

    Args:
        guard: A guard; or a policy, a preset's name, a path with a suffix, a mapping; None finds the config file.

    Raises:
        PolicyError: The policy cannot be used.
    """
    if isinstance(guard, LoopGuard):
        return guard
    return LoopGuard(resolve_policy(guard))
