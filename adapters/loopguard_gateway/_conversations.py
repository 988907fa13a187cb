"""Which session a request goes on with.

Every request carries its conversation, so a session is found by what it has seen: a digest of everything up to and
including its last response. A request that begins with exactly that goes on where it was, and only what follows is new.
Anything else (another branch, a history that was cut or summarised, a process that was started anew) is read from its
last user's message on. Both ways lead to the same verdicts, because a detector has no clock and no chance; what is
lost with a forgotten session is what no conversation shows: cost, time, refusals given on the model's behalf.

A run is what follows one user's message. A name in `x-loopguard-session` puts further conversations (agents within an
agent, a summarised history) into one run: they share its limits on cost, tokens, time and calls, and its end.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from loopguard_core import Decision, LoopGuard, Session
from loopguard_core.transcripts import AssistantMessage, Message, ToolResult, UserMessage, is_user_turn, recall
from loopguard_gateway._surfaces import GATEWAY

IDLE = 3600.0
"""Seconds after which an idle conversation is taken to be over."""

_MOST_MESSAGES = 10_000
_MOST_VALUES = 50_000
MOST_TEXT = 8 * 1024 * 1024
"""How large a conversation may be that is read, beyond what any model reads: to read takes up to a second then, in
which nobody else is served."""


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation as far as it was seen.

    Attributes:
        session: Its session.
        tokens: Tokens of the last request and its response, where the provider keeps the conversation.
        suspicious: Whether calls were repeated: from then on the calls of a stream are held until they were judged.
        over: Whether the last response asked for nothing, so that a user's message begins a new run.
        cuts: How often a stream was cut.
        places: What it is found by.
        used: When it was last used.
    """

    session: Session
    tokens: int = 0
    suspicious: bool = False
    over: bool = False
    cuts: int = 0
    places: tuple[bytes, ...] = ()
    used: float = field(default_factory=time.monotonic)

    def note(self, message: AssistantMessage, decisions: Sequence[Decision]) -> None:
        """A response, and what was made of its calls."""
        self.over = not message.calls
        if any(decision.streak > 1 or decision.verdict is not None for decision in decisions):
            self.suspicious = True


_Name = tuple[str, str]
"""A client's key, and the name it gave a run."""


@dataclass(slots=True, eq=False)
class _Run:
    """A named run: its session, around those of its conversations, and when it was last used."""

    session: Session
    used: float


