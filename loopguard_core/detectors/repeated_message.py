"""`repeated_message`: the model says the same again, or says nothing.

Counted over consecutive responses, white space folded. Text beside differing calls counts only while those calls bring
nothing new: the same lead-in before each of twelve files is a habit, not a loop.

| kind | what it is |
|---|---|
| (none) | the same text without any call; a call announced and never made; the provider's own word for repetition |
| `across_turns` | the same text without any call, while a user spoke in between |
| `with_calls` | the same text beside calls that bring nothing new |
| `reworded` | the same in other words, without any call: an announcement, an apology, a question, a plan |
| `empty` | responses with neither text nor a call, whoever speaks in between |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar
from zlib import crc32

import xxhash

from loopguard_core._bounded import count, short_text
from loopguard_core._history import History
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core._outcome import Change
from loopguard_core._search_query import keywords
from loopguard_core._types import Channel
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._protocol import REPEATS, Detector, Finding

REPETITION = frozenset(
    {"repetition", "repetition_detected", "repetitive", "loop", "loop_detected", "finished_repetition"}
)
"""Values of a provider's `finish_reason` that say it ended the message because it repeated itself."""

MAX_HELD = 64 * 1024
"""Characters of a message that count; the rest of a longer one is left out."""

_CALLS = frozenset({"tool_calls", "tool_use", "function_call", "tool_call"})
_QUIET_ROUNDS = 2  # rounds without new words after which a repeated lead-in counts
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]+")
_NEW_SAID = 0.25
_NEW = 0.05  # share of words not seen before from which on a result is news; as in `rephrased_search`
_MAX_WORDS = 128
_MAX_ASKED = 8
_HEAD = 4096
_LOOK_BACK = 4  # messages whose words a message is compared with
_FEW_WORDS, _MANY_WORDS = 4, 60  # keywords of a message that can be said in other words; longer ones are drafts
_MIN_REWORDED = 3
_LEFT_OUT = 0.1
_SLOT = 3


class _Run:
    """Responses in a row of one kind: how many, and which was the first."""

    __slots__ = ("length", "since")

    def __init__(self) -> None:
        self.length = self.since = 0

    def go_on(self, message: int, *, same: bool = True) -> None:
        if not same or not self.length:
            self.length, self.since = 0, message
        self.length += 1

    def end(self) -> None:
        self.length = 0


