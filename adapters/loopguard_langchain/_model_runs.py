"""What a callback handler does about the model calls of the runs it watches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from loopguard_core import Channel, LoopGuard, Session, Stop, Usage
from loopguard_langchain import _text as text
from loopguard_langchain import _translate as translate
from loopguard_langchain._conversations import keys_of, shapes_an_answer, user_spoke
from loopguard_langchain._guarded import refusable
from loopguard_langchain._runs import ModelCall, Run, Scope
from loopguard_langchain._sessions import Sessions


class ModelRuns:
    """Counts and judges model calls. Nothing here raises a stop: each step says whether one is due.

    Args:
        guard: The handler's.
        sessions: Which session a run belongs to.
        drains: Whether LangGraph finishes the round of a run that is to end.
    """

    def __init__(self, guard: LoopGuard, sessions: Sessions, *, drains: bool) -> None:
        self._guard = guard
        self._sessions = sessions
        self._refusable = refusable(guard)
        self._drains = drains

    def lets_finish(self, scope: Scope) -> bool:
        """Whether a run that is to end may finish its round first."""
        return self._drains and (scope.graph or scope.hosted)

    def begin(
        self, run: Run, history: Sequence[BaseMessage], metadata: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Stop | None:
        """A call begins: read the results of the last round.

        Args:
            run: The model's.
            history: What it is sent.
            metadata: LangChain's, of the run.
            given: What else LangChain tells of it.

        Returns:
            Why it must not start.
        """
        scope = run.scope
        conversation = self._sessions.conversation(run, history, metadata)
        name, structured = metadata.get("ls_model_name"), shapes_an_answer(given.get("options"))
        run.model_call = ModelCall(conversation, time.perf_counter(), structured, history, name)
        session = conversation.session
        if session is not None:
            with self._guard.faults.contained("reading results"):
                for result in translate.last_round(history)[1]:
                    session.record_result(result.tool_call_id, translate.output_of(result), translate.failed(result))
            if user_spoke(conversation, history, in_graph=scope.graph or scope.hosted):
                session.user_turn()
        session = session or scope.session
        return None if session is None else session.before_model_call(name, *self._most(session, history, given)).stop

    def _most(
        self, session: Session, history: Sequence[BaseMessage], given: Mapping[str, Any]
    ) -> tuple[int | None, int | None]:
        """Tokens about to be sent, and the most that may come back; unknown where nothing is held against it."""
        if session.money is None:
            return None, None
        with self._guard.faults.contained("estimating tokens"):  # the limit holds without the estimate
            settings = given.get("invocation_params") or {}
            sent = text.sent_tokens(history, settings.get("tools") or ())
            most = (given.get("metadata") or {}).get("ls_max_tokens")
            return sent, most if type(most) is int else translate.max_tokens(None, settings)
        return None, None

    def read(self, run: Run, model_call: ModelCall, pieces: Iterable[tuple[Channel, str]]) -> Stop | None:
        """Read pieces of a stream.

        Returns:
            Why it is to be closed here. The call is then over and counted.
        """
        session = model_call.conversation.session
        if session is None or model_call.structured:
            return None
        for channel, piece in pieces:
            model_call.received.append(piece)
            model_call.heard = True
            verdict = session.feed_text(piece, channel)
            if verdict is None or not verdict.abort or session.stop is None or self.lets_finish(run.scope):
                continue
            usage = Usage()
            with self._guard.faults.contained("estimating tokens"):
                usage = text.estimated_usage(model_call.sent, (), model_call.received, None)
            session.end_message()
            session.after_model_call(model_call.model, usage, time.perf_counter() - model_call.started)
            model_call.conversation.busy, run.model_call = False, None
            return session.stop
        return None

    def answered(self, scope: Scope, model_call: ModelCall, message: AIMessage | None) -> Stop | None:
        """Count a response and judge the round it asks for.

        Returns:
            Why the run ends here; None where it goes on, if only to finish its round.
        """
        conversation = model_call.conversation
        conversation.busy = False
        calls = [] if message is None or model_call.structured else translate.calls_of(message)
        self._refusable.mark(calls)
        if calls:
            self._sessions.claim(scope, conversation)
        session = conversation.session
        counting = session or scope.session
        if counting is None:
            return None
        duration = time.perf_counter() - model_call.started
        if message is None:
            counting.after_model_call(duration=duration)
            return None
        if session is not None and not model_call.structured:
            self._complete(session, message, heard=model_call.heard)
        name, usage = None, Usage()
        with self._guard.faults.contained("reading usage"):
            name, usage = translate.model_of(message), translate.usage_of(message)
        counting.after_model_call(name, usage, duration)
        if session is None:
            conversation.unjudged = calls
        elif calls:
            scope.rounds += conversation is scope.main
            decisions = session.begin_round(calls)
            over = any(decision.blocked and not call.refusable for call, decision in zip(calls, decisions, strict=True))
            if over and session.stop is None:
                # A call over a limit, which cannot be refused here: the limit ends the run.
                session.before_model_call()
        if session is not None and session.stop is not None and not self.lets_finish(scope):
            return session.stop
        self._sessions.answered(scope, conversation, keys_of(message), asked=bool(calls))
        return None

    def failed(self, run: Run, error: BaseException) -> None:
        """A call failed: nothing is counted for it."""
        if run.model_call is not None:
            conversation = run.model_call.conversation
            conversation.busy = False
            session = conversation.session or run.scope.session
            if session is not None:
                session.model_call_failed(error)

    def _complete(self, session: Session, message: AIMessage, *, heard: bool) -> None:
        reason = None
        with self._guard.faults.contained("reading a message"):
            reason = translate.finish_reason_of(message)
            if not heard:
                for channel, piece in text.texts_of(message):
                    session.feed_text(piece, channel)
                session.feed_text("")  # where there is none, that is known too
        session.end_message(reason)
