"""The sessions of graphs that only their tool nodes know of: everything is read from the messages in the state."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import get_runtime

from loopguard_core import LoopGuard, Session, current_session
from loopguard_langchain import _translate as translate
from loopguard_langchain._conversations import Conversation, user_spoke
from loopguard_langchain._surfaces import TOOL_CALL_WRAPPER

MAX_RUNS = 2_000
"""Runs that are remembered; their ends are not seen, so those used longest ago go first."""

MAX_AT_ONCE = 16
"""Runs of one thread that are remembered: graphs with memories of their own may be given the same thread id."""

Key = tuple[object, str]
"""An invocation or a thread, and the place of the graph inside it."""


@dataclass(slots=True, eq=False)
class ToolRun:
    """One run of a graph.

    Attributes:
        session: Its session.
        key: The invocation it was last seen in.
        thread: Its thread.
        control: LangGraph's object for the invocation, kept so that its address stays its own.
        user: What the user said last, as far as it can be told apart.
        calls: The running round: where its message is, and the ids of its calls.
        judged: The last rounds. Parallel branches of a graph may hand in their calls in turn.
        open: Those that have not been answered yet.
        said: How many messages by users there were.
        lock: Held while a round begins: its calls come from several threads at once.
    """

    session: Session
    key: Key
    thread: Key | None
    control: Any
    user: object
    calls: tuple[object, ...] | None = None
    judged: deque[tuple[object, ...]] = field(default_factory=lambda: deque(maxlen=16))
    open: set[str] = field(default_factory=set)
    said: Conversation = field(default_factory=Conversation)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def answered(self, call_id: str) -> None:
        """One call of the round is over. After the last one of a run that is to end, so is the session."""
        with self.lock:
            self.open.discard(call_id)
            if self.session.stop is not None and not self.open:
                self.session.end()


class ToolRuns:
    """Finds and makes the runs of one guard.

    Args:
        guard: Whose sessions they are.
    """

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = guard
        self._lock = threading.Lock()
        self._runs: OrderedDict[Key, ToolRun] = OrderedDict()
        self._threads: dict[Key, list[ToolRun]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def of(self, request: ToolCallRequest) -> tuple[ToolRun | None, bool]:
        """The run a call belongs to, its round judged; None where that cannot be told.

        Returns:
            With it, whether it was this call whose round was judged.
        """
        messages, index = _round(request.state, request.tool_call["id"])
        try:
            control = get_runtime().control
        except (RuntimeError, AttributeError):  # not in a graph
            control = None
        config: Any = request.runtime.config
        thread = (config.get("configurable") or {}).get("thread_id")
        if index < 0 or (control is None and thread is None):
            text = "A call could not be found in the messages of a graph's state, so its round was not judged."
            self._guard.faults.note("tool_call_wrapper", text=text)
            return None, False
        metadata = config.get("metadata") or {}
        place = str(metadata.get("langgraph_checkpoint_ns") or "").rpartition("|")[0]
        at = None if thread is None else (str(thread), place)
        key = (at if control is None else id(control), place)
        with self._lock:
            run = self._runs.get(key)
            if run is None or run.thread != at:
                run = self._of_thread(at, messages, index) or ToolRun(
                    self._open(thread, metadata.get("lc_agent_name")), key, at, control, _user(messages[:index])
                )
            self._keep(run, key)
        with run.lock:
            if run.control is not control:
                run.control = control
                run.session.continued()
            return run, self._judge(run, messages, index)

    def _of_thread(self, thread: Key | None, messages: Sequence[BaseMessage], index: int) -> ToolRun | None:
        """The run that another invocation of a thread goes on with. One whose conversation went on is over."""
        known = [] if thread is None else self._threads.get(thread, [])
        shown = [run for run in known if _shows(run, messages[: index + 1])]
        found = next((run for run in shown if run.user == _user(messages[:index])), None)
        for run in (*shown, *known[: len(known) - MAX_AT_ONCE + 1]):
            if run is not found:
                self._forget(run)
                run.session.end()
        return found

    def _open(self, thread: object, agent: str | None) -> Session:
        outer = current_session()
        return self._guard.session(
            parent=None if outer is None or outer.ended is not None else outer,
            agent=agent,
            surface=TOOL_CALL_WRAPPER,
            framework_run_id=None if thread is None else str(thread),
        )

    def _keep(self, run: ToolRun, key: Key) -> None:
        self._forget(run)
        run.key = key
        self._runs[key] = run
        if run.thread is not None:
            self._threads.setdefault(run.thread, []).append(run)
        if len(self._runs) > MAX_RUNS:
            oldest = next(iter(self._runs.values()))
            self._forget(oldest)
            self._guard.discard(oldest.session.id)  # how it ended, if it did, nobody knows

    def _forget(self, run: ToolRun) -> None:
        if self._runs.get(run.key) is run:
            del self._runs[run.key]
        known = [] if run.thread is None else self._threads.get(run.thread, [])
        if run in known:
            known.remove(run)
        if run.thread is not None and not known:
            self._threads.pop(run.thread, None)

    def _judge(self, run: ToolRun, messages: Sequence[BaseMessage], index: int) -> bool:
        message = messages[index]
        calls = _calls(message, index)
        if not isinstance(message, AIMessage) or calls in run.judged:
            return False
        session, before = run.session, messages[:index]
        with self._guard.faults.contained("reading results"):
            for result in _results(before, run.calls):
                session.record_result(result.tool_call_id, translate.output_of(result), translate.failed(result))
        if user_spoke(run.said, before, in_graph=True):
            session.user_turn()
        with self._guard.faults.contained("reading usage"):
            session.end_message(translate.finish_reason_of(message))
            session.after_model_call(translate.model_of(message), translate.usage_of(message))
        asked = translate.calls_of(message)
        for call in asked:
            call.refusable = isinstance(call.arguments, dict)  # what could not be parsed never comes here
        run.judged.append(calls)
        run.user = _user(before)
        run.calls, run.open = calls, {call["id"] or "" for call in message.tool_calls}
        session.begin_round(asked)
        return True


_shared: WeakKeyDictionary[LoopGuard, ref[ToolRuns]] = WeakKeyDictionary()
"""The runs of a guard, for as long as a wrapper of it lives; they hold the guard."""
_shared_lock = threading.Lock()


def tool_runs(guard: LoopGuard) -> ToolRuns:
    """The runs of a guard: a node's sync and async wrappers share them."""
    with _shared_lock:
        known = _shared.get(guard)
        runs = None if known is None else known()
        if runs is None:
            runs = ToolRuns(guard)
            _shared[guard] = ref(runs)
        return runs


