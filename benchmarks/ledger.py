"""What reserving and settling costs, in SQLite and in Redis. Run: `python benchmarks/ledger.py`

Latencies as one caller sees them, in microseconds: a model call waits for one `reserve` before it and one `settle`
after it. Redis rows need the extra `redis` and a `redis-server`, which is started on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal

from rich.console import Console
from rich.table import Table

from loopguard_core.keys import open_ledger

PRICE = Decimal("0.01")


@contextlib.contextmanager
def redis_url(directory: str) -> Iterator[str | None]:
    """A server for as long as it is needed; None where there is none to start."""
    binary = shutil.which("redis-server")
    if binary is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        next(line for line in server.stdout if "Ready to accept connections" in line)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()


def work(url: str, calls: int, pause: float, queue: multiprocessing.Queue[tuple[list[float], list[float]]]) -> None:
    """Reserve and settle; how long each took."""
    reserving, settling = [], []
    with open_ledger(url) as ledger:
        ledger.status("k")
        for _ in range(calls):
            time.sleep(pause)
            started = time.perf_counter()
            held = ledger.reserve("k", PRICE)
            reserved = time.perf_counter()
            ledger.settle(held, PRICE)
            reserving.append(reserved - started)
            settling.append(time.perf_counter() - reserved)
    queue.put((reserving, settling))


def measure(url: str, processes: int, calls: int, pause: float) -> tuple[list[float], list[float], float]:
    """All latencies in seconds, sorted, and steps a second."""
    with open_ledger(url) as ledger:
        ledger.set_limit("k", 1_000_000, "monthly")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(url, calls, pause, queue)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    started = time.perf_counter()
    rows = [queue.get() for _ in workers]
    elapsed = time.perf_counter() - started
    for worker in workers:
        worker.join()
    reserving, settling = (sorted(x for row in rows for x in row[column]) for column in (0, 1))
    return reserving, settling, 2 * processes * calls / elapsed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000, help="model calls a process")
    options = parser.parse_args()
    table = Table(
        "store", "processes", "pace", *(f"{step} {at}" for step in ("reserve", "settle") for at in ("median", "p99"))
    )
    with tempfile.TemporaryDirectory() as directory, redis_url(directory) as redis:
        stores = {"SQLite": f"sqlite:///{pathlib.Path(directory) / 'budget.db'}"} | ({"Redis": redis} if redis else {})
        for name, url in stores.items():
            # 8 processes that do nothing else, and 8 with a call every 20 ms each: 400 model calls a second.
            for processes, pace, pause in ((1, "flat out", 0.0), (8, "flat out", 0.0), (8, "400 model calls/s", 0.02)):
                calls = options.calls if pause == 0 else options.calls // 4
                steps = measure(url, processes, calls, pause)[:2]
                row = [f"{step[int(len(step) * share)] * 1e6:,.0f}" for step in steps for share in (0.5, 0.99)]
                table.add_row(name, str(processes), pace, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
