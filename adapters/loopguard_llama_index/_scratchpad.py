"""What an agent wrote in this run and has not put into memory yet: messages, or ReAct's reasoning steps.

Every model call ends with it, so what is added here is the last thing the model reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llama_index.core.agent.react.types import BaseReasoningStep, ObservationReasoningStep, ResponseReasoningStep
from llama_index.core.agent.workflow import BaseWorkflowAgent, ReActAgent
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.llms import ChatMessage


class HasStore(Protocol):
    """A context, as a step of an agent gets it."""

    @property
    def store(self) -> Any:
        """Its key-value store."""


class PartialReasoningStep(BaseReasoningStep):
    """What a ReAct agent had written when its stream was cut."""

    text: str

    def get_content(self) -> str:
        """The text as it stood there."""
        return self.text

    @property
    def is_done(self) -> bool:
        """Never the last step."""
        return False


class Scratchpad:
    """The scratchpad of one agent in one run.

    Args:
        agent: The agent.
        ctx: The run's context.
    """

    def __init__(self, agent: BaseWorkflowAgent, ctx: HasStore) -> None:
        self._ctx = ctx
        self._react = isinstance(agent, ReActAgent)
        self.key: str | None = getattr(agent, "reasoning_key" if self._react else "scratchpad_key", None)

    async def entries(self) -> list[Any]:
        """A copy of all entries; empty for an agent of a kind we do not know."""
        return [] if self.key is None else list(await self._ctx.store.get(self.key, default=[]))

    async def restore(self, entries: Sequence[Any]) -> None:
        """Put back what `entries` gave."""
        if self.key is not None:
            await self._ctx.store.set(self.key, list(entries))

    async def tell(self, texts: Sequence[str]) -> bool:
        """Put something before the model. False if this agent has no place for it."""
        if self.key is None:
            return False
        await self.restore([*await self.entries(), *map(self._note, texts)])
        return True

    async def untell(self, texts: Sequence[str]) -> None:
        """Take it out again: it was said once, and no memory is to keep it."""
        entries = await self.entries()
        for text in texts:
            position = next((at for at in reversed(range(len(entries))) if self._is_note(entries[at], text)), None)
            if position is not None:
                del entries[position]
        await self.restore(entries)

    async def keep(self, text: str) -> None:
        """Keep what was written before a stream was cut."""
        if text:
            entry = PartialReasoningStep(text=text) if self._react else _assistant(text)
            await self.restore([*await self.entries(), entry])

    async def conclude(self, text: str) -> None:
        """Add the last thing the agent says, in the form in which its own `finalize` puts everything into memory."""
        entry = ResponseReasoningStep(thought="", response=text) if self._react else _assistant(text)
        await self.restore([*await self.entries(), entry])

    def _note(self, text: str) -> Any:
        if self._react:
            return ObservationReasoningStep(observation=text)
        return ChatMessage(role=MessageRole.USER, content=text)

    def _is_note(self, entry: Any, text: str) -> bool:
        if self._react:
            return isinstance(entry, ObservationReasoningStep) and entry.observation == text
        return isinstance(entry, ChatMessage) and entry.role == MessageRole.USER and entry.content == text


def _assistant(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, content=text)
