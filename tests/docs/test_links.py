"""Links between files work where the files are read: in the repository. The site's build checks those of the site."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "examples", ROOT / "corpus")
    for path in (folder.glob("*.md") if folder in (ROOT, ROOT / "docs") else folder.rglob("*.md"))
    if "node_modules" not in path.parts
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(path: Path) -> str:
    """The text without its code."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("](", "]_("), text)


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]
    return set(plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page):
    for target, anchor in LINK.findall(prose(page)):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{target}: no such file"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{target}#{anchor}: no such heading"


def test_the_chinese_readme_says_what_the_english_one_says():
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
    links = [{target for target, _ in LINK.findall(text)} for text in (english, chinese)]
    assert links[0] - {"README.zh-CN.md"} <= links[1], "README.zh-CN.md lacks links of README.md"
    assert english.count("\n## ") == chinese.count("\n## "), "sections of README.md and README.zh-CN.md"
    assert english.count("\n| ") == chinese.count("\n| "), "rows of tables in README.md and README.zh-CN.md"


def test_every_page_has_a_place_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if not re.search(rf"\b{page.name}\b", navigation)]
    assert not missing, f"mkdocs.yml, nav: {missing}"
