"""Checks over versions of Python and of the SDKs. `nox -l` lists them; `.ci/run` decides what lands."""

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "core", "tests"]
nox.options.error_on_external_run = True

PYTHONS = ["3.11", "3.12", "3.13"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Everything, on the newest versions the requirements allow."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session(venv_backend="uv", python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Everything, on the oldest versions the requirements allow."""
    session.install(".[test]", "--resolution=lowest-direct")
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS)
def core(session: nox.Session) -> None:
    """The core without any extra: nothing in it may need an SDK."""
    session.install(".", "pytest>=8.2,<10", "pytest-asyncio>=0.24,<2", "hypothesis>=6.100,<7", "rfc8785>=0.1.4,<0.2")
    tests = ("tests/core", "tests/cli", "tests/transcripts", "tests/keys", "tests/detectors")
    session.run("pytest", *tests, *session.posargs)


@nox.session(python=PYTHONS[0])
def coverage(session: nox.Session) -> None:
    """What of the core its own suites reach, branches included."""
    session.install("-e", ".[dev]")
    tests = [f"tests/{name}" for name in ("core", "detectors", "keys", "transcripts", "cli", "report")]
    options = ("--cov", "--cov-report=term-missing:skip-covered", "--cov-fail-under=95")
    session.run("pytest", *options, *tests, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the one import rule."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Types, strictly: of the project, and of what its users write."""
    session.install("-e", ".[dev]")
    session.run("mypy")
    session.run("mypy", "tests/typing")
    session.run("pyright")


@nox.session
def docs(session: nox.Session) -> None:
    """The site, into `site/`; every warning is an error."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The figures of `docs/benchmarks.md`."""
    session.install(".[demo,openai-agents,llama-index]")
    for name in ("core", "langchain_round", "openai_agents_round", "soak"):
        session.run("python", f"benchmarks/{name}.py")
    # Last, because the real client of LlamaIndex needs an older openai than the others.
    session.install(".[llama-index]", "llama-index-llms-openai>=0.6,<1")
    session.run("python", "benchmarks/llama_index_round.py")
