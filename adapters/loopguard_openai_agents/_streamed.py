"""A streamed run under `GuardedRunner`: it ends in a task of the SDK's, whether its events are read or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agents import (
    InputGuardrailTripwireTriggered,
    ItemHelpers,
    MaxTurnsExceeded,
    MessageOutputItem,
    RawResponsesStreamEvent,
    RunItem,
    RunItemStreamEvent,
    RunResultStreaming,
    RunState,
    StreamEvent,
    TResponseInputItem,
)

from loopguard_openai_agents import _events as events
from loopguard_openai_agents import _translate as translate
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents._stop import LoopGuardStop
from loopguard_openai_agents._supervised import Supervised


@dataclass(slots=True)
class Outcome:
    """What a stop made of the end of a stream.

    Attributes:
        closed: True if the run was closed instead of raising.
        added: The closing items, until they are read.
        shown: The beginning of their text that the stream has shown already.
        stop: What is to be raised although the SDK raised nothing.
    """

    closed: bool = False
    added: Sequence[RunItem] = ()
    shown: str = ""
    stop: LoopGuardStop | None = None


_watchers: set[asyncio.Task[Outcome]] = set()
"""An event loop holds its tasks weakly."""


def supervise_stream(
    supervised: Supervised,
    given: str | list[TResponseInputItem] | RunState[Any],
    result: RunResultStreaming,
) -> RunResultStreaming:
    """Watch a streamed run to its end, and let its events tell of a stop.

    Args:
        supervised: The run.
        given: Its input.
        result: What `Runner.run_streamed` gave; the same object is returned.
    """
    registry.bind(supervised.run, result.context_wrapper)
    watcher = asyncio.create_task(_watch(supervised, given, result))
    _watchers.add(watcher)
    watcher.add_done_callback(_watchers.discard)
    original = result.stream_events

    def stream_events() -> AsyncIterator[StreamEvent]:
        return _events(original, watcher)

    result.stream_events = stream_events  # type: ignore[method-assign]  # the SDK has no hook for the end of a stream
    return result


async def _watch(
    supervised: Supervised,
    given: str | list[TResponseInputItem] | RunState[Any],
    result: RunResultStreaming,
) -> Outcome:
    """Wait for the end of the run, and see to it."""
    task = result.run_loop_task
    error: BaseException | None = None
    try:
        if task is not None:
            await asyncio.wait({task})
        error = _error(task, result)
        paused = error is None and supervised.paused(result)
        if error is None and not paused:
            error = _unseen(supervised, result)
        # A streamed run stores its input after the hooks of its first model call.
        unsaved = [] if isinstance(given, RunState) or supervised.run.started else translate.as_list(given)
        shown = supervised.run.written
        closed = await supervised.closed(error, unsaved)
    except BaseException as ours:  # the loop is closing, or closing the run failed
        supervised.end(error or ours)
        raise
    stop = supervised.session.stop
    await supervised.aend(error)
    await supervised.close_provider()
    if closed is not None:
        added = closed.new_items[len(result.new_items) :]
        result.new_items, result.raw_responses = closed.new_items, closed.raw_responses
        result.final_output = closed.final_output
        result.output_guardrail_results = closed.output_guardrail_results
        return Outcome(added=added, shown=shown, closed=True)
    if isinstance(error, LoopGuardStop):
        return Outcome(stop=error)
    if error is None and not paused and stop is not None and supervised.how == "raise":
        return Outcome(stop=supervised.stopped(stop, result))
    return Outcome()


def _error(task: asyncio.Task[Any] | None, result: RunResultStreaming) -> BaseException | None:
    """What `stream_events` is going to raise, as far as the run's own tasks or its result show it."""
    # A guardrail's exception is in a task of its own, which is private: a canary test watches it.
    for each in (task, getattr(result, "_input_guardrails_task", None)):
        error = each.exception() if each is not None and each.done() and not each.cancelled() else None
        if error is not None:
            return error
    tripped = [found for found in result.input_guardrail_results if found.output.tripwire_triggered]
    if tripped:
        return InputGuardrailTripwireTriggered(tripped[0])
    return asyncio.CancelledError() if task is not None and task.cancelled() else None


def _unseen(supervised: Supervised, result: RunResultStreaming) -> BaseException | None:
    """What ended a run whose tasks raised nothing; None if it reached its end."""
    run, stop = supervised.run, supervised.session.stop
    if run.finished:
        return None
    if result.max_turns is not None and result.current_turn > result.max_turns:  # raises only where events are read
        run.turn_limit = True
        return None if stop is None else supervised.stopped(stop, result)
    return None if run.turn_limit else asyncio.CancelledError()  # `cancel(mode="after_turn")` leaves no other trace


async def _events(
    original: Callable[[], AsyncIterator[StreamEvent]], watcher: asyncio.Task[Outcome]
) -> AsyncIterator[StreamEvent]:
    """The SDK's events, then those of the closing."""
    stopped: LoopGuardStop | MaxTurnsExceeded | None = None
    stream = original()
    try:
        async for event in stream:
            yield event
    except (LoopGuardStop, MaxTurnsExceeded) as stop:
        stopped = stop
    finally:
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
    outcome = await asyncio.shield(watcher)
    if outcome.stop is not None:
        raise outcome.stop
    if stopped is not None and not outcome.closed:
        raise stopped
    added, outcome.added = outcome.added, ()  # a stream that is read again has nothing more to give
    for item in added:
        if isinstance(item, MessageOutputItem):
            text = ItemHelpers.text_message_output(item).removeprefix(outcome.shown)
            if text:
                yield RawResponsesStreamEvent(data=events.text_delta(text))
            yield RunItemStreamEvent(name="message_output_created", item=item)
