"""The text of one run: what is read while the model writes."""

from __future__ import annotations

from collections.abc import Sequence

from loopguard_core._contained import contained, nothing
from loopguard_core._ladder import RANK
from loopguard_core._scored import Effect
from loopguard_core._session_hooks import SessionHooks
from loopguard_core._types import Action, Channel, Stop, Verdict


class SessionText(SessionHooks):
    """Reads the running message."""

    @contained(nothing)
    def feed_text(self, delta: str, channel: Channel = "content") -> Verdict | None:
        """Read a piece of the running message.

        Args:
            delta: The new text, cut however the provider cuts it.
            channel: `content`, `reasoning` or `arguments`.

        Returns:
            A verdict where a detector fired. Its `abort` says whether to cut the stream.
        """
        if self._money is not None:
            self._money.hears(delta)
        if not self._guard.enabled or not self._scorer.reads_text:
            return None
        self._fed = True
        # Other people's detectors get every piece at once; ours read in blocks, which costs far less.
        text = self._pending_text.add(delta, channel) if self._scorer.own_detectors else delta
        return None if text is None else self._read_text(text, channel)

    def _read_text(self, text: str, channel: Channel) -> Verdict | None:
        return self._heard(*self._scorer.feed(text, channel, self.turns, self._messages + 1, self._judge))

    @contained(nothing)
    def end_message(self, finish_reason: str | None = None) -> Verdict | None:
        """The response is complete.

        Args:
            finish_reason: The provider's, where it gives one.

        Returns:
            A verdict where a detector fired on the whole message.
        """
        reads = self._guard.enabled and self._scorer.reads_text
        found = [self._read_text(text, channel) for channel, text in self._pending_text.rest()] if reads else []
        self._messages += 1
        self._message_state, self._fed = "ended", False
        if reads:
            judged = self._scorer.end_message(finish_reason, self.turns, self._messages, self._judge)
            found.append(self._heard(*judged))
        verdicts = [verdict for verdict in found if verdict is not None]
        return max(verdicts, key=lambda verdict: RANK[verdict.action], default=None)

    @contained(nothing)
    def message_restarted(self) -> None:
        """Somebody between the model and the caller asks anew inside one model call: what was read is in no message.

        A retry the caller sees is `model_call_failed` and `before_model_call` instead.
        """
        self._drop_message()

    def _drop_message(self) -> None:
        """The running message will never be complete: a retry writes it anew."""
        self._pending_text.clear()
        self._fed = False
        if self._scorer.reads_text:
            for detector in self._scorer.detectors:
                self._scorer.contained(detector, detector.begin_message)

    def _heard(self, verdict: Verdict | None, effects: Sequence[Effect]) -> Verdict | None:
        self._queue(effects)
        if verdict is not None and verdict.action is Action.STOP:
            self._declare(Stop("doom_loop", verdict, verdict.message))
        return verdict
