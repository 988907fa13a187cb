"""Which model calls go on from one another, told from what they were sent.

One run may hold several conversations: a loop beside a grader that is asked once a document, workers in a fan-out, the
model that picks tools for another model. And a hand-written loop has no run at all, only its messages. A request goes
on from a response if that response is among its messages.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from loopguard_core import Session, ToolCall

Place = tuple[str, int]

LC_ID_PREFIX = "lc_run-"
"""How the ids begin that langchain-core gives to responses."""


@dataclass(slots=True, eq=False)
class Conversation:
    """A chain of model calls, each of which saw the response before it.

    Attributes:
        session: Its session; None while nothing shows that it is more than a single question.
        unjudged: The calls its only response asked for, while it has no session.
        asked: Whether its last response asked for tools.
        busy: Whether a model call of it runs. Another one from the same point is another conversation.
        place: Node and step of its last model call, inside a graph.
        results: What the calls of its last response were seen to return, by id.
        humans: The most messages by users that one of its requests held.
        run_id: The run it was last seen in.
    """

    session: Session | None = None
    unjudged: list[ToolCall] = field(default_factory=list)
    asked: bool = False
    busy: bool = False
    place: Place | None = None
    results: dict[str, Any] = field(default_factory=dict)
    humans: int = 0
    run_id: UUID | None = None

    def goes_on_at(self, place: Place | None) -> bool:
        """Whether a request that does not show the last response goes on from it all the same.

        Some loops write what happened into the prompt, or have it summarised. Their tools were seen to run, and the
        request comes from the same node of the graph, later.

        Args:
            place: Where the request comes from.
        """
        if self.busy or not self.asked or not self.results:
            return False
        if place is None or self.place is None:
            return place is self.place
        return place[0] == self.place[0] and place[1] > self.place[1]


class Conversations:
    """Finds the conversation a request goes on from.

    Args:
        limit: How many are kept; those used longest ago go first.

    Attributes:
        pinned: One that stays, however many others there are.
    """

    def __init__(self, limit: int) -> None:
        self.pinned: Conversation | None = None
        self._limit = limit
        self._lock = threading.Lock()
        self._by_key: dict[str, Conversation] = {}
        self._keys: dict[Conversation, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._keys))

    def take(self, history: Sequence[BaseMessage]) -> Conversation | None:
        """The conversation a request goes on from, now busy; one with a session before one without."""
        with self._lock:
            found: Conversation | None = None
            for key in _keys_in(history) if self._by_key else ():
                candidate = self._by_key.get(key)
                if candidate is None or candidate.busy:
                    continue
                if candidate.session is not None:
                    found = candidate
                    break
                found = found or candidate
            if found is not None:
                found.busy = True
            return found

    def keep(self, conversation: Conversation, keys: tuple[str, ...] | None = None) -> Conversation | None:
        """Keep a conversation, under the keys of its last response or, if None is given, those it had.

        Returns:
            Another one that had to go.
        """
        with self._lock:
            before = self._forget(conversation)
            keys = before if keys is None else keys
            self._keys[conversation] = keys
            self._by_key.update(dict.fromkeys(keys, conversation))
            if len(self._keys) <= self._limit:
                return None
            oldest = next((c for c in self._keys if c is not self.pinned and c is not conversation), None)
            if oldest is not None:
                self._forget(oldest)
            return oldest

    def drop(self, conversation: Conversation) -> None:
        """Forget a conversation."""
        with self._lock:
            self._forget(conversation)

    def keys(self, conversation: Conversation) -> tuple[str, ...]:
        """What a conversation is kept under."""
        return self._keys.get(conversation, ())

    def asking(self, call_id: str | None) -> Conversation | None:
        """The conversation whose last response asked for a call."""
        return None if call_id is None else self._by_key.get(call_id)

    def _forget(self, conversation: Conversation) -> tuple[str, ...]:
        keys = self._keys.pop(conversation, ())
        for key in keys:
            if self._by_key.get(key) is conversation:
                del self._by_key[key]
        return keys


def response_of(result: LLMResult) -> AIMessage | None:
    """The response a model gave; None from one that does not chat."""
    generation = result.generations[0][0] if result.generations and result.generations[0] else None
    if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
        return generation.message
    return None


def shapes_an_answer(options: Any) -> bool:
    """Whether tool calls are only the shape of an answer (`with_structured_output`): nothing runs them."""
    shape = options.get("ls_structured_output_format") if isinstance(options, dict) else None
    return isinstance(shape, dict) and shape.get("kwargs", {}).get("method") == "function_calling"


def keys_of(message: AIMessage) -> tuple[str, ...]:
    """What a response is known by: its id and, where a caller builds the message anew, the ids of its calls."""
    calls = (*message.tool_calls, *message.invalid_tool_calls)
    return tuple(key for key in (message.id, *(call["id"] for call in calls)) if key)


def _keys_in(history: Sequence[BaseMessage]) -> Iterator[str]:
    for message in reversed(history):
        if not isinstance(message, AIMessage):
            continue
        if message.id is not None and message.id.startswith(LC_ID_PREFIX):
            yield message.id  # LangChain's own, and unique; ids of calls are only as unique as the provider makes them
        else:
            yield from keys_of(message)


def user_spoke(conversation: Conversation, history: Sequence[BaseMessage], *, in_graph: bool) -> bool:
    """Whether a user said something since the last response.

    A reminder that a program puts at the end of each request is no user: the number of such messages does not grow.
    Inside a graph something said right after tool results comes from the graph: users speak between its runs, or
    answer when the model has.

    Args:
        conversation: Takes note of how many messages by users there are.
        history: What the model is sent.
        in_graph: Whether a graph runs the loop.
    """
    after_tools = spoke = False
    for message in reversed(history):
        if isinstance(message, AIMessage):
            break
        after_tools = after_tools or isinstance(message, ToolMessage)
        spoke = spoke or isinstance(message, HumanMessage)
    if not spoke and conversation.humans:
        return False
    before = conversation.humans
    conversation.humans = max(before, sum(isinstance(message, HumanMessage) for message in history))
    return spoke and 0 < before < conversation.humans and not (in_graph and after_tools)
