"""`LoopGuardEventHandler`: observes whatever LlamaIndex's instrumentation shows."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
)
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.events.span import SpanDropEvent
from pydantic import PrivateAttr

from loopguard_core import LoopGuard, PolicyLike, Session, as_guard, current_session
from loopguard_llama_index import _registry as registry
from loopguard_llama_index import _seams as seams
from loopguard_llama_index._observed import Observed
from loopguard_llama_index._surfaces import EVENT_HANDLER, TOOL

_ENDS = {"workflow.output": "complete", "SpanDropEvent": "error", "SpanCancelledEvent": "cancelled"}
"""What the span of a run ends with, and what that means."""

_STEP = "step.output"
"""A step of a workflow is done: most events are this, and it says nothing."""


class Watcher:
    """What one guard knows of runs it sees through instrumentation alone.

    Args:
        guard: The guard.
    """

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = weakref.ref(guard)
        self._lock = threading.Lock()
        self._runs: dict[str, Observed] = {}
        self._seen = threading.local()
        self.has_tools = False
        self.watches_all = False

    @property
    def guard(self) -> LoopGuard | None:
        """The guard, while there is one."""
        return self._guard()

    def handle(self, event: BaseEvent) -> None:
        """Take note of an event; of one that comes through two handlers, once."""
        if event.class_name() == _STEP:
            return
        guard = self.guard
        run_id = event.tags.get(seams.RUN_ID)
        if guard is None or not guard.enabled or not isinstance(run_id, str) or registry.guards(guard, run_id):
            return
        if getattr(self._seen, "event", None) is event:
            return
        self._seen.event = event
        with guard.faults.contained("llama_index LoopGuardEventHandler"):
            self._handle(event, run_id)

    def _handle(self, event: BaseEvent, run_id: str) -> None:
        if isinstance(event, LLMChatInProgressEvent):
            self._run(run_id).hears(event.response)
        elif isinstance(event, LLMChatStartEvent):
            run = self._run(run_id)
            if self.watches_all:
                run.watch()
            run.asks(event.messages, _model(event.model_dict))
        elif isinstance(event, LLMChatEndEvent):
            self._run(run_id).answers(event.response)
        elif event.class_name() in _ENDS and ".run-" in (event.span_id or ""):
            self._over(run_id, event)
        elif isinstance(event, (ExceptionEvent, SpanDropEvent)):
            # A span names its error by text alone, but reports it where it is being handled.
            self._run(run_id).fails(getattr(event, "exception", None) or sys.exception())

    def run(self, run_id: str) -> Observed:
        """The run of that id, watched or not."""
        return self._run(run_id)

    def _run(self, run_id: str) -> Observed:
        with self._lock:
            run = self._runs.get(run_id)
            if run is None:
                parent = current_session()
                guard = self.guard
                if parent is not None and (guard is None or guard.live(parent.id) is not parent):
                    parent = None  # another guard counts this run in that session itself
                run = self._runs[run_id] = Observed(run_id, lambda: self._open(run_id, parent))
        return run

    def _open(self, run_id: str, parent: Session | None) -> Session:
        guard = self.guard
        assert guard is not None, "a run is only opened while its guard is at work"  # noqa: S101
        surface = TOOL if self.has_tools else EVENT_HANDLER
        return guard.session(parent=parent, surface=surface, framework_run_id=run_id)

    def _over(self, run_id: str, event: BaseEvent) -> None:
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is None or run.session is None:
            return
        reason = _ENDS[event.class_name()]
        if reason == "error" and seams.says_turn_limit(str(getattr(event, "err_str", ""))):
            reason = "max_turns"
        run.session.end(None if reason == "complete" else reason, run.raised)  # type: ignore[arg-type]  # they are


def _model(model_dict: dict[str, Any]) -> str | None:
    name = model_dict.get("model") or model_dict.get("model_name")
    return name if isinstance(name, str) else None


_watchers: weakref.WeakKeyDictionary[LoopGuard, Watcher] = weakref.WeakKeyDictionary()


def watcher_of(guard: LoopGuard) -> Watcher:
    """The one watcher of a guard."""
    watcher = _watchers.get(guard)
    if watcher is None:
        watcher = _watchers.setdefault(guard, Watcher(guard))
    return watcher


def listen(guard: LoopGuard) -> Watcher:
    """Let a guard see instrumentation without a handler of the user's, for the sake of its guarded tools."""
    watcher = watcher_of(guard)
    root = get_dispatcher()
    if not any(isinstance(handler, _Listener) and handler.watcher is watcher for handler in root.event_handlers):
        listener = _Listener(watcher)
        root.event_handlers = [*root.event_handlers, listener]
        weakref.finalize(guard, _forget, listener)
    return watcher


def _forget(listener: _Listener) -> None:
    # A new list: an event may be on its way through the old one, in this thread too.
    root = get_dispatcher()
    root.event_handlers = [handler for handler in root.event_handlers if handler is not listener]


class _Listener(BaseEventHandler):
    """Passes events on to a watcher."""

    _watcher: Watcher = PrivateAttr()

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    @property
    def watcher(self) -> Watcher:
        """The watcher."""
        return self._watcher

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex shows."""
        return cls.__name__

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Take note of an event."""
        self._watcher.handle(event)


class LoopGuardEventHandler(_Listener):
    """Observes every workflow run of this process: `get_dispatcher().add_event_handler(LoopGuardEventHandler(guard))`.

    LlamaIndex swallows everything an event handler raises and ignores everything it changes: nothing is refused, and
    no run is ended. Verdicts and usage reach the hooks; a session that was to stop ends as `doom_loop` all the same,
    which is the signal to alert on. Runs of agents that `guard_agent` guards with the same guard are left to it.

    Args:
        guard: A `LoopGuard`, a policy, a preset's name, a path with a suffix; None finds the config file.

    Raises:
        PolicyError: The policy cannot be used.
    """

    _guard: LoopGuard = PrivateAttr()

    def __init__(self, guard: LoopGuard | PolicyLike = None) -> None:
        made = as_guard(guard)
        super().__init__(watcher_of(made))
        self._guard = made
        self._watcher.watches_all = True
        made.attach(EVENT_HANDLER)
