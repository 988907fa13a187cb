"""The runs this adapter knows, and how an event of the SDK finds the run it belongs to.

The SDK gives a run no id. What stands for one: the context object that all model hooks of a run receive; the usage
object, shared by a whole tree of runs; the call ids of the running round; and, for model wrappers, which receive no
context, the very list that the hooks saw as this call's input.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from agents import RunContextWrapper, RunState

from loopguard_core import EndReason, LoopGuard, Session
from loopguard_openai_agents._run import Run, over

MAX_WAITING = 1_000
"""Runs that seem to wait for a human and whose objects are gone; older ones are given up."""


class Tree:
    """Runs that share one usage object: a run, and those inside its tools."""

    def __init__(self, usage: object) -> None:
        self._usage = weakref.ref(usage)  # not held: for a guardrail it is what shows that a run is gone
        self._runs: list[weakref.ref[Run]] = []

    def of(self, usage: object) -> bool:
        """Whether it is this object's. Ids alone are used again."""
        return self._usage() is usage

    def add(self, run: Run) -> None:
        """Note a run."""
        self._runs = [ref for ref in self._runs if ref() is not None]
        self._runs.append(weakref.ref(run))

    @property
    def runs(self) -> Iterator[Run]:
        """The runs that are not over, innermost first."""
        for ref in reversed(self._runs):
            run = ref()
            if run is not None and not over(run):
                yield run


