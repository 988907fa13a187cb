"""Begins, continues, parks and ends the sessions of the runs a callback handler sees."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from langchain_core.messages import BaseMessage

from loopguard_core import EndReason, LoopGuard, Session, current_session
from loopguard_langchain._conversations import Conversation, Conversations, user_spoke
from loopguard_langchain._guarded import refusable
from loopguard_langchain._runs import MAX_CONVERSATIONS, Run, RunTree, Scope

MAX_LOOSE = 2_000
"""Hand-written loops that may be under way at once, abandoned ones included; they have no end of their own."""

MAX_PARKED = 10_000
"""Threads whose interrupted runs are remembered."""

_INTERRUPTS = frozenset({"GraphInterrupt", "NodeInterrupt"})

_REASONS: dict[str, EndReason] = {
    "GraphDrained": "cancelled",
    "GraphRecursionError": "max_turns",
    "NodeCancelledError": "cancelled",
}
"""LangGraph's own ways to end a run, by class name: langgraph need not be installed."""

_HANDOFF = "ParentCommand"
"""How an agent inside a graph hands over to another one: its run is complete."""


class _Parked(NamedTuple):
    """An interrupted run. It names its session, so that nothing here keeps a guard alive."""

    session_id: str
    keys: tuple[str, ...]
    humans: int
    stopped: dict[str, Any] | None
    """Its state, where it was ended as well: `drain` lets a round finish that a human is asked about."""


_parked: WeakKeyDictionary[LoopGuard, OrderedDict[str, dict[str, _Parked]]] = WeakKeyDictionary()
"""Interrupted runs by guard, thread and namespace: whoever resumes one may come with a new handler."""


