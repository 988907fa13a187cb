"""Below the limit the gateway is not there: what the client sends and gets is what it would send and get without."""

import json
import shutil
import subprocess

import httpx
import pytest
from loopguard_gateway_kit import MODEL, UPSTREAM_KEY, Answer, calls, chat, responses, zipped

from loopguard_core.keys import open_ledger
from loopguard_core.testing import Reply

ODD = b'{ "model": "gpt-4o-mini",\n  "messages": [{"role":"user","content":"caf\\u00e9"}], "x_unknown": [1.50, null] }'


def streamed(body):
    return {**body, "stream": True}


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
ITEMS = {"model": MODEL, "input": "Hello"}
SAYS = Reply(text="Grüße, 世界. " * 12, reasoning="hm")


@pytest.mark.parametrize(
    ("path", "answer", "body"),
    [
        pytest.param("/chat/completions", chat(lambda _: SAYS), CHAT, id="chat"),
        pytest.param("/chat/completions", chat(lambda _: SAYS), streamed(CHAT), id="chat streamed"),
        pytest.param(
            "/chat/completions",
            chat(lambda _: calls({"id": 1}, {"id": 2}, text="I look.")),
            {**streamed(CHAT), "stream_options": {"include_usage": True}},
            id="calls streamed",
        ),
        pytest.param("/responses", responses(lambda _: SAYS), ITEMS, id="responses"),
        pytest.param("/responses", responses(lambda _: SAYS), streamed(ITEMS), id="responses streamed"),
        pytest.param("/responses", responses(lambda _: calls({"id": 1})), streamed(ITEMS), id="items with calls"),
        pytest.param("/chat/completions", chat(lambda _: Reply(status=429)), CHAT, id="an error"),
    ],
)
def test_answers_are_the_same_byte_for_byte(upstream, gateway, path, answer, body):
    provider, served = gateway(answer)
    fresh = upstream(answer) if "responses" not in path else provider
    with httpx.Client() as client:
        through = client.post(served.base_url + path, json=body, headers=served.auth)
        direct = client.post(fresh.base_url + path, json=body)
    got, wanted = through.content, direct.content
    if path == "/responses":  # the scripted provider numbers its answers
        wanted = wanted.replace(b"_2", b"_1")
    assert got == wanted
    assert through.status_code == direct.status_code
    assert through.headers["content-type"] == direct.headers["content-type"]


def test_the_request_is_sent_as_it_was_received(gateway):
    provider, served = gateway(chat(lambda _: Reply(text="yes")))
    with httpx.Client() as client:
        headers = {**served.auth, "content-type": "application/json; charset=utf-8", "x-own": "1", "cookie": "a=b"}
        client.post(f"{served.base_url}/chat/completions?api-version=7", content=ODD, headers=headers)
    (asked,) = provider.requests
    assert asked.body == ODD
    assert asked.path == "/v1/chat/completions?api-version=7"
    assert asked.headers["content-type"] == "application/json; charset=utf-8"
    assert asked.headers["x-own"] == "1"
    assert asked.headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert not {"cookie", "x-loopguard-session"} & set(asked.headers)


