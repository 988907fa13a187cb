"""Stores to test against: real ones."""

import contextlib
import pathlib
import shutil
import uuid
from collections.abc import Callable, Iterator

import pytest
from ledger_tools import Clock, RedisServer, run_redis

from loopguard_core.keys import Ledger, open_ledger


@pytest.fixture(scope="session")
def redis_binary() -> str:
    pytest.importorskip("redis", reason="needs the redis library: pip install 'loopguard-core[redis]'")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("needs redis-server: apt-get install redis-server, or brew install redis")
    return binary


@pytest.fixture(scope="session")
def redis_server(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with run_redis(redis_binary, tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: pathlib.Path) -> str:
    return f"sqlite:///{tmp_path / 'budget.db'}"


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return f"redis://127.0.0.1:{redis_server.port}/0?prefix={uuid.uuid4().hex}"


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_at() -> Iterator[Callable[..., Ledger]]:
    """`open_ledger`, closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(open_ledger(*args, **options))


@pytest.fixture
def ledger(url: str, clock: Clock, open_at: Callable[..., Ledger]) -> Ledger:
    return open_at(url, clock=clock)
