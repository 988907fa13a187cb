"""What a call returned, and whether that is news.

An outcome is kept as a hash. The text of a short result is held in memory, bounded, until it can be compared with the
next one of the same call: what differs is then looked at again with what changes by itself masked out. Saved state
holds hashes only.
"""

from __future__ import annotations

import enum
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from xxhash import xxh3_64_hexdigest

from loopguard_core._bounded import count, short_text
from loopguard_core._canonical import canonical_json
from loopguard_core._failures import Failure, classify
from loopguard_core._masking import HOLE, words_but_ids
from loopguard_core._sketch import (
    LARGE,
    SHORT,
    Lines,
    Look,
    Numbers,
    Sketch,
    Steps,
    differing,
    lines_in,
    numbers_in,
    saved_lines,
    saved_numbers,
)
from loopguard_core._wording import PLAIN, Says, is_empty, what_it_says

OWN_WORDS = "[loopguard]"
"""How everything loopguard puts before a model begins."""

REFUSED = f"{OWN_WORDS} This call was not executed"
"""How everything begins that stands in place of a result."""

REFUSED_WITHIN = 96
"""Characters of a result within which that begins: SDKs put a word like "Observation: " or "Error: " before it."""

_EDGE = 64 * 1024
_HALF = LARGE // 2  # of a larger failure its two ends tell what kind it is
_RIM = 6 * 1024  # read at either end of a large text
_RIM_MASKED = 2048  # of which so much counts, where there is more: what the cut left of a word is not in it
_RIM_SURE = _RIM_MASKED + 512
_FIGURES = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)*(?:[eE][-+]?\d+)?")
_TELLING_LINE = 16
_MAX_SIZE = 1_000_000
_ACKNOWLEDGEMENT = 120
_NOTHING = [None] * 4
RESULT_PARTS = 6
"""Parts of a saved result, without what it can be compared by when its text is gone."""


class Change(enum.StrEnum):
    """An outcome against the last one of the same identity."""

    FIRST = "first"
    SAME = "same"
    VOLATILE = "volatile"
    """Differs only in what changes by itself; counts as same."""
    CHANGED = "changed"
    BACK = "back"
    """Differs from the last one and equals an earlier one: changed, and no news."""


class MasksText(Protocol):
    """What `_masking.Masker` is."""

    def __call__(self, text: str, echoes: Sequence[str] = ()) -> str:
        """The text without what changes by itself."""


