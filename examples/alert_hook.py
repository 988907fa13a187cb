"""A hook that posts an alert where a run was ended by detection. Here the endpoint is a tiny server on this machine."""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

from loopguard_core import LoopGuard, SessionEnd, ToolCall, hookimpl


class PostAlert:
    """Posts JSON to a webhook. loopguard logs and counts what goes wrong here; the agent's run is not disturbed.

    The end of the run waits for it, five seconds at most. `plugins/slack_webhook.py` posts beside the run instead.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        if event.verdict is None:  # ended by itself or by a limit: nobody need get up
            return
        alert = {
            "text": f"Agent {event.agent or event.session_id} was stuck: {event.message}",
            "detector": event.verdict.detector,
            "rounds": event.turns,
            "cost": None if event.usage.cost is None else str(event.usage.cost),
        }
        body = json.dumps(alert).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5).close()


class Endpoint(BaseHTTPRequestHandler):
    """Where alerts arrive."""

    def do_POST(self) -> None:  # the name http.server looks for
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("alert received:", body["text"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # inherited
        """Keep quiet."""


def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    guard = LoopGuard(plugins=[PostAlert(f"http://127.0.0.1:{server.server_port}/alerts")])
    with guard.session(agent="billing") as session:  # any SDK's adapter does this for you
        for number in range(6):
            session.begin_round([ToolCall(f"call_{number}", "fetch_invoice", {"invoice_id": "INV-2291"})])
            session.record_result(f"call_{number}", "Error: 504 Gateway Timeout")
    server.shutdown()


if __name__ == "__main__":
    main()
