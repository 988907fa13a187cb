"""Odd clients, odd providers: a clear error each time, nothing held afterwards, and the others are served."""

import json
import socket
import socketserver
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import httpx
import openai
import pytest
from loopguard_gateway_kit import MODEL, Answer, Reset, chat, eventually, prose, serving

from loopguard_core.testing import Reply

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100}
HELLO = chat(lambda _: Reply(text="Hello."))


def post(served, content=None, body=CHAT, path="/chat/completions", timeout=20):
    with httpx.Client(timeout=timeout) as client:
        content = json.dumps(body).encode() if content is None else content
        headers = {**served.auth, "content-type": "application/json"}
        return client.post(served.base_url + path, content=content, headers=headers)


def connections(gateway):
    return [one for pool in gateway.upstream._pools for one in pool.client._transport._pool.connections]


def nothing_is_left(served):
    """No money is held, no request runs, no connection to the provider is open."""
    gateway = served.app.state.gateway
    eventually(lambda: not gateway._running)
    eventually(lambda: served.status().reserved == 0)
    assert len(gateway.guard._live) <= len(gateway.conversations)
    eventually(lambda: not any(pool.running for pool in gateway.upstream._pools))
    eventually(lambda: all(one.is_idle() or one.is_closed() for one in connections(gateway)))
    assert post(served).status_code in (200, 502, 504)


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON at character 1"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "JSON object"),
        (b'{"model": "x"}', "messages"),
        (b'{"messages": "x"}', "messages"),
        (b'{"a": ' * 200_000, "nested too deeply"),
        (b'{"messages": ' + b"[" * 200_000, "nested too deeply"),
    ],
    ids=["empty", "cut", "no text", "a list", "no messages", "text", "deep", "deeper"],
)
def test_a_request_that_cannot_be_read(gateway, content, says):
    provider, served = gateway(HELLO)
    response = post(served, content)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]
    assert provider.requests == []
    nothing_is_left(served)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_a_body_of_50_mb_is_refused(gateway, declared):
    provider, served = gateway(HELLO)
    body = b'{"messages": [' + b" " * 50_000_000 + b"]}"
    content = body if declared else iter([body[at : at + 1_000_000] for at in range(0, len(body), 1_000_000)])
    with httpx.Client(timeout=20) as client:
        try:
            response = client.post(f"{served.base_url}/chat/completions", content=content, headers=served.auth)
        except (httpx.WriteError, httpx.RemoteProtocolError):  # it was refused while it was still being sent
            response = None
    assert response is None or response.status_code == 413
    assert provider.requests == []
    nothing_is_left(served)


def test_a_large_body_within_bounds_is_served(gateway):
    provider, served = gateway(HELLO, limit="50")
    body = {**CHAT, "messages": [{"role": "user", "content": prose(1_000_000)}]}
    assert post(served, body=body).status_code == 200
    assert len(provider.requests[0].body) > 6_000_000


def test_a_client_that_is_slow_to_send(gateway):
    provider, served = gateway(HELLO, body_timeout=0.3)
    host, port = served.origin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.key}\r\n"
        connection.sendall(head.encode() + b'content-length: 100\r\n\r\n{"model"')
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 408")
    assert provider.requests == []
    nothing_is_left(served)


def test_a_client_that_stops_reading(gateway):
    """What it does not read is not fetched for ever either."""

    def endless():
        number = 0
        while True:
            number += 1
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "%d "}}]}\n\n' % number * 500

    provider, served = gateway(lambda _: Answer(endless(), type="text/event-stream", chunked=True), send_timeout=0.5)
    host, port = served.origin.removeprefix("http://").split(":")
    body = json.dumps({**CHAT, "stream": True}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.key}\r\n"
        connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert provider.gone.wait(20)
    eventually(lambda: served.status().reserved == 0)
    assert served.status().spent > 0


def test_many_clients_that_go_away_leave_nothing(gateway):
    def endless():
        number = 0
        while True:
            number += 1
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "%d "}}]}\n\n' % number

    _, served = gateway(lambda _: Answer(endless(), type="text/event-stream", chunked=True))

    def leaves(_):
        with (
            httpx.Client(timeout=20) as client,
            client.stream(
                "POST", f"{served.base_url}/chat/completions", json={**CHAT, "stream": True}, headers=served.auth
            ) as response,
        ):
            assert response.status_code == 200
            next(response.iter_raw())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leaves, range(16)))
    gateway_ = served.app.state.gateway
    eventually(lambda: not gateway_._running)
    eventually(lambda: served.status().reserved == 0)
    eventually(lambda: not connections(gateway_))


