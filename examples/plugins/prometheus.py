"""Metrics for Prometheus as a plugin. Needs prometheus-client; for OpenTelemetry there is `loopguard_core.otel`."""

from __future__ import annotations

import urllib.request
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, start_http_server

from loopguard_core import DoomLoopDetected, LoopGuard, PostModelCall, SessionEnd, ToolCall, hookimpl


class PrometheusMetrics:
    """Counts verdicts, ends and dollars. Names of tools come from the model, so only those in `tools` are labels."""

    def __init__(self, registry: CollectorRegistry, tools: Collection[str]) -> None:
        self._tools = frozenset(tools)
        self._detections = Counter(
            "loopguard_detections", "Verdicts of detectors", ["detector", "action", "tool"], registry=registry
        )
        self._sessions = Counter("loopguard_sessions", "Sessions that ended", ["reason"], registry=registry)
        self._cost = Counter("loopguard_cost_dollars", "Cost of model calls, where known", registry=registry)

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> None:
        tool = event.tool if event.tool in self._tools else "other"
        self._detections.labels(event.detector, event.action.value, tool).inc()

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        self._sessions.labels(event.reason).inc()

    @hookimpl
    def post_model_call(self, event: PostModelCall) -> None:
        if event.usage.cost is not None:
            self._cost.inc(float(event.usage.cost))


def main() -> None:
    registry = CollectorRegistry()
    server, _ = start_http_server(0, addr="127.0.0.1", registry=registry)
    guard = LoopGuard(plugins=[PrometheusMetrics(registry, tools=["fetch_invoice"])])
    with guard.session(agent="billing") as session:  # any SDK's adapter does this for you
        for number in range(6):
            session.begin_round([ToolCall(f"call_{number}", "fetch_invoice", {"invoice_id": "INV-2291"})])
            session.record_result(f"call_{number}", "Error: 504 Gateway Timeout")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback goes through no proxy
    with direct.open(f"http://127.0.0.1:{server.server_port}/metrics", timeout=5) as scraped:
        print(scraped.read().decode())
    server.shutdown()


if __name__ == "__main__":
    main()
