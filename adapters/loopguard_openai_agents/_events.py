"""Stream events of the Responses API: which carry text, and those we write ourselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agents import ModelResponse
from agents import Usage as SdkUsage
from agents import usage as sdk_usage
from agents.items import TResponseStreamEvent
from agents.models.fake_id import FAKE_RESPONSES_ID
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent

from loopguard_core import Channel
from loopguard_openai_agents import _translate as translate

CHANNELS: Mapping[str, Channel] = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "arguments",
}
"""Which channel the `delta` of an event belongs to."""


def response_of(event: ResponseCompletedEvent) -> ModelResponse:
    """The response a stream ended with, as the SDK puts it."""
    reported = event.response.usage
    usage = (
        SdkUsage()
        if reported is None
        else SdkUsage(
            requests=1,
            input_tokens=reported.input_tokens,
            output_tokens=reported.output_tokens,
            total_tokens=reported.total_tokens,
            input_tokens_details=reported.input_tokens_details,
            output_tokens_details=reported.output_tokens_details,
        )
    )
    response = ModelResponse(output=event.response.output, usage=usage, response_id=event.response.id)
    with contextlib.suppress(AttributeError):  # releases before it had the field
        response.raw_usage = _raw_usage(event)
    return response


def _raw_usage(event: ResponseCompletedEvent) -> dict[str, Any] | None:
    """The provider's own usage block, where it was kept: it may hold the cost, which the SDK's does not.

    The SDK hangs it on the response under a name of its own; without that name, what the usage holds beside the SDK's
    fields is all there is.
    """
    name = getattr(sdk_usage, "_RAW_USAGE_ATTRIBUTE", None)
    kept = getattr(event.response, name, None) if isinstance(name, str) else None
    if isinstance(kept, dict):
        return kept
    return None if event.response.usage is None else event.response.usage.model_extra


def replaced(event: ResponseCompletedEvent, output: Sequence[Any]) -> ResponseCompletedEvent:
    """The same end of a stream with another output."""
    return event.model_copy(update={"response": event.response.model_copy(update={"output": list(output)})})


def text_delta(text: str) -> ResponseTextDeltaEvent:
    """A text in one piece, for consumers that show deltas."""
    return ResponseTextDeltaEvent(
        type="response.output_text.delta",
        item_id=FAKE_RESPONSES_ID,
        output_index=0,
        content_index=0,
        sequence_number=0,
        delta=text,
        logprobs=[],
    )


def of_response(response: ModelResponse, shown: str = "") -> list[TResponseStreamEvent]:
    """The shortest stream the SDK understands.

    Args:
        response: What it says.
        shown: The beginning of its text that consumers have seen already.
    """
    completed = ResponseCompletedEvent(
        type="response.completed",
        sequence_number=1,
        response=Response(
            id=response.response_id or FAKE_RESPONSES_ID,
            created_at=time.time(),
            model="loopguard",
            object="response",
            output=response.output,
            tool_choice="none",
            tools=[],
            parallel_tool_calls=False,
        ),
    )
    return [text_delta(translate.said(response.output).removeprefix(shown)), completed]
