"""What a result says in a few respects that matter later: that nothing changed, that something is under way.

Worked out once, while the text is there, and kept as a number: saved state holds no text.
"""

from __future__ import annotations

import json
import re

from loopguard_core._masking import PICTURE

PLAIN = 2048
"""Characters of a text up to which it is held as it is, and read for what it says."""

_SHORT = 240
_NOTHING = 64


class Says:
    """The respects, each a bit."""

    UNCHANGED = 1
    EMPTY = 2
    PENDING = 4
    FINISHED = 8
    FAILING = 16
    PICTURE = 32
    REMOVED = 64


# An answer in words that nothing changed. Only short ones count: a long text says more than that.
_UNCHANGED = re.compile(
    r"(?<!\d )\bunchanged\b"
    r"|\bno (?:visible |further |new |other )?changes?\b"
    r"(?= (?:since|from|detected|found|made|after|to the)|[.;,)\]]|$)"
    r"|\b(?:has|have|did|is|are|was|were)(?: not|n't) (?:yet )?changed?\b"
    r"|\bnothing (?:has |was )?(?:changed|new)\b"
    r"|\bno (?:new|further|more) (?:output|data|messages|results|updates|lines|events)\b|\bno updates?\b"
    r"|\b(?:same|identical) (?:as|to) (?:the )?(?:last|before|previous|earlier)\b|没有变化|无变化|変更なし|変化なし",
    re.IGNORECASE,
)
# The same in other languages; what is under way is said much alike in all of them.
_ELSEWHERE = (
    "en cours", "en attente", "in bearbeitung", "ausstehend", "läuft", "wartet", "en curso", "en proceso", "pendiente",
    "en espera", "em andamento", "pendente", "in corso", "in attesa", "in behandeling", "w toku", "oczekuje",
    "выполняется", "в процессе", "ожидает", "进行中", "运行中", "処理中", "実行中", "진행 중", "대기",
)  # fmt: skip
_PROGRESS_WORDS = (
    r"still running|(?:is|are) (?:still )?(?:running|pending|queued|processing|building)|in[ _-]?progress|pending"
    r"|queued|processing|not (?:yet )?(?:ready|finished|complete|completed|done|available)|waiting(?: for)?|please wait"
    r"|provisioning|initiali[sz]ing|scheduled|running|starting|building|creating|deploying|syncing|working"
    r"|submitted|accepted|" + "|".join(_ELSEWHERE)
)
_PENDING_FIELD = re.compile(
    r"\"?(?:status|state|phase|stage|condition|progress_?state|job_?status|conclusion|lifecycle)\"?\s*[:=]\s*\"?(?:"
    + _PROGRESS_WORDS
    + r")\b",
    re.IGNORECASE,
)
_PENDING_TEXT = re.compile(
    r"\b(?:still|is|are|keeps|currently|now) (?:\w+ )?(?:running|pending|queued|processing"
    r"|building|starting|creating|deploying)\b"
    r"|\b(?:in[ _-]?progress|pending|queued|waiting(?: for)?|please wait|provisioning|initiali[sz]ing)\b"
    r"|\bnot (?:yet )?(?:ready|finished|complete|completed|done|available)\b"
    r"|^\W{0,3}(?:" + _PROGRESS_WORDS + r")\b|\b\d{1,2}(?:\.\d+)?\s?%|" + "|".join(_ELSEWHERE),
    re.IGNORECASE,
)
_BEGINS_PENDING = re.compile(r"\W{0,3}(?:in[_-]progress|queued|pending|waiting)\b", re.IGNORECASE)  # no sentence does
# Some were there to be removed, and are not any more: that cannot go on for ever.
_REMOVED = re.compile(
    r"^\s*DELETE [1-9]\d*\s*$|\b[1-9]\d*,?\d* (?:\w+ )?(?:were |was )?(?:deleted|removed|purged)\b"
    r"|\b(?:deleted|removed|purged)\"?[:=]? ?[1-9]\d*\b",
    re.IGNORECASE,
)
# In lower case: without one of these a pattern cannot match, and looking for them is far faster.
_NEEDS_UNCHANGED = ("chang", "no ", "same ", "identical ", "nothing ", "没有变化", "无变化", "変更なし", "変化なし")
_NEEDS_PENDING = (
    "running", "pending", "queued", "processing", "building", "progress", "ready", "finished", "complete", "done",
    "available", "waiting", "please wait", "provisioning", "initiali", "scheduled", "starting", "creating", "deploying",
    "syncing", "working", "submitted", "accepted", "%", *_ELSEWHERE,
)  # fmt: skip
_NEEDS_FINISHED = (
    "done", "succe", "fail", "complete", "error", "cancel", "stopped", "exit", "finish", "timed", "expired",
    "terminated", "merged", "closed", "resolved", "ok", "final", "ended", "no such",
)  # fmt: skip
_FINISHED = re.compile(
    r"\"?(?:status|state|phase|stage|conclusion|result)\"?\s*[:=]\s*\"?(?:done|success\w*|succeeded|failed"
    r"|failure|completed?|error\w*|cancell?ed|stopped|exited|finished|timed[ _]?out|expired|terminated|merged|closed"
    r"|resolved|ok)\b|\"?final\"?\s*[:=]\s*true"
    r"|\b(?:exited|exit code|finished|completed|has ended|terminated|no such (?:job|session|process))\b",
    re.IGNORECASE,
)
_EMPTY = re.compile(
    r"\W*(?:none|null|nil|undefined|0|false|no|empty|n/?a)?\W*$"
    r"|\W*(?:0|no|zero) (?:\w+ ){0,2}(?:results?|matches|hits|rows|records|items|entries|files|documents|messages"
    r"|output|slots?|appointments?|availability|vacanc(?:y|ies)|flights?|rooms?|seats?|tickets?|orders?)\b.{0,40}$"
    r"|.{0,40}\b(?:not found|no match(?:es)?|does not exist|nothing found|no such)\b.{0,60}$"
    r"|\(?(?:empty|no output|no content)\)?\W*$"
    r"|.{0,40}(?:未找到|没有找到|找不到|暂无|不存在|無し|なし|見つかりません|nicht gefunden"
    r"|keine (?:treffer|ergebnisse)|aucun r[eé]sultat|no se encontr).{0,60}$",
    re.IGNORECASE | re.DOTALL,
)


