"""What a call searches for: whether it is a search at all, its keywords, and where it looks."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from zlib import crc32

MAX_KEYWORDS = 40
"""Keywords of one search that are compared: those with the smallest hashes, so that order does not matter."""

MAX_PAGE = 64
"""Characters of a page's name that are compared."""

SEARCH_WORDS = frozenset({
    "search", "searches", "websearch", "find", "google", "bing", "brave", "tavily", "serp", "serper",
    "duckduckgo", "ddg", "exa", "perplexity", "wikipedia", "arxiv", "pubmed", "scholar", "retrieve",
    "retriever", "retrieval", "rag", "grep", "ripgrep", "rg", "buscar", "busca", "busqueda", "rechercher", "recherche",
    "chercher", "suchen", "suche", "cerca", "ricerca", "zoeken", "pesquisar", "pesquisa", "szukaj",
})  # fmt: skip
"""Words of a tool's name that make it a search. `query` alone does not: SQL and metrics are asked, not searched."""

_ASKED = frozenset({"query", "ask", "lookup", "recall"})
_BODIES_OF_TEXT = frozenset(
    {"kb", "knowledge", "docs", "documentation", "faq", "handbook", "wiki", "memory", "notes", "vector"}
)

_SEARCH_MARKS = ("搜索", "检索", "検索", "검색")

QUERY_FIELDS = (
    "query", "queries", "q", "search_query", "search", "search_term", "search_terms", "search_text",
    "keywords", "keyword", "terms", "term", "question", "pattern", "regex", "text", "input", "topic", "关键词", "查询",
    "consulta", "pregunta", "requete", "suchbegriff", "suche", "anfrage", "busca", "termo", "zoekterm", "ricerca",
)  # fmt: skip
"""Arguments that hold what is searched for; the first one that is there counts. Compared without case and `-`/`_`."""

PAGING_FIELDS = frozenset({
    "page", "pageno", "pagenumber", "offset", "start", "from", "cursor", "skip", "after", "next", "nextpage",
    "pagetoken",
})  # fmt: skip
"""Arguments that turn the page: the same words on another page are no rephrasing."""

# Words of English that carry no subject. Other languages have theirs, which then merely count as keywords.
_SMALL_WORDS = frozenset({
    "a", "an", "the", "of", "in", "on", "at", "by", "for", "from", "to", "with", "without", "about", "into",
    "over", "under", "and", "or", "not", "no", "is", "are", "was", "were", "be", "been", "do", "does", "did",
    "can", "could", "should", "would", "will", "how", "what", "when", "where", "which", "who", "whom",
    "whose", "why", "this", "that", "these", "those", "it", "its", "as", "if", "than", "then", "there",
    "here", "my", "your", "our", "their", "his", "her", "i", "you", "we", "they", "me", "us", "them", "any",
    "some", "all", "more", "most", "very", "vs", "please", "find", "search", "show", "get", "give", "list",
    "tell",
})  # fmt: skip
_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_ASCII_WORDS = re.compile("[a-z0-9_]+")
_TOKENS = re.compile(rf"[{_EAST_ASIAN}]+|[^\W{_EAST_ASIAN}]+")
_IS_EAST_ASIAN = re.compile(f"[{_EAST_ASIAN}]")
_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MAX_NAME = 256
_MAX_QUERY = 4096
_SHORT_WORD = 3
# How a search is made, and not where.
_KNOBS = frozenset(
    """depth search_depth sort sort_by order order_by limit top_k topk k n num count max_results num_results format
    output_format mode safesearch safe_search include_answer include_raw_content""".split()
)
_MOST_PLACE = 80
_PLACE_WORDS = 2
_FIRST_EAST_ASIAN = "\u3040"


class Search(NamedTuple):
    """A search, as far as it is compared.

    Attributes:
        stream: Tool and place that are searched: only searches of one stream are compared.
        keywords: Hashes of the keywords.
        page: The page that is asked for; empty for the first one of a tool without pages.
        chains: Hashes of the pairs of each piece of Chinese, Japanese or Korean, in order; see `without_joints`.
    """

    stream: str
    keywords: frozenset[int]
    page: str = ""
    chains: tuple[tuple[int, ...], ...] = ()


def is_search(tool: str) -> bool:
    """Whether a tool's name says that it searches: `web_search`, `searchDocs`, `mcp__brave__find`, `grep`."""
    return _is_search(tool if len(tool) <= _MAX_NAME else tool[:_MAX_NAME])


