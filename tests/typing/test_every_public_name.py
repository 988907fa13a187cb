"""The files beside this one use every public name there is; mypy and pyright check them (see `.ci/run`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("loopguard_core", "loopguard_core/detectors", "loopguard_core/keys", "loopguard_core/report"),
    *("loopguard_core/testing", "loopguard_core/testing/conformance", "loopguard_core/transcripts"),
    *("loopguard_core/recorder.py", "loopguard_core/otel.py", "loopguard_core/prices.py"),
    *(f"adapters/loopguard_{name}" for name in ("gateway", "langchain", "llama_index", "openai_agents")),
)


def public_names(module: str) -> set[str]:
    """What stands in `__all__`; nothing is imported, so it needs no SDK."""
    file = ROOT / module if module.endswith(".py") else ROOT / module / "__init__.py"
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names = ast.literal_eval(statement.value)
            assert sorted(set(names)) == sorted(names)
            return set(names)
    raise AssertionError(f"{module} has no __all__")


def used_from(*modules: str) -> set[str]:
    """What the files import from these modules."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in Path(__file__).parent.glob("use_*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes if node.module in modules for alias in node.names}


@pytest.mark.parametrize("module", PACKAGES)
def test_every_public_name_is_used(module: str) -> None:
    name = module.removesuffix(".py").removeprefix("adapters/").replace("/", ".")
    assert public_names(module) <= used_from(name, "loopguard_core")


def test_every_public_module_is_here_in_the_promise_and_among_the_pages() -> None:
    """A module is public if its name has no underscore and it says what of it is; a package says it for its modules."""
    found: set[str] = set()
    for file in (*ROOT.glob("loopguard_core/**/*.py"), *ROOT.glob("adapters/*/__init__.py")):
        module = file.relative_to(ROOT).as_posix().removesuffix("/__init__.py")
        within = file.name != "__init__.py" and file.parent != ROOT / "loopguard_core"
        said = "\n__all__ = " in file.read_text(encoding="utf-8")
        if said and not within and not any(part.startswith("_") for part in module.split("/")):
            found.add(module)
    assert found == set(PACKAGES)
    versions = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    pages = "".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/api-*.md"))
    for module in found:
        name = module.removesuffix(".py").removeprefix("adapters/").replace("/", ".")
        if name.startswith("loopguard_core."):  # the adapters are named together
            assert f"{name.removeprefix('loopguard_core')}`" in versions, name
        shown = [f"::: {place}.{each}\n" for each in public_names(module) for place in (name, "loopguard_core")]
        assert any(each in pages for each in shown), f"no API page shows anything of {name}"
