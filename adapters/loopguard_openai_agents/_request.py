"""One request to a model, as a value that can be changed and sent again."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents import Handoff, Model, ModelResponse, ModelSettings, ModelTracing, Tool, TResponseInputItem
from agents.agent_output import AgentOutputSchemaBase
from agents.items import TResponseStreamEvent
from agents.models import get_default_model_settings

from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents import _words as words
from loopguard_openai_agents._estimate import tokens_sent


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What the SDK passes to a model.

    Attributes:
        options: The keyword-only arguments.
    """

    system_instructions: str | None
    input: str | list[TResponseInputItem]
    settings: ModelSettings
    tools: list[Tool]
    output_schema: AgentOutputSchemaBase | None
    handoffs: list[Handoff[Any, Any]]
    tracing: ModelTracing
    options: Mapping[str, Any]

    async def respond(self, model: Model) -> ModelResponse:
        """Send it."""
        return await model.get_response(*self._positional(), **self.options)

    def stream(self, model: Model) -> AsyncIterator[TResponseStreamEvent]:
        """Send it, and stream what comes back."""
        return model.stream_response(*self._positional(), **self.options)

    def _positional(self) -> tuple[Any, ...]:
        return (
            self.system_instructions,
            self.input,
            self.settings,
            self.tools,
            self.output_schema,
            self.handoffs,
            self.tracing,
        )

    @property
    def items(self) -> list[TResponseInputItem]:
        """The input as a list."""
        return translate.as_list(self.input) if isinstance(self.input, str) else self.input

    @property
    def tokens(self) -> int:
        """About how many tokens it has."""
        return tokens_sent(self.system_instructions, self.items, [*self.tools, *self.handoffs])

    def told(self, texts: Sequence[str]) -> ModelRequest:
        """With something more for the model to read, where it is not in there yet."""
        notes = [item for item in map(words.note, texts) if item not in self.items]
        return dataclasses.replace(self, input=[*self.items, *notes]) if notes else self

    def for_model(self, strong: Model, usual: Model) -> ModelRequest:
        """With the settings the SDK gives a model by its name, where they are still the usual model's."""
        was = get_default_model_settings(translate.model_name(usual))
        now = get_default_model_settings(translate.model_name(strong))
        changes = {
            field.name: getattr(now, field.name)
            for field in dataclasses.fields(was)
            if getattr(was, field.name) != getattr(now, field.name)
            and getattr(self.settings, field.name) == getattr(was, field.name)
        }
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, **changes)) if changes else self

    def without_tools(self) -> ModelRequest:
        """With nothing to call. Providers refuse settings about tools where there are none."""
        return dataclasses.replace(self, tools=[], handoffs=[], settings=without_tools(self.settings))


def without_tools(settings: ModelSettings) -> ModelSettings:
    """Settings that say nothing about tools."""
    return dataclasses.replace(settings, tool_choice=None, parallel_tool_calls=None)
