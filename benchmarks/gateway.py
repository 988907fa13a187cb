"""What the gateway adds to a stream: many at once, against the same streams without it, in one run.

    python benchmarks/gateway.py                      # 200 streams for a minute each way
    python benchmarks/gateway.py --streams 50 --seconds 10 --rate 10

A provider, the gateway and the clients are three processes on loopback. Each piece carries the moment the provider sent
it, so the delay of every piece is known; what the gateway adds is the difference to the direct run. Its memory is read
from the operating system every second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

from loopguard_core.keys import open_keyring, open_ledger

PIECES = 50
MODEL = "gpt-4o-mini"
SENT = re.compile(rb'"sent": ([0-9.]+)')
PROVIDER = "provider"


# -- the provider ------------------------------------------------------------------------------------------------------


async def provider(port: int, rate: float) -> None:
    """Answers every request: with a stream of pieces at a rate, or at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
                body = await reader.readexactly(length)
                await (stream if b'"stream": true' in body else whole)(writer)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def whole(writer: asyncio.StreamWriter) -> None:
        message = {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        body = json.dumps({"id": "c", "model": MODEL, "choices": [message], "usage": usage}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()

    async def stream(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        due = time.monotonic()
        for number in range(PIECES):
            due += 1 / rate
            await asyncio.sleep(max(0, due - time.monotonic()))
            delta = {"index": 0, "delta": {"content": f"word{number * 7919 % 1009} "}, "finish_reason": None}
            data = {"id": "c", "object": "chat.completion.chunk", "model": MODEL, "choices": [delta]}
            await put(writer, json.dumps({**data, "sent": time.monotonic()}))
        await put(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def put(writer: asyncio.StreamWriter, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


# -- the clients -------------------------------------------------------------------------------------------------------


class Client:
    """Sends requests to one address, on plain sockets, so that the clients take little of the machine."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self._key = key
        self.delays: list[float] = []
        self.streams = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def request(self, number: int, *, stream: bool) -> bytes:
        messages = [{"role": "user", "content": f"Question {number}. " + "context " * 100}]
        body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 100, "stream": stream}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\n"
        return head.encode() + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    async def keep_streaming(self, first: int, until: float, wait: float) -> None:
        await asyncio.sleep(wait)  # so that not all of them begin, speak and end at once
        reader, writer = await self.connect()
        number = first
        while time.monotonic() < until:
            number += 1
            writer.write(self.request(number, stream=True))
            status = await reader.readline()
            assert b" 200 " in status, status
            while (line := await reader.readline()) != b"0\r\n":
                found = SENT.search(line)
                if found is not None:
                    self.delays.append(time.monotonic() - float(found[1]))
            await reader.readline()
            self.streams += 1
        writer.close()

    async def round_trips(self, count: int) -> list[float]:
        reader, writer = await self.connect()
        took = []
        for number in range(count):
            began = time.monotonic()
            writer.write(self.request(number, stream=False))
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
            took.append(time.monotonic() - began)
        writer.close()
        return took


async def load(client: Client, streams: int, seconds: float, every_second: Callable[[], Awaitable[None]]) -> None:
    until = time.monotonic() + seconds
    begun = [
        asyncio.create_task(client.keep_streaming(number * 1_000_000, until, wait=number / streams))
        for number in range(streams)
    ]
    while time.monotonic() < until:
        await asyncio.sleep(1)
        await every_second()
    await asyncio.gather(*begun)


# -- the run -----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def reachable(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(values: list[float]) -> tuple[float, float]:
    """Median and 99th percentile, in milliseconds."""
    ordered = sorted(values)
    return statistics.median(ordered) * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3


def run(args: argparse.Namespace) -> None:
    store = args.store or f"sqlite:///{tempfile.mkdtemp()}/budget.db"
    with open_keyring(store) as keyring, open_ledger(store) as ledger:
        key = keyring.create("bench", replace=True)
        ledger.set_limit("bench", Decimal(1000))
    upstream, port = free_port(), free_port()
    gateway = [sys.executable, "-c", "from loopguard_core.cli import main; main()", "gateway", "--port", str(port)]
    gateway += ["--upstream", f"http://127.0.0.1:{upstream}/v1", "--store", store, "--log-level", "warning"]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    processes = [
        subprocess.Popen([sys.executable, __file__, PROVIDER, str(upstream), str(args.rate)]),
        subprocess.Popen(gateway, env=environment, cwd=tempfile.mkdtemp()),
    ]
    try:
        asyncio.run(measure(args, Client(upstream, key), Client(port, key), processes[1].pid))
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()


async def measure(args: argparse.Namespace, direct: Client, through: Client, pid: int) -> None:
    await reachable(direct.port)
    await reachable(through.port)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {date.today()}")
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    await through.round_trips(50)
    alone = figures(await direct.round_trips(args.requests)), figures(await through.round_trips(args.requests))
    print(f"one request at a time, answered at once ({args.requests} each way), ms, median / p99:")
    report(*alone)
    memory: list[float] = []

    async def nothing() -> None: ...

    async def note() -> None:
        memory.append(megabytes(pid))

    await load(direct, args.streams, args.seconds, nothing)
    before = cpu(pid)
    await load(through, args.streams, args.seconds, note)
    used = (cpu(pid) - before) / args.seconds
    pieces = len(through.delays) / args.seconds
    print(f"{args.streams} streams at once for {args.seconds:g} s each way; {pieces:,.0f} pieces a second,", end=" ")
    print(f"{through.streams} streams through the gateway; delay of a piece, ms, median / p99:")
    report(figures(direct.delays), figures(through.delays))
    print(f"the gateway's processor: {used:.0%} of one core")
    tenth = max(1, len(memory) // 10)
    print(
        f"its memory, MB: {memory[0]:.0f} at first, {statistics.mean(memory[-2 * tenth : -tenth]):.1f}"
        f" and {statistics.mean(memory[-tenth:]):.1f} in the last two tenths, {max(memory):.0f} at most"
    )


def report(direct: tuple[float, float], through: tuple[float, float]) -> None:
    print(f"  direct  {direct[0]:7.2f} / {direct[1]:7.2f}")
    print(f"  through {through[0]:7.2f} / {through[1]:7.2f}")
    print(f"  added   {through[0] - direct[0]:7.2f} / {through[1] - direct[1]:7.2f}")


def main() -> None:
    if sys.argv[1:2] == [PROVIDER]:
        asyncio.run(provider(int(sys.argv[2]), float(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=10, help="pieces a second in each stream")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--store", help="address of the ledger; default: SQLite in a temporary directory")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
