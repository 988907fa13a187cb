"""What a session tells plugins, and what it asks them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from loopguard_core import _messages
from loopguard_core._bounded import call_key
from loopguard_core._events import DoomLoopDetected, ResultRecorded, RoundJudged
from loopguard_core._ladder import RANK
from loopguard_core._round_events import judged_calls, recorded_result
from loopguard_core._scored import ScoredRound
from loopguard_core._session_saving import SessionSaving
from loopguard_core._spending import Shadow
from loopguard_core._types import Action, Decision, Stop, ToolCall, Verdict
from loopguard_core.detectors import ObservedCall

if TYPE_CHECKING:
    from loopguard_core._session import Session

_VERDICT_FIELDS = dataclasses.fields(Verdict)


class SessionHooks(SessionSaving):
    """The state of one run, with the plugins beside it."""

    _user_spoke = False

    def _custom_stop(self) -> Stop | None:
        if not self._guard.plugins.may_stop:
            return None
        reason = self._guard.plugins.stop_when(cast("Session", self))
        return None if reason is None else Stop("custom", None, _messages.custom_stop(reason))

    def _tell_round(self, calls: Sequence[ToolCall], scored: ScoredRound, decisions: Sequence[Decision]) -> None:
        try:
            privacy = self._guard.policy.privacy
            rows = judged_calls(calls, scored, decisions, self._scorer.fingerprint, arguments=privacy.include_arguments)
            event = RoundJudged(
                **self._event_fields(), message_index=self._messages, calls=rows, user_spoke=self._user_spoke
            )
            self._user_spoke = False
            self._guard.plugins.round_judged(event)
        except Exception as error:  # noqa: BLE001  # the round is judged, whoever hears of it
            self.faults.note("round_judged", error)

    def _tell_result(self, call_id: str, output: Any, is_error: bool | None) -> None:
        result = recorded_result(output, is_error, self._scorer.key)
        if result is not None:
            failed, mark = result
            shown = output if self._guard.policy.privacy.include_results else None
            self._guard.plugins.result_recorded(
                ResultRecorded(
                    **self._event_fields(), call_id=call_key(call_id), failed=failed, fingerprint=mark, output=shown
                )
            )

    def _judge(self, verdict: Verdict, proposed: Action, call: ObservedCall | None) -> tuple[Action, bool]:
        policy = self._guard.policy
        if policy.shadow and self._shadow is None and RANK[proposed] >= RANK[Action.BLOCK]:
            self._shadow = Shadow(verdict, proposed, self.usage)
        if not self._guard.plugins.observes_loops:
            return verdict.action, False
        event = DoomLoopDetected(
            **{field.name: getattr(verdict, field.name) for field in _VERDICT_FIELDS},
            **self._event_fields(),
            proposed=proposed,
            arguments=call.arguments if call is not None and policy.privacy.include_arguments else None,
        )
        refusable = call is None or call.refusable
        perform = functools.partial(self._scorer.perform, refusable=refusable)
        told, overridden = self._guard.plugins.doom_loop_detected(event, perform)
        return told.action, overridden
