"""How a session is saved, and how a run goes on from what was saved."""

from __future__ import annotations

import math
from typing import Any

from loopguard_core import _saved
from loopguard_core._bounded import count, short_text
from loopguard_core._session_state import SessionState
from loopguard_core._spending import Shadow


class SessionSaving(SessionState):
    """The state of one run, as something that can be kept."""

    def save(self) -> dict[str, Any]:
        """The state as plain JSON of at most 32 KB, for `LoopGuard.session(state=...)`; no arguments or results."""
        with self.lock:
            money = {} if self._money is None else self._money.save()
            history = self._scorer.history
            return _saved.fitted(
                {
                    "version": _saved.VERSION,
                    "counters": self.budget.counters.save(),
                    "seconds": round(self.seconds, 3),
                    "messages": self._messages,
                    "effects": self._effects.save(),
                    "round": self._open.save() if history is None else self._open.save(history.past),
                    "history": None if history is None else history.save(),
                    "detectors": self._scorer.save(),
                    "spending": self._scorer.spending.save(),
                    "stop": _saved.stop_to_json(self._stop),
                    "flags": [
                        int(self.budget.refused_calls),
                        int(self._answer_asked),
                        int(self._directive is not None),
                    ],
                    "message_state": self._message_state,
                    "key": self._guard.key_to_save(self._scorer.key),
                    **({"money": money} if money else {}),
                    **({} if self._shadow is None else {"shadow": self._shadow.save()}),
                }
            )

    def restore(self, state: Any) -> None:
        """Go on with a saved run. Parts that cannot be read are named in the log and start afresh."""
        with self.lock:
            parts = _saved.Parts(state, self.faults)
            parts.take_spending("counters", self.budget.counters.restore)
            parts.take("seconds", self._restore_seconds)
            parts.take("messages", self._restore_messages)
            parts.take("effects", self._effects.restore)
            parts.take("round", self._open.restore)
            parts.take("stop", self._restore_stop)
            parts.take("message_state", self._restore_message_state)
            parts.take("flags", self._restore_flags)
            parts.take("key", self._restore_key)
            if self._money is not None and parts.has("money"):  # else nothing was at stake
                parts.take("money", self._money.restore)
            if parts.has("spending"):
                parts.take("spending", self._scorer.spending.restore)
            if parts.has("shadow"):
                parts.take("shadow", self._restore_shadow)
            if self._scorer.history is not None:
                parts.take("history", self._scorer.history.restore)
            saved = parts.get("detectors", dict)
            for detector in self._scorer.detectors:
                if saved.get(detector.name) is not None:
                    parts.restore(f"detectors.{detector.name}", detector.restore, saved[detector.name])

    def _restore_seconds(self, value: Any) -> None:
        seconds = float(value)
        if not 0 <= seconds < math.inf:
            raise ValueError("seconds are a finite number, 0 or more")
        self.budget.clock = self._guard.new_clock(before=seconds)

    def _restore_messages(self, value: Any) -> None:
        self._messages = count(value)

    def _restore_message_state(self, value: Any) -> None:
        if value not in ("open", "ended", "called"):
            raise ValueError("unknown state of a message")
        self._message_state = value

    def _restore_flags(self, value: Any) -> None:
        over, asked, waiting = value
        self.budget.refused_calls, self._answer_asked = bool(over), bool(asked)
        if waiting:  # a model call was on its way; its answer settles what it carried
            self._directive = self._pending_directive()

    def _restore_shadow(self, value: Any) -> None:
        self._shadow = Shadow.restored(value)

    def _restore_stop(self, value: Any) -> None:
        self._stop = _saved.stop_from_json(value)
        self.verdict = None if self._stop is None else self._stop.verdict

    def _restore_key(self, value: Any) -> None:
        if value is not None and self._scorer.key is not None:
            key = bytes.fromhex(short_text(value, 128))
            if not key:
                raise ValueError("an empty key")
            self._scorer.key = key
