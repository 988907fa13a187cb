"""What the tests of `loopguard_core.keys` share."""

from __future__ import annotations

import contextlib
import datetime as dt
import multiprocessing
import pathlib
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class RedisServer:
    port: int
    path: pathlib.Path
    process: subprocess.Popen[str]


class Clock:
    """A clock that stands still until it is moved, forwards or backwards."""

    def __init__(self, start: dt.datetime | str = "2028-03-01T12:00") -> None:
        self.set(start)

    def set(self, moment: dt.datetime | str) -> None:
        if isinstance(moment, str):
            moment = dt.datetime.fromisoformat(moment).replace(tzinfo=dt.UTC)
        self.now = moment.timestamp()

    def move(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def run_redis(binary: str, directory: pathlib.Path, *options: str) -> Iterator[RedisServer]:
    """A server of our own on a free port of loopback, that keeps nothing."""
    port, path = free_port(), directory / "redis.sock"
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command += ["--dir", str(directory), "--unixsocket", str(path), *options]
    process = start_redis(command)
    try:
        yield RedisServer(port, path, process)
    finally:
        stop_redis(process)


def start_redis(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = []
    for line in process.stdout:  # no sleep: the server says when it is ready
        said.append(line)
        if "Ready to accept connections" in line:
            return process
    stop_redis(process)
    raise RuntimeError("redis-server did not start: " + "".join(said))


def stop_redis(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def in_processes(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `work(number, *args)` in forked processes at once; what each returned."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def run(number: int) -> None:
        queue.put((number, work(number, *args)))

    processes = [context.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    return [results[number] for number in range(count)]