# What a tool runner writes below the output: that a program ended is not that what it was asked about has.
_RUNNER = re.compile(r"(?:\n\[[^\]\n]{1,80}\])+\s*$")
# An object that holds nothing where it would hold what was found.
_FOUND_NOTHING = re.compile(
    r'"(?:matches|results?|hits|items|rows|records|entries|documents|data|found|alerts|findings|events|users|files'
    r"|slots|appointments|availability|flights|rooms|seats|tickets|orders|messages|threads|emails|contacts|products"
    r'|customers|invoices|transactions|incidents|tasks)"'
    r"\s*:\s*(?:\[\s*\]|\{\s*\}|null|0\b|\"\")"
)
_OWN_ID = frozenset("id uuid uid key sku number customer_id customerId user_id userId account_id order_id".split())
_OWN_NAME = "name title subject email phone firstname first_name firstName display_name full_name address price".split()
# What is counted so while it comes about: pods, replicas, shards, steps. In a column of a table, or beside the word.
_OF_SO_MANY = ("ready", "replicas", "up-to-date", "completions", "progress", "synced", "healthy")
_SO_MANY_COLUMN = re.compile(
    r"^(?:[A-Z][A-Z() -]*\s)?(?:READY|UP-TO-DATE|COMPLETIONS|PROGRESS|REPLICAS)\b", re.MULTILINE
)
_PART = r"(?<![\w/.:-])(\d{1,5})/(\d{1,5})(?![\w/.:-])"
_SO_MANY = re.compile(_PART)
_SO_MANY_BEHIND = re.compile(rf"(?<![\w-])(?:{'|'.join(_OF_SO_MANY)})\"?\s?[:=(]?\s?\"?{_PART}", re.IGNORECASE)
_SO_MANY_BEFORE = re.compile(rf"{_PART} (?:[a-z]{{3,12}} )?(?:are )?(?:{'|'.join(_OF_SO_MANY)})\b", re.IGNORECASE)
# The states of Slurm's table of jobs, which are two letters there.
_QUEUE_TABLE = re.compile(r"NODELIST\(REASON\)\s*\n.*\s(?:PD|CF|CG|R)\s")
_FAILING = re.compile(
    r"(?<![\w-])(?<!\b0 )(?<!no )(?<!without )(?:fail(?:s|ed|ing|ures?)?|errors?)(?![\w-])"
    r"(?!\"?\s*[:=]\s*(?:0\b|\[\s*\]|null|none|false|\"\"))|\w(?:Error|Exception)\b"
    r"|[\u2717\u2718\u2715\u274c]|失败|错误|失敗|エラー",
    re.IGNORECASE,
)