class Conversations:
    """The conversations of one process. Used on the event loop alone.

    Args:
        guard: Makes the sessions.
        most: How many are remembered.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, guard: LoopGuard, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._most = most
        self._clock = clock
        self._found: dict[bytes, Conversation] = {}
        self._kept: OrderedDict[int, Conversation] = OrderedDict()  # the one used longest ago first
        self._runs: OrderedDict[_Name, _Run] = OrderedDict()  # likewise
        self._served: Counter[_Name] = Counter()  # requests of each named run that are being served

    def __len__(self) -> int:
        return len(self._kept)

    # -- finding -----------------------------------------------------------------------------------------------

    def take(self, places: Sequence[bytes]) -> tuple[int, Conversation] | None:
        """The conversation that has seen the longest beginning, and how long that is. It is nobody else's then."""
        for length in range(len(places) - 1, -1, -1):
            conversation = self._found.get(places[length])
            if conversation is not None:
                self._forget(conversation)
                return length, conversation
        return None

    def put(self, conversation: Conversation, places: Sequence[bytes]) -> None:
        """Let it be found by the next request."""
        self._forget(conversation)
        conversation.places, conversation.used = tuple(places), self._clock()
        for place in conversation.places:
            other = self._found.get(place)
            if other is not None and other is not conversation:  # a run that is the same to the letter
                self.drop(other)
            self._found[place] = conversation
        self._kept[id(conversation)] = conversation
        self._tidy()

    def drop(self, conversation: Conversation) -> None:
        """It is over."""
        self._forget(conversation)
        conversation.session.end()

    def _forget(self, conversation: Conversation) -> None:
        self._kept.pop(id(conversation), None)
        for place in conversation.places:
            if self._found.get(place) is conversation:
                del self._found[place]
        conversation.places = ()

    def _tidy(self) -> None:
        idle = self._clock() - IDLE
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.used > idle and len(self._kept) <= self._most:
                break
            self.drop(oldest)
        while self._runs:
            name, run = next(iter(self._runs.items()))
            if run.used > idle and len(self._runs) - len(self._served) <= self._most:
                break
            if name in self._served:
                self._touch(name)
            else:
                self._runs.popitem(last=False)
                run.session.end()

    def close(self) -> None:
        """All of them are over."""
        for conversation in list(self._kept.values()):
            self.drop(conversation)
        for run in self._runs.values():
            run.session.end()
        self._runs.clear()

    # -- named runs --------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self, key: str, run: str | None) -> Iterator[None]:
        """A request is being served: the run it belongs to is in use, and lives on."""
        if run is None:
            yield
            return
        name = (key, run)
        self._served[name] += 1
        self._touch(name)
        try:
            yield
        finally:
            self._touch(name)
            self._served[name] -= 1
            if not self._served[name]:
                del self._served[name]
            self._tidy()  # also where no conversation is kept

    def _touch(self, name: _Name) -> None:
        if name in self._runs:
            self._runs.move_to_end(name)
            self._runs[name].used = self._clock()

    # -- beginning ---------------------------------------------------------------------------------------------

    def begin(self, key: str, run: str | None, messages: Sequence[Message]) -> Conversation:
        """A new session that has read a conversation, which ends with what the next model call answers."""
        outer = None if run is None else self._run(key, run)
        if outer is None:
            conversation = Conversation(self._guard.session(surface=GATEWAY))
            feed(conversation, messages)
            return conversation
        # What the history holds was counted on the run when it happened, and is not counted twice: it is read outside
        # of it. The session has the same id before and after, so that hooks know it by one name, and hear of its end.
        reading = Conversation(self._guard.session(surface=GATEWAY, framework_run_id=run))
        session_id = reading.session.id
        feed(reading, messages)
        state = reading.session.save()
        self._guard.discard(session_id)
        reading.session = self._guard.session(
            session_id, parent=outer, state=state, surface=GATEWAY, framework_run_id=run
        )
        return reading

    def _run(self, key: str, run: str) -> Session:
        known = self._runs.get((key, run))
        if known is None:
            session = self._guard.session(surface=GATEWAY, framework_run_id=run)
            known = self._runs[key, run] = _Run(session, self._clock())
        return known.session


def too_large(items: Sequence[Any]) -> bool:
    """Whether a conversation is larger than any that a model could have had."""
    values, text, rest = 0, 0, list(items)
    while rest and values <= _MOST_VALUES and text <= MOST_TEXT:
        value = rest.pop()
        if isinstance(value, str):
            text += 0 if value.startswith("data:image/") else len(value)
        elif isinstance(value, dict):
            values += 1
            rest += value.values()
        elif isinstance(value, list):
            values += 1
            rest += value
    return len(items) > _MOST_MESSAGES or bool(rest) or values > _MOST_VALUES or text > MOST_TEXT


def run_begins(messages: Sequence[Message], *, over: bool) -> int | None:
    """Where the last run begins: the place after the user's message that asks for it; None if none does.

    Args:
        messages: What is new.
        over: Whether what came before it ends a run.
    """
    begins: int | None = None
    for place, message in enumerate(messages, 1):
        if isinstance(message, UserMessage):
            if over and is_user_turn(message):
                begins = place
        elif isinstance(message, AssistantMessage):
            over = not message.calls
        elif isinstance(message, ToolResult):
            over = False
    return begins


def feed(conversation: Conversation, messages: Sequence[Message]) -> None:
    """Let a session read messages that are already said and done."""
    for message in messages:
        decisions = recall(conversation.session, message)
        if isinstance(message, AssistantMessage):
            conversation.note(message, decisions)
