"""Searches that find what earlier ones had found."""

from __future__ import annotations

from scripted_rounds import Run, actions, first_at, only


def test_searches_in_new_words_that_find_the_same_pages() -> None:
    """3 observe, 5 steer. The knobs of a search are no place to search in."""
    run = Run(only("rephrased_search"))
    queries = "amber birch,cedar dahlia,elder fern,grape hazel,iris juniper,kale lemon,mint nettle,olive pear".split(
        ","
    )
    pages = [f"https://example.org/{n}" for n in range(5)]
    found = [
        run(
            "web_search",
            {"query": query, "search_depth": ["basic", "advanced"][n % 2]},
            "\n".join(pages[n % 5 :] + pages[: n % 5]),
        )
        for n, query in enumerate(queries)
    ]
    assert first_at(actions(found)) == {"observe": 5, "steer": 7}
    assert "found what earlier ones had found" in run.session.before_model_call().steer[-1]


def test_what_was_found_is_read_in_between() -> None:
    run = Run(only("rephrased_search"))
    found = []
    for n in range(8):
        found.append(
            run("web_search", {"query": f"city{n} charging fee limit 2025"}, "https://example.org/news\nhttps://a.org")
        )
        run("open_page", {"url": f"https://example.org/{n}"}, f"the fee in city{n} is {n * 7} cents")
    assert first_at(actions(found)) == {}


def test_to_find_nothing_again_is_an_answer() -> None:
    run = Run(only("rephrased_search"))
    words = "amber birch cedar dahlia elder fern grape hazel".split()
    found = [run("find_user", {"query": word}, '{"results": [], "total": 0}') for word in words]
    assert first_at(actions(found)) == {}
