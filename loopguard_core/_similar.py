"""Whether two calls of one tool ask for the same thing in other words.

Equal means equal after case, white space, punctuation and order, after what is said beside the request (a reason, an
attempt number, a request id), after an extra field, and after writing the same part of a command several times.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import xxhash

from loopguard_core._canonical import canonical_json
from loopguard_core._shell import without_echo

Likeness = Literal["near", "grown", "rephrased"]
"""`near`: the same thing; `grown`: a command with more copies of its own parts; `rephrased`: prose in new words."""

# Fields that count, name or explain a call and do not change what it does.
BESIDE = frozenset(
    """retry retries attempt attempts try tries retry_count attempt_number attempt_no nonce request_id req_id
    correlation_id trace_id span_id idempotency_key client_request_id timestamp ts requested_at sent_at
    called_at cache_buster cachebuster _ _t _ts reason reasoning explanation rationale justification thought
    thoughts thinking why intent purpose urgency please tool_call_id""".split()
)
# These too, but only beside something that is plainly done: in `create_issue` the title is what it is about.
_LABELS = frozenset(
    """title display display_name label caption description desc note notes comment summary status_text activity
    message_to_user name""".split()
)
_DEEDS = frozenset(
    "command cmd code script query sql url path file file_path input expression statement action operation op".split()
)
_WRITTEN = frozenset("code_edit new_string new_str new_text file_text patch diff".split())
_INSTRUCTIONS = frozenset("instructions instruction description summary".split())  # beside what is written, a label
_TITLES = frozenset("title subject headline betreff titre titulo asunto oggetto".split())
_PROSE = frozenset(
    """body message content text description html comment msg note summary task prompt instructions context
    memory""".split()
)

_NUMBERED = frozenset({"ref", "element_ref", "element_id", "elementId", "node_id", "nodeId", "index", "uid"})
_STATEMENTS = frozenset({"query", "sql", "statement", "jql", "cypher", "graphql"})
_ONE_REQUEST = re.compile(
    r"(?:\w+_)?(?:timestamp|ts|nonce)|(?:\w+_)?(?:request|req|trace|span|correlation|idempotency)_?(?:id|key|uuid)"
)
_WORDS = re.compile(r"[^\W_]+")
_RUNS = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PARTS = re.compile(r"&&|\|\||[;\n]|\bunion(?: all)?\b", re.IGNORECASE)
_LONGEST = 4096
_SHORT_COUNT = 4
_DEPTH = 4
_STOP_WORDS = frozenset(
    """the a an and or of to for in on at is are was be been i you we they it this that with from as by please
    hello hi dear hey thanks thank many very much could would can will may your our my me us just kind kindly
    best regards team all""".split()
)
_OVERLAP = 0.6
_OVERLAP_ALONE = 0.7  # where nothing else is there to be the same
_OVERLAP_TITLED = 0.2
_OTHERWISE_EQUAL = 2
_LEAST_PROSE = 20
_TITLE_WORDS = 2
_PLACES = frozenset({"coordinate", "coordinates", "position"})  # of two numbers
_PLANE = 2
_PIXELS = 12  # what somebody moves who thinks that he has just missed


def likeness(
    before: Any,
    after: Any,
    *,
    mutates: bool,
    hands_over: bool = False,
    ui: bool = False,
    renumbered: bool = False,
    writes: bool = False,
) -> Likeness | None:
    """How alike two argument objects are, which are known not to be equal.

    Args:
        before: Of the earlier call.
        after: Of the later one.
        mutates: Whether the tool changes the world: then a title is what it is about, and no label.
        hands_over: Whether it hands over to another agent: then the tool alone says what is asked.
        ui: Whether it is a step in a user interface: then `ref` numbers what `element` names.
        renumbered: Whether what was looked at in between gave other numbers to the same elements.
        writes: Whether it writes a text: then other words are another text.
    """
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return "near" if isinstance(before, str) and isinstance(after, str) and same_words(before, after) else None
    beside = _beside(after, mutates=mutates)
    core_before = {key: value for key, value in before.items() if _plain(key) not in beside}
    core_after = {key: value for key, value in after.items() if _plain(key) not in beside}
    if ui and core_before.keys() == core_after.keys() and (renumbered or len(core_after) > 1):
        core_before, core_after = (
            {key: v for key, v in core.items() if key not in _NUMBERED} for core in (core_before, core_after)
        )
    if not core_before and not core_after:
        return "near" if hands_over or renumbered else None
    if not core_before or not core_after:
        return None
    different = [
        key for key in core_before.keys() & core_after.keys() if not _asks_alike(key, core_before[key], core_after[key])
    ]
    if not different and (core_before.keys() <= core_after.keys() or core_after.keys() <= core_before.keys()):
        return "near"
    if not different or core_before.keys() != core_after.keys():
        return None
    titled = len(core_after) - len(different) >= _OTHERWISE_EQUAL and any(
        _plain(key) in _TITLES for key in core_after.keys() - set(different)
    )
    names = _PROSE if mutates or hands_over else _STATEMENTS
    if names is _PROSE and len(core_after) - len(different) >= _OTHERWISE_EQUAL:
        different = [
            key for key in different if not (_plain(key) in _TITLES and _same_title(core_before[key], core_after[key]))
        ]
    if writes and not titled:
        names = frozenset()
    return _in_new_words(core_before, core_after, different, names, titled=titled)


def _beside(arguments: Mapping[Any, Any], *, mutates: bool) -> frozenset[str]:
    """The fields of a call that change nothing about what it does."""
    if any(arguments.get(key) for key in _WRITTEN):  # strict schemas send every field, empty or not
        return BESIDE | _INSTRUCTIONS
    return BESIDE if mutates or _DEEDS.isdisjoint({_plain(key) for key in arguments}) else BESIDE | _LABELS


def _in_new_words(
    before: Mapping[Any, Any], after: Mapping[Any, Any], different: list[Any], names: frozenset[str], *, titled: bool
) -> Likeness | None:
    """How alike two requests are that have the same fields, some of which differ.

    `names` are the fields that may differ in their words; `titled` means that the title, which says what it is about,
    and something else beside it are the same.
    """
    if all(_plain(key) in _DEEDS and _grown(before[key], after[key]) for key in different):
        return "grown"
    # A message in new words; or a statement in other clothes, and whether it is one shows in what it returns.
    least = _OVERLAP if names is _PROSE and len(after) > len(different) else _OVERLAP_ALONE
    if names is _PROSE and titled:
        least = _OVERLAP_TITLED
    if all(
        (_plain(key) in names and rephrased(before[key], after[key], least)) or _same_items(before[key], after[key])
        for key in different
    ):
        return "rephrased"
    return None


def _same_title(before: Any, after: Any) -> bool:
    """Whether two titles say the same, one of them perhaps with more politeness around it."""
    if not isinstance(before, str) or not isinstance(after, str):
        return False
    one, other = _keywords(before), _keywords(after)
    return min(len(one), len(other)) >= _TITLE_WORDS and one == other


def same_place(before: Any, after: Any) -> bool:
    """Whether two steps on a screen differ in nothing but a few pixels."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or before.keys() != after.keys():
        return False
    different = [key for key in after if before[key] != after[key]]
    flat = "x" in after and "y" in after
    return bool(different) and all(
        (isinstance(after[key], list) if key in _PLACES else flat and key in ("x", "y"))
        and _close(before[key], after[key])
        for key in different
    )


