"""The text of a message, of a whole one or of a piece of a stream, and what a call that was cut has used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from loopguard_core import Channel, TokenSizes, Usage, estimate_tokens
from loopguard_langchain import _translate as translate


def texts_of(message: BaseMessage) -> Iterator[tuple[Channel, str]]:
    """What was reasoned, said and asked for, in whichever of LangChain's forms a provider's package puts it."""
    content = message.content
    if isinstance(content, str):
        yield from _extra_reasoning(message)
        if content:
            yield "content", content
    else:
        texts = [found for block in content for found in _of_block(block)]
        if not any(channel == "reasoning" for channel, _ in texts):  # some put it in both places
            yield from _extra_reasoning(message)
        yield from texts
    yield from _arguments(message)


def _extra_reasoning(message: BaseMessage) -> Iterator[tuple[Channel, str]]:
    extra = message.additional_kwargs
    if not extra:
        return
    text = extra.get("reasoning_content")
    if isinstance(text, str) and text:
        yield "reasoning", text
    yield from _summary(extra.get("reasoning"))


def _of_block(block: Any) -> Iterator[tuple[Channel, str]]:
    if isinstance(block, str):
        if block:
            yield "content", block
        return
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in ("text", "refusal"):
        text = block.get(kind)
        if isinstance(text, str) and text:
            yield "content", text
    elif kind in ("reasoning", "thinking", "reasoning_content"):
        text = block.get(kind)
        if isinstance(text, dict):  # Bedrock
            text = text.get("text")
        if isinstance(text, str) and text:
            yield "reasoning", text
        else:
            yield from _summary(block)


def _summary(reasoning: Any) -> Iterator[tuple[Channel, str]]:
    """What the Responses API shows of a model's reasoning."""
    parts = reasoning.get("summary") if isinstance(reasoning, dict) else None
    for part in parts if isinstance(parts, list) else ():
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str) and text:
            yield "reasoning", text


def _arguments(message: BaseMessage) -> Iterator[tuple[Channel, str]]:
    if isinstance(message, AIMessageChunk) and message.tool_call_chunks:
        for chunk in message.tool_call_chunks:
            if chunk["args"]:
                yield "arguments", chunk["args"]
        return
    for call in getattr(message, "tool_calls", ()):
        yield "arguments", _json(call["args"])


def _json(arguments: Any) -> str:
    try:
        return json.dumps(arguments, default=str)
    except (TypeError, ValueError, RecursionError):  # no model wrote this; it repeats nothing
        return ""


def texts_of_token(token: Any) -> Iterator[tuple[Channel, str]]:
    """The same for a bare token, as models that are no chat models give."""
    if isinstance(token, str) and token:
        yield "content", token


def texts_of_event(event: Any) -> Iterator[tuple[Channel, str]]:
    """The same for an event of LangChain's third kind of stream."""
    delta = event.get("delta") if isinstance(event, dict) and event.get("event") == "content-block-delta" else None
    if not isinstance(delta, dict):
        return
    for channel, field in (("content", "text"), ("reasoning", "reasoning")):
        piece = delta.get(field) if delta.get("type") == f"{field}-delta" else None
        if isinstance(piece, str) and piece:
            yield channel, piece  # type: ignore[misc]  # the two names are channels


def estimated_usage(sent: Iterable[BaseMessage], tools: Sequence[Any], received: Iterable[str], reported: Any) -> Usage:
    """What a call has used that was cut before its provider said so; see `estimate_tokens`.

    Args:
        sent: The messages that were sent.
        tools: The tools that were on offer.
        received: What came, reasoning and arguments included.
        reported: What the provider had reported until then, if it did; Anthropic names the input first.
    """
    known = translate.tokens_of(reported)
    read = known.input_tokens or sent_tokens(sent, tools)
    wrote = max(estimate_tokens("".join(received)), known.output_tokens or 0)
    return Usage(input_tokens=read, output_tokens=wrote, cached_tokens=known.cached_tokens, estimated=True)


def sent_tokens(messages: Iterable[BaseMessage], tools: Sequence[Any] = ()) -> int:
    """About how many tokens a request has, pictures and files not counted; see `estimate_tokens`.

    Args:
        messages: The messages.
        tools: The tools on offer.
    """
    total = 0
    for message in messages:
        content = message.content
        if type(content) is str and not message.additional_kwargs:  # by far the most of them
            total += estimate_tokens(content)
            for call in getattr(message, "tool_calls", ()):
                total += estimate_tokens(str(call["args"]))
        else:
            total += estimate_tokens("".join(text for _, text in texts_of(message)))
    return total + _tools.of(tools)


def _described(tool: Any) -> str:
    if isinstance(tool, BaseTool):
        tool = convert_to_openai_tool(tool)
    return json.dumps(tool, default=str)


_tools = TokenSizes(_described)
