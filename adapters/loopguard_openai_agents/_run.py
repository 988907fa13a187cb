"""One agent run as this adapter knows it: its session, and the round that is running."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agents import Model, ModelProvider, ModelResponse, ModelSettings

from loopguard_core import Action, Decision, LoopGuard, Session, Usage, Verdict
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents._translate import Request

if TYPE_CHECKING:
    from loopguard_openai_agents._sessions import Tree


@dataclass(slots=True)
class Round:
    """The calls of the last response, until the next model call.

    Attributes:
        requests: The calls, by id.
        refused: What the model is told in place of a result, by id.
        started: Ids of the calls that began to run.
        returned: What tools returned, for where it does not show in the next input.
        errors: What really went wrong, where the SDK shows the model a fixed text.
    """

    requests: dict[str, Request] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    returned: dict[str, object] = field(default_factory=dict)
    errors: dict[str, object] = field(default_factory=dict)

    @property
    def undecided(self) -> set[str]:
        """Ids of the calls that neither ran nor were refused: a human may be asked about them."""
        return self.unanswered - self.started

    @property
    def unanswered(self) -> set[str]:
        """Ids of the calls that have no result. Of these that began, a human may be asked about an agent inside."""
        asked = {call_id for call_id, request in self.requests.items() if request.may_wait}
        return asked - self.refused.keys() - self.returned.keys()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """One agent run: its session, and where it stands.

    Attributes:
        guard: The guard it runs under.
        session: Its session.
        agent: The agent whose turn it is.
        tree: The tree of runs it is part of, once that is known.
        items: The input of the model call that is under way.
        round: The calls of the last response.
        responded: Whether the last model call was answered.
        read: Whether the text of the running message went through the session already.
        written: What the model had written when the stream of this turn was cut.
        answered_by: The model that answers, where it is not the agent's own.
        finished: Whether the SDK reported a final output.
        turn_limit: Whether the SDK's own turn limit ended it.
        closing: True while it gives its last answer after a stop.
        repeats: Whether its last message repeats itself so that it would have been cut, had it been read as it came.
        loose: True if it was resumed and its new context was not seen yet.
        asks: Whether a call of the last response may wait for a human, as far as a model wrapper can tell.
        waits: True while it waits for a human and nobody went on with it.
        saved: Its session's state as it began to wait, for those who go on from there once more.
        handled: The exception that was being handled where it began.
        escalate_model: The stronger model, where the runner was given one.
        provider: Finds the stronger model by its name, where the runner knows it.
        settings: The model settings the runner was given for all agents.
        started: When the running model call began.
    """

    guard: LoopGuard
    session: Session
    agent: Any = None
    tree: Tree | None = None
    items: Any = None
    round: Round = field(default_factory=Round)
    responded: bool = False
    read: bool = False
    written: str = ""
    answered_by: str | None = None
    finished: bool = False
    turn_limit: bool = False
    closing: bool = False
    repeats: bool = False
    loose: bool = False
    asks: bool = False
    waits: bool = False
    saved: Mapping[str, Any] | None = None
    handled: BaseException | None = None
    escalate_model: str | Model | None = None
    provider: ModelProvider | None = None
    settings: ModelSettings | None = None
    started: float = 0.0

    def record_results(self, items: Sequence[Any]) -> None:
        """Tell the session what the last round returned.

        Args:
            items: The next model call's input. It shows results of every kind, also of tools that do not exist.
        """
        running, self.round = self.round, Round()
        open_ = running.requests.keys() - running.refused.keys()
        if not self.started:  # the session may go on from saved state, which knows its round by the ids alone
            open_ = {*open_, *translate.ends_with_results(items)}
        if not open_:
            return
        shown = translate.outputs_in(items, open_)
        for call_id in open_:
            if call_id in running.errors:
                self.session.record_result(call_id, running.errors[call_id], True)
            elif call_id in shown:
                self.session.record_result(call_id, shown[call_id], translate.failed(shown[call_id]))
            elif call_id in running.returned:
                returned = running.returned[call_id]
                self.session.record_result(call_id, returned, translate.failed(returned))

    def begin_call(self) -> None:
        """A model call starts."""
        self.responded, self.read, self.written, self.answered_by = False, False, "", None
        self.started = time.perf_counter()

    def end_message(self, response: ModelResponse) -> None:
        """The response is complete: let the session read what no model wrapper has read to it."""
        self.repeats = False
        with self.guard.faults.contained("openai_agents reading results"):
            for request_id, output, failed in translate.hosted_results(response.output):
                self.session.record_result(request_id, output, failed)
        with self.guard.faults.contained("openai_agents reading a response"):
            for channel, text in translate.texts_of(response.output) if not self.read else ():
                self.repeats = to_cut(self.session.feed_text(text, channel)) or self.repeats
        self.responded, self.read, self.written = True, False, ""
        self.session.end_message()

    def usage(self, response: ModelResponse) -> Usage:
        """What a response used; unknown where that cannot be read."""
        with self.guard.faults.contained("openai_agents reading usage"):
            return translate.usage_of(response)
        return Usage()

    def judge(self, requests: list[Request]) -> list[tuple[Request, Decision]]:
        """Judge the round a response asks for, before any of it runs."""
        self.round = Round(requests={request.call.id: request for request in requests})
        return list(zip(requests, self.session.begin_round([request.call for request in requests]), strict=True))

    @property
    def seconds(self) -> float:
        """How long the model call took."""
        return time.perf_counter() - self.started


def to_cut(verdict: Verdict | None) -> bool:
    """Whether a message is to be cut for this."""
    return verdict is not None and verdict.abort and verdict.action is not Action.OBSERVE


def over(run: Run) -> bool:
    """Whether its session has ended for good."""
    ended = run.session.ended
    return ended is not None and ended.reason != "paused"