def test_requests_that_come_to_nothing_leave_no_session(gateway):
    """Ended by the limit, by the provider, by the client."""

    def persona(request):
        return Reply(status=500) if "error" in request.texts("user")[0] else Reply(text="Hello.")

    _, served = gateway(chat(persona), limit="0.001")
    for number in range(20):
        for name in ("error", "dear"):
            body = {**CHAT, "messages": [{"role": "user", "content": f"{name} {number}"}]}
            assert post(served, body={**body, "max_tokens": 100_000 if name == "dear" else 10}).status_code in (
                402,
                500,
            )
    shared = served.app.state.gateway
    assert len(shared.guard._live) == len(shared.conversations) == 40
    shared.conversations.close()
    assert not shared.guard._live


def test_too_many_requests_at_once_are_told_to_come_back(gateway):
    provider, served = gateway(lambda _: (provider.hang(), HELLO(provider.requests[0]))[1], max_concurrent=3)
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(post, served) for _ in range(3)]
        eventually(lambda: len(provider.requests) == 3)
        refused = post(served)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        provider.release.set()
        assert {one.result().status_code for one in running} == {200}
    assert post(served).status_code == 200


def test_a_client_of_a_named_run_cannot_name_it_too_long(gateway):
    _, served = gateway(HELLO)
    with httpx.Client() as client:
        headers = {**served.auth, "x-loopguard-session": "x" * 129}
        response = client.post(f"{served.base_url}/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 400


# -- providers ---------------------------------------------------------------------------------------------------------


def reset():
    raise Reset


GARBAGE = b"\x00\xff<html>\r\n\r\n" * 50


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        pytest.param(lambda _: Answer([reset], chunked=True), 502, id="resets"),
        pytest.param(lambda _: b"no HTTP at all\r\n\r\n", 502, id="speaks no HTTP"),
        pytest.param(lambda _: b"", 502, id="says nothing"),
        pytest.param(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nshort", 502, id="breaks off"),
        pytest.param(lambda _: b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}", 502, id="no status"),
        pytest.param(lambda _: b"HTTP/1.1 101 Other\r\nupgrade: x\r\n\r\n", 502, id="speaks something else"),
        pytest.param(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n{}", 502, id="less than nothing"),
        pytest.param(lambda _: b"HTTP/1.1 200 OK\r\nx: " + b"y" * 500_000, 502, id="a head without end"),
    ],
)
def test_a_provider_that_fails_before_it_answers(gateway, answer, status, stream):
    _, served = gateway(answer)
    response = post(served, body={**CHAT, "stream": stream})
    assert response.status_code == status
    assert response.json()["error"]["message"].startswith("the provider ")
    assert "127.0.0.1" not in response.text
    nothing_is_left(served)


def test_a_provider_that_is_not_there(gateway, store):
    provider, served = gateway(HELLO)
    provider.close()
    served.app.state.gateway.upstream._address = "http://127.0.0.1:9/v1"
    response = post(served)
    assert response.status_code == 502
    assert "cannot be reached" in response.json()["error"]["message"]
    assert served.settled().spent == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_provider_that_hangs(gateway, stream):
    """It has read the request, and may have gone on to answer it: what was sent is counted."""
    provider, served = gateway(lambda _: (provider.hang(), Answer([b"{}"]))[1], silence_timeout=0.3)
    response = post(served, body={**CHAT, "stream": stream})
    assert response.status_code == 504
    provider.release.set()
    eventually(lambda: served.status().reserved == 0)
    assert 0 < served.status().spent < 1


def test_a_stream_that_hangs_ends_with_an_error(gateway):
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'
    provider, served = gateway(
        lambda _: Answer([event, lambda: provider.hang()], type="text/event-stream", chunked=True), silence_timeout=0.3
    )
    client = openai.OpenAI(base_url=served.base_url, api_key=served.key, max_retries=0)
    with pytest.raises(openai.APIError, match="did not answer in time"):
        list(client.chat.completions.create(**CHAT, stream=True))
    provider.release.set()
    nothing_is_left(served)


def test_a_call_that_takes_too_long_is_ended(gateway):
    def slow():
        number = 0
        while not threading.Event().wait(0.02):
            number += 1
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "%d "}}]}\n\n' % number

    _, served = gateway(lambda _: Answer(slow(), type="text/event-stream", chunked=True), call_timeout=0.5)
    client = openai.OpenAI(base_url=served.base_url, api_key=served.key, max_retries=0)
    with pytest.raises(openai.APIError, match="did not answer in time"):
        list(client.chat.completions.create(**CHAT, stream=True))
    nothing_is_left(served)


