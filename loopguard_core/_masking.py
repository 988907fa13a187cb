"""What of a result changes by itself, so that a repeat of the same thing is seen as one.

Digits as such are never masked: `8 failed` after `9 failed` is progress, and 401 is not 500. Only these classes are:

| name | what it covers |
|---|---|
| `uuids` | UUIDs and ULIDs |
| `hashes` | hexadecimal words of 7 characters and more with a digit and a letter; fields called hash, digest |
| `timestamps` | dates and times in the common notations, Unix time, fields such as `created_at` and `timestamp` |
| `durations` | a number with a unit of time, fields such as `elapsed` and `durationMs`; never what is left |
| `transport` | what names one request, process or message: request, trace, session, message id; pid; nonce |
| `ports` | the port behind a host, fields called port |
| `addresses` | memory addresses |
| `counters` | what a tool counts about its own use: attempt 3, call #4, read 2x this session |
| `floats` | digits beyond the sixth significant one |
| `paths` | files and folders in a place for temporary ones |
| `ids` | any other field called id or ending in it, a revision or version; only where the call changes something or \
hands work over: new things get new ids |
| `scores` | how well an entry matched, by its field or as a fraction; only in what a search returns |

Where nothing is left after masking, the value that changes *is* the answer (the commit that was asked for, the time of
day), and nothing is masked; again but for calls that change something, whose answer is what they did.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

MaskName = Literal[
    "uuids",
    "hashes",
    "timestamps",
    "durations",
    "transport",
    "ports",
    "addresses",
    "counters",
    "floats",
    "paths",
    "ids",
    "scores",
]
MASKS: tuple[MaskName, ...] = get_args(MaskName)

UserMasker = Callable[[str], str]
"""Turns a result into what of it counts. It sees at most 128 KB, and what it returns is cut to that."""

HOLE = "\0"
"""What stands for a masked value."""

MAX_USER_OUTPUT = 128 * 1024

PICTURE = re.compile(
    r"\bimage/(?:png|jpe?g|webp|gif|bmp)\b"
    r"|[<\[](?:image|screenshot)\b[^>\]\n]{0,80}\b(?:png|jpe?g|webp|gif|bmp)\b"
    r"|\w\.(?:png|jpe?g|webp|gif|bmp)\b(?=.{0,200}\b(?:bytes|md5|sha\d|width|height|pixels|\d{2,5}x\d{2,5})\b)",
    re.IGNORECASE | re.DOTALL,
)
"""What shows that a result is, or describes, a picture."""

# A field in any notation, with its value: `"messageId": "m0"`, `pid=4000`, `session: calm-river`.
_FIELD = re.compile(
    r"(?<!\w)(?<!\w-)([A-Za-z][\w-]{0,40})(\"?\s{0,2}[=:]\s{0,2})"
    r"(\"(?:[^\"\\]|\\.){0,200}\"|'[^']{0,200}'|[^\s,;&|)(\[\]{}<>\"']{1,200})"
)
# A word that holds a digit, and a unit of time behind it.
_WORD = re.compile(
    r"(?<![\w.:+-])([A-Za-z_.:+-]{0,64}\d[\w.:+-]{0,200})"
    r"(\s(?:[nuµm]s|s|secs?|seconds?|mins?|minutes?|hrs?|hours?|milliseconds?)(?![\w%/-]))?"
)
_TEMPORARY = re.compile(
    r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm)/[^\s\"':;,)\]]{1,300}"
    r"|[A-Z]:\\[^\s\"']{0,200}\\Temp\\[^\s\"']{1,200}"
)
_JOB = re.compile(r"^\[\d{1,3}\] \d{2,8}$", re.MULTILINE)  # what a shell says of a job in the background
# How large a picture is, and the picture itself as the formats begin in base64.
_PICTURE_SIZE = re.compile(r"\b\d{3,12}(?= bytes\b)|(?<=\bbytes\": )\d+|(?<=\bsize\": )\d+|(?<=\blength\": )\d+")
_PICTURE_DATA = re.compile(r"(?:iVBORw0KGgo|/9j/4|R0lGOD|UklGR)[A-Za-z0-9+/=_-]{32,}")
# When a file was made, in its name.
_STAMP = re.compile(
    r"(?:(?<=[_-])|^)(?:1[5-9]\d{8}(?:\d{3})?|20\d{6}[_-]?\d{6}"
    r"|20\d\d-\d\d-\d\d[T_-]\d\d[_-]?\d\d[_-]?\d\d(?:[_-]\d{1,6})?Z?)(?=[._-]|$)"
)
# What a call that changes something made: its number in an address, or behind a `#`.
_NEW_NUMBER = re.compile(r"(?<=://)[^\s\"'<>]{1,300}+|(?<![\w&])#\d{1,9}\b")
_NUMBER_IN_PATH = re.compile(r"(?<=/)\d{1,18}(?![\w-]|\.\w)")
_MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_MONTH = re.compile(
    rf"\b{_MONTHS}[a-z]{{0,6}}\.?\s{{1,2}}\d{{1,2}}(?![\d:])(?:,? \d{{4}}\b)?"
    rf"|\b\d{{1,2}}[ -]{_MONTHS}[a-z]{{0,6}}\.?[ -]\d{{4}}\b"
    rf"|\b\d{{1,2}}/{_MONTHS}/\d{{4}}:\d\d:\d\d:\d\d(?: [+-]\d{{4}})?"
)
_MILLIS = re.compile(r"(?<=\d:\d\d),\d{3}(?!\d)")  # behind the seconds, where logs write a comma
_CLOCK = re.compile(r"^\d{1,2}:\d\d$", re.MULTILINE)  # on a line of its own
_WEEKDAY = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?:day|sday|nesday|rsday|urday)?\b")

_KEYS: tuple[tuple[MaskName, re.Pattern[str]], ...] = (
    ("durations", re.compile(
        r"(?:\w+_)?(?:duration|elapsed|latency|took|uptime|runtime)(?:_?(?:ms|s|secs?|seconds|millis))?|\w+_ms|seconds"
        r"|(?:real|user|sys|cpu|wall|total|response|execution|exec|build|query|run|processing)_?time"
    )),
    ("timestamps", re.compile(
        r"(?:\w+_)?(?:timestamp|ts|time|date|datetime|at|now|modified|mtime|ctime|atime|expires|last_seen)"
    )),
    ("transport", re.compile(
        r"(?:x_)?(?:request|req|trace|span|correlation|session|sess|msg|message|event|log|run|execution|invocation"
        r"|operation|call|tool_?call|transaction|txn|delivery|process|thread|worker|container|conversation|batch)"
        r"_?(?:id|uuid|no|nr|key|name|token)"
        r"|session|pid|ppid|tid|nonce|etag|ref|reference|token|csrf_?token|(?:idempotency|cache)_?key|served_by|host_?name"
    )),
    ("hashes", re.compile(r"(?:\w+_)?(?:sha|sha1|sha256|md5|hash|digest|checksum|fingerprint)")),
    ("ports", re.compile(r"(?:\w+_)?port")),
    ("counters", re.compile(
        r"(?:\w+_)?tokens|moves|turns?|ticks?|attempts?|retry|retries|retry_?count|seq|sequence|seq_?no|serial|hits|counter"
        r"|(?:access|reads?|views?|calls?|requests?|use|usage|visits?|hits?)_?counts?"
    )),
    ("ids", re.compile(r"id|uid|guid|\w*_id|rev|revision|(?:resource_?)?version|generation")),
    ("scores", re.compile(r"(?:\w+_)?(?:score|relevance|relevancy|similarity|distance|confidence|certainty|weight)")),
)  # fmt: skip
_LEFT_IN_KEY = re.compile(r"(?:^|_)(?:remaining|left|eta|until)(?:_|$)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_UUID = re.compile(r"(?i:[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})|[0-7][0-9A-HJKMNP-TV-Z]{25}")
# What an orchestrator makes of a name for one instance: `api-7c9d8b6f5-x2x9z`.
_INSTANCE = re.compile(r"(.*[A-Za-z][\w.]*)-[0-9a-f]{7,10}-[a-z0-9]{5}")
# The same as a part of a name: `job_0734f38f_d4373477a3b`.
_HEX_PART = re.compile(r"(?<=[_:.-])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}(?=[_:.-]|$)")
_HEX = re.compile(r"(?:(?:sha\d{1,3}|md5)[:-])?(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,128}", re.IGNORECASE)
_ADDRESS = re.compile(r"0x[0-9a-f]{4,16}", re.IGNORECASE)
_TIME = re.compile(
    r"(?:19|20)\d\d-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d{1,2}:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?|1[5-9]\d{8}(?:\d{3}|\.\d{1,9})?"
)
_DURATION = re.compile(
    r"(?:\d{1,6}h)?(?:\d{1,6}m)?\d{1,9}(?:\.\d{1,9})?(?:[nuµm]s|s|sec|secs|min|mins|h)|\d{1,6}m\d{1,2}s"
    r"|\d{1,4}h\d{1,2}m|\d{1,5}d\d{1,2}h"
)
# How old something is, at the end of a row or before "ago".
_AGE = re.compile(r"\d{1,5}[dhm]")
_AGE_AFTER = re.compile(r" {0,3}(?:ago\b|\r?\n|$| {3})")
_NUMBER = re.compile(r"#?\d{1,9}(?:\.\d{1,9})?")
_SCORED_BEFORE = re.compile(r"(?:[(\[]|\b(?:score|relevance|similarity|distance|confidence|rank)\s?[:=]?\s?)$", re.I)
_FRACTION = re.compile(r"[01]\.\d{2,9}")
# Where one kind of character follows another in what a generator of names makes: `run_jr8kJ2rjyK`.
_TURNS = re.compile(r"(?<=\d)[A-Za-z]|(?<=[A-Za-z])\d|(?<=[a-z])[A-Z]|(?<=[A-Z])[a-z]")
_RANDOM = re.compile(r"(?:[A-Za-z]{1,12}[_-])?[A-Za-z0-9]{8,64}")
_MANY_TURNS = 5
_WORDS = re.compile(r"[\w-]{3,}")
_LONG_FLOAT = re.compile(r"-?\d{1,15}\.\d{7,20}")
# A host has a dot in it, or a name known as one; `rows:12345` is a count, and `app.py:1234` a line.
_HOST = re.compile(r".*\.[A-Za-z0-9-]+|.*localhost|.*::1?")
_SOURCE = re.compile(
    r"\.(?:py|pyx|jsx?|tsx?|mjs|go|rs|java|rb|c|h|cc|hpp|cpp|cs|php|md|txt|json|ya?ml|toml|html|css|scss|sql|sh|kt|swift"
    r"|scala|vue|svelte|lua|exs?|log|csv|xml|ini|cfg|proto|tf)$"
)
_TIMES = re.compile(r"\d{1,9}x")
_LEFT_AFTER = re.compile(r"\s{0,2}(?:left|remaining|to go|until|of \d)", re.IGNORECASE)
_TIMES_AFTER = re.compile(
    r"\s{1,2}(?:attempts?|retries|tries|times|invocations|calls)\b(?! (?:failed|left|remaining))", re.I
)
# What a tool counts about its own use: "view 2 of this page in this session", "120,788 tokens".
_OWN_USE = re.compile(
    r" (?:[a-z]{1,12} ){0,4}(?:in |during )?this (?:session|conversation)\b|(?:,\d{3})* tokens\b", re.I
)
_SESSION_AFTER = re.compile(r" (?:this|in this|so far|already|during)")
_COUNTED_BEFORE = re.compile(
    r"(?:\b(?:attempt|retry|try|call|invocation|request)\s{0,2}[#:=]{0,2}\s{0,2}#?)$", re.IGNORECASE
)
_PROCESS_BEFORE = re.compile(r"\b(?:pid|tid|process|thread|worker)\s{0,2}#?$", re.IGNORECASE)
_PORT_BEFORE = re.compile(r"\bport\s$", re.IGNORECASE)
_TOOK_BEFORE = re.compile(r"\b(?:took|elapsed:?|after|in)\s$", re.IGNORECASE)

_NAMES = re.compile(r"\"[\w .-]{1,60}\"\s*:|\b[\w.-]{1,60}\s?[=:](?=\s?" + HOLE + ")")
_ABOUT_TIME = re.compile(r"\b(?:at|on|in|as|of|the|is|it|now|time|date|today|utc|gmt|cet|local|current(?:ly)?)\b", re.I)
_ANYTHING = re.compile(r"[^\W_]")
_LONG = 400
_EDGE = 4096


@functools.lru_cache(maxsize=4096)
def _class_of_key(key: str) -> MaskName | None:
    """What the name of a field says about its value."""
    plain = _CAMEL.sub("_", key).replace("-", "_").lower()
    if _LEFT_IN_KEY.search(plain):
        return None
    for name, pattern in _KEYS:
        if pattern.fullmatch(plain):
            return name
    return None


class Masker:
    """The masks that hold for one tool.

    Args:
        masks: Names from `MASKS`, and functions of the caller, which run first.
        mutates: Whether the call changes something, or hands work over.
        searches: Whether it searches.
        takes: Whether it takes the next of many, as from a queue: then the number of what it got is the answer.
    """

    __slots__ = ("_functions", "_makes", "_mutates", "_named")

    def __init__(
        self,
        masks: Iterable[MaskName | UserMasker] = MASKS,
        *,
        mutates: bool = False,
        searches: bool = False,
        takes: bool = False,
    ) -> None:
        masks = tuple(masks)
        self._functions: tuple[UserMasker, ...] = tuple(mask for mask in masks if callable(mask))
        named = {mask for mask in masks if isinstance(mask, str)}
        self._named = frozenset(named - (set() if mutates else {"ids"}) - (set() if searches else {"scores"}))
        self._mutates = mutates
        self._makes = mutates and not takes

    def __call__(self, text: str, echoes: Sequence[str] = ()) -> str:
        """The text with holes where it changes by itself.

        Args:
            text: A result, already bounded.
            echoes: Words of the call's arguments that hold a digit: where the result repeats them they say nothing.
        """
        for function in self._functions:
            text = str(function(text[:MAX_USER_OUTPUT]))[:MAX_USER_OUTPUT]
        if not self._named:
            return text
        masked = text
        for echo in echoes:
            masked = masked.replace(echo, HOLE)
        if "paths" in self._named and ("/" in masked or "\\Temp\\" in masked):
            masked = _TEMPORARY.sub(HOLE, masked)
        if "transport" in self._named and masked.startswith("["):
            masked = _JOB.sub(HOLE, masked)
        if (
            ("." in masked or "/" in masked or "<" in masked or "[" in masked)
            and "hashes" in self._named
            and PICTURE.search(masked, 0, _EDGE)
        ):
            masked = _PICTURE_SIZE.sub(HOLE, _PICTURE_DATA.sub(HOLE, masked))
        if self._makes and "ids" in self._named and ("#" in masked or "://" in masked):
            masked = _NEW_NUMBER.sub(_without_number, masked)
        masked = _FIELD.sub(self._field, masked)
        if "timestamps" in self._named:
            masked = _WEEKDAY.sub(HOLE, _MONTH.sub(HOLE, masked))
            if ":" in masked:
                masked = _CLOCK.sub(HOLE, _MILLIS.sub("", masked))
        masked = _WORD.sub(self._word, masked)
        return masked if self._mutates or masked == text or _says_something(masked) else text

    def _field(self, match: re.Match[str]) -> str:
        key, sign, value = match.groups()
        return f"{key}{sign}{HOLE}" if _class_of_key(key) in self._named and value[:1] not in "/\\" else match[0]

    def _word(self, match: re.Match[str]) -> str:
        word, unit = match[1], match[2]
        bare = word.rstrip(".:+-")
        rest = word[len(bare) :] + (unit or "")
        masked = self._masked(bare, unit, match)
        return match[0] if masked is None else masked + rest

    def _masked(self, word: str, unit: str | None, match: re.Match[str]) -> str | None:
        named = self._named
        if word.isdigit() and len(word) < 10 and unit is None:  # by far the most common: a plain number
            return self._plain_number(match)
        if "durations" in named and (_NUMBER.fullmatch(word) if unit else _DURATION.fullmatch(word)):
            return None if _LEFT_AFTER.match(match.string, match.end()) else HOLE
        if "durations" in named and _AGE.fullmatch(word) and _AGE_AFTER.match(match.string, match.end()):
            return HOLE
        for name, pattern in _WHOLE:
            if name in named and pattern.fullmatch(word):
                return HOLE
        if "counters" in named and _TIMES.fullmatch(word) and _SESSION_AFTER.match(match.string, match.end()):
            return HOLE
        part = self._part(word, match)
        return part or (self._plain_number(match) if _NUMBER.fullmatch(word) else None)

    def _part(self, word: str, match: re.Match[str]) -> str | None:
        """A word of which a part changes by itself."""
        named = self._named
        if "transport" in named and (instance := _INSTANCE.fullmatch(word)):
            return f"{instance[1]}-{HOLE}"
        if "hashes" in named and (hexless := _HEX_PART.sub(HOLE, word)) != word:
            return hexless
        if "uuids" in named and _random(word):
            return HOLE
        # In brackets, or called one: a fraction by itself may be what was searched for.
        if (
            "scores" in named
            and _FRACTION.fullmatch(word)
            and _SCORED_BEFORE.search(match.string[max(0, match.start() - 16) : match.start()])
        ):
            return HOLE
        if "timestamps" in named and _STAMP.search(word):
            return _STAMP.sub(HOLE, word)
        if "floats" in named and _LONG_FLOAT.fullmatch(word):
            return f"{float(word):.6g}"
        if "ports" in named and (port := self._port(word, match)) is not None:
            return f"{port}:{HOLE}"
        return None

    @staticmethod
    def _port(word: str, match: re.Match[str]) -> str | None:
        """The host of `host:8080`; None if it is none."""
        host, sign, port = word.rpartition(":")
        if not sign or not port.isdigit() or not 4 <= len(port) <= 5:  # digits of a port
            return None
        behind = match.string[max(0, match.start() - 2) : match.start()]
        if behind == "//" or behind[-1:] == "@":
            return host
        return host if _HOST.fullmatch(host) and not _SOURCE.search(host) else None

    def _plain_number(self, match: re.Match[str]) -> str | None:
        # Looking at the characters beside it first is faster than the patterns, and nearly always settles it.
        text, start, end = match.string, match.start(), match.end()
        named = self._named
        behind = text[end : end + 3].lstrip(" ,")[:1]
        if "counters" in named and behind.isalnum() and (_TIMES_AFTER.match(text, end) or _OWN_USE.match(text, end)):
            return HOLE
        before = text[max(0, start - 16) : start]
        if not before.rstrip(" #:=\t\n")[-1:].isalpha():
            return None
        if (
            ("counters" in named and _COUNTED_BEFORE.search(before))
            or ("transport" in named and _PROCESS_BEFORE.search(before))
            or ("ports" in named and _PORT_BEFORE.search(before))
            or ("durations" in named and "." in match[1] and _TOOK_BEFORE.search(before))
        ):
            return HOLE
        return None


_WHOLE: tuple[tuple[MaskName, re.Pattern[str]], ...] = (
    ("timestamps", _TIME),
    ("uuids", _UUID),
    ("hashes", _HEX),
    ("addresses", _ADDRESS),
)


def words_but_ids(text: str) -> int:
    """What two texts have in common which masks may make equal: words without digits are hardly ever masked.

    A number to compare within one process, so that a result need not be read again for each other one.
    """
    return hash(frozenset([word for word in _WORDS.findall(text, 0, _EDGE) if word.isalpha()]))


def _without_number(found: re.Match[str]) -> str:
    """An address without the numbers in its path, or the place of a number behind `#`."""
    return f"#{HOLE}" if found[0].startswith("#") else _NUMBER_IN_PATH.sub(HOLE, found[0])


def _random(word: str) -> bool:
    """Whether a word looks made by a generator of names: upper and lower case and digits in no order."""
    return _RANDOM.fullmatch(word) is not None and len(_TURNS.findall(word)) >= _MANY_TURNS


def _says_something(masked: str) -> bool:
    """Whether anything but holes, names of fields and words around a time is left; no long answer is one value."""
    if len(masked) > _LONG:
        return True
    return _ANYTHING.search(_ABOUT_TIME.sub(" ", _NAMES.sub(" ", masked))) is not None
