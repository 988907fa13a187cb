"""LlamaIndex's objects in the core's words. Nothing here decides anything."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, ToolCallResult
from llama_index.core.base.llms.types import TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.tools import BaseTool, ToolOutput, ToolSelection

from loopguard_core import Channel, TokenSizes, Usage, estimate_tokens

_INPUT = ("prompt_tokens", "input_tokens", "prompt_token_count", "prompt_eval_count")
_OUTPUT = ("completion_tokens", "output_tokens", "candidates_token_count", "eval_count")
_TOTAL = ("total_tokens", "total_token_count")
_CACHED = ("cached_tokens", "cache_read_input_tokens", "cached_content_token_count")
_REASONING = ("reasoning_tokens", "thoughts_token_count")


def usage_of(raw: Any) -> Usage:
    """Tokens and cost as the provider's own response reports them; what it does not report is unknown."""
    given = _get(raw, "usage") or _get(raw, "usage_metadata")
    if given is None:
        given = raw if _first(raw, _INPUT) is not None else None  # Ollama has no block of its own for it
    if given is None:
        return Usage()
    details = _get(given, "prompt_tokens_details") or _get(given, "input_tokens_details")
    written = _get(given, "completion_tokens_details") or _get(given, "output_tokens_details")
    cached = _first(details, _CACHED)
    reasoning = _first(written, _REASONING)
    return Usage(
        input_tokens=_first(given, _INPUT),
        output_tokens=_first(given, _OUTPUT),
        cached_tokens=cached if cached is not None else _first(given, _CACHED),
        reasoning_tokens=reasoning if reasoning is not None else _first(given, _REASONING),
        total_tokens=_first(given, _TOTAL),
        cost=_get(given, "cost"),
    )


def finish_reason(raw: Any) -> str | None:
    """Why the provider ended its response, where it says so."""
    choices = _get(raw, "choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = _get(first, "finish_reason") or _get(raw, "stop_reason")
    return reason if isinstance(reason, str) else None


def model_name(llm: LLM) -> str | None:
    """The name of a model, where it has one."""
    try:
        name = llm.metadata.model_name
    except Exception:  # noqa: BLE001  # some look the name up and raise where they do not know it
        return None
    return name if name and name != "unknown" else None


def answered_by(raw: Any) -> str | None:
    """The model that answered, as the provider's own response names it."""
    name = _get(raw, "model")
    return name if isinstance(name, str) else None


def texts_of(message: ChatMessage) -> Iterator[tuple[Channel, str]]:
    """The text of a response."""
    for block in message.blocks:
        if isinstance(block, ThinkingBlock) and block.content:
            yield "reasoning", block.content
    if message.content:
        yield "content", message.content


def arguments_in(message: ChatMessage) -> Iterator[str]:
    """The arguments of the calls a response asks for, where they are not part of its text."""
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            kwargs = block.tool_kwargs
            yield kwargs if isinstance(kwargs, str) else _json(kwargs)


def _json(arguments: Any) -> str:
    try:
        return json.dumps(arguments, default=str)
    except (TypeError, ValueError, RecursionError):  # no model wrote this; it repeats nothing
        return ""


def sent_tokens(*requests: Sequence[Any]) -> int:
    """About how many tokens messages and reasoning steps have, pictures and files aside; see `estimate_tokens`."""
    texts = (text for entries in requests for entry in entries for text in _read_by_model(entry))
    return sum(map(estimate_tokens, texts))


def _read_by_model(entry: Any) -> Iterator[str]:
    if not isinstance(entry, ChatMessage):
        yield entry.get_content()
        return
    for block in entry.blocks:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ToolCallBlock):
            yield str(block.tool_kwargs)
        elif isinstance(block, ThinkingBlock) and block.content:
            yield block.content


def _described(tool: BaseTool) -> str:
    return f"{tool.metadata.description}{tool.metadata.get_parameters_dict()}"


tool_sizes = TokenSizes(_described)
"""The same for the tools on offer."""

_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")


def max_tokens(llm: LLM) -> int | None:
    """The most a model may say, where its user set that; what it could say at most is no figure to plan with."""
    more = getattr(llm, "additional_kwargs", None)
    for name in _MAX_TOKENS:
        for most in (_get(more, name), getattr(llm, name, None)):
            if type(most) is int and most > 0:
                return most
    return None


def calls_of(output: AgentOutput) -> list[ToolSelection]:
    """The calls a response asks for."""
    calls: list[Any] = list(output.tool_calls)  # in a final output LlamaIndex keeps results there too
    return [call for call in calls if isinstance(call, ToolSelection)]


def shown(output: ToolOutput) -> Any:
    """What the model sees of a result; the raw value where that is no text."""
    return output.content if output.content or not output.blocks else output.raw_output


def failed(output: ToolOutput) -> bool | None:
    """True if the SDK says the call failed; None leaves it to the core, since tools return errors as text too."""
    return True if output.is_error else None


def refusal(call_id: str, name: str, arguments: Any, text: str) -> ToolCallResult:
    """What takes the place of a result of a call that must not run."""
    raw_input = arguments if isinstance(arguments, dict) else {}
    output = ToolOutput(content=text, tool_name=name, raw_input=raw_input, raw_output=None, is_error=True)
    return ToolCallResult(
        tool_name=name, tool_kwargs=raw_input, tool_id=call_id, tool_output=output, return_direct=False
    )


def _first(source: Any, names: tuple[str, ...]) -> int | None:
    if source is None:
        return None
    read = source.get if isinstance(source, dict) else functools.partial(_get, source)
    for name in names:
        value = read(name)
        if type(value) is int or type(value) is float:  # and no bool, which is an int too
            return value  # type: ignore[return-value]  # `Usage` takes whole floats
    return None


def _get(source: Any, name: str) -> Any:
    if isinstance(source, dict):  # not Mapping: that check is slow, and this is asked often
        return source.get(name)
    try:
        return None if source is None else getattr(source, name, None)
    except Exception:  # noqa: BLE001  # a provider's own object; what it cannot say is unknown
        return None
