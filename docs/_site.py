"""Hooks of the site's build: what lies outside of `docs/` gets a page too, and no page loads anything from elsewhere.

Links are written for people who read the files in the repository. Here those that leave `docs/` are turned into links
to the page, or the copy, that the site has of the same file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "corpus/README.md")
COPIED = (".md", ".py", ".toml", ".mjs", ".json")
"""Of `examples/`, files that are shown or can be looked at."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)(?=[)#])")
_STATES = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.*))?$", re.MULTILINE)
_LOADED = re.compile(r"<(?:script|img|iframe|link(?=[^>]*stylesheet))[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_files(files: Files, *, config: Any) -> Files:
    """Add pages of the repository that are not in `docs/`, and the examples."""
    examples = (path for path in (ROOT / "examples").rglob("*") if path.suffix in COPIED)
    found = [*(ROOT / name for name in PAGES), *sorted(examples)]
    for path in found:
        if "node_modules" not in path.parts:
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Turn links between files of the repository into links between pages, and diagrams into what needs no script."""
    markdown = _STATES.sub(_as_table, markdown)
    here = page.file.src_uri
    outside = here in PAGES or here.startswith("examples/")
    folder = posixpath.dirname(here if outside else f"docs/{here}")

    def turned(link: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(folder, link[1]))
        uri = "index.md" if there == "README.md" else there.removeprefix("docs/")
        while uri and files.get_file_from_path(uri) is None and (ROOT / there).is_dir():
            # A folder: its own page, or that of the folder around it.
            if files.get_file_from_path(f"{uri}/README.md"):
                uri = f"{uri}/README.md"
            else:
                uri = there = posixpath.dirname(uri)
        return posixpath.relpath(uri, posixpath.dirname(here) or ".")

    return _LINK.sub(turned, markdown)


def _as_table(diagram: re.Match[str]) -> str:
    """A state diagram as a table. GitHub draws it; here that would take a large script from elsewhere."""
    steps = [[cell.replace("[*]", "-") for cell in step] for step in _STEP.findall(diagram[1])]
    return "\n".join(["| from | to | by |", "|---|---|---|", *(f"| {' | '.join(step)} |" for step in steps)])


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Fail the build where a page would load something from elsewhere."""
    loaded = _LOADED.search(output)
    if loaded is not None:
        raise PluginError(f"{page.file.src_uri}: the page loads something from elsewhere: {loaded[0]}")
    return output