class Sessions:
    """The sessions behind one handler.

    Args:
        guard: Whose sessions they are.
        tree: The runs they belong to.
    """

    def __init__(self, guard: LoopGuard, tree: RunTree) -> None:
        self._guard = guard
        self._tree = tree
        self._lock = threading.RLock()
        self._loose = Conversations(MAX_LOOSE)
        self._parked = _parked.setdefault(guard, OrderedDict())
        self._refusable = refusable(guard)

    def __len__(self) -> int:
        return len(self._loose)

    # -- which session a model call belongs to -----------------------------------------------------------------

    def conversation(self, run: Run, history: Sequence[BaseMessage], metadata: Mapping[str, Any]) -> Conversation:
        """What a request belongs to, now busy. It has no session while it may be a single question beside the loop."""
        scope, agent = run.scope, metadata.get("lc_agent_name")
        node, step = metadata.get("langgraph_node"), metadata.get("langgraph_step")
        place = (node, step) if isinstance(node, str) and isinstance(step, int) else None
        with self._lock:
            if scope.session is None:
                found = self._begin(scope, history, agent)
            else:
                found = scope.conversations.take(history) or Conversation(busy=True)
            found.run_id, found.place = run.id, place
            calls, found.unjudged = found.unjudged, []
            if calls:  # a second loop in the same run
                found.session = self._open(scope, scope.session, agent)
        if calls and found.session is not None:
            found.session.begin_round(calls)
        return found

    def _begin(self, scope: Scope, history: Sequence[BaseMessage], agent: str | None) -> Conversation:
        found = self._loose.take(history) if scope.by_hand else None
        if found is not None and _stopped(found) and user_spoke(found, history, in_graph=scope.hosted):
            self._loose.drop(found)
            found = None
        scope.claimed = found is not None
        if found is None:
            if scope.graph:  # what waited at this place was not resumed
                self._cancel_parked(scope.thread_id, None if scope.outer is None else scope.namespace)
            found = Conversation(self._open(scope, scope.around, agent), busy=True)
        self._settle(scope, found, self._loose.keys(found))
        return found

    def _settle(self, scope: Scope, main: Conversation, keys: tuple[str, ...] = ()) -> None:
        scope.session, scope.main = main.session, main
        scope.conversations.pinned = main
        _end_oldest(scope.conversations.keep(main, keys))
        if scope.by_hand:
            self._keep_loose(main)

    def _open(self, scope: Scope, parent: Session | None, agent: str | None) -> Session:
        if parent is None:
            parent = current_session()
            parent = None if parent is None or parent.ended is not None else parent
        return self._guard.session(
            parent=parent, agent=agent, surface=self._refusable.surface, framework_run_id=str(scope.owner)
        )

    def claim(self, scope: Scope, conversation: Conversation) -> None:
        """A conversation asks for tools. The first one of a run that does is what the run's session is about."""
        with self._lock:
            before = scope.main
            if before is None or conversation.session not in (None, scope.session):
                return
            if before is not conversation:
                if scope.claimed and not before.goes_on_at(conversation.place):
                    return
                if before.session is not None:
                    for call_id, result in before.results.items():
                        before.session.record_result(call_id, result)
                conversation.session, before.session = before.session, None
                self._loose.drop(before)
                scope.conversations.drop(before)
                self._settle(scope, conversation)
            scope.claimed = True

    def answered(self, scope: Scope, conversation: Conversation, keys: tuple[str, ...], *, asked: bool) -> None:
        """A conversation got a response, which may be answered in turn.

        Args:
            scope: Its run.
            conversation: The conversation.
            keys: What the response is known by.
            asked: Whether it asks for tools. One beside the main loop that does not is over.
        """
        conversation.busy, conversation.asked, conversation.results = False, asked, {}
        if asked or conversation is scope.main:
            _end_oldest(scope.conversations.keep(conversation, keys))
        elif conversation.session is not None:
            conversation.session.end()
            scope.conversations.drop(conversation)

    def tool_starts(self, run: Run, call_id: str | None) -> Session | None:
        """The session whose call a tool run answers; agents inside it are nested in that."""
        scope = run.scope
        known = self._loose if scope.outer is None else scope.outer.conversations
        run.call_id, run.asking = call_id, known.asking(call_id)
        scope.caller = scope.around if run.asking is None or run.asking.session is None else run.asking.session
        return scope.caller

    def asking(self, run: Run | None, call_id: str | None) -> Session | None:
        """The session whose call a tool is about to answer; None if that cannot be told.

        Args:
            run: Where the tool is called.
            call_id: The id of the call. Without one it is the run's own loop or, by hand, the only one under way.
        """
        scope = None if run is None else run.scope
        found = None if scope is None else scope.conversations.asking(call_id)
        if found is None and (scope is None or scope.by_hand):
            found = self._loose.asking(call_id)
        if found is None and not call_id:
            under_way = list(self._loose)
            found = scope.main if scope is not None else (under_way[0] if len(under_way) == 1 else None)
        return None if found is None else found.session

    # -- the end -----------------------------------------------------------------------------------------------

    def over(self, scope: Scope, error: BaseException | None) -> None:
        """A run has ended: so have its sessions, unless it waits for a human or is a step of a hand-written loop."""
        session = scope.session
        if session is None:
            return
        interrupted = type(error).__name__ in _INTERRUPTS or (scope.paused and error is None)
        if interrupted and scope.graph:
            self._end_others(scope, "cancelled", None)
            self._park(scope, session)
        elif interrupted:  # the tool around it starts over when the graph resumes
            session.end("cancelled")
        elif not self._goes_on(scope, session, error):
            kind = type(error).__name__
            reason = _REASONS.get(kind)
            cause = None if kind == _HANDOFF else error
            self._end_others(scope, reason, cause)
            session.end(reason, cause)
            if scope.main is not None:
                self._loose.drop(scope.main)
            if scope.graph and scope.outer is None:
                self._cancel_parked(scope.thread_id)

    def _end_others(self, scope: Scope, reason: EndReason | None, error: BaseException | None) -> None:
        for conversation in scope.conversations:
            if conversation.session is not None and conversation is not scope.main:
                conversation.session.end(reason, error)

    def _goes_on(self, scope: Scope, session: Session, error: BaseException | None) -> bool:
        """Whether this was one step of a hand-written loop.

        Then its response asked for tools that did not run in it, or it can be tried again.
        """
        main = scope.main
        if main is None or scope.rounds > 1 or not scope.by_hand:
            return False
        if error is None and main.asked and not main.results:
            keys = scope.conversations.keys(main)
        elif isinstance(error, Exception) and self._loose.keys(main):
            keys = self._loose.keys(main)
        else:
            return False
        if error is not None or session.stop is not None:
            # It stays known: if somebody tries again it goes on, or, after a stop, is stopped again.
            session.end(error=error, may_go_on=True)
        main.busy = False
        self._keep_loose(main, keys)
        return True

    def _keep_loose(self, conversation: Conversation, keys: tuple[str, ...] | None = None) -> None:
        oldest = self._loose.keep(conversation, keys)
        _end_oldest(oldest)
        run = None if oldest is None else self._tree.get(oldest.run_id)
        if run is not None:
            self._tree.finish(run)

    def close(self, error: BaseException | None) -> None:
        """End the sessions of hand-written loops."""
        for conversation in self._loose:
            self._loose.drop(conversation)
            if conversation.session is not None:
                conversation.session.end(error=error)

    # -- interrupts --------------------------------------------------------------------------------------------

    def _park(self, scope: Scope, session: Session) -> None:
        session.pause()
        paused = session.end().reason == "paused"
        if not (paused or session.stop) or scope.adopted or scope.main is None or scope.thread_id is None:
            return
        keys, stopped = scope.conversations.keys(scope.main), None if paused else session.save()
        with self._lock:
            waiting = self._parked.setdefault(scope.thread_id, {})
            waiting[scope.namespace] = _Parked(session.id, keys, scope.main.humans, stopped)
            self._parked.move_to_end(scope.thread_id)
            if len(self._parked) > MAX_PARKED:
                self._cancel_parked(next(iter(self._parked)))

    def resume(self, scope: Scope, namespace: str) -> None:
        """A graph goes on where it was interrupted."""
        scope.namespace = namespace
        with self._lock:
            waiting = self._parked.get(scope.thread_id or "")
            parked = None if waiting is None else waiting.pop(namespace, None)
            if parked is None or scope.session is not None:
                return
            session = self._guard.live(parked.session_id)
            if session is None and parked.stopped is not None:
                session = self._guard.session(
                    parked.session_id,
                    state=parked.stopped,
                    surface=self._refusable.surface,
                    framework_run_id=str(scope.owner),
                )
            if session is None:
                return
            session.continued()
            scope.claimed = True
            self._settle(scope, Conversation(session, asked=True, humans=parked.humans), parked.keys)

    def _cancel_parked(self, thread_id: str | None, namespace: str | None = None) -> None:
        """Nobody will resume what waits in this thread, or in one place of it."""
        with self._lock:
            if namespace is None:
                waiting = self._parked.pop(thread_id or "", {})
            else:
                kept = self._parked.get(thread_id or "", {})
                waiting = {namespace: kept.pop(namespace)} if namespace in kept else {}
        for parked in waiting.values():
            session = self._guard.live(parked.session_id)
            if session is not None:
                session.end("cancelled")

    # -- a middleware ------------------------------------------------------------------------------------------

    def adopt(self, scope: Scope, session: Session) -> None:
        """Leave an agent run to a middleware of the same guard, and only see to its end."""
        before = scope.session
        if before is not None and before is not session and not scope.adopted:
            # A model call of other middleware came first, and passed for the run's own.
            self._guard.discard(before.id)
            scope.conversations = Conversations(MAX_CONVERSATIONS)
        scope.session, scope.main, scope.adopted = session, None, True


def _stopped(conversation: Conversation) -> bool:
    return conversation.session is not None and conversation.session.stop is not None


def _end_oldest(conversation: Conversation | None) -> None:
    """One that had to go for another."""
    if conversation is not None and conversation.session is not None:
        conversation.session.end("cancelled")
