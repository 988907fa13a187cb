"""The core as somebody's own agent loop uses it. Not run: mypy and pyright check it, strictly."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, assert_type

import loopguard_core
from loopguard_core import (
    Action,
    Channel,
    Decision,
    Directive,
    EndReason,
    Ladder,
    LoopGuard,
    LoopGuardError,
    LoopGuardStop,
    Policy,
    PolicyError,
    PolicyLike,
    Saving,
    Session,
    SessionEnd,
    Stop,
    Surface,
    TokenSizes,
    ToolCall,
    Usage,
    Verdict,
    as_guard,
    canonical_json,
    current_session,
    estimate_tokens,
    fingerprint,
    inside,
    is_key_limit,
    resolve_policy,
)
from loopguard_core.session_store import SessionStore, open_session_store


def make() -> LoopGuard:
    guards: list[LoopGuard] = [
        LoopGuard(),
        LoopGuard("openrouter"),
        LoopGuard({"limits": {"turns": 40}}),
        LoopGuard(Policy(preset="patient", limits={"cost": "0.50"}), on_end=lambda event: print(event.reason)),
        LoopGuard("default", on_loop=lambda event: Action.OBSERVE),
        LoopGuard.from_file("loopguard.toml", on_end=print),
        as_guard(None),
    ]
    assert_type(as_guard("strict"), LoopGuard)
    assert_type(LoopGuard.from_file("loopguard.toml"), LoopGuard)
    return guards[0]


def policies() -> None:
    assert_type(resolve_policy(None), Policy)
    try:
        policy = Policy.from_file("loopguard.toml")
    except PolicyError as error:
        assert_type(str(error), str)
        policy = Policy.from_mapping({"preset": "dsh"})
    assert_type(policy, Policy)
    assert_type(policy.limits.turns, int | None)
    assert_type(policy.limits.cost, Decimal | None)
    assert_type(policy.hazards(), list[str])
    assert_type(policy.ladder_for("cycle", "read_file"), Ladder)
    assert_type(policy.rungs_in_use(), tuple[Action, ...])
    likes: list[PolicyLike] = [policy, "default", None, {"shadow": True}]
    assert likes


def run(guard: LoopGuard, parent: Session | None = None) -> SessionEnd:
    with guard.session("run-1", parent=parent, agent="billing", key=["team", "user"]) as session:
        assert_type(session, Session)
        directive = session.before_model_call("gpt-6", input_tokens=1_000, max_output_tokens=200)
        assert_type(directive, Directive)
        assert_type(directive.stop, Stop | None)
        assert_type(directive.steer, tuple[str, ...])
        assert_type(directive.model, str | None)
        channel: Channel = "reasoning"
        assert_type(session.feed_text("so ", channel), Verdict | None)
        assert_type(session.end_message("tool_calls"), Verdict | None)
        session.message_restarted()
        session.model_call_failed(TimeoutError())
        usage = Usage(input_tokens=1_000, output_tokens=20, cost=Decimal("0.01"))
        assert_type(session.after_model_call("gpt-6", usage, duration=1.5), Stop | None)
        decisions = session.begin_round([ToolCall("c1", "fetch_invoice", {"invoice_id": "INV-2291"})])
        assert_type(decisions, list[Decision])
        for decision in decisions:
            assert_type(decision.action, Action | None)
            assert_type(decision.verdict, Verdict | None)
            assert_type(decision.message, str | None)
            if not decision.blocked:
                with inside(session):
                    assert_type(current_session(), Session | None)
        session.record_result("c1", {"status": "open"}, is_error=None)
        assert_type(session.refusal("c1", "fetch_invoice"), str | None)
        session.user_turn()
        session.compacted()
        session.pause()
        session.continued()
        assert_type(session.final_answer(), str | None)
        assert_type(session.verdict, Verdict | None)
        assert_type(session.stop, Stop | None)
        assert_type(session.usage, Usage)
        state = session.save()
        assert_type(state, dict[str, Any])
        guard.session("run-2", state=state)
        ended = session.end()
    assert_type(ended, SessionEnd)
    reason: EndReason = ended.reason
    assert_type(ended.saving, Saving | None)
    assert_type(guard.last_end, SessionEnd | None)
    assert_type(guard.live("run-1"), Session | None)
    guard.allow("0123456789abcdef", times=1)
    guard.discard("run-2")
    print(reason)
    return ended


async def arun(guard: LoopGuard) -> None:
    session = guard.session(surface=Surface("my loop", "mine", frozenset({"observe", "stop"})))
    assert_type(await session.abefore_model_call(), Directive)
    assert_type(await session.aafter_model_call(usage=Usage()), Stop | None)
    await guard.adrain()
    guard.close()


def raising(session: Session) -> None:
    stop = session.before_model_call().stop
    if stop is not None:
        raise LoopGuardStop(stop)


def raised(session: Session) -> Verdict | None:
    try:
        raising(session)
    except LoopGuardStop as stopped:
        assert_type(stopped.stop, Stop)
        return stopped.verdict
    except LoopGuardError:
        raise
    return None


def identity(value: object, error: Exception) -> None:
    assert_type(canonical_json(value), str)
    assert_type(fingerprint("fetch_invoice", {"invoice_id": "INV-2291"}, "sha256"), str)
    assert_type(estimate_tokens("a text"), int)
    assert_type(TokenSizes(str).of([value]), int)
    assert_type(is_key_limit(error), bool)
    assert_type(loopguard_core.__version__, str)


def resumed(guard: LoopGuard) -> Session:
    with open_session_store("memory://", ttl=3600.0) as store:
        assert_type(store, SessionStore)
        session = guard.session("run-1", state=store.load("run-1"))
        store.save(session)
        assert_type(store.delete("run-1"), bool)
        return session