class Result:
    """One result: its hash, and as much of its text as is still held.

    Attributes:
        digest: Hash of the result and of whether it failed.
        failed: Whether it was an error.
        failure: What kind of failure it is; None for a success.
        plain: The text, where it is held as it is; see `text`.
        held: Bytes that are held of the text, about.
    """

    __slots__ = (
        *("_facts", "_figureless", "_masked", "_masker", "_packed", "_sketch"),
        *("digest", "failed", "failure", "held", "plain", "size"),
    )

    def __init__(
        self, text: str, failed: bool, masker: MasksText | None, echoes: Sequence[str] = (), tool: str = ""
    ) -> None:
        self.size = len(text)
        if self.size > 2 * _EDGE:
            text = f"{text[:_EDGE]}\0{self.size}\0{text[-_EDGE:]}"
        self.failed = failed
        self.digest = ("!" if failed else "=") + xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
        # What changes by itself makes no failure a new one either.
        self.failure: Failure | None = None
        if failed and masker is not None:
            ends = text if self.size <= LARGE or _reads_all(masker) else f"{text[:_HALF]}\n{text[-_HALF:]}"
            self.failure = classify(ends, masker(ends), echoes, tool)
        self.plain: str | None = text
        self.held = len(text)
        self._masker = masker
        self._masked: str | None = None
        self._figureless: str | None = None
        self._packed: bytes | None = None
        self._sketch: Sketch | None = None
        self._facts: int | None = None

    def save(self, *, course: bool = False, look: bool = False, steps: Steps | None = None) -> list[Any]:
        """As plain JSON: hashes, and what the text says in the few respects that matter later.

        Args:
            course: With its numbers and lines, for the next result of the same call.
            look: With how it looks, for the next result of the same tool.
            steps: How it differs from the one before.
        """
        failure = None if self.failure is None else self.failure.save()
        figureless = self.figureless  # first, since it brings the other with it
        saved = [self.digest, self.masked, figureless, self._known_facts(), min(self.size, _MAX_SIZE), failure]
        numbers, lines = self._course() if course else (None, None)
        seen = self.look if look else None
        sketch = [
            numbers,
            lines,
            None if seen is None else seen.save(),
            None if steps is None else list(map(int, steps)),
        ]
        return saved if sketch == _NOTHING else [*saved, sketch]

    def _course(self) -> tuple[str | None, str | None]:
        known = self.sketch
        if known.course is None:
            known.course = saved_numbers(self.numbers), saved_lines(self.lines)
        return known.course

    @classmethod
    def restored(cls, state: Any) -> Result:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            digest, masked, figureless, facts, size, failure, *sketch = state
        except TypeError as error:
            raise ValueError("not a saved result") from error
        result = cls("", short_text(digest).startswith("!"), None)
        result.digest = digest
        result._masked = None if masked is None else short_text(masked)
        result._figureless = None if figureless is None else short_text(figureless)
        result._facts, result.size, result.plain = count(facts), count(size), None
        result.failure = None if failure is None else Failure.restored(failure)
        result._sketch = Sketch.restored(sketch[0]) if sketch else None
        return result

    def adopt(self, other: Result) -> None:
        """Take over what was worked out of a result that was equal to the letter."""
        self._masked, self._figureless = other._masked, other._figureless
        self._facts, self.failure = other._facts, other.failure

    @property
    def text(self) -> str | None:
        """The text, its first and last 64 KB; None once it was let go."""
        if self.plain is None and self._packed is not None:
            return zlib.decompress(self._packed).decode("utf-8", "surrogatepass")
        return self.plain

    @property
    def sketch(self) -> Sketch:
        """What is known of the text beside the hashes."""
        if self._sketch is None:
            self._sketch = Sketch()
        return self._sketch

    @property
    def ends(self) -> tuple[str, str] | None:
        """The first and last characters of the text; None once it was let go."""
        text = self.plain
        if text is not None:
            return text[:SHORT], text[-SHORT:]
        return None if self._packed is None else self.sketch.ends

    @property
    def numbers(self) -> Numbers | None:
        """The numbers in the text, or what is known of them; None if it was let go before they were asked for."""
        known = self.sketch
        if known.numbers is None and (text := self.text) is not None:
            known.numbers = numbers_in(text)
        return known.numbers

    @property
    def lines(self) -> Lines | None:
        """The lines of a longer text, likewise."""
        known = self.sketch
        if known.lines is None and (text := self.text) is not None:
            known.lines = lines_in(text)
        return known.lines

    @property
    def look(self) -> Look | None:
        """How the text looks, likewise."""
        known = self.sketch
        if known.look is None and (text := self.text) is not None:
            known.look = Look.of(text)
        return known.look

    def may_be(self, other: Result) -> bool:
        """A cheap first look whether masks may make two results equal; False once a text was let go."""
        one, two = self._but_ids, other._but_ids
        return one is not None and one == two

    @property
    def _but_ids(self) -> int | None:
        known = self.sketch
        if known.but_ids is None and (text := self.text) is not None:
            known.but_ids = words_but_ids(text)
        return known.but_ids

    def masked_as(self, other: Result) -> bool:
        """Whether two results are equal without what changes by itself; of large ones a part is looked at first."""
        if self.size > LARGE and self._differs_in_part(other):
            return False
        masked = self.masked
        return masked is not None and masked == other.masked

    def _differs_in_part(self, other: Result) -> bool:
        """Whether masking a part of two large results shows that they differ: the whole costs most of all."""
        masker, one, two = self._masker, self.text, other.text
        if masker is not None and one is not None and two is not None and not _reads_all(masker):
            parts = differing(one, two, _RIM)
            if parts is not None:
                return _folded(masker(parts[0])) != _folded(masker(parts[1]))
        rims = zip(self._rims, other._rims, strict=True)
        return any(mine is not None and theirs is not None and mine != theirs for mine, theirs in rims)

    @property
    def _rims(self) -> tuple[str | None, str | None]:
        """Hashes of how a large text begins and ends without what changes by itself; None where that is not known."""
        known = self.sketch
        if known.edges is None:
            text, masker = self.text, self._masker
            if text is None or masker is None or _reads_all(masker):
                return None, None
            head, tail = _folded(masker(text[:_RIM])), _folded(masker(text[-_RIM:]))
            known.edges = (
                _hash(head[:_RIM_MASKED]) if len(head) > _RIM_SURE else None,
                _hash(tail[-_RIM_MASKED:]) if len(tail) > _RIM_SURE else None,
            )
        return known.edges

    @property
    def masked(self) -> str | None:
        """Hash of the text without what changes by itself; None if the text was let go before it was asked for."""
        if self._masked is None:
            self._mask(figures=False)
        return self._masked

    @property
    def known_by(self) -> str:
        """What it is known by when it comes back; a large one to the letter, because masking it costs most of all."""
        return (self.masked if self.size <= LARGE else None) or self.digest

    @property
    def figureless(self) -> str | None:
        """Hash of the masked text without figures; None as for `masked`, and of a large text."""
        if self._figureless is None and self.size <= LARGE:
            self._mask(figures=True)
        return self._figureless

    def _mask(self, *, figures: bool) -> None:
        """Work the hashes out, both where figures are asked for: masking is what costs."""
        text = self.text
        if text is None or self._masker is None:
            return
        masked = _folded(self._masker(text))
        self._masked = ("!" if self.failed else "=") + _hash(masked)
        if figures:
            self._figureless = _hash(" ".join(_FIGURES.sub("0", masked).split()))

    def let_go(self) -> None:
        """Forget the text."""
        self.plain = self._packed = None
        self.held = 0

    def pack(self) -> None:
        """Make a long text smaller."""
        if self.plain is not None:
            self.sketch.ends = self.ends
            self._packed = zlib.compress(self.plain.encode("utf-8", "surrogatepass"), 1)
            self.plain, self.held = None, len(self._packed)

    def same_as(self, other: Result) -> Change:
        """How this result differs from an earlier one of the same identity."""
        if self.digest == other.digest:
            return Change.SAME
        if self.failed == other.failed:
            if self._known_facts() & Says.UNCHANGED:
                return Change.SAME
            _ = self.figureless  # as in `save`: a changed result is asked for both
            if self.masked_as(other):
                return Change.VOLATILE
            if self.alone and other.alone and _failed_alike(self.failure, other.failure):
                return Change.VOLATILE
        return Change.CHANGED

    @property
    def alone(self) -> bool:
        """False for what several calls of one identity returned."""
        return self.digest[1:2] != _JOINED

    @property
    def empty(self) -> bool:
        """An empty or negative answer: nothing, `[]`, "not found", "0 results"."""
        if self._facts is None:  # asked of every new result, and mostly that is all there is to ask
            return self.size <= PLAIN and is_empty(self.text or "")
        return bool(self._facts & Says.EMPTY)

    @property
    def acknowledges(self) -> bool:
        """Whether it may be no more than "done": nothing that could have changed, or not."""
        return self.size <= _ACKNOWLEDGEMENT

    @property
    def picture(self) -> bool:
        """Whether it is, or describes, a picture: two of one screen are hardly ever equal to the bit."""
        return bool(self._known_facts() & Says.PICTURE)

    @property
    def pending(self) -> bool:
        """Whether it says that something is not done yet."""
        facts = self._facts  # asked whenever a call is made again
        return bool((self._known_facts() if facts is None else facts) & Says.PENDING)

    @property
    def failing(self) -> bool:
        """Whether it is a failure, or speaks of one: of tests, checks, a build."""
        return self.failed or bool(self._known_facts() & Says.FAILING)

    @property
    def removed(self) -> bool:
        """Whether it says that a number of things were removed."""
        return not self.failed and bool(self._known_facts() & Says.REMOVED)

    @property
    def finished(self) -> bool:
        """Whether it says that what was asked about has ended."""
        return self.failed or bool(self._known_facts() & Says.FINISHED)

    def _known_facts(self) -> int:
        """What the text says, worked out once, while it is there."""
        if self._facts is None:
            text = self.text
            self._facts = 0 if text is None else what_it_says(text)
        return self._facts


