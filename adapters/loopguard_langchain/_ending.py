"""How the middleware ends a run: with a message, after a last answer of the model where the policy wants one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage

from loopguard_core import Stop
from loopguard_langchain import _rounds as rounds
from loopguard_langchain._model_call import ModelCall


class Ending:
    """The end of a run.

    Args:
        call: The model call it ends at.
        stop: Why it ends.
        before: The messages before its closing message: what was cut, and a round of which nothing runs.
        asks: Whether the model may answer once more, without tools.

    Attributes:
        call: As given.
        stop: As given.
    """

    def __init__(self, call: ModelCall, stop: Stop, before: list[BaseMessage], *, asks: bool) -> None:
        self.call = call
        self.stop = stop
        self._before = before
        self._asks = asks
        self._written = call.last
        self._answer: AIMessage | None = None

    @property
    def said_nothing(self) -> bool:
        """Whether there is nothing to say but that it ends."""
        return not self._before and self._written is None

    @property
    def messages(self) -> list[BaseMessage]:
        """What closes the conversation."""
        return [*self._before, *rounds.closing_messages(self.stop, self._written, self._answer)]

    def answered(self, handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]) -> Ending:
        """It, after the last answer."""
        request = self._request()
        if request is None:
            return self
        response, lost = None, False
        try:
            with self.call.asking():
                response = handler(self.call.tapped(request))
        except BaseException as error:  # noqa: BLE001  # `lost_answer` raises it unless only the last words are lost
            lost = self.call.lost_answer(error)
        for used in () if lost else self.call.answered(response):
            self.call.session.after_model_call(*used)
        self._answer = None if lost else self.call.answer(response)
        return self

    async def aanswered(self, handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]) -> Ending:
        """Like `answered`."""
        request = self._request()
        if request is None:
            return self
        response, lost = None, False
        try:
            with self.call.asking():
                response = await handler(self.call.tapped(request))
        except BaseException as error:  # noqa: BLE001  # as in `answered`
            lost = self.call.lost_answer(error)
        for used in () if lost else self.call.answered(response):
            await self.call.session.aafter_model_call(*used)
        self._answer = None if lost else self.call.answer(response)
        return self

    def _request(self) -> ModelRequest[Any] | None:
        text = self.call.session.final_answer() if self._asks else None
        if text is None:
            return None
        asked = self.call.request
        messages: list[Any] = [*asked.messages, *self._before, *rounds.said(self._written), rounds.note(text)]
        return asked.override(messages=messages, tools=[], tool_choice=None, response_format=None)
