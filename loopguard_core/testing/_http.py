"""The HTTP side of the scripted server: a small HTTP/1.1 server that knows two paths and never prints."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from loopguard_core.testing._wire import DONE, Completion, error_body, event
from loopguard_core.testing.personas import ChatRequest, Reply

_log = logging.getLogger("loopguard.testing")

_MAX_BODY = 64 * 1024 * 1024
_MAX_DIGITS = 12
_SEND_BUFFER = 32 * 1024
_CLOSE = {"Connection": "close"}


class Backend(Protocol):
    """What stands behind the HTTP server. Called from many threads at once."""

    @property
    def model(self) -> str:
        """The model's name for `/v1/models`."""
        ...

    def answer(self, request: ChatRequest) -> Completion | Reply:
        """What to send for one model call: a completion, or the reply that is an HTTP error."""
        ...

    def disconnected(self) -> None:
        """A client went away before its answer was all sent."""
        ...


class LoopbackServer(ThreadingHTTPServer):
    """One thread a connection; all of them end when the server hangs up."""

    daemon_threads = True
    # The default of 5 makes clients that connect all at once wait a second for a retry.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], backend: Backend) -> None:
        self.backend = backend
        self.closing = False
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer asks the resolver for its own full name here, which can take seconds and leaves the machine.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        # A client that stops reading is noticed sooner.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        with self._open_lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Ends the handlers that wait for the next request on a kept-alive connection."""
        self.closing = True
        with self._open_lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client may reset an idle connection at any time, and the default prints a traceback for that.
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _log.log(level, "the connection from %s ended", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A stream is many small writes; without this each may wait 40 ms for the client's acknowledgement.
    disable_nagle_algorithm = True
    server: LoopbackServer

    def do_GET(self) -> None:
        if self._path() != "/v1/models":
            self._send_error(HTTPStatus.NOT_FOUND, f"no such path: GET {self._path()}")
            return
        model = {"id": self.server.backend.model, "object": "model", "created": 0, "owned_by": "loopguard"}
        self._send_json(HTTPStatus.OK, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        # Read first, whatever the path: unread, the body would be taken for the next request.
        body = self._read_body()
        if body is None:
            return
        if self._path() != "/v1/chat/completions":
            self._send_error(HTTPStatus.NOT_FOUND, f"no such path: POST {self._path()}")
            return
        try:
            request = ChatRequest.from_body(json.loads(body))
        except (ValueError, RecursionError) as error:
            self._send_error(HTTPStatus.BAD_REQUEST, f"cannot read the request: {error}")
            return
        try:
            answer = self.server.backend.answer(request)
        except Exception as error:  # noqa: BLE001 - a persona is the user's code, and the client is told what it raised
            _log.warning("the persona failed", exc_info=True)
            # The same request fails the same way; clients retry a 500 unless told not to.
            self._send_error(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"the persona failed: {error!r}", {"x-should-retry": "false"}
            )
            return
        if isinstance(answer, Reply):
            self._send_json(answer.status, error_body(answer.status, dict(answer.error or {})))
        elif request.raw.get("stream"):
            options = request.raw.get("stream_options")
            self._send_stream(answer, include_usage=isinstance(options, dict) and bool(options.get("include_usage")))
        else:
            self._send_json(HTTPStatus.OK, answer.body())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers what http.server itself refuses in JSON too, not in its HTML."""
        self._send_error(code, message or explain or "the request was refused", _CLOSE)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keeps the request log out of the demo's output."""
        _log.debug(format, *args)

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _read_body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS):
            self._send_error(HTTPStatus.LENGTH_REQUIRED, "the request needs a Content-Length", _CLOSE)
            return None
        if int(length) > _MAX_BODY:
            self._send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {_MAX_BODY} bytes", _CLOSE)
            return None
        return self.rfile.read(int(length))

    def _send_error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        self._send_json(status, error_body(status, {"message": message, "type": "invalid_request_error"}), headers)

    def _send_json(self, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        with self._client_may_leave():
            self._send_head(
                status, {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
            )
            self.wfile.write(data)

    def _send_stream(self, completion: Completion, *, include_usage: bool) -> None:
        with self._client_may_leave():
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "Transfer-Encoding": "chunked"}
            self._send_head(HTTPStatus.OK, headers)
            for chunk in completion.chunks(include_usage=include_usage):
                self._send_event(json.dumps(chunk))
            self._send_event(DONE)
            self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, data: str) -> None:
        payload = event(data)
        self.wfile.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    @contextlib.contextmanager
    def _client_may_leave(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.close_connection = True
            if not self.server.closing:
                self.server.backend.disconnected()
