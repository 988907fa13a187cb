"""What is particular to Redis: scripts, clusters, lost answers, servers that go away."""

import contextlib
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from ledger_tools import RedisServer, free_port, run_redis, start_redis, stop_redis

from loopguard_core.keys import Ledger, LedgerError, LedgerValueError, open_keyring, open_ledger


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    redis = pytest.importorskip("redis")
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        yield client


def test_scripts_are_loaded_again_after_a_flush(redis_url: str, open_at: Callable[..., Ledger], client: Any) -> None:
    ledger = open_at(redis_url)
    held = ledger.reserve("k", 1)
    client.script_flush()
    ledger.settle(held, 1)
    assert ledger.status("k").spent == 1


def test_it_connects_again(redis_url: str, open_at: Callable[..., Ledger], client: Any) -> None:
    ledger = open_at(redis_url)
    ledger.spend("k", 1)
    client.client_kill_filter(_type="normal", skipme=True)
    ledger.spend("k", 1)
    assert ledger.status("k").spent == 2


def test_the_servers_clock_counts(redis_url: str, open_at: Callable[..., Ledger], client: Any) -> None:
    seconds, _ = client.time()
    held = open_at(redis_url, ttl=1000).reserve("k", 1)
    assert abs(held.expires_at.timestamp() - (seconds + 1000)) < 5


def test_a_limit_survives_numbers_that_lua_would_round(redis_url: str, open_at: Callable[..., Ledger]) -> None:
    """Lua writes numbers with 14 digits unless told otherwise: $123,456.789012345 has 15."""
    ledger = open_at(redis_url)
    ledger.set_limit("k", "123456.789012345")
    held = ledger.reserve("k", "123456.789012344")
    assert ledger.status("k").remaining == Decimal("0.000000001")
    ledger.settle(held, "123456.789012345")
    assert ledger.status("k").spent == Decimal("123456.789012345")


