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
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopguard_core import Channel, Decision, LoopGuard, Session, Verdict
from loopguard_core.transcripts import AssistantMessage, Message, ToolResult, UserMessage
from loopguard_gateway._surfaces import GATEWAY

IDLE = 3600.0
"""Seconds after which an idle conversation is taken to be over."""

_MOST_MESSAGES = 10_000
_MOST_VALUES = 50_000
_MOST_TEXT = 8 * 1024 * 1024
"""How large a conversation may be that is read, beyond what any model reads: to read takes up to a second then, in
which nobody else is served."""
_PIECE = 256
_NOT_THE_USER = ("[loopguard]", "[system", "<system")
"""What programs say in the user's place, as `loopguard replay` has it."""


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
        self._runs: OrderedDict[tuple[str, str], tuple[Session, float]] = OrderedDict()

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
            session, used = next(iter(self._runs.values()))
            if used > idle and len(self._runs) <= self._most:
                break
            self._runs.popitem(last=False)
            session.end()

    def close(self) -> None:
        """All of them are over."""
        for conversation in list(self._kept.values()):
            self.drop(conversation)
        for session, _ in self._runs.values():
            session.end()
        self._runs.clear()

    # -- beginning ---------------------------------------------------------------------------------------------

    def begin(self, key: str, run: str | None, messages: Sequence[Message]) -> Conversation:
        """A new session that has read a conversation, which ends with what the next model call answers."""
        outer = None if run is None else self._run(key, run)
        if outer is None:
            conversation = Conversation(self._guard.session(surface=GATEWAY))
            feed(conversation, messages)
            return conversation
        # What the history holds was counted on the run when it happened, and is not counted twice.
        reading = Conversation(self._guard.session(surface=GATEWAY))
        feed(reading, messages)
        state = reading.session.save()
        self._guard.discard(reading.session.id)
        reading.session = self._guard.session(parent=outer, state=state, surface=GATEWAY, framework_run_id=run)
        return reading

    def _run(self, key: str, run: str) -> Session:
        known = self._runs.pop((key, run), None)
        session = self._guard.session(surface=GATEWAY, framework_run_id=run) if known is None else known[0]
        self._runs[key, run] = (session, self._clock())
        return session


def too_large(items: Sequence[Any]) -> bool:
    """Whether a conversation is larger than any that a model could have had."""
    values, text, rest = 0, 0, list(items)
    while rest and values <= _MOST_VALUES and text <= _MOST_TEXT:
        value = rest.pop()
        if isinstance(value, str):
            text += 0 if value.startswith("data:image/") else len(value)
        elif isinstance(value, dict):
            values += 1
            rest += value.values()
        elif isinstance(value, list):
            values += 1
            rest += value
    return len(items) > _MOST_MESSAGES or bool(rest) or values > _MOST_VALUES or text > _MOST_TEXT


def run_begins(messages: Sequence[Message], *, over: bool) -> int | None:
    """Where the last run begins: the place after the user's message that asks for it; None if none does.

    Args:
        messages: What is new.
        over: Whether what came before it ends a run.
    """
    begins: int | None = None
    for place, message in enumerate(messages, 1):
        if isinstance(message, UserMessage):
            if over and not message.content.lstrip().startswith(_NOT_THE_USER):
                begins = place
        elif isinstance(message, AssistantMessage):
            over = not message.calls
        elif isinstance(message, ToolResult):
            over = False
    return begins


def feed(conversation: Conversation, messages: Sequence[Message]) -> None:
    """Let a session read messages that are already said and done."""
    session = conversation.session
    for message in messages:
        if isinstance(message, ToolResult):
            session.record_result(message.call_id, message.output, message.is_error)
        elif isinstance(message, UserMessage):
            if not message.content.lstrip().startswith(_NOT_THE_USER):
                session.user_turn()
        elif isinstance(message, AssistantMessage):
            session.before_model_call(message.model)
            speak(session, message)
            note_round(conversation, message)


def speak(session: Session, message: AssistantMessage) -> list[Verdict]:
    """A whole response, in pieces as a stream would bring it; what was found in it."""
    found: list[Verdict | None] = []
    texts: tuple[tuple[Channel, str], ...] = (("reasoning", message.reasoning), ("content", message.content))
    for channel, text in texts:
        pieces = (text[begin : begin + _PIECE] for begin in range(0, min(len(text), _MOST_TEXT), _PIECE))
        found += [session.feed_text(piece, channel) for piece in pieces]
    session.feed_text("", "content")  # an empty message is known to be empty
    found.append(session.end_message(finish_of(message)))
    return [verdict for verdict in found if verdict is not None]


def finish_of(message: AssistantMessage) -> str:
    """Why a message ended, also where nobody said so."""
    return message.finish_reason or ("tool_calls" if message.calls else "stop")


def note_round(conversation: Conversation, message: AssistantMessage) -> list[Decision]:
    """Judge the calls of a response."""
    conversation.over = not message.calls
    decisions = conversation.session.begin_round(message.calls) if message.calls else []
    if any(decision.streak > 1 or decision.verdict is not None for decision in decisions):
        conversation.suspicious = True
    return decisions