class RepeatedMessage(Detector):
    """Counts equal messages, empty ones, and calls that were announced and not made.

    Args:
        history: What the session has seen.
    """

    name: ClassVar[str] = "repeated_message"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["repeated_message"]
    wakes_on: ClassVar[int] = REPEATS

    def __init__(self, history: History) -> None:
        self._history = history
        self._round = 0
        self._parts: list[str] = []
        self._length = 0
        self._fed = False
        self._message = 0
        self._last = ""
        self._announced_calls = False
        self._alone, self._beside, self._empty, self._announced = _Run(), _Run(), _Run(), _Run()
        self._user_spoke = self._empty_now = False
        self._quiet = 0
        self._words: set[int] = set()
        self._asked: frozenset[str] = frozenset()
        self._reworded = _Run()
        self._lately: list[frozenset[int]] = []
        self._order: list[int] = []

    def describe(self, finding: Finding, tool: str | None) -> str:
        """What was said again, and how often."""
        times = finding.streak
        what = finding.evidence.get("what")
        if finding.kind == "empty":
            return f"{times} responses in a row were empty"
        if what == "finish_reason":
            return "the provider ended a response because it repeated itself"
        if what == "announced":
            return f"{times} responses in a row announced a call and made none"
        if finding.kind == "reworded":
            return f"the last {times} responses said the same in other words and made no call"
        if finding.kind == "with_calls":
            return f"the last {times} responses said the same, and the calls beside it brought nothing new"
        return f"the last {times} responses said the same and made no call"

    def feed_text(self, delta: str, channel: Channel) -> Finding | None:
        """Collect the message; only what the model says counts, not how it reasons."""
        self._fed = True
        if channel == "content" and self._length < MAX_HELD:
            self._parts.append(delta[: MAX_HELD - self._length])
            self._length += len(delta)
        return None

    def end_message(self, finish_reason: str | None) -> Finding | None:
        """Compare the message with the one before."""
        self._message += 1
        text = _SPACE.sub(" ", "".join(self._parts)).strip()
        self._parts, self._length = [], 0
        fed, self._fed = self._fed, False
        reason = (finish_reason or "").lower()
        called, self._round = self._history.number != self._round, self._history.number
        if called and self._empty_now:
            self._empty.length -= 1  # it made calls after all, whatever its provider says it ended with
        self._empty_now = False
        announced, self._announced_calls = self._announced_calls and not called, reason in _CALLS
        if reason in REPETITION:
            return Finding(self.ladder.steer or 1, self._message, evidence={"what": "finish_reason"})
        if not fed:
            return None  # a surface that does not pass the text on tells nothing about it
        found = self._announcement(announced)
        if not text:
            return found or (None if reason in _CALLS else self._nothing(called, sure=bool(reason)))
        if called:
            self._lately = []
        else:
            self._compare_words(text)
        said = self._said(xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass")), called)
        return found if found is not None and (said is None or found.streak >= said.streak) else said

    def _announcement(self, announced: bool) -> Finding | None:
        if not announced:
            self._announced.end()
            return None
        self._announced.go_on(self._message)
        return Finding(self._announced.length, self._announced.since, evidence={"what": "announced"})

    def _nothing(self, called: bool, *, sure: bool) -> Finding | None:
        if called:
            self._empty.end()
        if not sure:
            self._last = ""
            return None  # its calls may follow
        self._empty.go_on(self._message)
        self._empty_now = True
        return Finding(self._empty.length, self._empty.since, kind="empty", evidence={"messages": self._empty.length})

    def _said(self, digest: str, called: bool) -> Finding | None:
        self._empty.end()
        same = digest == self._last
        self._last = digest
        if called:
            self._alone.go_on(self._message, same=False)
            self._beside.go_on(self._message, same=same)
            self._history.listening = self._beside.length > 1
            if not same:
                self._words, self._quiet = set(), 0
            if self._quiet < _QUIET_ROUNDS:
                return None
            evidence = {"messages": self._beside.length, "rounds_without_news": self._quiet}
            return Finding(self._beside.length, self._beside.since, kind="with_calls", evidence=evidence)
        self._beside.go_on(self._message, same=False)
        self._history.listening = False
        if not same:
            self._user_spoke = False
        self._alone.go_on(self._message, same=same)
        if self._alone.length < _MIN_REWORDED <= self._reworded.length:
            run = self._reworded
            return Finding(run.length, run.since, kind="reworded", evidence={"messages": run.length})
        kind = "across_turns" if self._user_spoke else None
        return Finding(self._alone.length, self._alone.since, kind=kind, evidence={"messages": self._alone.length})

    def _compare_words(self, text: str) -> None:
        """Count messages that hold hardly a word, and no number, that the last few did not hold.

        A message that differs from the last one in one place alone, behind its beginning, fills in a form: the next
        word of a quiz, the next name on a list.
        """
        order = [_hash(word) for word in _WORD.findall(text[:_HEAD].casefold())][:_MAX_WORDS]
        before, self._order = self._order, order
        words = keywords(text[:_HEAD])
        if not _FEW_WORDS <= len(words) <= _MANY_WORDS:
            self._lately = []
            return
        hashes = {_hash(word): word for word in words}
        new = [hashes[value] for value in hashes.keys() - frozenset().union(*self._lately)]
        numbers = any(not word.isalpha() and any(map(str.isdigit, word)) for word in new)
        same = bool(self._lately) and not numbers and len(new) < _NEW_SAID * len(hashes)
        if same and self._user_spoke and new and "```" in text:
            # Somebody asked for the code once more with something added, and that is what came.
            same = len(self._lately[-1] - hashes.keys()) > _LEFT_OUT * len(hashes)
        if same and new and _fills_in(before, order):
            same = False
        self._reworded.go_on(self._message, same=same)
        self._lately = [*self._lately, frozenset(hashes)][-_LOOK_BACK:]

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        """See whether the results hold any words that were not there before, once a lead-in repeats."""
        if self._beside.length < 2:  # nothing repeats
            return
        asked = frozenset(call.identity for call in calls)
        if asked == self._asked:
            # The same calls again are `repeated_call`'s. A step in a user interface alone may well be made again; with
            # the same words beside it, it is not.
            steps = all(call.nature.ui and call.change is Change.SAME for call in calls)
            self._quiet = self._quiet + 1 if steps else 0
            return
        self._asked = asked
        if any(call.outcome is not None and call.outcome.change is Change.CHANGED for call in calls):
            self._quiet = 0
            return
        found: set[int] = set()
        whole: set[int] = set()
        for call in calls:
            if call.result is None:
                continue
            whole.add(_hash(call.result.digest))
            text = call.result.text
            if text is not None:
                found.update(map(_hash, _words(call.nature.mask(text[:_HEAD]))))
            elif not call.result.empty:
                # The run was resumed meanwhile: its words are unknown, but not whether it was there before.
                found.add(_hash(call.result.digest))
        if not found:
            return  # nothing came back
        new = len(found - self._words)
        self._quiet = self._quiet + 1 if new < _NEW * len(found) else 0
        self._words = set(sorted(self._words | found | whole)[:_MAX_WORDS])

    def user_turn(self) -> None:
        """A user spoke: the same answer may be right, so it is no longer proof."""
        self._user_spoke = True
        self._beside.end()
        self._quiet, self._history.listening = 0, False

    @property
    def _runs(self) -> tuple[_Run, ...]:
        return (self._alone, self._beside, self._empty, self._announced, self._reworded)

    def save(self) -> Any:
        """Counts, the hash of the last message, and those of the words that were there before."""
        runs = [[run.length, run.since] for run in self._runs]
        flags = self._announced_calls + 2 * self._user_spoke + 4 * self._empty_now
        return [
            runs,
            self._last,
            self._message,
            flags,
            self._quiet,
            sorted(self._words),
            self._round,
            sorted(self._asked)[:_MAX_ASKED],
            [sorted(words) for words in self._lately],
            self._order,
        ]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            runs, last, message, flags, quiet, words, number, asked, lately, order = state
            pairs = [(count(length), count(since)) for length, since in runs]
            if len(pairs) != len(self._runs):
                raise ValueError("not a saved state of repeated_message")
            self._last, self._message, flags = short_text(last), count(message), count(flags)
            self._round = count(number)
            self._asked = frozenset(short_text(identity) for identity in asked[:_MAX_ASKED])
            self._lately = [frozenset(map(count, words[:_MANY_WORDS])) for words in lately[-_LOOK_BACK:]]
            self._order = [count(word) for word in order[:_MAX_WORDS]]
            self._quiet, self._words = count(quiet), {count(word) for word in words[:_MAX_WORDS]}
        except TypeError as error:
            raise ValueError("not a saved state of repeated_message") from error
        for run, (length, since) in zip(self._runs, pairs, strict=True):
            run.length, run.since = length, since
        self._announced_calls, self._user_spoke = bool(flags & 1), bool(flags & 2)
        self._empty_now = bool(flags & 4)


def _fills_in(before: list[int], after: list[int]) -> bool:
    """Whether two messages begin alike, end alike, and differ in a few words in one place."""
    shorter = min(len(before), len(after))
    start = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    end = next((i for i in range(shorter - start) if before[-1 - i] != after[-1 - i]), shorter - start)
    return start > 0 and max(len(before), len(after)) - start - end <= _SLOT


def _hash(word: str) -> int:
    return crc32(word.encode("utf-8", "surrogatepass"))


def _words(text: str) -> list[str]:
    """The words of a result; those that mix letters and digits are names made up for one occasion."""
    words = _WORD.findall(text.casefold())
    return [word for word in words if word.isdigit() or not any(letter.isdigit() for letter in word)]
