"""What loopguard says, as items of the SDK."""

from __future__ import annotations

from typing import Any

from agents import Agent, MessageOutputItem, TResponseInputItem
from agents.models.fake_id import FAKE_RESPONSES_ID
from openai.types.responses import ResponseOutputMessage, ResponseOutputText


def note(text: str) -> TResponseInputItem:
    """Something for the model to read. A system message in the middle of a conversation is an error at some."""
    return {"role": "user", "content": text}


def message(text: str) -> ResponseOutputMessage:
    """A closing message. The id is the SDK's own for what no provider made, so that it is never sent as one."""
    return ResponseOutputMessage(
        id=FAKE_RESPONSES_ID,
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])],
    )


def written(text: str) -> TResponseInputItem:
    """What the model had written when its stream was cut."""
    return {"role": "assistant", "content": text}


def closing_text(written: str, notice: str) -> str:
    """The end of a run that was stopped, with what the model had written when its stream was cut."""
    return f"{written}\n\n{notice}" if written else notice


def message_item(agent: Agent[Any], text: str) -> MessageOutputItem:
    """A closing message as part of an agent's history."""
    return MessageOutputItem(agent=agent, raw_item=message(text))