def _reads_all(masker: MasksText) -> bool:
    """Whether functions of a caller's are to see the whole text: they may read it as what it is, such as JSON."""
    return bool(getattr(masker, "_functions", ()))


def _failed_alike(one: Failure | None, other: Failure | None) -> bool:
    return one is not None and other is not None and one.same_as(other)


def _folded(masked: str) -> str:
    """A masked text without lines that repeat the one before: how often a server said "alive" is no news.

    Short lines stay: there the masked value may have been all there is.
    """
    if "\n" not in masked:
        return masked
    lines = masked.split("\n")
    kept = [
        line
        for place, line in enumerate(lines)
        if place == 0 or line != lines[place - 1] or HOLE not in line or len(line) < _TELLING_LINE
    ]
    return "\n".join(kept)


@dataclass(slots=True, eq=False)
class Outcome:
    """What all calls of one identity returned in one round.

    Attributes:
        digest: Hash of the results; equal digests are the same outcome.
        failed: True if any of the results was an error.
        change: Against the last outcome of the same identity; None where outcomes are ignored.
        result: The result, where there was one; the last to come in where there were several. None after a resume.
    """

    digest: str
    failed: bool = False
    change: Change | None = None
    result: Result | None = None


def is_own_words(output: Any) -> bool:
    """Whether an output is loopguard's refusal rather than a tool's answer."""
    # The bracket first, which few results have there: that costs least.
    return isinstance(output, str) and "[" in (head := output[:REFUSED_WITHIN]) and REFUSED in head


