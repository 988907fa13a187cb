"""One model call of the middleware: what is put before it, what of it is read, and what is kept where it was cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.errors import GraphBubbleUp

from loopguard_core import Action, Directive, LoopGuard, Session, Usage, Verdict, is_key_limit
from loopguard_langchain import _rounds as rounds
from loopguard_langchain import _text as text
from loopguard_langchain import _translate as translate
from loopguard_langchain._runs import judging
from loopguard_langchain._tap import Cut, tapped

Used = tuple[str | None, Usage, float]
"""What `after_model_call` is told: the model, its usage, and seconds."""


class ModelCall:
    """A model call, with its retries. It is the tap on its own stream.

    Args:
        guard: Whose it is.
        session: Its run's.
        request: What the agent asks for.
        strong: Finds the stronger model by its name.
        shows_stop: Whether consumers of a stream that is cut for good are told so at its end.

    Attributes:
        cut: Whether the last attempt was cut: in the middle of its stream, or for what it said when it was complete.
        stopped: Whether what it said ended the run.
        kept: What it had written where it was cut and told, and then went on.
        last: What it had written where the run was ended.
    """

    def __init__(
        self,
        guard: LoopGuard,
        session: Session,
        request: ModelRequest[Any],
        strong: Callable[[str], BaseChatModel],
        *,
        shows_stop: bool,
    ) -> None:
        self.session = session
        self.request = request
        self.cut = self.stopped = False
        self.kept: list[BaseMessage] = []
        self.last: AIMessage | None = None
        self._guard = guard
        self._strong = strong
        self._shows_stop = shows_stop
        self._cuts_left = guard.policy.text.retries
        self._sent = request
        self._streaming = self._complete = False
        self._started = 0.0
        self._heard = self._shown = False
        self._error: Exception | None = None
        self._received: list[str] = []
        self._said: list[str] = []
        self._piece: BaseMessage | None = None
        self._reported: Any = None
        self._cut_by: Verdict | None = None
        self._reading = guard.faults.contained("reading a message")  # once: it is entered for every piece

    @property
    def asked_for(self) -> tuple[str | None, int | None, int | None]:
        """What the session is asked about: the usual model's name and, where money counts, the most it can use."""
        model, name = self.request.model, None
        with self._guard.faults.contained("estimating tokens"):
            name = translate.model_name(model)
            if self.session.money is not None:
                sent = text.sent_tokens([*_read(self.request), *self.kept], self.request.tools)
                return name, sent, translate.max_tokens(model, self.request.model_settings)
        return name, None, None

    # -- before ------------------------------------------------------------------------------------------------

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While somebody is asked who may ask the model."""
        token = judging.set(self._guard)
        try:
            yield
        finally:
            judging.reset(token)

    def directed(self, directive: Directive) -> ModelRequest[Any]:
        """The request as it is to be sent."""
        changes: dict[str, Any] = {}
        if directive.steer:
            notes = [rounds.note(told) for told in directive.steer]
            changes["messages"] = [*self.request.messages, *self.kept, *notes]
        if directive.model is not None:
            changes["model"] = self._strong(directive.model)
        return self.tapped(self.request.override(**changes) if changes else self.request)

    def tapped(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """A request whose answer is read while it is streamed, where the model is one of LangChain's own kind."""
        self._sent, self._started = request, time.perf_counter()
        self.cut = self.stopped = False
        self._forget()
        model: object = request.model  # some models are only wrapped around one
        if isinstance(model, BaseChatModel):
            with self._guard.faults.contained("reading a stream"):  # an odd class; then it is read when complete
                return request.override(model=tapped(model, self))
        return request

    # -- while it is streamed ----------------------------------------------------------------------------------

    def begin(self) -> bool:
        """A stream starts; False to let it pass unread."""
        if self._streaming or self._cut_by is not None:
            return False
        self._abandon()
        self._streaming = True
        return True

    def read(self, piece: BaseMessage) -> bool:
        """Read a piece; True if the stream is to be closed behind it."""
        self._piece = piece
        self._reported = getattr(piece, "usage_metadata", None) or self._reported
        self._feed(piece)
        return self._cut_by is not None

    def last_words(self) -> str | None:
        """What consumers of a stream that was cut for good are told at its end."""
        stop = self.session.stop
        self._shown = self._shows_stop and stop is not None
        if stop is None or not self._shown:
            return None
        return f"\n\n{stop.message}" if self._said else stop.message

    def end(self, *, complete: bool) -> None:
        """The stream is over."""
        self._streaming, self._complete = False, complete

    def failed(self, error: Exception) -> None:
        """The model raised. Middleware between it and us may try again, or make an answer of its own out of it."""
        self._error = error

    def _abandon(self) -> None:
        """Somebody between the model and us asks anew: what was heard until now is in no message."""
        if self._heard:
            self.session.message_restarted()
        self._forget()

    def _feed(self, message: BaseMessage) -> None:
        with self._reading:
            for channel, piece in text.texts_of(message):
                self._heard = True
                self._received.append(piece)
                if channel == "content":
                    self._said.append(piece)
                self._note(self.session.feed_text(piece, channel))

    def _note(self, verdict: Verdict | None) -> None:
        if verdict is None or verdict.action is Action.OBSERVE:
            return
        stops = verdict.action is Action.STOP
        self.stopped = self.stopped or stops
        if verdict.abort and self._cut_by is None and (stops or self._cuts_left > 0):
            self._cut_by = verdict

    def _forget(self) -> None:
        self._heard = self._shown = self._complete = False
        self._received, self._said = [], []
        self._piece = self._reported = self._cut_by = self._error = None

    # -- after -------------------------------------------------------------------------------------------------

    def lost(self, directive: Directive, error: BaseException) -> bool:
        """An attempt ended with an exception.

        Returns:
            True if that was our own cut; False if the usual model may try what the stronger one failed at.

        Raises:
            BaseException: The error itself, where the run is left here.
        """
        if self._was_cut(error):
            return True
        self.session.model_call_failed(error)
        if directive.model is None or not isinstance(error, Exception) or isinstance(error, GraphBubbleUp):
            raise error
        return False

    def lost_answer(self, error: BaseException) -> bool:
        """The last answer ended with an exception. The stop stands all the same.

        Returns:
            True if there are no last words; False if that was our own cut, and what was written until then is them.

        Raises:
            BaseException: The error itself, where it means more than that the model failed.
        """
        if self._was_cut(error):
            return False
        self.session.model_call_failed(error)
        if not isinstance(error, Exception):
            raise error
        return True

    def _was_cut(self, error: BaseException) -> bool:
        return isinstance(error, Cut) and error.tap is self

    def answered(self, response: ModelResponse[Any] | None) -> Iterator[Used]:
        """Judge what an attempt said; None is one that was cut in the middle of its stream.

        Yields:
            What is to be counted before it goes on.
        """
        with self._guard.faults.contained("the end of a model call"):
            yield from self._answered(response)

    def _answered(self, response: ModelResponse[Any] | None) -> Iterator[Used]:
        message = None if response is None else rounds.assistant_message(response)
        if response is not None and self._cut_by is not None:  # somebody made an answer of their own out of the cut
            yield self._used_by_cut()
            self._cuts_left -= 1
            self._forget()
        if response is None:
            yield self._used_by_cut()
        elif message is None:
            yield translate.model_name(self._sent.model), Usage(), self._seconds
        elif self._gave_up(message):
            self.session.model_call_failed(self._error)
        else:
            yield self._used_by(message)
        if response is not None and response.structured_response is not None:
            return
        self.cut = self._cut_by is not None
        self._cuts_left -= self.cut
        if self.stopped:
            kept = self._kept(message)
            # Under its own id only where consumers of the stream have seen all of it.
            self.last = kept if self._shown else kept.model_copy(update={"id": None})
        elif self.cut:
            self.kept += rounds.said(self._kept(message))

    def answer(self, response: ModelResponse[Any] | None) -> AIMessage | None:
        """The last answer; one that was cut as far as it went."""
        message = None if response is None else rounds.assistant_message(response)
        return self._kept(message) if self.cut else message

    def _gave_up(self, message: AIMessage) -> bool:
        """Whether no model said this, but middleware because of the limit on a key; whatever a model says has an id."""
        return message.id is None and self._error is not None and is_key_limit(self._error)

    def _used_by_cut(self) -> Used:
        sent, name, usage = self._sent, None, Usage()
        with self._guard.faults.contained("estimating tokens"):
            name = translate.model_name(sent.model)
            usage = text.estimated_usage(_read(sent), sent.tools, self._received, self._reported)
        self.session.end_message()
        return name, usage, self._seconds

    def _used_by(self, message: AIMessage) -> Used:
        if self._heard and not self._complete:  # and what answered in the end is a model we do not read
            self._abandon()
        if not self._heard:
            self._feed(message)
        if not self._said:
            self.session.feed_text("")  # it is known that there is none
        self._note(self.session.end_message(translate.finish_reason_of(message)))
        name, usage = None, Usage()
        with self._guard.faults.contained("reading usage"):
            name = translate.model_of(message) or translate.model_name(self._sent.model)
            usage = translate.usage_of(message)
        return name, usage, self._seconds

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _kept(self, message: AIMessage | None) -> AIMessage:
        """What is kept: of a message that was cut what it said until the detector fired. Its calls are not made."""
        said, by = "".join(self._said), self._cut_by
        if by is not None and by.channel == "content":
            said = said[: by.char]
        whole = message if message is not None else self._piece
        return AIMessage(
            content=said,
            id=None if whole is None else whole.id,
            response_metadata={} if by is None else {"loopguard_cut": by.as_dict()},
            usage_metadata=None if message is None else message.usage_metadata,
        )


def _read(request: ModelRequest[Any]) -> list[BaseMessage]:
    """What the model reads."""
    return [*([] if request.system_message is None else [request.system_message]), *request.messages]
