"""The tables in the docs are those that the suite and the surfaces give."""

import importlib.util
from pathlib import Path

import pytest

for sdk in ("langchain_openai", "agents", "llama_index.core"):
    pytest.importorskip(sdk)

SPEC = importlib.util.spec_from_file_location("generate", Path(__file__).parents[2] / "docs" / "_generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


def test_the_docs_are_current() -> None:
    assert generate.stale(write=False) == [], "run python docs/_generate.py"


@pytest.mark.parametrize("page", generate.PAGES)
def test_a_page_has_one_generated_part(page: str) -> None:
    text = (generate.DOCS / page).read_text(encoding="utf-8")
    assert (text.count(generate.BEGIN), text.count(generate.END)) == (1, 1)
