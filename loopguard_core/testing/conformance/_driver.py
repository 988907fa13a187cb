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
    "properties": {
        "query": {"type": "string"},
        "n": {"type": "integer"},
        "reason": {"type": "string"},
        "path": {"type": "string"},
        "old_string": {"type": "string"},
        "new_string": {"type": "string"},
    },
    "additionalProperties": True,
}
"""JSON schema of every tool's arguments: all that scripts send, each of them optional."""


def sent(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of the parameters of a function that takes them all, `locals()` say, those that were sent."""
    return {name: values[name] for name in PARAMETERS["properties"] if values.get(name) is not None}


FEATURES: Mapping[str, str] = {
    "approval": "a human can be asked before a call",
    "asks_first": "the guard is asked before a run's first model call",
    "asks_on": "a message without a call is read, and need not end the run: the model is asked once more",
    "cost": "the provider's cost reaches the guard",
    "fan_out": "its model can ask for several calls in one response",
    "history": "there is a stored history, and the next turn goes on with it",
    "invalid_json": "arguments that are no JSON reach the guard",
    "max_tokens": "the guard is told how much a model call sends, and the most that may come back",
    "model_errors": "a model call that fails reaches the guard, with the client's own error",
    "nested": "a tool can run an agent",
    "notice": "the SDK's own result says why the run was ended",
    "on_stop": "a stop can end the run with a message or a last answer",
    "raise": "a stop can raise",
    "reads_text": "what the model says beside its calls reaches the guard",
    "sees_answers": "responses without calls reach the guard",
    "text": "its model streams in pieces, and a stream can be cut",
    "tool_errors": "a tool can raise, and the model is told that it did",
    "tool_names": "each call is judged under its tool's own name",
    "unknown_tool": "a call of a tool that does not exist reaches the guard",
    "usage": "token counts reach the guard",
}
"""What a driver can show beside what its surface declares, by name."""


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
        max_tokens: The most tokens the model is asked to answer with; None asks for no maximum.
    """

    base_url: str
    model: str
    tools: Sequence[ToolSpec]
    guard: LoopGuard
    strong_model: str | None = None
    on_stop: Literal["end", "answer", "raise"] | None = None
    max_tokens: int | None = None


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
        features: Further things it can show; see `FEATURES`.
        executes_stopped_round: True where a stop lets the round that caused it run once more (LangGraph's drain).

    It may also have `cannot`: names of scripts that it cannot show for a reason no feature stands for.
    """

    surface: Surface
    mode: str
    features: frozenset[str]
    executes_stopped_round: bool

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        """Build the agent, attach its guard, and return what opens a new thread of it."""
        ...
