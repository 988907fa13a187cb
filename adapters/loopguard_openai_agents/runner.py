"""`GuardedRunner`: stands where `Runner` stands, does everything, and tells every way a run can end."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from agents import Agent, Model, Runner, RunResult, RunResultStreaming, RunState, TResponseInputItem

from loopguard_core import LoopGuard, PolicyLike
from loopguard_openai_agents._stop import OnStop
from loopguard_openai_agents._streamed import supervise_stream
from loopguard_openai_agents._supervised import Supervised

T = TypeVar("T")


class GuardedRunner:
    """`Runner` with a guard. Everything `Runner` takes is passed on to it.

    The keyword arguments of its own, for all three methods:

    - `guard`: a `LoopGuard`, a policy, a preset's name, a path with a suffix; None takes the guard of `hooks` where
      those are `LoopGuardHooks`, else finds the config file.
    - `on_stop`: `raise` a `LoopGuardStop`; `end` with a normal result whose final output is a closing message;
      `answer`: like `end`, with one last model call without tools. None takes the policy's `on_stop.how`. An agent
      with an `output_type` cannot end with a message of ours: there `end` raises.
    - `escalate_model`: the stronger model for escalated turns, an object or a name; None takes the policy's
      `escalation.models.openai_agents`.
    - `session_id`, `saved`: go on with that loopguard session, or with one from `Session.save`. A run resumed from a
      `RunState` in the process that paused it finds its session without them.
    """

    @staticmethod
    async def run(
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],  # noqa: A002  # the SDK's name
        *,
        guard: LoopGuard | PolicyLike = None,
        on_stop: OnStop | None = None,
        escalate_model: str | Model | None = None,
        session_id: str | None = None,
        saved: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RunResult:
        """Like `Runner.run`.

        Raises:
            LoopGuardStop: The run was ended, and is to raise. `run_data` holds the history.
            PolicyError: The policy cannot be used.
            LoopGuardError: The installed openai-agents is too old to refuse a call.
        """
        supervised = Supervised.open(starting_agent, input, guard, on_stop, escalate_model, session_id, saved, options)
        if supervised is None:
            return await Runner.run(starting_agent, input, **options)
        with supervised.entered():
            try:
                result = await Runner.run(starting_agent, input, **supervised.options)
            except BaseException as error:  # noqa: BLE001  # raised again unless it is a stop with another end
                return await supervised.failed(error)
            else:
                return await supervised.returned(result)
            finally:
                await supervised.close_provider()

    @staticmethod
    def run_sync(
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],  # noqa: A002  # the SDK's name
        *,
        guard: LoopGuard | PolicyLike = None,
        on_stop: OnStop | None = None,
        escalate_model: str | Model | None = None,
        session_id: str | None = None,
        saved: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RunResult:
        """Like `Runner.run_sync`, on the same event loop; see `run`.

        Raises:
            RuntimeError: An event loop is running already.
        """
        return _on_default_loop(
            GuardedRunner.run(
                starting_agent,
                input,
                guard=guard,
                on_stop=on_stop,
                escalate_model=escalate_model,
                session_id=session_id,
                saved=saved,
                **options,
            )
        )

    @staticmethod
    def run_streamed(
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],  # noqa: A002  # the SDK's name
        *,
        guard: LoopGuard | PolicyLike = None,
        on_stop: OnStop | None = None,
        escalate_model: str | Model | None = None,
        session_id: str | None = None,
        saved: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RunResultStreaming:
        """Like `Runner.run_streamed`; what `run` raises, `stream_events` raises."""
        supervised = Supervised.open(starting_agent, input, guard, on_stop, escalate_model, session_id, saved, options)
        if supervised is None:
            return Runner.run_streamed(starting_agent, input, **options)
        with supervised.entered():
            try:
                result = Runner.run_streamed(starting_agent, input, **supervised.options)
            except BaseException as error:
                supervised.end(error)
                raise
            return supervise_stream(supervised, input, result)


run = GuardedRunner.run
run_sync = GuardedRunner.run_sync
run_streamed = GuardedRunner.run_streamed


def _on_default_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run on the thread's default loop and leave that open, as `Runner.run_sync` does.

    Clients and sessions keep what is bound to a loop between calls; a loop of our own would break the second call.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        coroutine.close()
        raise RuntimeError("run_sync cannot be called while an event loop is running; use `await run(...)`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        policy = asyncio.get_event_loop_policy()
        try:
            loop = policy.get_event_loop()
        except RuntimeError:
            loop = policy.new_event_loop()
        if loop.is_closed():
            loop = policy.new_event_loop()
        policy.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # such as a KeyboardInterrupt: the run is not to linger on the shared loop
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        raise
    finally:
        with contextlib.suppress(RuntimeError):
            loop.run_until_complete(loop.shutdown_asyncgens())