def text_of(output: Any, result_key: Any = None) -> str:
    """The canonical text of an output.

    Args:
        output: What the tool returned.
        result_key: Names of the fields of a JSON object that count, or a function of the output; None for all.
    """
    if result_key is not None:
        output = _picked(output, result_key)
    if isinstance(output, str):
        return output
    if isinstance(output, BaseException):
        return f"{type(output).__qualname__}: {output}"
    return canonical_json(output)


def _picked(output: Any, result_key: Any) -> Any:
    if callable(result_key):
        return result_key(output)
    value = output
    if isinstance(output, str) and len(output) <= 2 * _EDGE:
        try:
            value = json.loads(output)
        except (ValueError, RecursionError):
            return output
    if not isinstance(value, dict):
        return output
    picked = {name: value[name] for name in result_key if name in value}
    return picked or output  # a result without any of the fields is an error message, say


_JOINED = "+"  # no digit of a hash


class _Several(Result):
    """What several calls of one identity returned in one round, as a set."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Result]) -> None:
        super().__init__("", any(part.failed for part in parts), None)
        self._parts: Sequence[Result] = parts
        digests = sorted({part.digest for part in parts})
        self.digest = ("!" if self.failed else "=") + _JOINED + _hash("\n".join(digests))
        self.failure = parts[-1].failure
        self.plain = None
        self.sketch.numbers, self.sketch.lines = (), frozenset()  # several are no page, and count nothing down

    @property
    def masked(self) -> str | None:
        if self._masked is None and self._parts:
            found = {part.masked or part.digest for part in self._parts}
            self._masked = found.pop() if len(found) == 1 else "+" + _hash("\n".join(sorted(found)))
        return self._masked

    def let_go(self) -> None:
        _ = self.masked
        self._parts = ()


def combine(results: Sequence[Result]) -> Result | None:
    """What an identity's calls returned in a round, as one: their sorted set; None if nothing was recorded."""
    if len(results) > 1 and len({result.digest for result in results}) > 1:
        return _Several(results)
    return results[-1] if results else None


def _hash(text: str) -> str:
    return xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
