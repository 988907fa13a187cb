"""Makes the kit importable, and stands the provider and the gateway up."""

import contextlib
import importlib.util
import sys
from pathlib import Path

import pytest

for library in ("starlette", "httpx", "uvicorn", "prometheus_client"):
    pytest.importorskip(library, reason="needs pip install 'loopguard-core[gateway]'")

NAME = "loopguard_gateway_kit"
if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, Path(__file__).with_name("_kit.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)

from loopguard_gateway_kit import Upstream, serving


@pytest.fixture(autouse=True)
def on_loopback(tmp_path, monkeypatch):
    """No policy of somebody else's is found, and nothing goes through a proxy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path / 'budget.db'}"


@pytest.fixture
def upstream():
    """`upstream(answer)`: a provider that answers so."""
    with contextlib.ExitStack() as stack:

        def start(answer):
            provider = Upstream(answer)
            stack.callback(provider.close)
            return provider

        yield start


@pytest.fixture
def gateway(store, upstream):
    """`gateway(answer, ...)`: a provider that answers so, and a gateway in front of it."""
    with contextlib.ExitStack() as stack:

        def start(answer, policy=None, **options):
            provider = upstream(answer)
            served = stack.enter_context(serving(provider.base_url, options.pop("store", store), policy, **options))
            return provider, served

        yield start