def _round(state: Any, call_id: str | None) -> tuple[list[BaseMessage], int]:
    """The messages, and where among them the response is that asks for a call; -1 if it is nowhere."""
    fields = state if isinstance(state, dict) else getattr(state, "__dict__", {})
    lists = [state] if isinstance(state, list) else [fields.get("messages"), *fields.values()]
    for messages in lists:
        if isinstance(messages, list):
            for index in range(len(messages) - 1, -1, -1):
                message = messages[index]
                if isinstance(message, AIMessage) and any(call["id"] == call_id for call in message.tool_calls):
                    return messages, index
    return [], -1


def _calls(message: BaseMessage, index: int) -> tuple[object, ...]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return (index, message.id, *(call["id"] for call in calls))


def _results(messages: Sequence[BaseMessage], calls: tuple[object, ...] | None) -> list[ToolMessage]:
    """What the calls of the last round returned, oldest first."""
    wanted = set(() if calls is None else calls[2:])
    found: list[ToolMessage] = []
    for message in reversed(messages):
        if isinstance(message, ToolMessage) and message.tool_call_id in wanted:
            found.append(message)
        elif isinstance(message, AIMessage) and any(call["id"] in wanted for call in message.tool_calls):
            break
    return found[::-1]


def _user(messages: Sequence[BaseMessage]) -> object:
    said = [message for message in messages if isinstance(message, HumanMessage)]
    return None if not said else (said[-1].id or len(said))


def _shows(run: ToolRun, messages: Sequence[BaseMessage]) -> bool:
    """Whether a run's last round is in a history. Ids of calls are only as unique as the provider makes them."""
    if run.calls is None:
        return False
    message_id, wanted = run.calls[1], set(run.calls[2:])
    return any(
        isinstance(message, AIMessage)
        and any(call["id"] in wanted for call in message.tool_calls)
        and (None in (message.id, message_id) or message.id == message_id)
        for message in messages
    )