class Registry:
    """All runs of this process. Everything in it is held weakly, but for runs that seem to wait for a human."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_context: weakref.WeakKeyDictionary[object, Run] = weakref.WeakKeyDictionary()
        self._by_owner: weakref.WeakKeyDictionary[object, Run] = weakref.WeakKeyDictionary()
        self._by_object: weakref.WeakValueDictionary[int, Run] = weakref.WeakValueDictionary()
        self._trees: weakref.WeakValueDictionary[int, Tree] = weakref.WeakValueDictionary()
        self._states: dict[int, tuple[weakref.ref[object], Run]] = {}
        self._watched: weakref.WeakSet[Run] = weakref.WeakSet()
        self._waiting: OrderedDict[Run, None] = OrderedDict()

    # -- by context ------------------------------------------------------------------------------------------------

    def bind(self, run: Run, context: RunContextWrapper[Any]) -> None:
        """This context is that run's."""
        with self._lock:
            self._by_context[context] = run
            self._waiting.pop(run, None)
        run.loose = False
        self.bind_usage(run, context.usage)

    def bind_usage(self, run: Run, usage: object) -> None:
        """This usage object is that run's."""
        if run.tree is not None and run.tree.of(usage):
            return
        with self._lock:
            tree = self._trees.get(id(usage))
            if tree is None or not tree.of(usage):
                tree = self._trees[id(usage)] = Tree(usage)
            run.tree = tree
            tree.add(run)

    def of_context(self, context: object) -> Run | None:
        """The run a model hook's context belongs to."""
        with self._lock:
            return self._by_context.get(context)

    def in_tree(self, usage: object) -> list[Run]:
        """The live runs that share this usage object, innermost first."""
        with self._lock:
            tree = self._trees.get(id(usage))
            return list(tree.runs) if tree is not None and tree.of(usage) else []

    def of_call(self, usage: object, call_id: str, item: object) -> Run | None:
        """The run whose last response asked for this call.

        Runs of one tree may use the same ids, since some providers count from zero in every conversation. Then it is
        the one with this very item.
        """
        runs = [run for run in self.in_tree(usage) if call_id in run.round.requests]
        return next((run for run in runs if run.round.requests[call_id].item is item), None) or next(iter(runs), None)

    def ending(self, usage: object, agent: object) -> Run | None:
        """The run in which this agent came to its end.

        The hook for it gets a context of its own. Where several runs of one agent share a tree, it is one whose last
        response asked for nothing; else one whose last round is answered, as where a tool's result is the output.
        """
        runs = [run for run in self.in_tree(usage) if run.agent is agent and run.responded]
        return next((run for run in runs if not run.round.requests), None) or next(
            (run for run in runs if not run.round.unanswered), None
        )

    def loose(self, usage: object, agent: object, *, inside: bool) -> Run | None:
        """The resumed run of this tree in which it is this agent's turn, if its context was not seen yet.

        Args:
            usage: The tree's.
            agent: Whose turn it is.
            inside: Whether the run is inside a tool. One that is not may have been handed over while it was resumed.
        """
        runs = [run for run in self.in_tree(usage) if run.loose]
        found = next((run for run in runs if run.agent is agent), None)
        return found if inside else found or _only(runs)

    # -- by object: for wrappers and guardrails, which see no context of the run ------------------------------------

    def note_items(self, run: Run, items: object) -> None:
        """This list is the input of that run's model call. The run holds it, so its id stands for nothing else."""
        with self._lock:
            self._by_object.pop(id(run.items), None)
            run.items = items
            self._by_object[id(items)] = run

    def of_items(self, items: object) -> Run | None:
        """The run whose hooks saw this very list."""
        with self._lock:
            run = self._by_object.get(id(items))
        return run if run is not None and run.items is items else None

    def note_round(self, run: Run) -> None:
        """The call items of that run's running round, which holds them, stand for the run."""
        with self._lock:
            for request in run.round.requests.values():
                self._by_object[id(request.item)] = run

    def forget_round(self, run: Run) -> None:
        """Its running round is over."""
        with self._lock:
            for request in run.round.requests.values():
                self._by_object.pop(id(request.item), None)

    def of_request(self, item: object) -> Run | None:
        """The run whose last response holds this very call item."""
        with self._lock:
            run = self._by_object.get(id(item))
        return run if run is not None and any(r.item is item for r in run.round.requests.values()) else None

    def of_owner(self, owner: object) -> Run | None:
        """The run a model wrapper opened for this owner, the SDK's own mark of a run in model calls."""
        with self._lock:
            return self._by_owner.get(owner)

    def bind_owner(self, run: Run, owner: object) -> None:
        """This owner is that run's."""
        with self._lock:
            self._by_owner[owner] = run

    # -- pauses ------------------------------------------------------------------------------------------------------

    def note_state(self, run: Run, state: object) -> None:
        """This `RunState` goes on with that run."""

        def forget(_: object, key: int = id(state)) -> None:
            self._states.pop(key, None)

        self._states[id(state)] = (weakref.ref(state, forget), run)

    def wait(self, run: Run) -> None:
        """The run waits for a human."""
        with self._lock:
            run.waits = True
            self._waiting[run] = None
            self._waiting.move_to_end(run)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popitem(last=False)  # it can be gone on with by its session's id

    def take(self, run: Run) -> bool:
        """Go on with a run that waits; False if somebody did already."""
        with self._lock:
            waited, run.waits = run.waits, False
            self._waiting.pop(run, None)
        return waited

    def of_session(self, guard: LoopGuard, session_id: str) -> Run | None:
        """The paused run of that session."""
        with self._lock:
            return next((run for run in self._waiting if run.guard is guard and run.session.id == session_id), None)

    def of_state(self, guard: LoopGuard, state: RunState[Any]) -> Run | None:
        """The paused run a `RunState` goes on with: by the object, or by the calls that wait, if only one run fits.

        The calls may be those of an agent inside a tool; then it is the outermost run around it.
        """
        known = self._states.get(id(state))
        if known is not None and known[0]() is state and known[1].guard is guard:
            return known[1]
        ids = {getattr(item.raw_item, "call_id", None) for item in state.get_interruptions()}
        with self._lock:
            waiting = {run.session: run for run in self._waiting if run.guard is guard}
            asking = [run for run in self._known(guard) if ids & run.round.undecided]
        around = [[waiting[session] for session in _line(run.session) if session in waiting] for run in asking]
        return _only(list({runs[-1] for runs in around if runs}))

    def resumed(self, guard: LoopGuard, call_ids: Iterable[str]) -> Run | None:
        """The run one of these calls belongs to, where a run nobody knows shows up with them: a resumed one.

        Only if a single run fits; a provider may reuse call ids.
        """
        ids = set(call_ids)
        if not ids:
            return None
        with self._lock:
            known = self._known(guard)
        waiting = [run for run in known if ids & run.round.unanswered and not over(run)]
        return _only([run for run in waiting if ids & run.round.undecided] or waiting)

    def goes_on(self, run: Run, usage: object) -> None:
        """A resumed run shows up with this usage object, and the runs around it go on with it."""
        self.bind_usage(run, usage)
        with self._lock:
            line = list(_line(run.session))
            around = [other for other in self._watched if other.session in line]
        for other in around:
            self.watch(other, usage)
        run.loose = True

    # -- runs whose end nobody reports -------------------------------------------------------------------------------

    def watch(self, run: Run, witness: object) -> None:
        """End the session once this object is gone, and the run with it. The last object said counts."""
        with self._lock:
            self._watched.add(run)
        run.guard.end_with(witness, run.session, partial(self._unseen_end, run))

    def _unseen_end(self, run: Run) -> EndReason:
        """How a run ended that died without a word."""
        if run.finished:
            return "complete"
        if _asks(run):
            self.wait(run)
            return "paused"
        return "cancelled"

    def _known(self, guard: LoopGuard) -> set[Run]:
        """Runs that may be gone on with."""
        return {run for run in (*self._by_context.values(), *self._watched, *self._waiting) if run.guard is guard}


def _only(runs: Sequence[Run]) -> Run | None:
    return runs[0] if len(runs) == 1 else None


def _line(session: Session) -> Iterator[Any]:
    """A session and those around it, from the inside out."""
    around: Any = session
    while around is not None:
        yield around
        around = around.parent


def _asks(run: Run) -> bool:
    """Whether a human may be asked about a call of this run, or of a run inside its tools."""
    tree = () if run.tree is None else run.tree.runs
    return any(other.round.undecided and run.session in _line(other.session) for other in tree)


registry = Registry()


def session_of(result: Any) -> Session | None:
    """The session of a run, for its figures, or to save a paused one.

    Args:
        result: A run's result, the `run_data` of an exception, or the run's context.
    """
    context = getattr(result, "context_wrapper", result)
    run = registry.of_context(context) if isinstance(context, RunContextWrapper) else None
    return None if run is None else run.session
