"""What the hooks `round_judged` and `result_recorded` are told; worked out only where a plugin listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loopguard_core._events import JudgedCall
from loopguard_core._failed import judge_error
from loopguard_core._fingerprint import keyed
from loopguard_core._identity import display_name, parse_arguments
from loopguard_core._outcome import Result, is_own_words, text_of
from loopguard_core._scored import ScoredRound
from loopguard_core._types import Decision, ToolCall
from loopguard_core.detectors import ObservedCall


def judged_calls(
    calls: Sequence[ToolCall],
    scored: ScoredRound,
    decisions: Sequence[Decision],
    fingerprint: Callable[[ObservedCall], str],
    *,
    arguments: bool,
) -> tuple[JudgedCall, ...]:
    """The calls of a round with the answers to them.

    Args:
        calls: As the model asked for them.
        scored: The same calls after scoring.
        decisions: The answers, in the same order.
        fingerprint: Names an identity outside the process.
        arguments: Whether the policy lets them out.
    """
    return tuple(
        JudgedCall(
            id=row.id,
            tool=display_name(call.name),
            fingerprint=None if row.observed is None else fingerprint(row.observed),
            action=decision.action,
            streak=decision.streak,
            duplicate=decision.duplicate,
            blocked=decision.blocked,
            message=decision.message,
            arguments=parse_arguments(call.arguments) if arguments else None,
        )
        for call, row, decision in zip(calls, scored.calls, decisions, strict=True)
    )


def recorded_result(output: Any, is_error: bool | None, key: bytes | None) -> tuple[bool, str] | None:
    """Whether an output is a failure, and its fingerprint; None for what loopguard itself said in a result's place."""
    if is_own_words(output):
        return None
    failed = judge_error(output) if is_error is None else is_error
    mark = Result(text_of(output, None), failed, None).digest[1:]
    return failed, mark if key is None else keyed(mark, key)
