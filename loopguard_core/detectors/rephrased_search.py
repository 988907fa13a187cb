"""`rephrased_search`: the same search in other words.

The keywords of a search are compared with those of the last three searches of the same tool in the same place. Fewer
than a quarter new is a repeat. Two figures decide:

- no keyword is new: it is reported, whatever the searches returned;
- some are new: it is reported from the second repeat in a row on, and only where the results overlap or are unknown.
  A search for the next of many things shares most of its words with the last one, and its results are new.

This is statistics, not proof: by default it is noted at the first repeat and the model told at the second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar
from zlib import crc32

from loopguard_core._bounded import count, short_text
from loopguard_core._history import History
from loopguard_core._ladder import DEFAULT_LADDERS, Ladder
from loopguard_core._search_query import (
    MAX_KEYWORDS,
    MAX_PAGE,
    Search,
    read_search,
    without_joints,
)
from loopguard_core._search_results import MAX_ENTRIES, overlap, packed, unpacked
from loopguard_core.detectors._observed import ObservedCall
from loopguard_core.detectors._protocol import REPEATS, SEARCHES, Detector, Finding
from loopguard_core.detectors._retries import Retries

NEW_SHARE = 0.25
"""Share of new keywords below which a search repeats earlier ones; from dsh-loop-detector 1.0.0."""

LOOK_BACK = 3
"""Earlier searches it is compared with; from the same source."""

MAX_CALLS = 40
"""Searches of a round whose results are waited for. No round has more calls that are followed."""

MAX_STREAMS = 4
"""Tools and places that are followed; those searched longest ago go first."""

_STREAM_NAME = 56


class _Stream:
    """The last searches of one tool in one place.

    Attributes:
        asked: Identities of the last three calls.
        queries: Keywords of the last three searches, the latest last.
        results: Signatures of what came back, in step with `queries`; None where it is not known.
        low: Searches in a row with few new keywords.
        repeats: Those of them that brought nothing new either.
        since: The round in which the repeats began.
        page: The page that was asked for last.
    """

    __slots__ = ("asked", "low", "news", "page", "queries", "repeats", "results", "since", "stale", "stale_since")

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.queries: list[frozenset[int]] = []
        self.results: list[frozenset[int] | None] = []
        self.low = 0
        self.stale = self.stale_since = self.news = 0
        self.repeats = 0
        self.since = 0
        self.page = ""

    def next(
        self, words: frozenset[int], chains: Iterable[tuple[int, ...]], number: int, *, worked: bool
    ) -> tuple[int, int]:
        """Take the next search.

        Args:
            words: Its keywords.
            chains: See `without_joints`.
            number: The round.
            worked: Whether anything else brought news since the last search: then what was found is put to use.

        Returns:
            New keywords, and repeats so far if this one is to be reported, else 0.
        """
        stale = self._stale()
        if worked:
            self.stale = 0
        elif stale and self.results[-1]:  # to find nothing again is an answer of its own
            self.stale += 1
            self.stale_since = number if self.stale == 1 else self.stale_since
        elif stale is False:
            self.stale = 0
        unknown = set(words.difference(*self.queries))
        new = len(without_joints(unknown, chains) if unknown else unknown)
        news = stale is False or worked
        reported = 0
        if not self.queries or new >= NEW_SHARE * len(words):
            self.low = self.repeats = 0
        elif new and news:  # a little new was asked, and something new comes back: that is work
            self.low += 1
            self.repeats = 0
        else:
            self.low += 1
            self.repeats += 1
            if self.repeats == 1:
                self.since = number
            if new == 0 or self.low > 1:
                reported = self.repeats
        self.queries = [*self.queries, words][-LOOK_BACK:]
        self.results = [*self.results, None][-LOOK_BACK:]
        return new, reported

    def _stale(self) -> bool | None:
        """Whether the last search brought what earlier ones had brought; None if that cannot be known."""
        last = self.results[-1] if self.results else None
        known = [result for result in self.results[:-1] if result is not None]
        if last is None or not known:
            return None
        return any(overlap(last, result) for result in known)


class RephrasedSearch(Detector):
    """Counts searches that hardly differ from the ones before.

    Calls of one round were written without seeing each other's results, so together they are one search.

    Args:
        history: What the session has seen: other news between two searches means that what was found is put to use.
        retries: Counts what is reported, for detectors that share one retry (preset `dsh`); None counts repeats.
    """

    name: ClassVar[str] = "rephrased_search"
    ladder: ClassVar[Ladder] = DEFAULT_LADDERS["rephrased_search"]
    wakes_on: ClassVar[int] = REPEATS | SEARCHES

    def __init__(
        self,
        history: History | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._history = history
        self._retries = retries
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._running: dict[str, str] = {}

    def describe(self, finding: Finding, tool: str | None) -> str:
        """How many searches in a row had little new."""
        if finding.kind == "same_results":
            return f"the last {finding.streak} searches with `{tool}` found what earlier ones had found"
        new = finding.evidence.get("new_keywords")
        little = (
            "without a new keyword" if not new else f"with {new} new of {finding.evidence.get('keywords')} keywords"
        )
        times = finding.evidence.get("repeats")
        return f"`{tool}` was asked for the same thing in other words, {little} ({times} such searches in a row)"

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        """Compare the round's searches with earlier ones."""
        self._running = {}
        rounds: dict[str, list[tuple[ObservedCall, Search]]] = {}
        for call in calls:
            if not call.nature.searches:
                continue
            search = read_search(call.tool_key, call.arguments, call.nature.search_fields)
            if search is not None:
                rounds.setdefault(search.stream, []).append((call, search))
        return [finding for key, found in rounds.items() for finding in self._compare(key, found, number)]

    def _compare(self, key: str, searches: list[tuple[ObservedCall, Search]], number: int) -> Sequence[Finding]:
        stream = self._stream(key)
        # What was asked before to the letter is asked in no other words: that is another detector's.
        searches = [(call, search) for call, search in searches if call.identity not in stream.asked]
        if not searches:
            return ()
        call, last = searches[-1]
        words = last.keywords if len(searches) == 1 else _together(search.keywords for _, search in searches)
        stream.asked = [*stream.asked, *(call.identity for call, _ in searches)][-LOOK_BACK:]
        page, stream.page = stream.page, last.page
        if page != last.page and stream.queries and words <= stream.queries[-1]:
            return ()  # the next page of what was searched before
        self._running.update((call.identity, key) for call, _ in searches)
        news = 0 if self._history is None else self._history.news
        worked, stream.news = news - stream.news > 1, news  # the search itself is one
        chains = [chain for _, search in searches for chain in search.chains]
        new, repeats = stream.next(words, chains, number, worked=worked)
        if not repeats:
            return self._same_results(key, call, stream)
        about = f"?{key}"
        evidence = {"repeats": repeats, "keywords": len(words), "new_keywords": new, "since_round": stream.since}
        if self._retries is None:
            return (Finding(repeats, stream.since, identity=call.identity, evidence=evidence, about=about),)
        return (Finding(self._retries.take(), number, identity=call.identity, evidence=evidence, about=about),)

    def _same_results(self, key: str, call: ObservedCall, stream: _Stream) -> Sequence[Finding]:
        if not stream.stale or self._retries is not None:
            return ()
        evidence = {"searches": stream.stale, "since_round": stream.stale_since}
        about = f"={key}"
        return (Finding(stream.stale, stream.stale_since, call.identity, "same_results", evidence, about=about),)

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        """Keep what the searches returned, as far as it is wanted for comparing."""
        if not self._running:
            return
        returned: dict[str, set[int]] = {}
        for call in calls:
            key = self._running.get(call.identity)
            signature: frozenset[int] | None = getattr(call, "signature", None)
            if call.outcome is not None and call.outcome.result is not None and call.outcome.result.empty:
                signature = frozenset()
            elif signature is None and call.outcome is not None:
                # Without a signature only equal results are known to overlap.
                signature = frozenset((crc32(call.outcome.digest.encode()),))
            if key is not None and signature is not None:
                returned.setdefault(key, set()).update(signature)
        for key, entries in returned.items():
            stream = self._streams.get(key)
            if stream is not None and stream.results:
                stream.results[-1] = frozenset(sorted(entries)[:MAX_ENTRIES])
        self._running = {}

    def user_turn(self) -> None:
        """Forget: a user may well want the same thing looked up again."""
        self._streams.clear()
        self._running = {}
        if self._retries is not None:
            self._retries.taken = 0

    def _stream(self, key: str) -> _Stream:
        stream = self._streams.setdefault(key, _Stream())
        self._streams.move_to_end(key)
        while len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        return stream

    def save(self) -> Any:
        """Hashes of the last keywords and results of each stream, and the counts."""
        streams = [
            [
                key,
                [packed(words) for words in stream.queries],
                [None if entries is None else packed(entries) for entries in stream.results],
                [stream.low, stream.repeats, stream.since, stream.stale, stream.stale_since, stream.news],
                stream.page,
                stream.asked,
            ]
            for key, stream in self._streams.items()
        ]
        running = [list(row) for row in sorted(self._running.items())[:MAX_CALLS]]
        return [streams, None if self._retries is None else self._retries.taken, running]

    def restore(self, state: Any) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        streams: OrderedDict[str, _Stream] = OrderedDict()
        try:
            rows, taken, *more = state
            running = more[0][:MAX_CALLS] if more else ()
            asks = {short_text(identity): short_text(key, _STREAM_NAME) for identity, key in running}
            for key, queries, results, numbers, page, asked in rows[-MAX_STREAMS:]:
                stream = streams[short_text(key, _STREAM_NAME)] = _Stream()
                stream.queries = [unpacked(words, MAX_KEYWORDS) for words in queries[-LOOK_BACK:]]
                stream.results = [None if r is None else unpacked(r, MAX_ENTRIES) for r in results[-LOOK_BACK:]]
                stream.low, stream.repeats, stream.since, *rest = map(count, numbers)
                stream.stale, stream.stale_since, stream.news = rest
                stream.page = short_text(page, MAX_PAGE)
                stream.asked = [short_text(identity) for identity in asked[-LOOK_BACK:]]
        except TypeError as error:
            raise ValueError("not a saved state of rephrased_search") from error
        if self._retries is not None and taken is not None:
            self._retries.taken = count(taken)
        self._streams, self._running = streams, asks


def _together(parts: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset(sorted(frozenset().union(*parts))[:MAX_KEYWORDS])
