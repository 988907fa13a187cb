"""Figures for Prometheus. Labels are bounded: endpoints, outcomes, detectors, actions; no key, model or tool."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Where the figures of several workers are put together."""

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """What one gateway counts.

    Attributes:
        requests: Requests by endpoint and outcome.
        seconds: How long requests take, by endpoint.
        running: Requests that run.
        sessions: Conversations remembered.
        tokens: Tokens by direction, reported or estimated.
        dollars: US dollars counted.
        estimated: Model calls whose tokens are an estimate.
        verdicts: Verdicts by detector and action.
        refusals: Responses whose calls were refused on the model's behalf.
        cuts: Streams that were cut.
        stops: Runs that were ended, by reason.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        one = "loopguard_gateway"
        self.requests = Counter(f"{one}_requests", "Requests.", ("endpoint", "outcome"), registry=registry)
        self.seconds = Histogram(
            f"{one}_request_seconds", "Seconds a request takes.", ("endpoint",), buckets=_SECONDS, registry=registry
        )
        self.running = Gauge(
            f"{one}_running_requests", "Requests that run.", registry=registry, multiprocess_mode="livesum"
        )
        self.sessions = Gauge(
            f"{one}_sessions", "Conversations remembered.", registry=registry, multiprocess_mode="livesum"
        )
        self.tokens = Counter(f"{one}_tokens", "Tokens of model calls.", ("direction",), registry=registry)
        self.dollars = Counter(f"{one}_cost_dollars", "US dollars counted.", registry=registry)
        self.estimated = Counter(f"{one}_estimated_calls", "Model calls without reported usage.", registry=registry)
        self.verdicts = Counter(f"{one}_verdicts", "Verdicts.", ("detector", "action"), registry=registry)
        self.refusals = Counter(f"{one}_refusals", "Responses answered on the model's behalf.", registry=registry)
        self.cuts = Counter(f"{one}_cut_streams", "Streams that were cut.", registry=registry)
        self.stops = Counter(f"{one}_ended_runs", "Runs that were ended.", ("reason",), registry=registry)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them; of all workers, where there are several."""
        if os.environ.get(SHARED):
            _forget_killed(Path(os.environ[SHARED]))
            together = CollectorRegistry()
            MultiProcessCollector(together)  # type: ignore[no-untyped-call]
            return generate_latest(together)
        return generate_latest(self._registry)


def _forget_killed(figures: Path) -> None:
    """What ran in a worker that was killed runs no more; what it counted stays counted."""
    for file in figures.glob("gauge_live*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
        except OSError:
            continue  # it is there, and not ours
