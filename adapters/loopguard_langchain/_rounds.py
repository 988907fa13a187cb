"""The messages of a round and of a run's end, as `create_agent`'s model node deals in them."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import ModelResponse
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import Command

from loopguard_core import Stop, fingerprint
from loopguard_langchain import _translate as translate

_NOT_EXECUTED = "[loopguard] This call was not executed."


def note(text: str) -> HumanMessage:
    # A system message in the middle of a conversation is an error at some providers.
    return HumanMessage(content=text, name="loopguard")


def assistant_message(response: ModelResponse[Any]) -> AIMessage | None:
    return next((m for m in reversed(response.result) if isinstance(m, AIMessage)), None)


def answers(response: ModelResponse[Any]) -> list[ToolMessage]:
    return [m for m in response.result if isinstance(m, ToolMessage)]


def open_calls(response: ModelResponse[Any]) -> bool:
    message = assistant_message(response)
    return message is not None and response.structured_response is None and bool(translate.calls_of(message))


def refused_round(response: ModelResponse[Any], refused: dict[str, str]) -> list[BaseMessage]:
    """The round that ended the run, with an answer to every call of it."""
    message = assistant_message(response)
    messages: list[BaseMessage] = list(response.result)
    if message is not None:
        for call_id, name in translate.open_calls(message, answers(response)):
            messages.append(translate.refusal(call_id, name, refused.get(call_id, _NOT_EXECUTED)))
    return messages


def said(message: AIMessage | None) -> list[BaseMessage]:
    """A message, unless it says nothing: an empty one is an error at some providers."""
    return [] if message is None or not message.text else [message]


def closing_messages(stop: Stop, written: AIMessage | None, answer: AIMessage | None) -> list[BaseMessage]:
    """The end of the conversation.

    Args:
        stop: Why it ends.
        written: What the model had written where its stream was cut, or what ended the run by being said again.
        answer: The last answer the model gave, if it was asked for one.
    """
    mark = {"loopguard": stop.as_dict()}
    if answer is not None and answer.text:
        closing = AIMessage(
            content=answer.text,
            response_metadata={**answer.response_metadata, **mark},
            usage_metadata=answer.usage_metadata,
            id=answer.id,
        )
        return [*said(written), closing]
    if written is None:
        return [AIMessage(content=stop.message, response_metadata=mark)]
    text = f"{written.text}\n\n{stop.message}" if written.text else stop.message
    metadata = {**written.response_metadata, **mark}
    return [AIMessage(text, response_metadata=metadata, usage_metadata=written.usage_metadata, id=written.id)]


def is_closed(messages: list[AnyMessage]) -> bool:
    return bool(messages) and isinstance(messages[-1], AIMessage) and "loopguard" in messages[-1].response_metadata


def judged(name: str, arguments: Any) -> str:
    return fingerprint(name, arguments)


def refusal(refused: dict[str, list[Any]], request: ToolCallRequest) -> ToolMessage | None:
    """The answer to a refused call. If a human changed it since, it is another call and may run."""
    call = request.tool_call
    text, expected = refused.get(call["id"] or "", (None, None))
    if text is None:
        return None
    # HumanInTheLoopMiddleware keeps edits apart and applies them inside of us, if we come before it.
    edited = (request.state.get("hitl_edited_tool_calls") or {}).get(call["id"]) or call
    if expected != judged(edited["name"], edited["args"]):
        return None
    return translate.refusal(call["id"] or "", call["name"], text)


def hands_over(result: ToolMessage | Command[Any]) -> bool:
    """Whether a tool's result gives the conversation to another agent, so that this run is over."""
    return isinstance(result, Command) and result.graph is not None
