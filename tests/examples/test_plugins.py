"""The plugins to copy, against real clients and servers on loopback."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loopguard_core import LoopGuard, ToolCall, Usage

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", PLUGINS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", sorted(PLUGINS.glob("*.py")), ids=lambda file: file.name)
def test_each_is_short_enough_to_copy(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < 60


def run(guard: LoopGuard, *, rounds: int = 6, tool: str = "fetch_invoice", agent: str = "billing") -> None:
    with guard.session(agent=agent) as session:
        for number in range(rounds):
            session.after_model_call("scripted-1", Usage(10, 5, cost="0.5"))  # type: ignore[arg-type]
            session.begin_round([ToolCall(f"c{number}", tool, {"invoice_id": "INV-2291"})])
            session.record_result(f"c{number}", "Error: 504 Gateway Timeout")


# -- Prometheus ------------------------------------------------------------------------------------------------------


def test_prometheus_scrapes_verdicts_ends_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    load("prometheus").main()
    scraped = capsys.readouterr().out
    assert 'loopguard_detections_total{action="block",detector="repeated_call",tool="fetch_invoice"} 3.0' in scraped
    assert 'loopguard_sessions_total{reason="doom_loop"} 1.0' in scraped
    assert "INV-2291" not in scraped


def test_prometheus_has_one_label_for_tools_nobody_knows() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    guard = LoopGuard(plugins=[load("prometheus").PrometheusMetrics(registry, tools=["fetch_invoice"])])
    for number in range(20):
        run(guard, tool=f"invented_{number}")
    shown = client.generate_latest(registry).decode()
    assert "invented" not in shown
    labels = {"detector": "repeated_call", "action": "stop", "tool": "other"}
    assert registry.get_sample_value("loopguard_detections_total", labels) == 20
    assert registry.get_sample_value("loopguard_cost_dollars_total") == 60.0


# -- Slack -----------------------------------------------------------------------------------------------------------


class Slack(ThreadingHTTPServer):
    """An incoming webhook on loopback."""

    def __init__(self, status: int = 200) -> None:
        posts: list[dict[str, Any]] = []

        class Webhook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # inherited
                pass

        super().__init__(("127.0.0.1", 0), Webhook)
        self.posts = posts
        self.url = f"http://127.0.0.1:{self.server_port}/services/T0/B0/x"


def served(status: int) -> Iterator[Slack]:
    with Slack(status) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def slack() -> Iterator[Slack]:
    yield from served(200)


@pytest.fixture
def broken_slack() -> Iterator[Slack]:
    yield from served(500)


def test_slack_hears_once_of_a_run_that_detection_ended(slack: Slack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_WEBHOOK_URL", slack.url)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    load("slack_webhook").main()
    (post,) = slack.posts
    assert post["text"].startswith(
        "*Agent billing was stuck in a loop and was ended.*\nThe run was ended: `fetch_invoice`"
    )
    assert post["text"].endswith("repeated_call, 6 rounds, 0 model calls, cost unknown")
    assert "INV-2291" not in post["text"]


def test_slack_hears_nothing_of_a_healthy_run_or_a_limit(slack: Slack) -> None:
    webhook = load("slack_webhook").SlackWebhook(slack.url)
    with LoopGuard({"limits": {"turns": 2}}, plugins=[webhook]) as guard:
        run(guard, rounds=1)
        run(guard, rounds=3)
    assert slack.posts == []


def test_slack_hears_from_a_running_event_loop_too(slack: Slack) -> None:
    guard = LoopGuard(plugins=[load("slack_webhook").SlackWebhook(slack.url)])

    async def program() -> None:
        run(guard)
        await guard.adrain()

    asyncio.run(program())
    assert len(slack.posts) == 1
    assert "$3.00" in slack.posts[0]["text"]


def test_names_can_call_nobody(slack: Slack) -> None:
    with LoopGuard(plugins=[load("slack_webhook").SlackWebhook(slack.url)]) as guard:
        run(guard, tool="<!channel>", agent="<https://evil.example|click>")
    assert "<" not in slack.posts[0]["text"]


def test_a_slack_that_fails_ends_no_run(broken_slack: Slack) -> None:
    with LoopGuard(plugins=[load("slack_webhook").SlackWebhook(broken_slack.url)]) as guard:
        run(guard)
    assert guard.last_end is not None
    assert guard.last_end.reason == "doom_loop"
    assert guard.faults.counts == {"plugin SlackWebhook": 1}


def test_a_url_that_is_not_private_is_refused() -> None:
    with pytest.raises(ValueError, match="SLACK_WEBHOOK_URL"):
        load("slack_webhook").SlackWebhook("http://hooks.slack.com/services/x")
