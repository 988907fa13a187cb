"""What kind of failure a result is: the root it comes from, and its shape without what varies.

Two failures of one root may read quite differently (`ENOTFOUND`, `Could not resolve host`), and two of one shape may
name different files. The table below knows the roots; what is in none of them is told apart by its shape alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import xxhash

from loopguard_core._bounded import count, short_text

Root = Literal[
    "rate",
    "timeout",
    "network",
    "contention",
    "unavailable",
    "auth",
    "resource",
    "unknown_tool",
    "validation",
    "not_found",
    "other",
]

TRANSIENT: frozenset[Root] = frozenset({"rate", "timeout", "network", "contention", "unavailable"})
"""Roots that may pass by themselves, so that trying again later is reasonable (preset `patient`)."""

# A status code counts only where it stands as one, not as any number.
_STATUS = (
    r"(?:(?:http|status|code|error|response|returned|server)[\s/:=\"'(]{0,4}(?:[\d.]{0,4}\s)?"
    r"|^\W{0,3}(?:error:?\s)?)"
)

# In this order: the surer sign first. All are in lower case, and so is what they are looked for in: that takes a third
# of the time that leaving it to the patterns takes.
_SIGNS: Mapping[Root, Sequence[str]] = {
    "rate": (
        r"too many requests|rate.?limit|quota exceeded|throttl|resource.?exhausted",
        rf"{_STATUS}429\b|限流|频率限制",
    ),
    "auth": (
        r"unauthori[sz]ed|unauthenticated|forbidden|permission.?denied|access.?denied|not.?authori[sz]ed|\bdenied\b",
        r"\beacces\b|\beperm\b|operation not permitted|not permitted|not allowed|authentication|bad credentials",
        r"(?:invalid|expired|missing|bad|incorrect) (?:api.?key|token|credential|password|signature)",
        r"invalid.?(?:grant|token)\b",
        r"(?:token|credential|session|login|api.?key)s? (?:has |have |is |are |was )?(?:been )?(?:expired|revoked)",
        r"no valid credential|unable to locate credentials|could not load credentials|getting credentials",
        r"(?:expired|revoked) (?:access |refresh |bearer |oauth )?(?:token|credential|session)",
        rf"login required|password is required|{_STATUS}40[13]\b|权限不足|拒绝访问",
    ),
    "resource": (
        r"no space left|disk (?:is )?full|\benospc\b|disk quota|out of memory|\benomem\b|cannot allocate memory",
        r"too many open files|\bemfile\b|read-only file system|\berofs\b",
    ),
    "contention": (
        r"deadlock|database (?:table )?is locked|could not (?:obtain|acquire) .{0,30}lock|lock wait timeout",
        r"could not serialize|serialization failure|write conflict",
    ),
    "timeout": (rf"time(?:d)?.?out|deadline exceeded|\betimedout\b|took too long|{_STATUS}(?:408|504)\b|超时",),
    "network": (
        r"econn\w+|enotfound|eai_again|enetunreach|ehostunreach|epipe|could not resolve|couldn't resolve",
        r"unable to resolve|name_not_resolved|name or service not known|name resolution|no such host|getaddrinfo",
        r"\bdns\b|no servers could be reached|connection (?:refused|reset|aborted|closed|error|failed)",
        r"connect(?:ion)? to .{0,80} (?:failed|refused)|failed to connect|could not connect|cannot connect",
        r"can't connect|net::err_|network (?:is )?(?:unreachable|error|down)|socket hang up|broken pipe",
        r"no route to host|urlopen error|remote end closed|(?:ssl|tls) (?:error|handshake)",
    ),
    "unavailable": (
        r"unavailable|overloaded|bad gateway|internal server error|try again later|temporarily",
        rf"{_STATUS}50[0-35-9]\b|服务不可用",
    ),
    "unknown_tool": (
        r"unknown (?:tool|function)\b|no such (?:tool|function)\b|not a valid tool",
        r"(?:tool|function)\w{0,64}+\b.{0,60}(?:not|n't) (?:found|exist|available|registered|loaded)",
    ),
    "validation": (
        r"validation|invalid (?:argument|parameter|value|input|json|type|request|option|field|syntax|schema)",
        r"missing \d{0,3} ?(?:required|positional|argument|parameter|field|'|\"|`)|is required",
        r"required (?:argument|parameter|field|property|positional)|not part of the schema|typeerror|json.?decode",
        r"unexpected (?:keyword|argument|field|property|parameter)|unrecognized (?:argument|option|field|key)",
        r"zoderror|\] required\b|expected \w{1,20}, received|additional propert",
        r"unknown (?:argument|option|parameter|field|action)|no such option",
        r"(?:cannot|could not|can't|failed to) (?:decode|parse)|unexpected end of (?:json|input|data)",
        r"unterminated string",
        r"not a valid|must be (?:a|an|one|of|set|in)|expected .{1,60} (?:but )?(?:got|received|found)",
        r"parse error|syntaxerror|syntax error",
        rf"bad request|unprocessable|{_STATUS}4(?:00|22)\b|参数(?:错误|缺失|无效)",
    ),
    "not_found": (
        r"not.?found|no such|does(?: not|n't) exist|cannot find|can't find|could not find|no match",
        r"unknown (?:host|id|user|model|file|path|key|column|table)|\benoent\b|nonexistent",
        rf"{_STATUS}4(?:04|10)\b|不存在|未找到|見つかりません",
    ),
}
_ROOTS = {root: re.compile("|".join(signs)) for root, signs in _SIGNS.items()}

_EDGE = 2048
_QUOTED = re.compile(r"\"[^\"\n]{0,200}\"|'[^'\n]{0,200}'|`[^`\n]{0,200}`")
_PATH = re.compile(
    r"(?:[a-z]{2,8}://|[\w.~-]{0,64}/)[\w.~/%?&=:@+-]{1,200}|\b[\w-]{1,64}\.(?:py|js|ts|tsx|json|md|txt|go|rs|java|c|h|cpp|yml|yaml|toml|html|css|log|csv|xml|sql|sh)\b",
    re.I,
)
_DIGITS = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")
# A count of what is wrong: "8 failed", "3 errors", "errors: 3", "12 issues remaining".
_WRONG = r"(?:fail(?:ed|ures?|ing)?|errors?|issues?|problems?|violations?|warnings?|remaining|left|missing|conflicts?"
_COUNT = re.compile(
    rf"(?P<n>\d{{1,9}})\s(?:\w{{1,16}}\s){{0,2}}{_WRONG}|unresolved|todo)\b"
    r"|(?:fail(?:ed|ures?)?|errors?|issues?|remaining|left|conflicts?)\s?[:=]\s?(?P<m>\d{1,9})",
    re.IGNORECASE,
)
_MAX_COUNTS = 8
_NAMESPACE = re.compile(r"__|[./:]")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed result, without its text.

    Attributes:
        root: What it comes from.
        shape: Hash of the text without what varies: numbers, quoted words, paths, words of the arguments.
        counts: How much is wrong, in the order of the text: `3 failed, 1 error` gives (3, 1).
    """

    root: Root
    shape: str
    counts: tuple[int, ...] = ()

    @property
    def transient(self) -> bool:
        """Whether it may pass by itself."""
        return self.root in TRANSIENT

    def like(self, other: Failure) -> bool:
        """Whether both are the same kind of failure of one tool: the same shape, or the same known root."""
        return self.shape == other.shape or (self.root == other.root and self.root != "other")

    def save(self) -> list[Any]:
        """As plain JSON."""
        return [self.root, self.shape, list(self.counts)]

    @classmethod
    def restored(cls, state: Any) -> Failure:
        """Take over what `save` gave.

        Raises:
            ValueError: Not such a state.
        """
        try:
            root, shape, counts = state
            if root not in get_args(Root):
                raise ValueError("unknown root of a failure")
            return cls(root, short_text(shape), tuple(count(number) for number in counts[:_MAX_COUNTS]))
        except TypeError as error:
            raise ValueError("not a saved failure") from error

    def same_as(self, other: Failure) -> bool:
        """Whether one call failed as before: nothing but numbers, quoted words and paths differ, and no counts."""
        return self.root == other.root and self.shape == other.shape and self.counts == other.counts

    def better_than(self, before: Failure) -> bool:
        """Whether less is wrong than before: a count fell and none rose."""
        pairs = list(zip(self.counts, before.counts, strict=False))
        return any(now < then for now, then in pairs) and all(now <= then for now, then in pairs)


