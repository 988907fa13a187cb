"""Pages that stand in place of the one that was asked for: the reader was blocked, or is to prove that he is human."""

from __future__ import annotations

import re

# Two of these have to be there: one alone may be in a page that is read, or in the code of one.
_WALL = re.compile(
    r"attention required!|sorry, you have been blocked|verify (?:that )?you are (?:a )?human|unusual traffic from"
    r"|just a moment\.\.\.|checking (?:if the site connection|your browser)|\bray id\b"
    r"|security of your connection|\bcloudflare\b|enable javascript and cookies|(?:solve|complete) (?:the|this) captcha"
    r"|you are not a robot|i'?m not a robot"
)
_WALL_TITLE = re.compile(
    r"<title>(?:just a moment\.\.\.|attention required! \| cloudflare|access denied)|attention required! \| cloudflare"
)
_WALL_HINTS = ("human", "blocked", "moment...", "browser", "traffic", "robot", "attention required!", "captcha")
_WALL_SIZE = 4096
_ENOUGH = 2
_CODE = re.compile(r"^\s*(?:import|from|export|const|let|function|def|class|return|package|#include)\b|=>|\);$", re.M)


def is_wall(text: str) -> bool:
    """Whether a text of at most 4,096 characters is such a page, as HTML or as text."""
    if len(text) > _WALL_SIZE:
        return False
    plain = text.lower()
    if not any(hint in plain for hint in _WALL_HINTS):
        return False
    if _WALL_TITLE.search(plain) is None and len(set(_WALL.findall(plain))) < _ENOUGH:
        return False
    return plain.lstrip().startswith("<") or not _CODE.search(text)
