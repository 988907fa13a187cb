"""`LoopDetectedEvent`: what a run's own event stream says about each verdict."""

from __future__ import annotations

from llama_index.core.workflow import Event

from loopguard_core import Verdict


class LoopDetectedEvent(Event):
    """A detector fired. Comes out of `handler.stream_events()`, whatever was done about it.

    It holds no arguments, results or texts of the run.

    Attributes:
        detector: Name of the detector, for example `repeated_call`.
        action: What is done about it: observe, steer, escalate, block or stop.
        streak: How often the evidence was seen.
        tool_name: The tool's name; None for text.
        tool_id: Id of the offending call; None for text.
        channel: `content` or `reasoning` for text; None for calls.
        message: What the model or the operator is told.
        round: Number of the round, from 1; 0 before the first.
        abort: Whether a running stream was cut.
        agent_name: The agent whose turn it was.
        session_id: Id of the loopguard session.
        run_id: LlamaIndex's id of the run.
    """

    detector: str
    action: str
    streak: int
    tool_name: str | None = None
    tool_id: str | None = None
    channel: str | None = None
    message: str = ""
    round: int = 0
    abort: bool = False
    agent_name: str | None = None
    session_id: str = ""
    run_id: str | None = None

    @classmethod
    def of(cls, verdict: Verdict, *, agent_name: str | None, session_id: str, run_id: str | None) -> LoopDetectedEvent:
        """The event for a verdict."""
        return cls(
            detector=verdict.detector,
            action=verdict.action.value,
            streak=verdict.streak,
            tool_name=verdict.tool,
            tool_id=verdict.call_id,
            channel=verdict.channel,
            message=verdict.message,
            round=verdict.round,
            abort=verdict.abort,
            agent_name=agent_name,
            session_id=session_id,
            run_id=run_id,
        )