@contextlib.contextmanager
def losing_answers(port: int, lose: list[bytes]) -> Iterator[int]:
    """A relay that drops the connection in place of the answer to the next request that holds each of `lose`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", port)) as far, contextlib.suppress(OSError):
            while request := near.recv(65536):
                far.sendall(request)
                answer = far.recv(65536)
                if lose and lose[0] in request:
                    lose.pop(0)
                    return
                near.sendall(answer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def test_a_step_whose_answer_was_lost_counts_once(redis_url: str, redis_server: RedisServer) -> None:
    lose: list[bytes] = []
    with losing_answers(redis_server.port, lose) as port:
        url = redis_url.replace(f":{redis_server.port}/", f":{port}/")
        with open_ledger(url) as ledger:
            ledger.set_limit("k", 10)
            ledger.release(ledger.reserve("k", 1))  # the server knows the scripts now
            ledger.spend("k", 1)
            lose.append(b"EVALSHA")
            held = ledger.reserve("k", 2)
            assert not lose
            assert ledger.status("k").reserved == 2
            lose.append(b"EVALSHA")
            ledger.settle(held, 3)
            assert not lose
            assert (ledger.status("k").reserved, ledger.status("k").spent) == (0, 4)
            lose.append(b"EVALSHA")
            ledger.spend("k", 1)
            assert not lose
            assert ledger.status("k").spent == 5


def test_nobody_there_is_said_soon_and_without_the_password() -> None:
    pytest.importorskip("redis")
    port = free_port()
    started = time.monotonic()
    ledger = open_ledger(f"redis://user:hunter2@127.0.0.1:{port}/0")
    with pytest.raises(LedgerError, match=rf"redis://127.0.0.1:{port}/0 cannot be reached") as caught:
        ledger.reserve("k", 1)
    assert "hunter2" not in str(caught.value) + repr(ledger)
    assert time.monotonic() - started < 5


def test_a_server_behind_tls(redis_binary: str, tmp_path: pathlib.Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl, which makes the certificate")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", free_port()
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate))
    with run_redis(redis_binary, tmp_path, "--tls-port", str(port), "--tls-auth-clients", "no", *files) as server:
        ledger = open_ledger(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
        ledger.settle(ledger.reserve("k", 2), 1)
        assert ledger.status("k").spent == 1
        with pytest.raises(LedgerError, match=r"nothing here trusts.*\?ssl_ca_certs=FILE"):
            open_ledger(f"rediss://127.0.0.1:{port}/0").spend("k", 1)
        with pytest.raises(LedgerError, match=r"cannot be reached .* speaks TLS there"):
            open_ledger(f"rediss://127.0.0.1:{server.port}/0?socket_timeout=0.05&socket_connect_timeout=0.05").status(
                "k"
            )


def test_a_server_that_does_not_answer_is_given_up(redis_server: RedisServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ledger = open_ledger(f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.05")
        with pytest.raises(LedgerError, match="cannot be reached"):
            ledger.reserve("k", 1)


def test_a_wrong_password(redis_server: RedisServer) -> None:
    ledger = open_ledger(f"redis://user:hunter2@127.0.0.1:{redis_server.port}/0")
    with pytest.raises(LedgerError, match="refused the user or password") as caught:
        ledger.status("k")
    assert "hunter2" not in str(caught.value)


def test_a_server_out_of_memory(redis_url: str, open_at: Callable[..., Ledger], client: Any) -> None:
    ledger = open_at(redis_url)
    ledger.reserve("k", 1)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(LedgerError, match="out of memory"):
            ledger.reserve("k", 1)
    finally:
        client.config_set("maxmemory", "0")
    assert ledger.status("k").reserved == 1


def test_a_server_that_stops_and_comes_back(redis_binary: str, tmp_path: pathlib.Path) -> None:
    with run_redis(redis_binary, tmp_path) as server:
        ledger = open_ledger(f"redis://127.0.0.1:{server.port}/0")
        ledger.spend("k", 1)
        command = list(server.process.args)  # type: ignore[arg-type]
        stop_redis(server.process)
        with pytest.raises(LedgerError, match="cannot be reached"):
            ledger.spend("k", 1)
        again = start_redis(command)
        try:
            ledger.spend("k", 1)  # what was in memory is gone, but it works
            assert ledger.status("k").spent == 1
        finally:
            stop_redis(again)
        ledger.close()


def test_a_cluster_takes_every_step(redis_binary: str, tmp_path: pathlib.Path) -> None:
    """All keys of a step lie in one slot, or a server in cluster mode refuses it."""
    redis = pytest.importorskip("redis")
    with run_redis(redis_binary, tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        with redis.Redis(port=server.port) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True):
                pass
        url = f"redis://127.0.0.1:{server.port}/0"
        with open_ledger(url) as ledger, open_keyring(url) as keyring:
            ledger.set_limit("a{b}", 5, "weekly")
            held = ledger.renew(ledger.reserve(["a{b}", "c", "{d}"], 1))
            ledger.settle(held, 1)
            ledger.spend("{d}", 1)
            assert ledger.history("{d}")
            assert ledger.delete("c")
            assert ledger.names() == ["a{b}", "{d}"]
            assert keyring.verify(keyring.create("c")) == "c"


def test_through_a_unix_socket(redis_server: RedisServer, open_at: Callable[..., Ledger]) -> None:
    ledger = open_at(f"unix://{redis_server.path}?db=1&prefix=sockets")
    ledger.spend("k", 1)
    assert ledger.status("k").spent == 1
    assert ledger.address == f"unix://{redis_server.path}"


def test_prefixes_set_ledgers_apart(redis_url: str, open_at: Callable[..., Ledger], client: Any) -> None:
    one, two = open_at(redis_url), open_at(f"{redis_url}-two")
    one.spend("k", 1)
    assert two.names() == []
    prefix = redis_url.partition("prefix=")[2]
    assert all(key.startswith(f"{{{prefix}}}:") for key in client.scan_iter(f"*{prefix}}}*"))
    for wrong in ("", "a b", "{x}", "x" * 65):
        with pytest.raises(LedgerValueError, match="prefix must be"):
            open_ledger(f"redis://h/0?prefix={wrong}&x=1")


def test_an_address_redis_cannot_use() -> None:
    pytest.importorskip("redis")
    with pytest.raises(LedgerValueError, match="cannot be used") as caught:
        open_ledger("redis://:hunter2@h:no-port/0")
    assert "hunter2" not in str(caught.value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    for opener in (open_ledger, open_keyring):
        with pytest.raises(LedgerError, match=r"pip install 'loopguard-core\[redis\]'"):
            opener("redis://localhost/0")


def test_the_library_is_imported_only_when_used() -> None:
    script = (
        "import sys; from loopguard_core.keys import open_ledger; l = open_ledger('memory://'); l.spend('k', 1);"
        " print([name for name in sys.modules if name.partition('.')[0] == 'redis'])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_finished_holds_leave_nothing_behind_for_ever(
    redis_url: str, open_at: Callable[..., Ledger], client: Any
) -> None:
    ledger = open_at(redis_url)
    for _ in range(20):
        ledger.settle(ledger.reserve("k", 1), 1)
    prefix = redis_url.partition("prefix=")[2]
    keys = list(client.scan_iter(f"*{prefix}*", count=1000))
    lasting = [key for key in keys if client.ttl(key) == -1]
    assert sorted(lasting) == [f"{{{prefix}}}:key:k", f"{{{prefix}}}:names"]
    assert len(client.hkeys(f"{{{prefix}}}:key:k")) == 5  # reset, s, h and one day's s and h
