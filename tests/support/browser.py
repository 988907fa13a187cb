"""A real browser for tests: headless Chromium, spoken to over a pipe in its own protocol. No port, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")


def found() -> str | None:
    """The browser's path; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def missing() -> str | None:
    """Why there can be no browser here; None where there can."""
    if found() is None:
        return "no Chromium on this machine: apt-get install chromium"
    if os.name != "posix":
        return "a browser is spoken to over pipes as POSIX has them"
    import resource

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return "Chromium reserves more address space than `ulimit -v` allows here"
    return None


class Browser:
    """One tab. Everything it asked for and everything it complained about is kept."""

    def __init__(self, sent: int, received: int) -> None:
        self._sent, self._received = sent, received
        self._left = b""
        self._last = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; what comes in between is noted."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._sent, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def open(self, file: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page from a file and wait until it is loaded."""
        self.requests.clear()
        self.complaints.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._note(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, *, whole: bool = False) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._received, 1 << 16)
            assert more, "the browser went away"
            self._left += more
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, gone afterwards."""
    path = found()
    assert path is not None
    to_it, ours = os.pipe()
    read_end, write_end = os.pipe()
    # The browser reads on its descriptor 3 and writes on 4.
    place = "import os, sys; r, w, *command = sys.argv[1:]; r = os.dup(int(r)); w = os.dup(int(w));"
    place += "os.dup2(r, 103); os.dup2(w, 104); os.dup2(103, 3); os.dup2(104, 4); os.execv(command[0], command)"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    flags += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", place, str(to_it), str(write_end), path, *flags],
        pass_fds=(to_it, write_end),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_it)
    os.close(write_end)
    try:
        yield Browser(ours, read_end)
    finally:
        os.close(ours)  # it leaves when nobody speaks to it any more
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        os.close(read_end)
