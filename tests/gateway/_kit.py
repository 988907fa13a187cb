"""A provider on loopback that answers as a test says, and the gateway behind a real server in front of it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from loopguard_gateway import create_app

from loopguard_core import Policy
from loopguard_core.keys import open_keyring, open_ledger
from loopguard_core.testing import ChatRequest, Reply, ScriptedCall
from loopguard_core.testing._wire import Completion

UPSTREAM_KEY = "sk-provider-0123456789abcdef0123456789abcdef"
MODEL = "gpt-4o-mini"
TOOL = {"type": "function", "function": {"name": "fetch", "parameters": {"type": "object", "properties": {}}}}
FLAT_TOOL = {"type": "function", "name": "fetch", "parameters": {"type": "object", "properties": {}}, "strict": False}


@dataclass
class Asked:
    """What the provider was sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """What it answers. Pieces may be bytes, or functions that are called when it is their turn."""

    pieces: Iterable[bytes | Callable[[], object]]
    status: int = 200
    type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False


class Reset(Exception):  # noqa: N818
    """Raised by a piece: the connection is reset."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    upstream: Upstream

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.upstream.requests.append(asked)
        answer = self.upstream.answer(asked)
        try:
            if isinstance(answer, bytes):
                self.wfile.write(answer)
                self.close_connection = True
            else:
                self._send(answer)
        except Reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        except OSError:
            self.upstream.gone.set()
            self.close_connection = True

    def do_GET(self) -> None:
        self.do_POST()

    def _send(self, answer: Answer) -> None:
        pieces = answer.pieces if answer.chunked else list(answer.pieces)
        self.send_response(answer.status)
        self.send_header("content-type", answer.type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.chunked:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(sum(len(piece) for piece in pieces)))
        self.end_headers()
        for piece in pieces:
            if callable(piece):
                piece()
                continue
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.chunked else piece)
        if answer.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: Any) -> None:
        pass


class Upstream:
    """The provider."""

    def __init__(self, answer: Callable[[Asked], Answer | bytes]) -> None:
        self.answer = answer
        self.requests: list[Asked] = []
        self.gone = threading.Event()
        self.release = threading.Event()
        handler = type("Handler", (_Handler,), {"upstream": self})

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def hang(self) -> None:
        """A piece: wait until the test lets go."""
        self.release.wait(20)

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


# -- what a provider says ----------------------------------------------------------------------------------------------


def chat(persona: Callable[[ChatRequest], Reply]) -> Callable[[Asked], Answer]:
    """A scripted model behind Chat Completions."""

    def answer(asked: Asked) -> Answer:
        request = ChatRequest.from_body(asked.json)
        reply = persona(request)
        if reply.status != 200:
            return Answer([json.dumps({"error": dict(reply.error or {"message": "no"})}).encode()], reply.status)
        done = Completion.build(request, reply, completion_id="chatcmpl-1", model=asked.json["model"], price=None)
        if not asked.json.get("stream"):
            return Answer([json.dumps(done.body()).encode()])
        usage = bool((asked.json.get("stream_options") or {}).get("include_usage"))
        events = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in done.chunks(include_usage=usage)]
        return Answer([*events, b"data: [DONE]\n\n"], type="text/event-stream", chunked=True)

    return answer


def responses(script: Callable[[list[Any]], Reply]) -> Callable[[Asked], Answer]:
    """A scripted model behind the Responses API."""
    count = iter(range(1, 10_000))

    def answer(asked: Asked) -> Answer:
        body, number = asked.json, next(count)
        sent = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        response = response_of(script(sent), body, number)
        if not body.get("stream"):
            return Answer([json.dumps(response).encode()])
        events = [
            f"event: {data['type']}\ndata: {json.dumps({**data, 'sequence_number': place})}\n\n".encode()
            for place, data in enumerate(response_events(response))
        ]
        return Answer(events, type="text/event-stream; charset=utf-8", chunked=True)

    return answer


def response_of(reply: Reply, body: Any, number: int) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    if reply.text is not None:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{number}", "status": "completed", "role": "assistant"}
        output.append({**message, "content": [part]})
    for place, call in enumerate(reply.tool_calls):
        item = {"type": "function_call", "id": f"fc_{number}_{place}", "call_id": f"call_{number}_{place}"}
        output.append({**item, "name": call.name, "arguments": call.arguments_text, "status": "completed"})
    details = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30, **details},
    }


def response_events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, item in enumerate(response["output"]):
        at = {"output_index": place}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            where = {**at, "item_id": item["id"], "content_index": 0}
            yield {"type": "response.output_item.added", **at, "item": {**item, "content": []}}
            yield {"type": "response.content_part.added", **where, "part": {**item["content"][0], "text": ""}}
            for start in range(0, len(text), 16):
                yield {
                    "type": "response.output_text.delta",
                    **where,
                    "delta": text[start : start + 16],
                    "logprobs": [],
                }
            yield {"type": "response.output_text.done", **where, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **where, "part": item["content"][0]}
        elif item["type"] == "function_call":
            yield {"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}}
            where = {**at, "item_id": item["id"]}
            yield {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]}
            yield {
                "type": "response.function_call_arguments.done",
                **where,
                "arguments": item["arguments"],
                "name": item["name"],
            }
        else:
            yield {"type": "response.output_item.added", **at, "item": {**item, "summary": []}}
        yield {"type": "response.output_item.done", **at, "item": item}
    yield {"type": "response.completed", "response": response}


def calls(*arguments: dict[str, Any] | str, tool: str = "fetch", text: str | None = None) -> Reply:
    return Reply(text=text, tool_calls=tuple(ScriptedCall(tool, each) for each in arguments))


def prose(words: int) -> str:
    """Text that does not repeat itself, six characters a word."""
    return "".join(f"{hashlib.sha256(str(number).encode()).hexdigest()[:5]} " for number in range(words))


def zipped(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


# -- the gateway -------------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A gateway that runs."""

    origin: str
    key: str
    store: str
    app: Any
    server: uvicorn.Server
    thread: threading.Thread

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    @property
    def auth(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def status(self, name: str = "team") -> Any:
        with open_ledger(self.store) as ledger:
            return ledger.status(name)

    def settled(self, name: str = "team") -> Any:
        """The status once nothing is reserved: a client has its answer a moment before it is settled."""
        return eventually(lambda: (now := self.status(name)).reserved == 0 and now)

    def metric(self, line: str) -> float:
        """The value of one line of the metrics."""
        found = [row for row in self.app.state.gateway.metrics.text().decode().splitlines() if row.startswith(line)]
        return sum(float(row.rpartition(" ")[2]) for row in found)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def serving(
    upstream: str,
    store: str,
    policy: Any = None,
    *,
    limit: str | None = "5",
    key: str | None = None,
    upstream_key: str | None = UPSTREAM_KEY,
    **settings: Any,
) -> Iterator[Served]:
    """The gateway behind a real server on a free port of loopback, and a key of it."""
    if key is None:
        with open_keyring(store) as keyring, open_ledger(store) as ledger:
            key = keyring.create("team")
            if limit is not None:
                ledger.set_limit("team", Decimal(limit))
    app = create_app(
        Policy() if policy is None else policy, upstream=upstream, upstream_key=upstream_key, store=store, **settings
    )
    taken = socket.socket(proto=socket.IPPROTO_TCP)
    taken.bind(("127.0.0.1", 0))
    taken.listen(256)  # clients wait here until it serves: no need to poll for that
    options = {"server_header": False, "date_header": False, "lifespan": "on", "log_level": "warning"}
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, timeout_graceful_shutdown=5, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    served = Served(f"http://127.0.0.1:{taken.getsockname()[1]}", key, store, app, server, thread)
    try:
        yield served
    finally:
        served.stop()
        taken.close()


def eventually(check: Callable[[], Any], seconds: float = 10) -> Any:
    """What `check` gives once it gives something; for what another process or thread does on its own."""
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return value
