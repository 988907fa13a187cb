"""What the project's own files say of each other: requirements, benchmarks, releases."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("sdk", ["langchain", "openai-agents", "llama-index-core"])
def test_the_promise_names_the_bounds_that_hold(project: Any, sdk: str) -> None:
    extra = project["optional-dependencies"][sdk.removesuffix("-core")]
    (lowest, bound) = next(re.findall(r">=([\d.]+),<([\d.]+)$", line)[0] for line in extra if line.startswith(sdk))
    said = re.findall(rf"^\| {sdk} \| (.*?) \|", VERSIONS, re.MULTILINE)[0]
    last = bound.split(".")
    last[-1] = str(int(last[-1]) - 1)
    # "1.5 and later 1.x" below 2, "0.20 and later 0.x" below 1, "0.14.22 to 0.14.x" below 0.15
    assert re.match(rf"{re.escape(lowest)} (?:and later|to) {re.escape('.'.join(last))}\.x", said), said


def test_no_requirement_is_without_an_upper_bound(project: Any) -> None:
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    for line in (*project["dependencies"], *extras):
        assert line.startswith("loopguard-core[") or re.search(r">=[\d.]+,<[\d.]+$", line), line


def test_the_classifiers_name_the_systems_and_pythons_that_are_tested(project: Any) -> None:
    said = re.findall(r"^\| operating systems \| (.*?) \|", VERSIONS, re.MULTILINE)[0]
    assert said.startswith("Linux, tested; on macOS and Windows it is not")
    systems = [name for name in project["classifiers"] if name.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    pythons = [name.rpartition(" ")[2] for name in project["classifiers"] if "Python :: 3." in name]
    nox = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert f"PYTHONS = {pythons}".replace("'", '"') in nox
    assert f"| Python | {pythons[0]} to {pythons[-1]}, tested on each |" in VERSIONS


def test_nox_takes_every_figure_of_the_page_of_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    session = (ROOT / "noxfile.py").read_text(encoding="utf-8").partition("def bench(")[2]
    named = set(re.findall(r"\b(\w+)\.py\b", page))
    assert len(named) >= 5
    for name in named:
        assert (ROOT / "benchmarks" / f"{name}.py").exists()
        assert f'"{name}"' in session or f"benchmarks/{name}.py" in session, name


def test_nothing_is_published_that_did_not_pass_the_checks() -> None:
    workflows = ROOT / ".github" / "workflows"
    if not workflows.exists():
        pytest.skip("only in a checkout")
    release = (workflows / "release.yml").read_text(encoding="utf-8")
    publish = release.partition("\n  publish:\n")[2].partition("\n\n")[0]
    assert "needs: [checks, build]" in publish
    assert "\n  checks:\n    uses: ./.github/workflows/ci.yml\n" in release
    assert "\n  workflow_call:" in (workflows / "ci.yml").read_text(encoding="utf-8")