@functools.lru_cache(maxsize=512)  # asked for every call, and a run has few tools
def _is_search(tool: str) -> bool:
    words = {word.lower() for word in _NAME_WORDS.findall(tool)}
    if not SEARCH_WORDS.isdisjoint(words) or any(mark in tool for mark in _SEARCH_MARKS):
        return True
    return not _ASKED.isdisjoint(words) and not _BODIES_OF_TEXT.isdisjoint(words)


def read_search(key: str, arguments: Any, fields: Iterable[str] = ()) -> Search | None:
    """What a call of a search tool searches for; None if it has no keyword.

    Args:
        key: What names the tool in the state.
        arguments: The call's parsed arguments.
        fields: Arguments that hold the query where none of `QUERY_FIELDS` is there.
    """
    if not isinstance(arguments, Mapping):
        return None
    used = _query_names(arguments, fields)
    query = " ".join([text for name in used for text in _texts(arguments[name])])
    words = keywords(query)
    if not words:
        return None
    hashed = set(map(_hash, words))
    kept = frozenset(hashed if len(hashed) <= MAX_KEYWORDS else sorted(hashed)[:MAX_KEYWORDS])
    places, pages = [], []
    for name, value in arguments.items():
        if type(name) is not str or name in used:
            continue
        if _is_paging(name[:_MAX_NAME]):
            pages.append(f"{name}={str(value)[:MAX_PAGE] if isinstance(value, str | int | float) else ''}")
        # A short text says where to search. Numbers say how much, longer texts say why.
        elif (
            type(value) is str
            and len(value) <= _MOST_PLACE
            and value.count(" ") < _PLACE_WORDS
            and name.lower() not in _KNOBS
        ):
            places.append(f"{name}={value}")
    if places:
        key = f"{key}/{crc32(';'.join(sorted(places)).encode('utf-8', 'surrogatepass')):08x}"
    chains = (
        () if query.isascii() else tuple(tuple(map(_hash, _pairs(token))) for token in _tokens(query) if _wide(token))
    )
    return Search(key, kept, ";".join(sorted(pages))[:MAX_PAGE] if pages else "", chains)


def _query_names(arguments: Mapping[Any, Any], fields: Iterable[str]) -> list[Any]:
    """The arguments that hold the query."""
    if "query" in arguments:  # by far the most common
        return ["query"]
    named = {_plain(name): name for name in arguments if isinstance(name, str)}
    found = [named[_plain(name)] for name in QUERY_FIELDS if _plain(name) in named]
    return found[:1] or [named[_plain(name)] for name in fields if _plain(name) in named]


def keywords(query: str) -> set[str]:
    """The words a query is about: without case, small words and plural; Chinese, Japanese and Korean by bigrams."""
    tokens = _tokens(query)
    found = set(tokens) - _SMALL_WORDS
    for token in tokens:
        if token[-1] == "s" and token in found:
            found.discard(token)
            found.add(_singular(token))
        elif _wide(token):
            found.discard(token)
            found.update(_pairs(token))
    return found


def without_joints(new: set[int], chains: Iterable[tuple[int, ...]]) -> set[int]:
    """The new keywords, less pairs that only come of known words standing in another order.

    `天气预报北京` after `北京天气预报` has one pair that was not there, `报北`, where two known words meet. A new word
    brings more than one pair in a row, or one at an end.
    """
    joints = {
        pair
        for chain in chains
        for before, pair, after in zip(chain, chain[1:], chain[2:], strict=False)
        if pair in new and before not in new and after not in new
    }
    return new - joints


def _tokens(query: str) -> list[str]:
    query = query[:_MAX_QUERY]
    if query.isascii():
        return _ASCII_WORDS.findall(query.lower())
    return _TOKENS.findall(unicodedata.normalize("NFKC", query).casefold())


def _wide(token: str) -> bool:
    """Whether it is Chinese, Japanese or Korean."""
    return token[0] >= _FIRST_EAST_ASIAN and _IS_EAST_ASIAN.match(token) is not None


def _pairs(token: str) -> list[str]:
    return [token[start : start + 2] for start in range(len(token) - 1)] or [token]


def _hash(word: str) -> int:
    return crc32(word.encode("utf-8", "surrogatepass"))


def _singular(word: str) -> str:
    """`loop` for `loops`, `library` for `libraries`: the commonest way to ask in other words."""
    if len(word) <= _SHORT_WORD or word[-2] == "s":
        return word
    return f"{word[:-3]}y" if word.endswith("ies") else word[:-1]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return [part for part in value[:MAX_KEYWORDS] if isinstance(part, str)]
    return []


@functools.lru_cache(maxsize=512)
def _is_paging(name: str) -> bool:
    return _plain(name) in PAGING_FIELDS


def _plain(name: str) -> str:
    return name[:_MAX_NAME].replace("_", "").replace("-", "").lower()
