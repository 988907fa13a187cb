"""What a model call costs."""

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal

import pytest

from loopguard_core import Usage, _prices
from loopguard_core._prices import price, warm, worst_case

USED = Usage(input_tokens=1000, output_tokens=100)


@pytest.fixture
def listed() -> None:
    pytest.importorskip("genai_prices", reason="needs the price list: pip install 'loopguard-core[prices]'")
    assert warm()


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    monkeypatch.setattr(_prices, "_calculate", None)
    monkeypatch.setattr(_prices, "_missing", False)
    _prices._listed.cache_clear()
    yield
    _prices._listed.cache_clear()


def test_what_the_provider_reports_wins(without_library: None) -> None:
    assert price("gpt-4o", Usage(cost="0.0123")) == Decimal("0.0123")
    assert price(None, Usage(input_tokens=1, output_tokens=1, cost=0)) == 0
    assert price("gpt-4o", Usage(cost=-1)) is None, "no amount at all"


def test_without_the_library_a_price_is_unknown(without_library: None) -> None:
    assert not warm()
    assert price("gpt-4o", USED) is None
    assert worst_case("gpt-4o", 1000, 100) is None


def test_exact_decimals(listed: None) -> None:
    # $2.50 and $10 a million tokens since this model came out.
    assert price("gpt-4o-2024-08-06", USED) == Decimal("0.0035")
    assert price("gpt-4o-2024-08-06", Usage(input_tokens=1, output_tokens=0)) == Decimal("0.0000025")


def test_cached_tokens_cost_what_they_cost(listed: None) -> None:
    cached = Usage(input_tokens=1000, output_tokens=100, cached_tokens=1000)
    assert price("gpt-4o-2024-08-06", cached) == Decimal("0.00225")
    more_than_all = Usage(input_tokens=1000, output_tokens=100, cached_tokens=5000)
    assert price("gpt-4o-2024-08-06", more_than_all) == Decimal("0.00225")


def test_reasoning_has_its_own_price_where_it_has_one(listed: None) -> None:
    thought = Usage(input_tokens=0, output_tokens=1000, reasoning_tokens=1000)
    said = Usage(input_tokens=0, output_tokens=1000)
    assert price("perplexity:sonar-deep-research", thought) != price("perplexity:sonar-deep-research", said)
    assert price("gpt-4o", thought) == price("gpt-4o", said)


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("openai:gpt-4o", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("OpenAI/GPT-4o", "gpt-4o"),
        ("openrouter/openai/gpt-4o", "openai/gpt-4o"),
        ("litellm/openai/gpt-4o", "gpt-4o"),
        ("azure_openai:gpt-4o", "azure/gpt-4o"),
        ("anthropic:claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
        ("google_genai:gemini-2.5-pro", "gemini-2.5-pro"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("vertex_ai/gemini-2.5-pro", "gemini-2.5-pro"),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0"),
    ],
)
def test_names_as_sdks_write_them(listed: None, name: str, same_as: str) -> None:
    assert price(name, USED) is not None
    assert price(name, USED) == price(same_as, USED)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "my-deployment",
        "ollama/llama3",
        "ollama/gpt-4o",
        "ft:gpt-4o-mini:acme::id",
        "openai:ft:gpt-4o-mini:acme::id",
        "gpt-4o" * 100,
        ":",
        "/",
        "a/b/c/d/e",
        "\ud800",
    ],
)
def test_an_unknown_model_has_no_price(listed: None, name: str | None) -> None:
    assert price(name, USED) is None
    assert worst_case(name, 1000, 100) is None


@pytest.mark.parametrize(
    "usage",
    [Usage(), Usage(input_tokens=1), Usage(output_tokens=1), Usage(total_tokens=5)],
)
def test_unknown_numbers_of_tokens_have_no_price(listed: None, usage: Usage) -> None:
    assert price("gpt-4o", usage) is None


def test_a_call_never_costs_more_than_its_worst_case(listed: None) -> None:
    for name in (
        "gpt-4o",
        "openai:gpt-5.4",
        "anthropic:claude-sonnet-4-5",
        "gemini-2.5-pro",
        "perplexity:sonar-deep-research",
    ):
        most = worst_case(name, 1000, 100)
        assert most is not None
        for cached in (0, 500, 1000):
            for thought in (0, 100):
                cost = price(name, Usage(1000, 100, cached_tokens=cached, reasoning_tokens=thought))
                assert cost is not None
                assert cost <= most
    # Writing to Anthropic's cache costs up to twice the plain price.
    assert worst_case("claude-sonnet-4-5", 1000, 0) == 2 * (price("claude-sonnet-4-5", Usage(1000, 0)) or 0)


def test_worst_case_needs_both_numbers(listed: None) -> None:
    assert worst_case("gpt-4o", None, 1) is None
    assert worst_case("gpt-4o", 1, None) is None
    assert worst_case("gpt-4o", -1, 1) is None


def test_the_list_is_loaded_by_warm_and_not_by_importing() -> None:
    script = (
        "import sys, loopguard_core, loopguard_core._prices as p, loopguard_core.keys;"
        " assert 'genai_prices' not in sys.modules and 'httpx2' not in sys.modules;"
        " p.price('gpt-4o', loopguard_core.Usage(cost=1)); assert 'genai_prices' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
