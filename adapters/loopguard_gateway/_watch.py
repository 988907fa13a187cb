"""The detection of one request. Nothing in it raises: a fault of ours is logged once, and the request goes on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from loopguard_core import Action, Channel, Directive, EndReason, LoopGuard, Stop, Usage, Verdict
from loopguard_core.transcripts import AssistantMessage, TranscriptError, speak
from loopguard_gateway import _links
from loopguard_gateway._contained import contained
from loopguard_gateway._conversations import MOST_TEXT, Conversation, Conversations, feed, run_begins, too_large
from loopguard_gateway._metrics import Metrics
from loopguard_gateway._tokens import UNKNOWN_CONTEXT
from loopguard_gateway._wire import Asked, Said, Wire

_NOTHING = Directive()
_KEPT_ASKING = "[loopguard] The run was ended: the model kept asking for calls that were refused."

_log = logging.getLogger("loopguard")


@dataclass(frozen=True, slots=True)
class Judged:
    """What becomes of a response.

    Attributes:
        kind: `pass` on; `refuse` all its calls on the model's behalf; `stop` the run.
        outputs: What each refused call is answered with, by its id.
        stop: Why the run ends; of calls that are refused, if they cannot be refused any more.
    """

    kind: Literal["pass", "refuse", "stop"] = "pass"
    outputs: dict[str, str] | None = None
    stop: Stop | None = None


PASS = Judged()


class Watch:
    """Watches one request and its response.

    Args:
        guard: The guard.
        conversations: Where the session is found.
        metrics: Where verdicts are counted.
        wire: The protocol.
        asked: The request.
        key: Name of the client's key: conversations of different clients never meet.
        run: The name the client gave the run.

    Attributes:
        verdicts: What was found, in order.
    """

    def __init__(
        self,
        guard: LoopGuard,
        conversations: Conversations,
        metrics: Metrics,
        wire: Wire,
        asked: Asked,
        key: str,
        run: str | None,
    ) -> None:
        self.verdicts: list[Verdict] = []
        self._guard = guard
        self._conversations = conversations
        self._metrics = metrics
        self._wire = wire
        self._asked = asked
        self._key = key
        self._run = run
        self._conversation: Conversation | None = None
        self._places: list[bytes] = []

    # -- before the model call ---------------------------------------------------------------------------------

    def find(self) -> None:
        """Find the session, and let it read what is new."""
        if not self._guard.enabled:
            return
        with contained(self._guard, "reading a conversation"):
            try:
                self._find()
            except TranscriptError as error:
                text = f"a conversation cannot be read and goes on unwatched: {error}"
                self._guard.faults.note("gateway conversation", text=text)

    def _find(self) -> None:
        asked, wire = self._asked, self._wire
        if too_large(asked.items):
            raise TranscriptError("is larger than any model reads")
        links = wire.links(asked.items)
        start = _links.digest(wire.name, self._key, self._run, asked.after)
        self._places = _links.chain(start, [link for _, link in links])
        taken = self._conversations.take(self._places)
        if taken is None:
            messages = wire.read(asked.items)
            begins = run_begins(messages, over=True)
            self._conversation = self._conversations.begin(self._key, self._run, messages[begins or 0 :])
            return
        length, conversation = taken
        try:
            new = wire.read(asked.items[links[length - 1][0] + 1 if length else 0 :])
        except TranscriptError:
            self._conversations.drop(conversation)
            raise
        begins = run_begins(new, over=conversation.over)
        if begins is not None:
            self._conversations.drop(conversation)
            tokens = conversation.tokens
            conversation = self._conversations.begin(self._key, self._run, new[begins:])
            conversation.tokens = tokens
        else:
            feed(conversation, new)
        self._conversation = conversation

    @property
    def context(self) -> int:
        """Tokens of the conversation that the provider keeps."""
        if self._asked.after is None:
            return 0
        return (0 if self._conversation is None else self._conversation.tokens) or UNKNOWN_CONTEXT

    @property
    def session_id(self) -> str | None:
        """The session's id."""
        return None if self._conversation is None else self._conversation.session.id

    @property
    def holds(self) -> bool:
        """Whether the calls of a stream are held until they were judged."""
        return self._conversation is not None and self._conversation.suspicious

    def before(self, input_tokens: int, output_tokens: int) -> Directive:
        """What is to be done about the model call."""
        conversation = self._conversation
        if conversation is None:
            return _NOTHING
        directive = conversation.session.before_model_call(self._asked.model, input_tokens, output_tokens)
        if directive.stop is not None:
            self.end()
        return directive

    # -- while it answers --------------------------------------------------------------------------------------

    def hear(self, channel: Channel, text: str) -> Verdict | None:
        """A piece of a stream; the verdict for which it is to be cut."""
        conversation = self._conversation
        if conversation is None:
            return None
        verdict: Verdict | None = conversation.session.feed_text(text, channel)
        if verdict is None:
            return None
        self._note(verdict)
        if not verdict.abort or verdict.action is Action.OBSERVE:
            return None
        allowed = self._guard.policy.text.retries
        if conversation.session.stop is None and conversation.cuts >= allowed:
            return None
        conversation.cuts += 1
        return verdict

    def failed(self, error: BaseException | None = None) -> None:
        """The model call failed; the client may try again.

        A provider that says that a spending limit is reached ends the run. It is not remembered: whether there is money
        again is the provider's to say, so the same request is a new run and is sent to it.
        """
        conversation = self._conversation
        if conversation is None:
            return
        conversation.session.model_call_failed(error)
        stop = conversation.session.stop
        if stop is not None and stop.reason == "key_limit":
            self.end()
        else:
            self._put(())

    def judge(self, said: Said, usage: Usage, *, streamed: bool) -> Judged:
        """The response is complete, or was cut: count it, and judge what it asks for."""
        judged = PASS
        if self._conversation is not None:
            with contained(self._guard, "judging a response"):
                judged = self._judge(self._conversation, said, usage, streamed=streamed)
        return judged

    def _judge(self, conversation: Conversation, said: Said, usage: Usage, *, streamed: bool) -> Judged:
        session, message = conversation.session, said.message
        if streamed:
            session.feed_text("", "content")  # an empty message is known to be empty
            verdict = session.end_message("length" if said.cut else message.finish)
            found = [] if verdict is None else [verdict]
        else:
            found = list(speak(session, _bounded(message)))
        session.after_model_call(said.model or self._asked.model, usage)
        conversation.tokens = usage.total_tokens or conversation.tokens
        decisions = [] if said.cut else session.begin_round(message.calls)
        if not said.cut:
            conversation.note(message, decisions)
        found += [one.verdict for one in decisions if one.verdict is not None and not one.duplicate]
        for verdict in found:
            self._note(verdict)
        if session.stop is not None and session.verdict is not None and (decisions or said.cut):
            return Judged("stop", stop=session.stop)
        if decisions and all(decision.blocked for decision in decisions):
            pairs = zip(message.calls, decisions, strict=True)
            outputs = {call.id: decision.message or "" for call, decision in pairs}
            first = next((one.verdict for one in decisions if one.verdict is not None), None)
            return Judged("refuse", outputs, Stop("doom_loop", first, _KEPT_ASKING))
        return PASS

    def refused(self, outputs: dict[str, str]) -> None:
        """The calls were answered on the model's behalf."""
        if self._conversation is not None:
            for call_id, output in outputs.items():
                self._conversation.session.record_result(call_id, output, is_error=True)

    # -- after it ----------------------------------------------------------------------------------------------

    def answered(self, items: Sequence[Any], response_id: str | None = None) -> None:
        """The client has a response: the next request is to be known by it.

        Args:
            items: The response as it will stand in the next request.
            response_id: Its id, by which the next request may name it instead.
        """
        if self._conversation is None:
            return
        with contained(self._guard, "keeping a conversation"):
            if self._is_done(self._conversation):
                self._conversations.drop(self._conversation)
                return
            self._put([link for _, link in self._wire.links(items)], response_id)
            if self._conversation.over:
                self._conversation.session.end(may_go_on=True)

    def _is_done(self, conversation: Conversation) -> bool:
        """Whether it need not be remembered: it came to its end, and should it go on it can be read again."""
        limits = self._guard.policy.limits
        counted = limits.cost is not None or limits.tokens is not None or limits.seconds is not None
        ended = conversation.session.stop is not None or conversation.cuts > 0
        return conversation.over and not ended and not counted and not self._wire.keeps

    def close(self) -> None:
        """The request is over. Where the client has no response, it may try again."""
        conversation = self._conversation
        if conversation is not None and not conversation.places and conversation.session.ended is None:
            with contained(self._guard, "keeping a conversation"):
                conversation.session.model_call_failed()
                self._put(())

    def _put(self, links: Sequence[bytes], response_id: str | None = None) -> None:
        if self._conversation is None or not self._places:
            return
        places = [_links.chain(self._places[-1], links)[-1]]
        if response_id is not None and self._wire.keeps:
            places.append(_links.digest(self._wire.name, self._key, self._run, response_id))
        kept = self._asked.body.get("conversation")
        if kept is not None and self._asked.after is not None:
            places.append(_links.digest(self._wire.name, self._key, self._run, self._asked.after))
        self._conversations.put(self._conversation, places)

    def final_answer(self) -> str | None:
        """What asks for one last answer after a stop; None if there is to be none."""
        return None if self._conversation is None else self._conversation.session.final_answer()

    def end(self, reason: EndReason | None = None) -> None:
        """The run was ended: say so."""
        conversation = self._conversation
        if conversation is not None and conversation.session.ended is None:
            conversation.over = True
            end = conversation.session.end(reason)
            self._metrics.stops.labels(end.reason).inc()
            _log.warning("Session %s on key %r was ended: %s", conversation.session.id, self._key[:64], end.message)

    def _note(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._metrics.verdicts.labels(verdict.detector, verdict.action.value).inc()
        _log.info(
            "%s: %s by %s (streak %d)",
            self.session_id,
            verdict.action.value,
            verdict.detector,
            verdict.streak,
        )


def _bounded(message: AssistantMessage) -> AssistantMessage:
    return replace(message, content=message.content[:MOST_TEXT], reasoning=message.reasoning[:MOST_TEXT])
