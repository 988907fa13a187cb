"""What was said, told to a session: by a replay, and by whoever takes up a conversation that is under way."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loopguard_core._outcome import OWN_WORDS
from loopguard_core._session import Session
from loopguard_core._types import Channel, Decision, Verdict
from loopguard_core.transcripts._model import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage

_PIECE = 256
"""Characters fed at once: as a stream, so that one message may draw more than one verdict."""

# What loopguard, or the program around the model, told it in the user's place is no user's word.
_NOT_THE_USER = (OWN_WORDS, "[system", "<system")

# What stands in place of the conversation so far once it was summarised, in the words of the usual programs.
_SUMMARY = re.compile(
    r"\A\W{0,3}(?:context|conversation|history|session)(?: (?:was|has been|history))?"
    r" (?:compact|summari[sz]|condens|truncat)"
    r"|\A\W{0,3}(?:compacted|summari[sz]ed) (?:context|conversation|history)"
    r"|\A\W{0,3}(?:\w+ )?summary of (?:the |our |your )?(?:earlier|previous|prior|conversation|session|work|progress)"
    r"[^.?!\n:\]]{0,60}[:\]\n]\s*\S"  # and what it says: a user may ask for one
    r"|continued from a previous conversation|produced a summary of its thinking",
    re.IGNORECASE,
)
_HEAD = 400


def is_summary(message: Message) -> bool:
    """Whether a message stands in place of what was said before it."""
    return isinstance(message, SystemMessage | UserMessage) and _SUMMARY.search(message.content, 0, _HEAD) is not None


def is_user_turn(message: Message) -> bool:
    """Whether a user spoke: no program in the user's place, and no summary."""
    if not isinstance(message, UserMessage) or message.content.lstrip().startswith(_NOT_THE_USER):
        return False
    return not is_summary(message)


def speak(session: Session, message: AssistantMessage) -> Iterator[Verdict]:
    """Let a session read the text of a whole response, in pieces as a stream would bring it.

    Args:
        session: The session. What comes around the text (`before_model_call`, `after_model_call`, `begin_round`) is
            the caller's.
        message: The response.

    Yields:
        Each detection, in order. Nothing is read that was not asked for: take all of them.
    """
    texts: tuple[tuple[Channel, str], ...] = (("reasoning", message.reasoning), ("content", message.content))
    for channel, text in texts:
        for start in range(0, len(text), _PIECE):
            verdict = session.feed_text(text[start : start + _PIECE], channel)
            if verdict is not None:
                yield verdict
    session.feed_text("", "content")  # an empty message is known to be empty
    verdict = session.end_message(message.finish)
    if verdict is not None:
        yield verdict


def recall(session: Session, message: Message) -> list[Decision]:
    """Let a session read a message of a conversation that is under way: it is said and done, and was paid for.

    What a conversation shows is found again: rounds and calls, streaks, verdicts. Model calls are not counted and no
    `post_model_call` hook hears of them, for what they used is in no conversation.

    Args:
        session: The session.
        message: The next message.

    Returns:
        What is made of the calls of a response, in their order; of any other message nothing.
    """
    if isinstance(message, ToolResult):
        session.record_result(message.call_id, message.output, message.is_error)
    elif isinstance(message, AssistantMessage):
        session.before_model_call(message.model)
        for _ in speak(session, message):
            pass  # its hooks have heard of it
        session._model_call_recalled()  # noqa: SLF001  # no part of what adapters call
        return session.begin_round(message.calls)
    elif is_summary(message):
        session.compacted()
    elif is_user_turn(message):
        session.user_turn()
    return []
