"""Rephrased searches: what counts as a search, as a keyword, as new, and what the results change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from loopguard_core import Action, Detector, Finding, LoopGuard, ToolCall, hookimpl
from loopguard_core._outcome import Result
from loopguard_core._search_query import MAX_KEYWORDS, is_search, keywords, read_search
from loopguard_core._search_results import MAX_ENTRIES, overlap, result_signature
from loopguard_core._traits import infer
from loopguard_core.detectors import ObservedCall
from loopguard_core.detectors._retries import Retries
from loopguard_core.detectors.rephrased_search import MAX_STREAMS, RephrasedSearch


class Call(ObservedCall):
    """A call whose result the core has signed."""

    signature: frozenset[int] | None = None


class Run:
    """Drives a detector as the core does: a round is closed when the next one begins."""

    def __init__(self, detector: RephrasedSearch | None = None) -> None:
        self.detector = detector or RephrasedSearch()
        self.round = 0
        self._open: list[Call] = []

    def __call__(self, *searches: Any, result: Any = None, tool: str = "web_search") -> list[Finding]:
        self.detector.close_round(self._open)
        self.round += 1
        self._open = []
        for search in searches:
            arguments = search if isinstance(search, dict) else {"query": search}
            identity = xxhash.xxh3_64_hexdigest(f"{tool}{json.dumps(arguments)}".encode())
            call = Call(f"c{self.round}", tool, tool, identity, arguments, nature=infer(tool))
            if result is not None:
                call.signature = result_signature(result)
                call.result = Result(str(hash(str(result))), False, None)
            self._open.append(call)
        return list(self.detector.begin_round(self._open, self.round))

    def streaks(self, queries: Sequence[str], results: Sequence[Any] | None = None) -> list[int]:
        """The streak reported for each query in turn; 0 where nothing is."""
        given = results or [None] * len(queries)
        found = [self(query, result=result) for query, result in zip(queries, given, strict=True)]
        return [finding[0].streak if finding else 0 for finding in found]


SUBJECT = "tidal turbine"
DIMENSIONS = [
    "cost forecast",
    "blade corrosion",
    "grid storage",
    "fish impact",
    "licence duration",
    "noise limits",
    "crew safety",
]
REST = ["crew safety tidal turbine", "tidal turbine safety", "safety of the crew, tidal turbines", "turbine crew"]


def test_eleven_searches_on_one_subject_fire_at_the_eighth() -> None:
    queries = [f"{SUBJECT} {dimension}" for dimension in DIMENSIONS] + REST
    assert Run().streaks(queries) == [0] * 7 + [1, 2, 3, 4]


def test_eleven_searches_that_grow_fire_at_the_eighth_while_results_are_new() -> None:
    grown = [" ".join([SUBJECT, *DIMENSIONS[: n + 1]]) for n in range(7)] + [
        f"{SUBJECT} {' '.join(DIMENSIONS[1:])}"
    ] * 1
    results = [f"the page number {n} about something else" for n in range(8)]
    streaks = Run().streaks(grown, results)
    assert streaks[:7] == [0] * 7
    assert streaks[7] > 0


def test_a_few_new_keywords_fire_only_where_results_overlap_or_are_unknown() -> None:
    queries = [
        f"hosting free tier limits prices 2026 {name}" for name in ("alder", "birch", "cedar", "elm", "fir", "yew")
    ]
    new = [f"1. {query} page\n2. {query} questions" for query in queries]
    assert Run().streaks(queries, new) == [0] * 6
    assert Run().streaks(queries, ["1. the same page\n2. and another one"] * 6) == [0, 0, 2, 3, 4, 5]
    assert Run().streaks(queries) == [0, 0, 2, 3, 4, 5]
    assert Run().streaks(queries, ["[]"] * 6) == [0, 0, 2, 3, 4, 5]


def test_no_new_keyword_fires_whatever_came_back() -> None:
    queries = ["loop guard library", "library loop guard", "guard for the loop: a library", "loops guards"]
    assert Run().streaks(queries, [f"quite another page, number {n}" for n in range(4)]) == [0, 1, 2, 3]


def test_chinese_counts_by_bigrams() -> None:
    words = ["沙箱", "审批流程", "最小权限", "实践案例", "落地经验", "设计模式"]
    queries = ["智能体框架 权限控制 " + " ".join(words[:n]) for n in range(7)]
    assert Run().streaks(queries, ["1. 智能体沙箱与权限综述\n2. 工具调用审批的三种做法"] * 7)[5:] == [3, 4]
    assert keywords("智能体框架") == {"智能", "能体", "体框", "框架"}
    assert keywords("設定ファイル 서버설정") == {"設定", "定フ", "ファ", "ァイ", "イル", "서버", "버설", "설정"}


def test_chinese_words_in_another_order_are_no_new_ones() -> None:
    queries = [
        "北京周末适合孩子的室内活动",
        "适合孩子的北京周末室内活动",
        "周末北京室内适合孩子活动",
        "孩子周末室内活动北京适合",
    ]
    assert Run().streaks(queries, ["1. 北京亲子馆\n2. 科技馆"] * 4) == [0, 1, 2, 3]
    assert Run().streaks(["北京天气预报", "上海天气预报", "广州天气预报", "深圳天气预报"]) == [0] * 4


def test_a_new_subject_starts_afresh() -> None:
    run = Run()
    assert run.streaks(["loop guard library", "library loop guard", "guard loop"]) == [0, 1, 2]
    assert run.streaks(["paint for wooden boats", "wooden boat paint"]) == [0, 1]


def test_what_was_asked_to_the_letter_is_not_in_other_words() -> None:
    run = Run()
    assert [run("loop guard library") for _ in range(5)] == [[]] * 5


def test_pages_and_places_are_no_rephrasing() -> None:
    run = Run()
    assert [run({"query": "loop guard", "page": page}) for page in range(1, 6)] == [[]] * 5
    run = Run()
    for place in ("src", "tests", "docs"):
        assert run({"pattern": "def parse", "path": place}, tool="grep") == []
    assert run({"pattern": "parse(def)", "path": "docs"}, tool="grep")[0].streak == 1


def test_different_patterns_are_healthy() -> None:
    run = Run()
    for pattern in ("def parse_header", "class Reader", "import json", "TODO", r"retry\(", "max_retries", "RetryError"):
        assert run({"pattern": pattern, "path": "src"}, tool="grep") == []


def test_a_fan_out_is_one_search() -> None:
    run = Run()
    assert run("alder prices", "alder limits", "birch prices", "birch limits") == []
    assert len(run("birch alder prices", "alder birch limits")) == 1


def test_other_tools_are_left_alone() -> None:
    for tool in ("run_sql", "prom_query", "write_file", "research_notes", "lookup_model"):
        run = Run()
        assert [run("select a from b", tool=tool), run("select b from a", tool=tool)] == [[], []]


@pytest.mark.parametrize(
    "name",
    ["web_search", "searchDocs", "GoogleSearch", "mcp__brave__find", "grep", "knowledge-search", "TavilySearchResults"],
)
def test_names_of_searches(name: str) -> None:
    assert is_search(name)


@pytest.mark.parametrize(
    ("tool", "settings", "argument", "expected"),
    [
        ("ask_archive", {}, "query", [None, None, None]),
        ("ask_archive", {"traits": ["searches"]}, "query", [None, "observe", "steer"]),
        ("ask_archive", {"traits": ["searches"]}, "wish", [None, None, None]),
        ("ask_archive", {"traits": ["searches"], "loop_key": ["wish"]}, "wish", [None, "observe", "steer"]),
        ("ask_archive", {"traits": ["reads"], "loop_key": ["wish"]}, "wish", [None, None, None]),
        ("web_search", {"traits": ["reads"]}, "query", [None, "observe", "steer"]),
        ("web_search", {"traits": ["searches"], "loop_key": ["query"]}, "query", [None, "observe", "steer"]),
    ],
)
def test_a_policy_says_what_is_a_search(
    tool: str, settings: dict[str, Any], argument: str, expected: list[str | None]
) -> None:
    """By a trait; where its argument has no usual name, by the loop key too."""
    session = LoopGuard({"tools": {tool: settings}}).session()
    said = []
    for number, query in enumerate(("old harbor maps", "harbor maps, old", "maps: the old harbor")):
        (decision,) = session.begin_round([ToolCall(f"c{number}", tool, {argument: query})])
        said.append(decision.action)
        assert decision.verdict is None or decision.verdict.detector == "rephrased_search"
        session.record_result(f"c{number}", f"sheet {number * 7} of {query[:4]}")
    assert said == expected


@pytest.mark.parametrize(
    ("traits", "known"),
    [(["searches"], {"reads"}), (["searches", "mutates"], {"mutates"}), (["searches", "polls"], {"polls", "reads"})],
)
def test_who_searches_reads(traits: list[str], known: set[str]) -> None:
    seen: list[ObservedCall] = []

    class Sees(Detector):
        name = "sees"

        def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
            seen.extend(calls)
            return ()

        def save(self) -> Any:
            return None

        def restore(self, state: Any) -> None:
            pass

    class Plugin:
        @hookimpl
        def detectors(self, policy: Any) -> Any:
            return Sees()

    LoopGuard({"tools": {"ask": {"traits": traits}}}, plugins=[Plugin()]).session().begin_round(
        [ToolCall("c", "ask", {})]
    )
    assert [set(call.traits) for call in seen] == [known]


def test_user_turn_forgets_and_compaction_does_not() -> None:
    run = Run()
    run.streaks(["loop guard library", "library loop guard"])
    run.detector.compacted()
    assert run.streaks(["guard loop"]) == [2]
    run.detector.user_turn()
    assert run.streaks(["loop guard", "guard loop"]) == [0, 1]


def test_dsh_shares_the_retry() -> None:
    retries = Retries()
    run = Run(RephrasedSearch(retries=retries))
    assert run.streaks(["loop guard library", "library loop guard"]) == [0, 1]
    assert retries.take() == 2
    assert run.streaks(["guard loop"]) == [3]


def test_state_is_small_and_goes_on() -> None:
    run = Run()
    for n in range(60):
        words = " ".join(f"word{n}x{m}" for m in range(90))
        result = "\n".join(f"https://example.com/{n}/{m}" for m in range(99))
        run({"query": words, "path": f"place{n}", "page": "p" * 999}, result=result, tool="search_" + "x" * 30)
        run({"query": words + " more", "path": f"place{n}"}, result=result, tool="search_" + "x" * 30)
    state = json.loads(json.dumps(run.detector.save()))
    assert len(json.dumps(state)) < 8 * 1024
    again = RephrasedSearch()
    again.restore(state)
    assert again.save() == state
    first, second = Run(), Run()
    first.streaks(["loop guard library", "library loop guard"])
    first.detector.close_round(first._open)
    second.detector.restore(json.loads(json.dumps(first.detector.save())))
    assert second.streaks(["guard loop"]) == [2]


@pytest.mark.parametrize(
    "state",
    [3, [], [[]], [[1], None], [[["k", ["zz"], [], [0, 0, 0], "", []]], None], [[["k", [], [], [0, 0], "", []]], None]],
)
def test_a_state_that_makes_no_sense_is_refused(state: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        RephrasedSearch().restore(state)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_odd_arguments_and_results_are_no_error(value: Any) -> None:
    for arguments in (value, {"query": value}, {"q": "x", "path": value, "page": value}):
        search = read_search("search", arguments)
        assert search is None or len(search.keywords) <= MAX_KEYWORDS
    assert len(result_signature(value)) <= MAX_ENTRIES


def test_signatures_name_entries_and_not_their_frame() -> None:
    one = json.dumps(
        [{"title": "Tidal power", "url": "https://a.example/1", "score": 0.83}, {"url": "https://a.example/2"}]
    )
    same = json.dumps(
        [{"title": "Other words", "url": "https://a.example/2", "score": 0.2}, {"url": "https://a.example/1"}]
    )
    other = json.dumps([{"title": "Tidal power", "url": "https://b.example/7", "published_date": "2026"}])
    assert overlap(result_signature(one), result_signature(same))
    assert not overlap(result_signature(one), result_signature(other))
    assert overlap(
        result_signature("1. Tidal power (score 0.83)\n2. Wave power"),
        result_signature("2) Wave power\n3) Tidal power (score 0.7)"),
    )
    first, second = "Links: https://wage.example/11 and more", "Links: https://wage.example/12 and more"
    assert not overlap(result_signature(first), result_signature(second)), "a number at the end is part of an address"
    assert overlap(result_signature(""), result_signature([]))
    assert not overlap(result_signature(""), result_signature(one))
    assert result_signature(one) == result_signature(json.loads(one))
    assert len(result_signature("line of text\n" * 10 + "x" * 10**6)) <= MAX_ENTRIES


def test_words_for_the_model() -> None:
    run = Run()
    run("loop guard library")
    (finding,) = run("library loop guard")
    said = run.detector.describe(finding, "web_search")
    assert (
        said
        == "`web_search` was asked for the same thing in other words, without a new keyword (1 such searches in a row)"
    )
    assert "library" not in json.dumps(dict(finding.evidence))
    assert MAX_STREAMS < 10


def test_in_a_guard_it_is_noted_and_then_told() -> None:
    """And told once in a streak: each search is another call, what they are about is one question."""
    with LoopGuard({"detectors": {"repeated_call": {"enabled": False}}}) as guard:
        session = guard.session()
        actions: list[Any] = []
        told: list[str] = []
        for n, query in enumerate(
            ["loop guard library", "library loop guard", "guards, loops, libraries", "loop library"]
        ):
            told += session.before_model_call().steer
            session.after_model_call()
            verdict = session.begin_round([ToolCall(f"c{n}", "web_search", {"query": query})])[0].verdict
            actions.append(None if verdict is None or verdict.detector != "rephrased_search" else verdict.action)
            session.record_result(f"c{n}", f"page {n}")
        assert actions == [None, Action.OBSERVE, Action.STEER, Action.STEER]
        (once,) = told
        assert "other words" in once
        assert session.before_model_call().steer == ()


def test_a_search_is_known_by_the_whole_name_with_and_without_outcomes() -> None:
    for policy in ({}, {"outcomes": "ignore", "detectors": {"rephrased_search": {"enabled": True}}}):
        told: list[str] = []
        with LoopGuard(policy, on_loop=lambda event, told=told: told.append(event.detector)).session() as session:
            for number, query in enumerate(("tidal turbine cost", "cost tidal turbine", "turbine tidal cost")):
                session.begin_round([ToolCall(f"c{number}", "mcp__google__lookup", {"query": query})])
                session.record_result(f"c{number}", f"{number} pages of one kind and another")
        assert "rephrased_search" in told, policy