def classify(text: str, masked: str, echoes: Collection[str] = (), tool: str = "") -> Failure:
    """What kind of failure a text tells of.

    Args:
        text: The failed result; its first and last 2 KB count.
        masked: The same without what changes by itself; the shape is made from it.
        echoes: Words of the call's arguments: naming them makes no failure a new one.
        tool: Name of the tool that was called.
    """
    return Failure(root_of(_edges(text), tool), _shape(_edges(masked), echoes), counts_of(_edges(text)))


def _edges(text: str) -> str:
    return text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"


def root_of(text: str, tool: str = "") -> Root:
    """The first root of the table the text shows a sign of.

    Args:
        text: What it says.
        tool: Name of the tool that was called; a function that does not exist is that tool only if it has its name.
    """
    words = text.lower()
    for root, pattern in _ROOTS.items():
        sign = pattern.search(words)
        if sign is None:
            continue
        if root == "unknown_tool" and "tool" not in sign[0] and _last_part(tool) not in text:
            continue
        return root
    return "other"


def _last_part(tool: str) -> str:
    """A tool's name without the server or namespace it comes from."""
    return _NAMESPACE.split(tool)[-1]


def counts_of(text: str) -> tuple[int, ...]:
    """How much the text says is wrong, thing by thing."""
    found: list[int] = []
    for match in _COUNT.finditer(text):
        found.append(int(match["n"] or match["m"]))
        if len(found) == _MAX_COUNTS:
            break
    return tuple(found)


def _shape(text: str, echoes: Collection[str]) -> str:
    plain = text
    for echo in sorted(echoes, key=len, reverse=True):
        plain = plain.replace(echo, "*")
    for pattern in (_QUOTED, _PATH, _DIGITS):
        plain = pattern.sub("*", plain)
    plain = _SPACE.sub(" ", plain).strip().lower()
    return xxhash.xxh3_64_hexdigest(plain.encode("utf-8", "surrogatepass"))


def words_of(tool: str, arguments: object, most: int = 32) -> Sequence[str]:
    """The words a result may echo: the tool's name, and every value in the arguments of 2 to 200 characters.

    Args:
        tool: Its name.
        arguments: As plain JSON.
        most: Words taken; a call with more is hardly echoed whole.
    """
    found: list[str] = [tool] if len(tool) > 2 else []
    pending: list[object] = [arguments]
    while pending and len(found) < most:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            word = str(value)
            if 2 <= len(word) <= 200:  # see above
                found.append(word)
    return sorted(found, key=len, reverse=True)
