"""What an adapter's author writes: how to build, attach and run an agent of one SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from loopguard_core._guard import LoopGuard
from loopguard_core._surface import Surface

ToolBody = Callable[[Mapping[str, Any]], Any]
"""What a tool does: its arguments in, its result out; raising means the tool failed."""

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "n": {"type": "integer"}},
    "additionalProperties": True,
}
"""JSON schema of every tool's arguments; all of them are optional."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool of the agent under test.

    Attributes:
        name: Its name.
        body: What it does. It may be called from several threads at once.
        agent: Set if the tool runs another agent: the body is ignored, the tool starts that agent with the text of
            `query` and returns its answer.
        approval: Whether a human must approve each call.
    """

    name: str
    body: ToolBody
    agent: Agent | None = None
    approval: bool = False


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent to build.

    Attributes:
        base_url: Where the scripted model is.
        model: The usual model's name.
        strong_model: The stronger model's name, at the same address; None if there is none.
        tools: Its tools.
        guard: What watches it.
        on_stop: The adapter's argument for it; None leaves it to the policy.
    """

    base_url: str
    model: str
    tools: Sequence[ToolSpec]
    guard: LoopGuard
    strong_model: str | None = None
    on_stop: Literal["end", "answer", "raise"] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What the caller of an agent gets back.

    Attributes:
        text: The final answer; None if there is none.
        error: The exception the SDK raised; None if it returned.
        waiting: True if the run waits for a human.
        notice: What the SDK's own result says about a stop (see the design's section 4), where it has such a place.
    """

    text: str | None = None
    error: BaseException | None = None
    waiting: bool = False
    notice: Mapping[str, Any] | None = field(default=None)


class Conversation(Protocol):
    """One thread of a built agent."""

    def send(self, text: str) -> Turn:
        """Run one turn with what a user says."""
        ...

    def approve(self) -> Turn:
        """Approve what a waiting run asks for, and go on with it."""
        ...

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        """The stored history as OpenAI chat messages; None if this surface has none."""
        ...


class Driver(Protocol):
    """One surface, one way of running it.

    Attributes:
        surface: What it declares.
        mode: For people, for example `async, streamed`.
        features: Further things it can show: `history`, `approval`, `nested`, `on_stop`, `cost` (reports cost),
            `notice`, `invalid_json`, `unknown_tool`.
        executes_stopped_round: True where a stop lets the round that caused it run once more (LangGraph's drain).
        blind_to_siblings: False. Reserved.
    """

    surface: Surface
    mode: str
    features: frozenset[str]
    executes_stopped_round: bool

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        """Build the agent, attach its guard, and return what opens a new thread of it."""
        ...
