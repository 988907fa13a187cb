"""A message to a Slack incoming webhook where detection ended a run. The URL comes from SLACK_WEBHOOK_URL."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request

from loopguard_core import LoopGuard, SessionEnd, ToolCall, hookimpl


class SlackWebhook:
    """Posts one message a run. loopguard logs and counts what goes wrong here; the agent's run is not disturbed."""

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        if not url.startswith(("https://", "http://127.0.0.1:")):
            raise ValueError("the webhook's URL must be https; set SLACK_WEBHOOK_URL to the one Slack gave you")
        self._url = url
        self._timeout = timeout
        direct = [urllib.request.ProxyHandler({})] if url.startswith("http:") else []
        self._opener = urllib.request.build_opener(*direct)

    @hookimpl
    async def session_end(self, event: SessionEnd) -> None:  # async, in a thread: a slow Slack holds up nobody
        if event.verdict is None:  # ended by itself or by a limit: nobody need get up
            return
        cost = "cost unknown" if event.usage.cost is None else f"${event.usage.cost:.2f}"
        text = "\n".join(
            [
                f"*Agent {_plain(event.agent or event.session_id)} was stuck in a loop and was ended.*",
                _plain(event.message.removeprefix("[loopguard]").strip()),
                f"{event.verdict.detector}, {event.turns} rounds, {event.model_calls} model calls, {cost}",
            ]
        )
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        await asyncio.to_thread(lambda: self._opener.open(request, timeout=self._timeout).close())


def _plain(text: str) -> str:
    """Slack reads `<...>` as links and calls to everybody; names come from models."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def main() -> None:
    webhook = SlackWebhook(os.environ.get("SLACK_WEBHOOK_URL", ""))
    # Leaving the guard waits for what is still being posted. Any SDK's adapter makes the session for you.
    with LoopGuard(plugins=[webhook]) as guard, guard.session(agent="billing") as session:
        for number in range(6):
            session.begin_round([ToolCall(f"call_{number}", "fetch_invoice", {"invoice_id": "INV-2291"})])
            session.record_result(f"call_{number}", "Error: 504 Gateway Timeout")


if __name__ == "__main__":
    main()
