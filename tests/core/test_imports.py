"""The one import rule: adapters import the core; the core imports no adapter and no SDK; adapters not each other."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CORE = "loopguard_core"
ADAPTERS = sorted(path.name for path in (ROOT / "adapters").iterdir() if (path / "__init__.py").is_file())
SDKS = frozenset(
    {
        *("langchain", "langchain_core", "langchain_openai", "langgraph", "langsmith"),
        *("agents", "openai", "openai_agents", "llama_index", "llama_index_instrumentation", "workflows"),
        *("anthropic", "google", "litellm", "mcp", "pydantic_ai"),
    }
)
OPTIONAL = frozenset(
    {
        *("redis", "fakeredis", "opentelemetry", "prometheus_client", "genai_prices", "tiktoken", "litestar"),
        *("httpx", "httpx2", "requests", "aiohttp", "starlette", "fastapi", "uvicorn", "anyio", "sniffio"),
        *("numpy", "pandas", "regex", "yaml", "orjson", "rapidfuzz", "sqlalchemy", "aiosqlite", "jinja2"),
        *("pytest", "hypothesis", "rfc8785", "nox"),
    }
)
REQUIRED = frozenset({"pluggy", "xxhash", "pydantic", "rich"})


def source_files(package: str) -> list[pathlib.Path]:
    base = ROOT / package if package == CORE else ROOT / "adapters" / package
    return sorted(base.rglob("*.py"))


def imported_by(path: pathlib.Path) -> Iterator[str]:
    """Every module a file imports anywhere, inside functions and for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            yield node.module or ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


def top_levels(package: str) -> dict[str, set[str]]:
    """What a package imports, by the top-level package, with the files that do."""
    found: dict[str, set[str]] = {}
    for path in source_files(package):
        for name in imported_by(path):
            found.setdefault(name.partition(".")[0], set()).add(path.relative_to(ROOT).as_posix())
    return found


def modules_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after a statement, without those it starts with."""
    script = (
        f"import sys, json; before = set(sys.modules); {statement}; print(json.dumps([*set(sys.modules) - before]))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.partition(".")[0] for name in json.loads(run.stdout.splitlines()[-1])}


USE = (
    "import loopguard_core as lg; g = lg.LoopGuard(); s = g.session();"
    " s.before_model_call(); s.after_model_call(usage=lg.Usage(total_tokens=1, cost='0.1'));"
    " s.begin_round([lg.ToolCall('1', 'tool', {})]); s.record_result('1', 'x'); s.save(); s.end(); lg.__version__"
)


@pytest.mark.parametrize("statement", [f"import {CORE}", USE], ids=["import", "use"])
def test_the_core_loads_no_sdk_and_no_optional_library(statement: str) -> None:
    loaded = modules_after(statement)
    assert loaded & {CORE, "pluggy", "pydantic", "xxhash"} == {CORE, "pluggy", "pydantic", "xxhash"}
    assert not loaded & (SDKS | OPTIONAL | set(ADAPTERS))


def test_the_command_line_loads_no_sdk_either() -> None:
    assert not modules_after("import loopguard_core.cli") & (SDKS | set(ADAPTERS))


def test_the_core_imports_nothing_but_the_standard_library_and_its_four_dependencies() -> None:
    # `testing` is a part people opt into by importing it; it may not go further than that either.
    foreign = {
        name: files
        for name, files in top_levels(CORE).items()
        if name not in {CORE, "__future__", *REQUIRED} and name not in sys.stdlib_module_names
    }
    # Each of these is an extra, loaded only once a policy asks for what it does.
    assert foreign.pop("redis", None) in (None, {"loopguard_core/keys/_redis.py"})
    assert foreign.pop("genai_prices", None) in (None, {"loopguard_core/_prices.py"})
    # A plugin that only those who import it load.
    assert foreign.pop("opentelemetry", None) in (None, {"loopguard_core/otel.py"})
    assert not foreign


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_imports_the_core_and_no_other_adapter(adapter: str) -> None:
    imported = top_levels(adapter)
    assert CORE in imported
    others = {name: imported[name] for name in ADAPTERS if name != adapter and name in imported}
    assert not others


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_uses_only_what_the_core_offers(adapter: str) -> None:
    """Private modules of the core may change without notice."""
    private = {
        f"{path.name}: {name}"
        for path in source_files(adapter)
        for name in imported_by(path)
        if name.startswith(f"{CORE}.") and any(part.startswith("_") for part in name.split("."))
    }
    assert not private


def test_the_contract_for_import_linter_knows_every_adapter() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert set(settings["root_packages"]) == {CORE, *ADAPTERS}
    forbidden = {name for contract in settings["contracts"] for name in contract.get("forbidden_modules", ())}
    assert set(ADAPTERS) <= forbidden


def test_every_public_name_can_be_imported() -> None:
    import loopguard_core

    assert sorted(loopguard_core.__all__) == list(loopguard_core.__all__)
    for name in loopguard_core.__all__:
        assert getattr(loopguard_core, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LoopGard'"):
        _ = loopguard_core.LoopGard