def what_it_says(text: str) -> int:
    """Which of these things a result says, as one number: the sum of some of `Says`."""
    short = len(text) <= _SHORT
    head = text[:PLAIN]
    words = head.lower()
    head, words = _RUNNER.sub("", head), _RUNNER.sub("", words)
    facts = Says.UNCHANGED if short and _has(_NEEDS_UNCHANGED, words) and _UNCHANGED.search(text) else 0
    if len(text) <= PLAIN and is_empty(text):
        facts |= Says.EMPTY
    if _FAILING.search(head) or (len(text) > PLAIN and _FAILING.search(text[-PLAIN:])):
        facts |= Says.FAILING
    if PICTURE.search(head):
        facts |= Says.PICTURE
    if short and ("delete" in words or "removed" in words or "purged" in words) and _REMOVED.search(text):
        facts |= Says.REMOVED
    ended = _has(_NEEDS_FINISHED, words) and _FINISHED.search(head) is not None
    if "(reason)" in words and _QUEUE_TABLE.search(head):
        return facts | Says.PENDING
    if "/" in words and "backoff" not in words and _has(_OF_SO_MANY, words) and _part_of(head):
        return facts | Says.PENDING
    pending = _has(_NEEDS_PENDING, words)
    if pending and short and _BEGINS_PENDING.match(text):  # what is said first holds of the whole
        return facts | Says.PENDING
    if pending and (_PENDING_FIELD.search(head) or (short and not ended and _PENDING_TEXT.search(text))):
        facts |= Says.PENDING
    elif ended:
        facts |= Says.FINISHED
    return facts


def _part_of(text: str) -> bool:
    """Whether so many of so many are there, and some are missing: `READY 5/6`."""
    parts = [*_SO_MANY_BEHIND.findall(text), *_SO_MANY_BEFORE.findall(text)]
    if (column := _SO_MANY_COLUMN.search(text)) is not None:
        parts += _SO_MANY.findall(text, column.end())
    return any(int(part) < int(whole) for part, whole in parts)


def is_empty(text: str) -> bool:
    """Whether a result is an empty or negative answer; only an object can be long and say that nothing was found."""
    if len(text) <= 2 * _NOTHING and _EMPTY.match(text):
        return True
    return text[:1] == "{" and _FOUND_NOTHING.search(text) is not None and not _is_record(text)


def _is_record(text: str) -> bool:
    """Whether a JSON object is something of its own: a customer who has no orders was found."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and not _OWN_ID.isdisjoint(fields) and any(fields.get(name) for name in _OWN_NAME)


def _has(needles: tuple[str, ...], words: str) -> bool:
    return any(needle in words for needle in needles)