def test_the_same_over_responses(gateway):
    event = b'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", "delta": "Hi"}\n\n'
    _, served = gateway(lambda _: Answer([event, reset], type="text/event-stream", chunked=True))
    client = openai.OpenAI(base_url=served.base_url, api_key=served.key, max_retries=0)
    with pytest.raises(openai.APIError, match="the provider"):
        list(client.responses.create(model=MODEL, input="?", stream=True))
    nothing_is_left(served)


@pytest.mark.parametrize("type_", ["application/json", "text/event-stream", "text/html"])
@pytest.mark.parametrize("body", [GARBAGE, b"", b"[1, 2]", b'{"choices": [null]}', b'data: {"choices": 7}\n\n', b"7"])
def test_garbage_is_passed_on_as_it_is_and_counted(gateway, type_, body):
    _, served = gateway(lambda _: Answer([body], type=type_, chunked=True))
    response = post(served, body={**CHAT, "stream": type_ == "text/event-stream"})
    assert response.status_code == 200
    assert response.content == body
    assert served.status().spent > 0
    nothing_is_left(served)


def test_an_answer_that_never_ends_is_refused(gateway):
    def endless():
        while True:
            yield b" " * 100_000

    _, served = gateway(lambda _: Answer(endless(), chunked=True), max_answer=1_000_000)
    response = post(served)
    assert response.status_code == 502
    assert "more than 1000000 bytes" in response.json()["error"]["message"]


def test_a_bomb_in_gzip_is_not_unpacked(gateway):
    from loopguard_gateway_kit import zipped

    bomb = zipped(b" " * 20_000_000)
    _, served = gateway(lambda _: Answer([bomb], headers={"content-encoding": "gzip"}), max_answer=1_000_000)
    with (
        httpx.Client() as client,
        client.stream("POST", f"{served.base_url}/chat/completions", json=CHAT, headers=served.auth) as response,
    ):
        assert b"".join(response.iter_raw()) == bomb


class _SaysMore(socketserver.StreamRequestHandler):
    """Answers each request twice, on a connection that stays open."""

    def handle(self):
        while head := self._head():
            self.rfile.read(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self.wfile.write(head % 2 + b"{}" + head % 15 + b"somebody else's")

    def _head(self):
        head = b""
        while not head.endswith(b"\r\n\r\n") and (line := self.rfile.readline()):
            head += line
        return head


def test_what_follows_an_answer_is_nobody_elses_answer(store):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _SaysMore) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with serving(f"http://127.0.0.1:{server.server_address[1]}/v1", store) as served:
            for number in range(4):
                body = {**CHAT, "messages": [{"role": "user", "content": str(number)}]}
                assert post(served, body=body).content == b"{}"
        server.shutdown()


def test_an_event_of_any_size_is_read(gateway):
    """A response with pictures in it has many megabytes; its usage is at its end."""
    usage = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
    picture = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "A" * 10_000_000}
    response = {"id": "resp_1", "object": "response", "model": MODEL, "output": [picture], "usage": usage}
    event = b"data: %b\n\n" % json.dumps({"type": "response.completed", "response": response}).encode()
    _, served = gateway(lambda _: Answer([event], type="text/event-stream", chunked=True))
    answer = post(served, body={"model": MODEL, "input": "?", "stream": True}, path="/responses")
    assert answer.content == event
    assert served.status().spent == Decimal("0.000009")


def test_hostile_streams_hurt_nobody(gateway):
    """Odd types in every place of a chunk."""
    odd = [None, 1, "x", [], {}, [None], {"a": 1}, True, 1e300]
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": value, "tool_calls": value}}], "usage": value} for value in odd
    ]
    chunks += [{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": value, "id": value}]}}]} for value in odd]
    chunks += [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": v, "arguments": v}}]}}]}
        for v in odd
    ]
    chunks += [{"choices": value, "id": value, "model": value} for value in odd]
    raw = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"
    _, served = gateway(lambda _: Answer([raw], type="text/event-stream", chunked=True))
    response = post(served, body={**CHAT, "stream": True})
    assert response.content == raw
    events = [{"type": v, "response": v, "delta": v, "item": v} for v in odd]
    events += [{"type": "response.completed", "response": {"output": v, "usage": v, "id": v}} for v in odd]
    raw = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    _, other = gateway(lambda _: Answer([raw], type="text/event-stream", chunked=True), key=served.key)
    response = post(other, body={"model": MODEL, "input": "?", "stream": True}, path="/responses")
    assert response.content == raw