def _close(before: Any, after: Any) -> bool:
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after) == _PLANE:
        return all(_close(one, other) for one, other in zip(before, after, strict=True))
    plain = (int, float)
    return type(before) in plain and type(after) in plain and abs(before - after) <= _PIXELS


def thought_again(before: Any, after: Any) -> bool:
    """Whether a tool that only takes down thoughts was given the same one in new words; what counts them differs."""
    one, other = _longest_text(before), _longest_text(after)
    return rephrased(one, other, _OVERLAP_ALONE) or same_words(one, other)


def _longest_text(arguments: Any) -> str:
    values = arguments.values() if isinstance(arguments, Mapping) else ()
    return max((value for value in values if isinstance(value, str)), key=len, default="")


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts in arguments, however deep, four levels at most."""
    if isinstance(value, str):
        yield value
    elif depth < _DEPTH:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        for part in parts:
            yield from texts_in(part, depth + 1)


def _same_items(before: Any, after: Any) -> bool:
    """Whether two lists hold the same items in the same state, their prose in new words: a plan written again."""
    if not isinstance(before, list) or not isinstance(after, list) or len(before) != len(after):
        return False
    prose: tuple[list[str], list[str]] = ([], [])
    for one, other in zip(before, after, strict=True):
        if not isinstance(one, Mapping) or not isinstance(other, Mapping) or one.keys() != other.keys():
            return False
        for key in one:
            if _plain(key) in _PROSE and isinstance(one[key], str) and isinstance(other[key], str):
                prose[0].append(one[key])
                prose[1].append(other[key])
            elif not _alike(one[key], other[key], 0):
                return False
    return rephrased(" ".join(prose[0]), " ".join(prose[1]), _OVERLAP_ALONE)


def without_words_of(text: str, request: Any, other: Any) -> str:
    """A result without the words in which its request differs from another: that it repeats them says nothing."""
    own = {word for part in texts_in(request) for word in _WORDS.findall(part[:_LONGEST])}
    own -= {word for part in texts_in(other) for word in _WORDS.findall(part[:_LONGEST])}
    return _WORDS.sub(lambda word: "" if word[0] in own else word[0], text) if own else text


def no_new_words(after: str, before: str) -> bool:
    """Whether a result holds no word the one before did not: the same, more often.

    Where it holds more of them, a short count may differ: of the rows, say.
    """
    now, then = _WORDS.findall(after[:_LONGEST]), _WORDS.findall(before[:_LONGEST])
    new = set(now) - set(then)
    return not new or (len(now) > len(then) and all(word.isdigit() and len(word) <= _SHORT_COUNT for word in new))


def gist(arguments: Any) -> str:
    """Hash of what has to be equal for two calls to be near: for one whose arguments are no longer there."""
    if isinstance(arguments, Mapping):
        arguments = {key: value for key, value in arguments.items() if _plain(key) not in BESIDE}
    return xxhash.xxh3_64_hexdigest(canonical_json(_evened(arguments, 0)).encode("utf-8", "surrogatepass"))


def _evened(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return sorted(_WORDS.findall(value[:_LONGEST].casefold())) or value[:_LONGEST]
    if isinstance(value, Mapping) and depth < _DEPTH:
        return {str(key): _evened(inner, depth + 1) for key, inner in value.items()}
    return value


@functools.lru_cache(maxsize=1024)
def _plain_key(key: str) -> str:
    return _CAMEL.sub("_", key).replace("-", "_").lower()


def _plain(key: Any) -> str:
    """A key in one notation; what names one request, or the time of it, goes by one name."""
    plain = _plain_key(str(key)[:64])
    return "nonce" if _ONE_REQUEST.fullmatch(plain) else plain


def _alike(before: Any, after: Any, depth: int) -> bool:
    if before == after:
        return True
    if depth >= _DEPTH or type(before) is not type(after):
        return False
    if isinstance(before, str):
        return same_words(before, after)
    if isinstance(before, Mapping):
        return before.keys() == after.keys() and all(_alike(before[key], after[key], depth + 1) for key in before)
    if isinstance(before, list) and len(before) == len(after):
        return all(_alike(one, other, depth + 1) for one, other in zip(before, after, strict=True)) or (
            sorted(map(str, before)) == sorted(map(str, after))
        )
    return False


def same_words(before: str, after: str) -> bool:
    """Whether two texts are equal after case, white space, punctuation and order."""
    if len(before) > _LONGEST or len(after) > _LONGEST:
        return False
    if abs(len(before) - len(after)) > max(16, len(before) // 2):  # far more than punctuation
        return False
    before, after = before.casefold(), after.casefold()
    words = sorted(_WORDS.findall(before))
    # A text without any word, such as an operator, is its punctuation.
    if not words:
        return False
    # Between a letter and a digit a mark tells nothing: `INV-2291` is `INV2291`. Between digits it does: `1.5`.
    return words == sorted(_WORDS.findall(after)) or _RUNS.findall(before) == _RUNS.findall(after)


def _asks_alike(key: Any, before: Any, after: Any) -> bool:
    """Whether one field asks for the same in both. What commands print does not count."""
    if _alike(before, after, 0):
        return True
    if not isinstance(before, str) or not isinstance(after, str) or _plain(key) not in _DEEDS:
        return False
    if max(len(before), len(after)) > _LONGEST or "echo" not in before + after:
        return False
    rest = without_echo(before)
    return bool(rest) and rest == without_echo(after)


def _grown(before: Any, after: Any) -> bool:
    """Whether two commands have the same parts, one of them some more often."""
    if not isinstance(before, str) or not isinstance(after, str) or max(len(before), len(after)) > _LONGEST:
        return False
    if not _PARTS.search(before) and not _PARTS.search(after):
        return False
    one, other = ({part for raw in _PARTS.split(text) if (part := raw.strip())} for text in (before, after))
    return one == other


def rephrased(before: Any, after: Any, least: float = _OVERLAP) -> bool:
    """Whether two pieces of prose say the same: most of the words that carry meaning, and all the numbers, are shared.

    Args:
        before: The earlier one.
        after: The later one.
        least: Share of the shorter one's words that must be in both.
    """
    if not isinstance(before, str) or not isinstance(after, str) or min(len(before), len(after)) < _LEAST_PROSE:
        return False
    one, other = _keywords(before), _keywords(after)
    if not one or not other:
        return False
    if {word for word in one if word.isdigit()} != {word for word in other if word.isdigit()}:
        return False
    return len(one & other) >= least * min(len(one), len(other))


def _keywords(text: str) -> set[str]:
    return set(_WORDS.findall(text[:_LONGEST].casefold())) - _STOP_WORDS
