"""`loopguard gateway`, as it is run: its errors, its workers, and what a signal or a kill leaves behind."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from ledger_tools import run_redis
from loopguard_gateway_kit import MODEL, UPSTREAM_KEY, Answer, chat, eventually

from loopguard_core.cli import main
from loopguard_core.keys import open_keyring, open_ledger
from loopguard_core.testing import Reply

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100}
HELLO = chat(lambda _: Reply(text="Hello."))
COMMAND = [sys.executable, "-c", "import sys; from loopguard_core.cli import main; sys.exit(main())", "gateway"]


@contextlib.contextmanager
def running(upstream, store, *words):
    """The command, once it listens: its process and its address."""
    environment = {**os.environ, "PROVIDER_KEY": UPSTREAM_KEY}
    command = [*COMMAND, "--upstream", upstream, "--upstream-key-env", "PROVIDER_KEY", "--store", store, "--port", "0"]
    process = subprocess.Popen([*command, *words], env=environment, stderr=subprocess.PIPE, text=True)
    said = ""
    try:
        for said in process.stderr:  # it says where it listens; clients wait there until it serves
            found = re.match(r"loopguard gateway: (http://\S+)/v1 -> ", said)
            if found:
                break
        else:
            pytest.fail(f"it did not start: {said}")
        yield process, found[1]
    finally:
        process.send_signal(signal.SIGTERM)  # workers end with the one that started them
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.stderr.close()
        process.wait()


def key_of(store, limit="5"):
    with open_keyring(store) as keyring, open_ledger(store) as ledger:
        ledger.set_limit("team", Decimal(limit))
        return {"authorization": f"Bearer {keyring.create('team')}"}


def held(store):
    with open_ledger(store) as ledger:
        return ledger.status("team").reserved


def spent(store):
    with open_ledger(store) as ledger:
        return ledger.status("team").spent


def post(origin, headers, body=CHAT):
    with httpx.Client(timeout=60) as client:
        return client.post(f"{origin}/v1/chat/completions", json=body, headers=headers)


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--upstream", "api.openai.com"], "must begin with http:// or https://"),
        (["--upstream", "https://user:secret@x/v1"], "no user or password"),
        (["--upstream", "https://x/v1", "--upstream-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY: this environment variable"),
        (["--upstream", "https://x/v1", "--port", "70000"], "--port 70000"),
        (["--upstream", "https://x/v1", "--workers", "0"], "--workers 0"),
        (["--upstream", "https://x/v1", "--workers", "2", "--store", "memory://"], "not shared"),
        (["--upstream", "https://x/v1", "--store", "mysql://x"], "unknown kind of address"),
        (["--upstream", "https://x/v1", "--policy", "missing.toml"], "missing.toml"),
        (["--upstream", "https://x/v1", "--host", "203.0.113.1"], "--host 203.0.113.1"),
    ],
)
def test_what_cannot_be_used_is_named(capsys, words, says):
    assert main(["gateway", *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "secret" not in said
    assert "Traceback" not in said


def test_a_port_that_is_taken(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["gateway", "--upstream", "https://x/v1", "--port", str(port)]) == 2
    assert f"--port {port}: cannot be used (Address already in use)" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_hardly_can_be_meant_is_said_once(tmp_path, workers):
    """However many processes read the policy, and whether sessions or the gateway itself carry it out."""
    policy = tmp_path / "loopguard.toml"
    policy.write_text(
        '[limits]\nreserve = true\nunpriced = 15.00\n[key]\nname = "all"\nreset = "daily"\nstore = "sqlite:///k.db"\n',
        encoding="utf-8",
    )
    policy.chmod(0o666)
    words = ["--upstream", "http://127.0.0.1:9/v1", "--port", "0", "--policy", str(policy), "--workers", workers]
    said, started = [], 0
    with subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            said.append(line)
            started += "Application startup complete" in line
            if started == int(workers):
                process.send_signal(signal.SIGTERM)
                started = -1
    hazards = [line.partition(" WARNING ")[2] for line in said if " WARNING " in line]
    assert [line.split(":")[1].strip() for line in hazards if line.startswith("policy: ")] == [
        "key.reset",
        "limits.reserve",
    ]
    assert len([line for line in hazards if "can be written by other users" in line]) == 1
    assert len([line for line in said if " INFO The gateway spends on keys in " in line]) == int(workers)


def test_a_plugin_that_cannot_be_used_is_named(capsys, tmp_path):
    (tmp_path / "loopguard.toml").write_text('plugins = ["nobody-has-this"]\n', encoding="utf-8")
    assert main(["gateway", "--upstream", "https://x/v1", "--workers", "2"]) == 2
    assert "nobody-has-this" in capsys.readouterr().err


# -- one process -------------------------------------------------------------------------------------------------------


def test_keys_of_the_command_line_open_it(upstream, store, capsys, tmp_path):
    provider = upstream(HELLO)
    assert main(["key", "create", "agents", "--limit", "1", "--store", store, "--format", "json"]) == 0
    headers = {"authorization": f"Bearer {json.loads(capsys.readouterr().out)['key']}"}
    with running(provider.base_url, store) as (_, origin):
        assert post(origin, headers).status_code == 200
        with httpx.Client() as client:
            shown = client.get(f"{origin}/v1/key", headers=headers).json()["data"]
            assert (shown["label"], shown["limit"]) == ("agents", 1.0)
            assert client.get(f"{origin}/healthz").json() == {"status": "ok"}
            assert client.get(f"{origin}/readyz").json() == {"status": "ready"}
            assert b"loopguard_gateway_requests_total" in client.get(f"{origin}/metrics").content
    assert provider.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"


def test_it_listens_on_loopback_only(upstream, store):
    with running(upstream(HELLO).base_url, store) as (_, origin):
        assert origin.startswith("http://127.0.0.1:")


def test_a_signal_lets_what_runs_end_and_settles_it(upstream, store):
    provider = upstream(lambda _: (provider.hang(), HELLO(provider.requests[0]))[1])
    headers = key_of(store)
    with running(provider.base_url, store) as (process, origin), ThreadPoolExecutor(1) as pool:
        request = pool.submit(post, origin, headers)
        eventually(lambda: held(store))
        process.send_signal(signal.SIGTERM)
        provider.release.set()
        assert request.result().status_code == 200
        assert process.wait(20) in (0, -signal.SIGTERM)
    assert held(store) == 0
    assert spent(store) > 0


def test_a_signal_breaks_off_what_does_not_end_and_settles_it(upstream, store):
    provider = upstream(lambda _: (provider.hang(), HELLO(provider.requests[0]))[1])
    headers = key_of(store)
    brief = ("--shutdown-timeout", "1")
    with running(provider.base_url, store, *brief) as (process, origin), ThreadPoolExecutor(1) as pool:
        request = pool.submit(post, origin, headers)
        eventually(lambda: held(store))
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        with contextlib.suppress(httpx.HTTPError):
            request.result()
    assert held(store) == 0
    assert spent(store) > 0  # what was sent


def test_the_head_of_a_request_is_bounded(upstream, store):
    with running(upstream(HELLO).base_url, store) as (_, origin):
        host, port = origin.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            answer = b""
            with contextlib.suppress(ConnectionError):
                for _ in range(1_000):
                    connection.sendall(b"GET /v1/models HTTP/1.1\r\nx-long: " + b"x" * 10_000)
                answer = connection.recv(65_536)
            assert not answer or answer.startswith(b"HTTP/1.1 400")


# -- several -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis_store(tmp_path_factory):
    pytest.importorskip("redis", reason="needs the redis library: pip install 'loopguard-core[redis]'")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("needs redis-server: apt-get install redis-server, or brew install redis")
    with run_redis(binary, tmp_path_factory.mktemp("redis")) as server:
        yield f"redis://127.0.0.1:{server.port}/0?prefix={uuid.uuid4().hex}"


@pytest.fixture(params=["sqlite", "redis"])
def shared(request, store):
    return store if request.param == "sqlite" else request.getfixturevalue("redis_store")


def children(process):
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in found.split()]


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@needs_proc
def test_workers_share_one_ledger_and_killed_ones_are_replaced(upstream, shared):
    """Twelve at once on two workers, of which the limit holds three; then both are killed."""
    event = b'data: {"choices": []}\n\n'
    provider = upstream(
        lambda _: Answer([event, lambda: provider.hang(), b"data: [DONE]\n\n"], type="text/event-stream", chunked=True)
    )
    with open_keyring(shared) as keyring:
        keyring.revoke("team")
    headers = key_of(shared, limit="0.03")
    body = {**CHAT, "stream": True, "max_tokens": 16_384}
    with running(provider.base_url, shared, "--workers", "2") as (process, origin), ThreadPoolExecutor(12) as pool:
        requests = [pool.submit(post, origin, headers, body) for _ in range(12)]
        eventually(lambda: sum(one.done() for one in requests) == 9, 30)
        assert [one.result().status_code for one in requests if one.done()] == [402] * 9
        eventually(lambda: len(provider.requests) == 3, 30)
        workers = [pid for pid in children(process) if "resource_tracker" not in _command(pid)]
        assert len(workers) == 2
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        for request in requests:
            with contextlib.suppress(httpx.HTTPError):
                request.result()
        # What the killed ones held is held until it expires, five minutes later: never lost in favour of the spender.
        assert Decimal("0.029") < held(shared) <= Decimal("0.03")
        assert post(origin, headers, body).status_code == 402
        provider.release.set()
        with open_ledger(shared) as ledger:
            ledger.set_limit("team", Decimal(1))
        assert post(origin, headers, body).status_code == 200
        with httpx.Client() as client:
            figures = client.get(f"{origin}/metrics").text
    assert 'outcome="key_limit"} 10.0' in figures
    assert "loopguard_gateway_running_requests 0.0" in figures  # what ran in the killed ones runs no more


@needs_proc
def test_workers_end_when_the_process_that_started_them_is_killed(upstream, store):
    with running(upstream(HELLO).base_url, store, "--workers", "2") as (process, origin):
        assert post(origin, key_of(store)).status_code == 200
        workers = children(process)
        process.kill()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 30)


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return "resource_tracker"
