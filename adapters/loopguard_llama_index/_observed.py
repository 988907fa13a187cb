"""One run as instrumentation shows it: model calls and responses, but no step, and nothing that can be changed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import MessageRole, ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.tools import ToolSelection
from llama_index.core.workflow import Context

from loopguard_core import Session, Stop, Usage, Verdict
from loopguard_llama_index import _translate as translate
from loopguard_llama_index._round import Asked, Round
from loopguard_llama_index._stop import LoopGuardStop
from loopguard_llama_index.events import LoopDetectedEvent

MOST_EARLIER = 1_000
"""Model calls remembered from before a run is watched; older ones are not counted."""


@dataclass(slots=True)
class Observed:
    """One run.

    Attributes:
        run_id: LlamaIndex's id of it.
        open: Makes its session.
        session: The session; None until a guarded tool is called, or where a handler watches every run.
        round: The calls of the last response.
        raised: The stop that was raised in a tool.
    """

    run_id: str
    open: Callable[[], Session]
    session: Session | None = None
    round: Round = field(default_factory=Round)
    raised: LoopGuardStop | None = None
    _started: float = 0.0
    _heard: bool = False
    _asking: bool = False
    _earlier: list[tuple[str | None, Usage]] = field(default_factory=list)

    def watch(self) -> Session:
        """Watch it from now on; the model calls it made already count."""
        if self.session is None:
            self.session = self.open()
            for model, usage in self._earlier:
                self.session.after_model_call(model, usage)
            self._earlier.clear()
            self._judge()
        return self.session

    # -- model calls -----------------------------------------------------------------------------------------------

    def asks(self, messages: Sequence[ChatMessage], model: str | None) -> None:
        """A model call starts; its input shows what the calls of the last round returned."""
        self._started, self._heard, self._asking = time.perf_counter(), False, True
        if self.session is None:
            return
        open_ = {asked.tool_id: asked for asked in self.round.calls if not asked.done}
        for message in reversed(messages) if open_ else ():
            asked = open_.pop(str(message.additional_kwargs.get("tool_call_id")), None)
            if message.role == MessageRole.TOOL and asked is not None:
                asked.done = True
                self.session.record_result(asked.call.id, message.content)
        sent = None if self.session.money is None else translate.sent_tokens(messages)
        self.session.before_model_call(model, sent)

    def hears(self, response: ChatResponse) -> None:
        """A piece of a response."""
        if self.session is None:
            return
        for channel, text in (
            ("reasoning", response.additional_kwargs.get("thinking_delta")),
            ("content", response.delta),
        ):
            if text:
                self._heard = True
                self._say(self.session.feed_text(text, channel))  # type: ignore[arg-type]  # the two are channels

    def answers(self, response: ChatResponse | None) -> None:
        """A response is complete; None where LlamaIndex does not show it."""
        self._asking = False
        raw, message = (None, ChatMessage()) if response is None else (response.raw, response.message)
        model, usage = translate.answered_by(raw), translate.usage_of(raw)
        if self.session is None:
            self._earlier.append((model, usage))
            del self._earlier[:-MOST_EARLIER]
        else:
            if response is not None and not self._heard:
                for channel, text in translate.texts_of(message):
                    self._say(self.session.feed_text(text, channel))
                self.session.feed_text("")  # where there is none, that is known too
            for text in translate.arguments_in(message):
                self._say(self.session.feed_text(text, "arguments"))
            self._say(self.session.end_message(translate.finish_reason(raw)))
            self.session.after_model_call(model, usage, time.perf_counter() - self._started)
        calls = _calls_in(message)
        if calls:
            self._begin(calls)

    def fails(self, error: BaseException | None) -> None:
        """Something failed; if a model call runs, it was that."""
        if self._asking and self.session is not None:
            self.session.model_call_failed(error)
        self._asking = False

    def _begin(self, calls: Sequence[ToolSelection]) -> None:
        self.round = Round.of(calls, handoffs=False)
        if self.session is not None:
            self._judge()

    def _judge(self) -> None:
        if self.session is not None and self.round.calls:
            for verdict in self.round.judge(self.session):
                self._say(verdict)

    # -- calls, where guarded tools show them -----------------------------------------------------------------------

    def start(self, name: str, arguments: Any) -> Asked:
        """A guarded tool starts. A call no response asked for is a round of its own."""
        self.watch()
        asked = self.round.find(name, arguments)
        if asked is None or asked.started:
            asked = self.round.find_by_name(name)
        if asked is None:
            unheard = ToolSelection(tool_id=uuid.uuid4().hex, tool_name=name, tool_kwargs=arguments)
            self._begin([unheard])
            asked = self.round.calls[0]
        asked.started = True
        return asked

    def returned(self, asked: Asked, output: Any, failed: bool | None) -> None:
        """It returned."""
        asked.done = True
        self.watch().record_result(asked.call.id, output, failed)

    def stop_now(self) -> Stop | None:
        """Why the run must end here: at once where it was stopped, after the round where a limit is reached.

        Nothing can hold back a model call, so it is asked for before the last tool of a round returns.
        """
        session = self.watch()
        if session.stop is not None or not self.round.over:
            return session.stop
        return session.before_model_call().stop

    async def astop_now(self) -> Stop | None:
        """`stop_now` for event loops."""
        session = self.watch()
        if session.stop is not None or not self.round.over:
            return session.stop
        return (await session.abefore_model_call()).stop

    # -- the end ---------------------------------------------------------------------------------------------------

    def _say(self, verdict: Verdict | None) -> None:
        if verdict is None or self.session is None:
            return
        try:
            ctx = Context.get_step_context()
        except Exception:  # noqa: BLE001  # not in a step; the hooks are told all the same
            return
        event = LoopDetectedEvent.of(verdict, agent_name=None, session_id=self.session.id, run_id=self.run_id)
        ctx.write_event_to_stream(event)


def _calls_in(message: ChatMessage) -> list[ToolSelection]:
    """The calls a response asks for, in either of the two forms LLM classes give them."""
    found = [
        _selection(block.tool_call_id, block.tool_name, block.tool_kwargs)
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    return found or list(_older_calls_in(message.additional_kwargs.get("tool_calls") or ()))


def _older_calls_in(calls: Iterable[Any]) -> Iterable[ToolSelection]:
    for call in calls:
        function = getattr(call, "function", None)
        if function is not None:
            yield _selection(getattr(call, "id", None), function.name, function.arguments)


def _selection(call_id: str | None, name: str, arguments: Any) -> ToolSelection:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {}  # as LLM classes do when they run it
    name = str(name)
    kwargs = arguments if isinstance(arguments, dict) else {}
    return ToolSelection(tool_id=str(call_id or name), tool_name=name, tool_kwargs=kwargs)
