"""The ledger's store goes away and comes back: nothing is served for nothing, and nothing that was spent is lost."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import httpx
import pytest
from ledger_tools import run_redis, start_redis, stop_redis
from loopguard_gateway_kit import MODEL, Answer, eventually, serving

from loopguard_core import Policy
from loopguard_core.keys import open_keyring, open_ledger

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100}
USAGE = {"prompt_tokens": 1_000_000, "completion_tokens": 0, "total_tokens": 1_000_000, "cost": 0.25}
COST = Decimal("0.25")
KEEPS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def redis(tmp_path):
    pytest.importorskip("redis", reason="needs the redis library: pip install 'loopguard-core[redis]'")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("needs redis-server: apt-get install redis-server, or brew install redis")
    with run_redis(binary, tmp_path, *KEEPS) as server:
        server.again = lambda: start_redis(
            [binary, "--port", str(server.port), "--bind", "127.0.0.1", "--dir", str(tmp_path), *KEEPS]
        )
        yield server


def post(served, key=None):
    with httpx.Client(timeout=30) as client:
        headers = served.auth if key is None else {"authorization": f"Bearer {key}"}
        return client.post(f"{served.base_url}/chat/completions", json=CHAT, headers=headers)


def answer(_=None):
    message = {"role": "assistant", "content": "Hello."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Answer([json.dumps({"id": "c", "model": MODEL, "choices": [choice], "usage": USAGE}).encode()])


def test_what_runs_is_counted_once_the_store_is_back(upstream, redis):
    provider = upstream(lambda _: (provider.hang(), answer())[1])
    with serving(provider.base_url, f"redis://127.0.0.1:{redis.port}/0") as served, ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, served)
        eventually(lambda: provider.requests)
        stop_redis(redis.process)
        refused = post(served)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        provider.release.set()
        assert running.result().status_code == 200  # the client has its answer; the money is owed
        assert len(provider.requests) == 1
        again = redis.again()
        try:
            status = eventually(lambda: (now := served.status()).spent and now, 40)
            assert (status.spent, status.reserved) == (COST, 0)
        finally:
            served.stop()
            stop_redis(again)


def test_calls_may_start_without_the_store_where_the_policy_says_so(upstream, redis):
    provider = upstream(answer)
    store, policy = f"redis://127.0.0.1:{redis.port}/0", Policy(key={"name": "all", "on_store_error": "allow"})
    with serving(provider.base_url, store, policy) as served:
        with open_keyring(store) as keyring:
            unseen = keyring.create("unseen")
            revoked = keyring.create("revoked")
            assert post(served).status_code == post(served, revoked).status_code == 200
            keyring.revoke("revoked")
            assert post(served, revoked).status_code == 401
        stop_redis(redis.process)
        assert post(served).status_code == 200
        assert [post(served, key).status_code for key in (unseen, revoked, "lg-nobody's")] == [503, 503, 503]
        again = redis.again()
        try:
            eventually(lambda: served.status().spent == 2 * COST, 40)
            with open_ledger(store) as ledger:
                assert ledger.status("all").spent == 3 * COST
        finally:
            served.stop()
            stop_redis(again)