def test_a_compressed_answer_stays_compressed_and_is_counted(gateway):
    body = json.dumps(
        {"id": "c", "model": MODEL, "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}
        | {"usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0, "total_tokens": 1_000_000}}
    ).encode()
    packed = zipped(body)
    provider, served = gateway(lambda _: Answer([packed], headers={"content-encoding": "gzip"}))
    headers = {**served.auth, "accept-encoding": "br, gzip;q=0.8, zstd"}
    with (
        httpx.Client() as client,
        client.stream("POST", f"{served.base_url}/chat/completions", json=CHAT, headers=headers) as response,
    ):
        raw = b"".join(response.iter_raw())
    assert raw == packed
    assert response.headers["content-encoding"] == "gzip"
    assert provider.requests[0].headers["accept-encoding"] == "gzip;q=0.8"
    assert float(served.status().spent) == pytest.approx(0.15)


def test_a_stream_is_passed_on_while_it_comes(gateway):
    """The second event is only sent once the client has the first."""
    first, second = b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"
    provider, served = gateway(
        lambda _: Answer([first, lambda: provider.hang(), second], type="text/event-stream", chunked=True)
    )
    with (
        httpx.Client() as client,
        client.stream("POST", f"{served.base_url}/chat/completions", json=streamed(CHAT), headers=served.auth) as got,
    ):
        pieces = got.iter_raw()
        assert next(pieces) == first
        provider.release.set()
        assert b"".join(pieces) == second


def test_the_list_of_models_is_passed_on(gateway):
    provider, served = gateway(lambda _: Answer([b'{"object": "list", "data": []}']))
    with httpx.Client() as client:
        assert client.get(f"{served.base_url}/models", headers=served.auth).content == b'{"object": "list", "data": []}'
        assert client.get(f"{served.base_url}/models").status_code == 401
    assert [asked.path for asked in provider.requests] == ["/v1/models"]


def test_what_would_cost_and_cannot_be_counted_is_not_served(gateway):
    provider, served = gateway(lambda _: Answer([b"{}"]))
    with httpx.Client() as client:
        for path in ("/embeddings", "/images/generations", "/responses/resp_1/cancel", "/files"):
            response = client.post(served.base_url + path, json={}, headers=served.auth)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == 404
        background = client.post(
            f"{served.base_url}/responses", json={**ITEMS, "background": True}, headers=served.auth
        )
        assert background.status_code == 400
        assert "background" in background.json()["error"]["message"]
    assert provider.requests == []


def curl(url, body, *headers):
    """The status and what came, as it came."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    named = [word for header in ("content-type: application/json", *headers) for word in ("-H", header)]
    command = ["curl", "-sS", "-N", "--noproxy", "*", "-w", "\\n%{http_code}", url, *named, "-d", json.dumps(body)]
    run = subprocess.run(command, capture_output=True, check=True, timeout=30)
    answer, _, status = run.stdout.rpartition(b"\n")
    return int(status), answer


LOOPS = [{"role": "user", "content": "Is invoice A-1 due?"}]
for _place in range(6):
    _call = {"id": f"c{_place}", "type": "function", "function": {"name": "fetch", "arguments": "{}"}}
    LOOPS += [{"role": "assistant", "tool_calls": [_call]}]
    LOOPS += [{"role": "tool", "tool_call_id": f"c{_place}", "content": "Error: 504 Gateway Timeout"}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_curl_goes_through(gateway, stream):
    """The same bytes below the limit, an end of its loop, and 402 above."""
    provider, served = gateway(chat(lambda _: Reply(text="Hello, curl. " * 30)))
    url, key = f"{served.base_url}/chat/completions", f"authorization: Bearer {served.key}"
    body = {**CHAT, "stream": stream}
    assert curl(url, body, key) == curl(f"{provider.base_url}/chat/completions", body)
    status, ended = curl(url, {**body, "messages": LOOPS}, key)
    assert status == 200
    assert b"[loopguard] The run was ended" in ended
    assert len(provider.requests) == 2
    with open_ledger(served.store) as ledger:
        ledger.set_limit("team", 0)
    status, refused = curl(url, body, key)
    assert status == 402
    assert json.loads(refused)["error"]["metadata"] == {"limit_source": "loopguard_key_limit"}
    assert len(provider.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403])
def test_the_providers_key_reaches_neither_client_nor_log(gateway, caplog, status):
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", "loopguard")
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {UPSTREAM_KEY}"}}).encode()
    headers = {"x-debug": UPSTREAM_KEY, "set-cookie": "a=b"}
    provider, served = gateway(lambda _: Answer([body], status, headers=headers))
    with httpx.Client() as client:
        response = client.post(f"{served.base_url}/chat/completions", json=CHAT, headers=served.auth)
    assert provider.requests[0].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert UPSTREAM_KEY not in response.text + str(response.headers) + caplog.text
    assert "set-cookie" not in response.headers
    assert response.status_code == (502 if status == 401 else status)
